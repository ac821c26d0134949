"""What the rightsizer says of itself. Pure."""

from dashboards.panels import Ask, Kind, Panel, Row, Source
from dashboards.rows.asking import BAD_TO_GOOD, GPUS, SHARE, increase, of_class, of_each, own

_STALE_S = 2 * 3600

_FREED = (
    f'label_replace({increase("actions_freed_gpus", "action", "priority_class")}, "result", "done", "", "")'
)

RIGHTSIZER = Row(
    "Rightsizer",
    (
        Panel(
            "What this row needs",
            Kind.TEXT,
            (),
            "The panels of this row, money, and GPU-hours freed come from the rightsizer's own metrics: "
            "`gpu-rightsizer run` (in the chart `rightsizer.mode: deployment`) publishes them on port 9401."
            " A CronJob ends before it can be scraped: there they stay empty, and `gpu-rightsizer history` "
            "tells what was done.",
            24,
            3,
        ),
        Panel(
            "Mode",
            Kind.STAT,
            (Ask(f"max ({own('enforcing')})", "mode"),),
            "Whether it makes changes, or only says what it would change.",
            4,
            4,
            "none",
            values={"0": ("advises", "blue"), "1": ("enforces", "green")},
            nothing="not running",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Breaker",
            Kind.STAT,
            (Ask(f"max ({own('breaker_open', 'cause')})", "breaker"),),
            "Open: it has stopped making changes, and waits for a person; `gpu-rightsizer breaker` says why.",
            4,
            4,
            "none",
            values={"0": ("closed", "green"), "1": ("open", "red")},
            nothing="not known",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Since the last cycle that went through",
            Kind.STAT,
            (Ask(f"time() - min ({of_each('last_success_timestamp_seconds')})", "ago"),),
            "For how long no cycle has gone through; of several clusters or installations, where that is longest.",
            4,
            4,
            "s",
            decimals=0,
            steps=(("green", None), ("orange", _STALE_S), ("red", 2 * _STALE_S)),
            nothing="never",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Evidence",
            Kind.STAT,
            (Ask(f"min ({of_each('evidence_coverage_ratio')})", "known"),),
            "Share of the held GPUs about which enough is known to judge; of several clusters or "
            "installations, where it is least. What is not known is never acted upon.",
            4,
            4,
            SHARE,
            decimals=0,
            steps=BAD_TO_GOOD,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Kept free by its changes",
            Kind.STAT,
            (Ask(f"sum ({own('freed_gpus', 'priority_class')})", "GPUs"),),
            "GPUs that changes which stand keep free.",
            4,
            4,
            GPUS,
            decimals=0,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Could be freed",
            Kind.STAT,
            (Ask(f"sum ({own('reclaimable_gpus', 'priority_class')})", "GPUs"),),
            "GPUs that acting upon all findings would free.",
            4,
            4,
            GPUS,
            decimals=0,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "GPUs by verdict",
            Kind.LINES,
            (
                Ask(
                    f"sum by (verdict) ({own('gpus', 'verdict', 'finding', 'priority_class')})",
                    "{{verdict}}",
                ),
            ),
            "act: idle, and a rule allows to act. keep: at work. protected: by the policy. unknown: the "
            "evidence does not suffice.",
            8,
            unit=GPUS,
            is_stacked=True,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Findings now",
            Kind.TABLE,
            (
                Ask(
                    f"sum by (finding, verdict) ({own('workloads', 'verdict', 'finding', 'priority_class')})",
                    "workloads",
                ),
                Ask(
                    f"sum by (finding, verdict) ({own('gpus', 'verdict', 'finding', 'priority_class')})",
                    "GPUs",
                ),
            ),
            "What was found of the workloads, and what follows from it.",
            8,
            unit=GPUS,
            columns={"finding": "finding", "verdict": "verdict"},
            decimals=0,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Money wasted and freed, per hour",
            Kind.LINES,
            (
                Ask(of_class("gpu:class:wasted_cost:per_hour"), "wasted {{priority_class}}"),
                Ask(of_class("gpu:class:freed_cost:per_hour"), "freed {{priority_class}}"),
            ),
            "In the currency of the rightsizer's price table. Wasted: the price of what is held and not "
            "used. Freed: of what changes keep free, at the mean price of all GPUs that are held.",
            8,
            unit="none",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Actions in this time range",
            Kind.TABLE,
            (
                Ask(increase("actions", "action", "result", "priority_class"), "changes"),
                Ask(_FREED, "GPUs freed"),
            ),
            "Changes by how they ended, and the GPUs that they freed.",
            8,
            unit="none",
            columns={"action": "action", "result": "result", "priority_class": "class"},
            decimals=0,
            nothing="none in this time range",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "What came back, in this time range",
            Kind.TABLE,
            (Ask(increase("repairs", "repair", "result"), "repairs"),),
            "put-back: undone by the rightsizer, because what it changed did not come up healthy. remember:"
            " somebody else took a change back, and it is not repeated. settle and drop-manifest: notes "
            "that were tidied up.",
            8,
            unit="none",
            columns={"repair": "repair", "result": "result"},
            decimals=0,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "What holds changes back",
            Kind.LINES,
            (Ask(own("blocked_workloads", "cause"), "{{cause}}"),),
            "Workloads that would be changed but for this cause.",
            8,
            unit="none",
            nothing="nothing is held back",
            source=Source.RIGHTSIZER,
        ),
    ),
)
