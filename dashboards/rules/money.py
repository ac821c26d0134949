"""Cost, from the rightsizer's metrics; its replicas publish the same values. Pure."""

from dashboards.promql import by
from dashboards.rules.records import Group, Rule

_CLASS = ("cluster", "priority_class")

_PRICE = "{} / ({} > 0)".format(
    *(
        by("sum", ("cluster",), by("max", _CLASS, f"gpu_rightsizer_{held}"))
        for held in ("held_cost_per_hour", "held_whole_gpus")
    )
)
"""Mean price of a held GPU per hour."""
_FREED_COST = f"{by('max', _CLASS, 'gpu_rightsizer_freed_gpus')} * on (cluster) group_left () ({_PRICE})"

MONEY = Group(
    "money",
    "1m",
    (
        Rule("gpu:class:wasted_cost:per_hour", by("max", _CLASS, "gpu_rightsizer_wasted_cost_per_hour")),
        Rule("gpu:class:freed", by("max", _CLASS, "gpu_rightsizer_freed_gpus")),
        Rule("gpu:class:freed_cost:per_hour", _FREED_COST),
    ),
)
