"""GPU-hours and money: held, used, reclaimable, by PriorityClass, namespace, model and verdict. Pure."""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from rightsizer.model import Decision, Node, Plan, Pod, Usage
from rightsizer.model.gpu_fractions import gpus_of_node, part_of_devices
from rightsizer.prices import Prices, PriceSource

HOUR_S = 3600.0
NO_CLASS = "(none)"
UNKNOWN_CLASS = "(unknown)"
NO_MODEL = "(unknown)"


@dataclasses.dataclass(slots=True)
class CostTotals:
    """Amounts that a part of the fleet holds and uses.

    Attributes:
        gpus: Whole GPUs held now, of which MIG instances and shares are parts.
        parts: Number of these MIG instances and shares.
        used: Of the GPUs, by mean activity.
        unknown: Of the GPUs, those whose activity is not known.
        gpu_hours_held: In whole GPUs, over the window, by the pods that are there now.
        gpu_hours_used: Of those, by mean activity.
        gpu_hours_unknown: Of those, for which no activity is known.
        reclaimable: GPUs that the findings of verdict act would free.
        enforced: Of those, what applying the plan frees.
        wasted_per_hour: Of that, what is not used, by mean activity; what is not known to be unused is not waste.
        unpriced: Pods without a known price.
    """

    workloads: int = 0
    gpus: float = 0.0
    parts: int = 0
    used: float = 0.0
    unknown: float = 0.0
    gpu_hours_held: float = 0.0
    gpu_hours_used: float = 0.0
    gpu_hours_unknown: float = 0.0
    reclaimable: float = 0.0
    enforced: float = 0.0
    cost_per_hour: float = 0.0
    wasted_per_hour: float = 0.0
    reclaimable_per_hour: float = 0.0
    enforced_per_hour: float = 0.0
    unpriced: int = 0

    @property
    def unused(self) -> float:
        """Number of the GPUs that are known to be unused, by mean activity."""
        return max(0.0, self.gpus - self.used - self.unknown)

    def add(self, other: "CostTotals") -> None:
        """Add another's numbers to these."""
        for field in _FIELDS:
            setattr(self, field, getattr(self, field) + getattr(other, field))


_FIELDS = tuple(field.name for field in dataclasses.fields(CostTotals))


@dataclasses.dataclass(frozen=True, slots=True)
class CostSummary:
    """The account of the fleet and of its parts; GPU-hours are those of the window.

    Attributes:
        fleet: Whole GPUs of all nodes; None where no node is known.
        held: Of these, those that pods of any workload hold, also of one that a filter leaves out.
        nodes_by_source: How many nodes with these pods have their price from each source.
        nodes_that_differ: Of these, by source, those that are in another region than its prices, or spot.
    """

    window: datetime.timedelta
    fleet: float | None
    held: float
    total: CostTotals
    by_class: Mapping[str, CostTotals]
    by_namespace: Mapping[str, CostTotals]
    by_model: Mapping[str, CostTotals]
    by_verdict: Mapping[str, CostTotals]
    nodes_by_source: Mapping[PriceSource, int]
    nodes_that_differ: Mapping[PriceSource, Sequence[Node]]

    @property
    def free(self) -> float | None:
        """The GPUs that nobody holds."""
        return None if self.fleet is None else self.fleet - self.held


def cost_summary_of(plan: Plan, prices: Prices) -> CostSummary:
    """Add up a plan, over the longest of the windows that were measured."""
    measured = plan.measured.usages if plan.measured else {}
    window = max(measured, default=datetime.timedelta())
    counter = _Counter(plan, prices, window)
    total = CostTotals()
    groups: tuple[dict[str, CostTotals], ...] = ({}, {}, {}, {})
    for decision in plan.decisions:
        account = counter.account(decision)
        total.add(account)
        names = (
            decision.workload.priority_class or NO_CLASS,
            decision.workload.ref.namespace,
            model_of(decision, counter.nodes),
            decision.verdict.value,
        )
        for group, name in zip(groups, names, strict=True):
            group.setdefault(name, CostTotals()).add(account)
    by_class, by_namespace, by_model, by_verdict = (dict(sorted(group.items())) for group in groups)
    nodes = plan.fleet.nodes.values() if plan.fleet else ()
    fleet = sum(map(gpus_of_node, nodes)) if nodes else None
    held = sum(workload.gpus for workload in plan.fleet.workloads) if plan.fleet else total.gpus
    return CostSummary(
        window,
        fleet,
        held,
        total,
        by_class,
        by_namespace,
        by_model,
        by_verdict,
        counter.nodes_by_source(),
        counter.nodes_that_differ(),
    )


class _Counter:
    def __init__(self, plan: Plan, prices: Prices, window: datetime.timedelta) -> None:
        self._at = plan.at
        self._window = window
        self._usages = plan.measured.usages.get(window, {}) if plan.measured else {}
        self.nodes: Mapping[str, Node] = plan.fleet.nodes if plan.fleet else {}
        self._prices = prices
        self._sources: dict[PriceSource, set[str]] = {}
        """Names of the nodes."""

    def nodes_by_source(self) -> Mapping[PriceSource, int]:
        """Number of nodes with a price from each source."""
        return {source: len(self._sources[source]) for source in sorted(self._sources, key=str)}

    def nodes_that_differ(self) -> Mapping[PriceSource, Sequence[Node]]:
        """Nodes for which a source's prices are not meant, by source."""
        found = {
            source: [self.nodes[name] for name in sorted(names) if not source.fits(self.nodes[name])]
            for source, names in sorted(self._sources.items(), key=lambda pair: str(pair[0]))
        }
        return {source: nodes for source, nodes in found.items() if nodes}

    def account(self, decision: Decision) -> CostTotals:
        """One workload's."""
        account = CostTotals(workloads=1, gpus=decision.workload.gpus, parts=decision.workload.parts)
        for pod in decision.workload.pods:
            if pod.holds:
                self._add_pod(account, pod)
        account.reclaimable = decision.reclaimable
        account.enforced = decision.frees if decision.is_enforced else 0.0
        if account.gpus:
            account.reclaimable_per_hour = account.cost_per_hour * account.reclaimable / account.gpus
            account.enforced_per_hour = account.cost_per_hour * account.enforced / account.gpus
        return account

    def _add_pod(self, account: CostTotals, pod: Pod) -> None:
        node = self.nodes.get(pod.node)
        whole = pod.gpus
        hours = whole * held_h(pod, self._at - self._window, self._at)
        used = used_part(self._usages.get((pod.ref.namespace, pod.ref.name), ()), pod, node)
        found = self._prices.find(node)
        price = found[0] if found else None
        if node and found:
            self._sources.setdefault(found[1], set()).add(node.name)
        account.used += whole * (used or 0.0)
        account.unknown += whole if used is None else 0.0
        account.gpu_hours_held += hours
        account.gpu_hours_used += hours * (used or 0.0)
        account.gpu_hours_unknown += hours if used is None else 0.0
        account.unpriced += price is None
        account.cost_per_hour += whole * (price or 0.0)
        account.wasted_per_hour += 0.0 if used is None else whole * (price or 0.0) * (1.0 - used)


def held_h(pod: Pod, begin: datetime.datetime, end: datetime.datetime) -> float:
    """Hours of a time in which the pod has been there."""
    began = pod.held_since
    return 0.0 if began is None else max((end - max(began, begin)).total_seconds(), 0.0) / HOUR_S


def model_of(decision: Decision, nodes: Mapping[str, Node]) -> str:
    """The model of a workload's GPUs; several in one name."""
    found = (nodes.get(pod.node) for pod in decision.workload.pods if pod.holds)
    return ", ".join(sorted({node.model for node in found if node and node.model})) or NO_MODEL


def used_part(usages: Sequence[Usage], pod: Pod, node: Node | None) -> float | None:
    """The part of what a pod holds that it used on average, 0 to 1; None where one of its devices is not measured.

    The pod's own activity on a shared device is divided by its share. The activity of the device itself is that of each
    share.
    """
    part = part_of_devices(pod, node)
    usages = [usage for usage in usages if usage.is_held]
    means = [
        min(usage.activity_mean / part, 1.0) if usage.is_own else usage.activity_mean
        for usage in usages
        if usage.activity_mean is not None and not usage.invalid
    ]
    return sum(means) / len(means) if means and len(means) == len(usages) >= min(pod.devices, 1) else None
