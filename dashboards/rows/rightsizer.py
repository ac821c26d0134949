"""Row of the rightsizer's own metrics. Pure."""

from dashboards.panels import Kind, Panel, Query, Row, Source
from dashboards.rows.queries import BAD_TO_GOOD, GPUS, SHARE, increase, of_class, of_each, own

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
            "This row, cost and freed GPU-hours need the metrics of `gpu-rightsizer run` on port 9401 (chart: "
            "`rightsizer.mode: deployment`). A CronJob ends before Prometheus can scrape it: use "
            "`gpu-rightsizer history`.",
            24,
            3,
        ),
        Panel(
            "Mode",
            Kind.STAT,
            (Query(f"max ({own('enforcing')})", "mode"),),
            "Whether it makes changes, or only reports what it would change.",
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
            (Query(f"max ({own('breaker_open', 'cause')})", "breaker"),),
            "Open: it stopped all changes until an operator resets it. `gpu-rightsizer breaker` shows the cause.",
            4,
            4,
            "none",
            values={"0": ("closed", "green"), "1": ("open", "red")},
            nothing="unknown",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Since the last successful cycle",
            Kind.STAT,
            (Query(f"time() - min ({of_each('last_success_timestamp_seconds')})", "ago"),),
            "Time since the last successful cycle; the longest of several clusters or installations.",
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
            (Query(f"min ({of_each('evidence_coverage_ratio')})", "known"),),
            "Share of held GPUs with enough data for a verdict; the lowest of several clusters or "
            "installations. GPUs without a verdict are never changed.",
            4,
            4,
            SHARE,
            decimals=0,
            steps=BAD_TO_GOOD,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Kept free by active changes",
            Kind.STAT,
            (Query(f"sum ({own('freed_gpus', 'priority_class')})", "GPUs"),),
            "GPUs that active changes keep free.",
            4,
            4,
            GPUS,
            decimals=0,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Could be freed",
            Kind.STAT,
            (Query(f"sum ({own('reclaimable_gpus', 'priority_class')})", "GPUs"),),
            "GPUs that would be freed if all findings were enforced.",
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
                Query(
                    f"sum by (verdict) ({own('gpus', 'verdict', 'finding', 'priority_class')})",
                    "{{verdict}}",
                ),
            ),
            "act: a finding, and a rule allows the change. keep: in use. protected: by the policy. unknown: "
            "not enough data.",
            8,
            unit=GPUS,
            is_stacked=True,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Findings now",
            Kind.TABLE,
            (
                Query(
                    f"sum by (finding, verdict) ({own('workloads', 'verdict', 'finding', 'priority_class')})",
                    "workloads",
                ),
                Query(
                    f"sum by (finding, verdict) ({own('gpus', 'verdict', 'finding', 'priority_class')})",
                    "GPUs",
                ),
            ),
            "Findings and verdicts of workloads.",
            8,
            unit=GPUS,
            columns={"finding": "finding", "verdict": "verdict"},
            decimals=0,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Cost wasted and freed, per hour",
            Kind.LINES,
            (
                Query(of_class("gpu:class:wasted_cost:per_hour"), "wasted {{priority_class}}"),
                Query(of_class("gpu:class:freed_cost:per_hour"), "freed {{priority_class}}"),
            ),
            "In the currency of the price table. Wasted: cost of held but unused GPUs. Freed: GPUs kept free, at the "
            "mean price of held GPUs.",
            8,
            unit="none",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Changes in this time range",
            Kind.TABLE,
            (
                Query(increase("actions", "action", "result", "priority_class"), "changes"),
                Query(_FREED, "GPUs freed"),
            ),
            "Changes by result, and the GPUs that they freed.",
            8,
            unit="none",
            columns={"action": "action", "result": "result", "priority_class": "class"},
            decimals=0,
            nothing="none in this time range",
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Reconciliations in this time range",
            Kind.TABLE,
            (Query(increase("reconciliations", "action", "result"), "reconciliations"),),
            "rollback: of an unhealthy workload. record-revert: reverted by someone else, not repeated soon. "
            "confirm, delete-manifest: completed records.",
            8,
            unit="none",
            columns={"action": "action", "result": "result"},
            decimals=0,
            source=Source.RIGHTSIZER,
        ),
        Panel(
            "Blocked changes",
            Kind.LINES,
            (Query(own("blocked_workloads", "cause"), "{{cause}}"),),
            "Workloads that would be changed without this blocker.",
            8,
            unit="none",
            nothing="none blocked",
            source=Source.RIGHTSIZER,
        ),
    ),
)
