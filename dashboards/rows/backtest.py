"""Row of the scheduled backtest's figures. Pure."""

from dashboards.panels import Kind, Panel, Query, Row, Source
from dashboards.rows.queries import own

_OLD_S = 8 * 86_400
"""A weekly backtest is a day late."""


def _figure(name: str) -> str:
    return own(f"backtest_{name}", "policy")


_FREED = f"{_figure('freed_gpus')} * 24"
_SAVED = f"{_figure('saved_cost_per_hour')} * 24"

BACKTEST = Row(
    "What enforce would have freed",
    (
        Panel(
            "GPU-hours freed per day",
            Kind.STAT,
            (Query(_FREED, "{{policy}}"),),
            "By each policy, in the last backtest (chart: `backtest.enabled`).",
            8,
            4,
            "none",
            decimals=0,
            nothing="no backtest yet",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Saved per day",
            Kind.STAT,
            (Query(_SAVED, "{{policy}}"),),
            "Their known price, less restarts.",
            8,
            4,
            "none",
            decimals=0,
            nothing="no known price",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Age of the figures",
            Kind.STAT,
            (Query(f"time() - min by (cluster) ({_figure('timestamp_seconds')})", "ago"),),
            "Time since the history ended that the last backtest replayed.",
            8,
            4,
            "s",
            decimals=0,
            steps=(("green", None), ("orange", _OLD_S), ("red", 2 * _OLD_S)),
            nothing="no backtest yet",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Last backtest, by policy",
            Kind.TABLE,
            (
                Query(_FREED, "GPU-hours per day"),
                Query(_SAVED, "saved per day"),
                Query(_figure("stops"), "stops"),
                Query(_figure("returned_stops"), "returned"),
                Query(_figure("replayed_seconds"), "replayed", "s"),
            ),
            "Stops, and those whose workload worked again, of the whole replayed time.",
            12,
            unit="none",
            columns={"policy": "policy"},
            decimals=0,
            nothing="no backtest yet",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "GPU-hours freed per day, from backtest to backtest",
            Kind.LINES,
            (Query(_FREED, "{{policy}}"),),
            "The replayed times overlap.",
            12,
            unit="none",
            nothing="no backtest yet",
            source=Source.RIGHTSIZER,
        ),
    ),
)
