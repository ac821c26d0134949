"""Rows of the ledger, from a plan and its outcomes. Pure.

A plan stands for the time since the one before. For this time each pod that exists now held its GPUs since it was
created; its activity is the mean of the shortest window that covers the time. Pods that ended in between are missed.
"""

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from rightsizer.kinds.health import is_verified
from rightsizer.model import (
    Action,
    Decision,
    FoundChange,
    Node,
    ObjectRef,
    Outcome,
    Plan,
    Pod,
    Result,
    Usage,
    Workload,
)
from rightsizer.model.gpu_fractions import gpus_of_node
from rightsizer.planning.cost_summary import HOUR_S, held_h, model_of, used_part
from rightsizer.prices import Prices

LONGEST = datetime.timedelta(days=1)
"""The most time that one plan stands for; the first plan, too, stands for as much."""
_OVERLAP = datetime.timedelta(hours=1)
"""Returns are recorded again for so long, in case a cycle missed them; the same return counts once."""

MADE, RETURNED = "made", "returned"


@dataclasses.dataclass(frozen=True, slots=True)
class Holder:
    """Holder of GPUs.

    Attributes:
        owner: The workload, or what starts one after another, such as a CronJob, as NAMESPACE/KIND/NAME.
        team: Value of the label that names teams; of the namespace, the workload or its pods. Empty if none has it.
        priority_class: Empty if it has none.
        model: Empty if it is unknown.
    """

    namespace: str = ""
    kind: str = ""
    name: str = ""
    owner: str = ""
    team: str = ""
    priority_class: str = ""
    model: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class UsageEntry:
    """GPU-hours of one workload in one UTC day; of the whole cluster, if the holder has no name.

    Attributes:
        held_h: In whole GPUs. `used_h` is by mean activity, `unknown_h` is that for which no activity is known.
        reclaimable_h: Those that the findings would have freed.
        cost: Of what is held, `unused_cost` of what is measured as unused, as far as a price is known.
        unpriced_h: Held, without a known price.
        recorded_h: Only of the cluster: the time that the plan stands for.
        fleet_h: Only of the cluster: of all GPUs, held or free; None if no node is known.
    """

    day: datetime.date
    holder: Holder
    currency: str
    held_h: float = 0.0
    used_h: float = 0.0
    unknown_h: float = 0.0
    reclaimable_h: float = 0.0
    cost: float = 0.0
    unused_cost: float = 0.0
    unpriced_h: float = 0.0
    recorded_h: float = 0.0
    fleet_h: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ChangeEntry:
    """A change that was made, or GPUs of one that were returned.

    Attributes:
        event: MADE or RETURNED.
        run: Of the change, as is `uid`, of the changed workload.
        holder: The changed workload.
        is_verified: Of MADE: whether verification saw its pods go.
        price: Of one of its GPUs for an hour; None if unknown.
        cluster: In whose folder it was found; empty before it is written.
    """

    event: str
    at: datetime.datetime
    run: str
    uid: str
    holder: Holder
    action: str
    gpus: float
    currency: str = ""
    is_verified: bool = False
    price: float | None = None
    cluster: str = ""


class LedgerPeriod(NamedTuple):
    """The time that a plan stands for."""

    begin: datetime.datetime
    end: datetime.datetime

    @classmethod
    def until(cls, at: datetime.datetime, before: datetime.datetime | None) -> "LedgerPeriod":
        """Since the plan before, if there was one lately."""
        earliest = at - LONGEST
        return cls(min(at, max(before, earliest)) if before else earliest, at)

    @property
    def hours(self) -> float:
        """Length in hours."""
        return max((self.end - self.begin).total_seconds(), 0.0) / HOUR_S

    def days(self) -> Iterator[tuple[datetime.date, "LedgerPeriod"]]:
        """The part of it in each UTC day."""
        begin, end = self.begin.astimezone(datetime.UTC), self.end.astimezone(datetime.UTC)
        while begin < end:
            tomorrow = datetime.datetime.combine(
                begin.date() + datetime.timedelta(days=1), datetime.time(), datetime.UTC
            )
            yield begin.date(), LedgerPeriod(begin, min(end, tomorrow))
            begin = tomorrow


class _Measured(NamedTuple):
    """A pod with its mean activity and the price of its GPUs; None where they are not known."""

    pod: Pod
    activity: float | None
    price: float | None


@dataclasses.dataclass(frozen=True)
class Bookkeeper:
    """Maker of the rows of one plan.

    Attributes:
        team_label: The label that names teams.
    """

    plan: Plan
    prices: Prices
    team_label: str

    @property
    def _nodes(self) -> Mapping[str, Node]:
        return self.plan.fleet.nodes if self.plan.fleet else {}

    def usage(self, period: LedgerPeriod) -> Iterator[UsageEntry]:
        """The cluster's rows, and those of each workload that holds GPUs."""
        currency = self.prices.currency
        fleet = sum(map(gpus_of_node, self._nodes.values())) if self._nodes else None
        days = list(period.days())
        for day, part in days:
            all_gpus = None if fleet is None else fleet * part.hours
            yield UsageEntry(day, Holder(), currency, recorded_h=part.hours, fleet_h=all_gpus)
        for decision in self.plan.decisions:
            pods = [self._measured(pod, period) for pod in decision.workload.holding]
            holder = self.holder(decision)
            for day, part in days:
                entry = self._entry(day, part, holder, decision, pods)
                if entry.held_h:
                    yield entry

    def _measured(self, pod: Pod, period: LedgerPeriod) -> "_Measured":
        price = self.prices.of_node(self._nodes.get(pod.node))
        return _Measured(pod, self._activity(pod, datetime.timedelta(hours=period.hours)), price)

    def _activity(self, pod: Pod, length: datetime.timedelta) -> float | None:
        key = (pod.ref.namespace, pod.ref.name)
        usages = self.plan.measured.usages if self.plan.measured else {}
        windows = sorted(usages)
        covering = [window for window in windows if window >= length] or windows[-1:]
        found: Iterable[Sequence[Usage]] = (usages[window].get(key, ()) for window in covering)
        means = (used_part(held, pod, self._nodes.get(pod.node)) for held in found)
        return next((mean for mean in means if mean is not None), None)

    def _entry(
        self,
        day: datetime.date,
        part: LedgerPeriod,
        holder: Holder,
        decision: Decision,
        pods: Iterable["_Measured"],
    ) -> UsageEntry:
        held = used = unknown = cost = unused_cost = unpriced = 0.0
        for pod, activity, price in pods:
            hours = pod.gpus * held_h(pod, *part)
            held += hours
            used += hours * (activity or 0.0)
            unknown += hours if activity is None else 0.0
            cost += hours * (price or 0.0)
            unused_cost += 0.0 if activity is None else hours * (price or 0.0) * (1.0 - activity)
            unpriced += hours if price is None else 0.0
        share = min(max(decision.reclaimable / (decision.workload.gpus or 1), 0.0), 1.0)
        return UsageEntry(
            day, holder, self.prices.currency, held, used, unknown, held * share, cost, unused_cost, unpriced
        )

    def holder(self, decision: Decision) -> Holder:
        """Holder of the GPUs that a decision is about."""
        workload, ref = decision.workload, decision.workload.ref
        model = model_of(decision, self._nodes)
        return Holder(
            ref.namespace,
            ref.kind,
            ref.name,
            str(workload.starter or ref),
            self._team(workload),
            workload.priority_class,
            model,
        )

    def _team(self, workload: Workload) -> str:
        pods = (pod.labels for pod in workload.pods)
        # The namespace's is an administrator's: whoever deploys a workload must not charge it to another team.
        labels = (workload.namespace_labels, workload.labels, *pods)
        return next((own[self.team_label] for own in labels if own.get(self.team_label)), "")

    def changes(self, outcomes: Sequence[Outcome]) -> Iterator[ChangeEntry]:
        """The changes that were made, and the GPUs that a scale-up returned."""
        by_ref = {decision.workload.ref: decision for decision in self.plan.decisions}
        for outcome in outcomes:
            decision = by_ref.get(outcome.ref)
            is_made = outcome.result in {Result.DONE, Result.NO_EFFECT}
            if outcome.is_reconciliation or not is_made or decision is None:
                continue
            if outcome.action == Action.NOTICE:
                continue
            event = RETURNED if outcome.action == Action.SCALE_UP else MADE
            yield self._change(event, outcome, decision)

    def _change(self, event: str, outcome: Outcome, decision: Decision) -> ChangeEntry:
        prices = [self.prices.of_node(self._nodes.get(pod.node)) for pod in decision.workload.holding]
        known = [price for price in prices if price is not None]
        return ChangeEntry(
            event,
            outcome.at,
            self.plan.run,
            outcome.ref.uid,
            self.holder(decision),
            outcome.action,
            abs(outcome.gpus),
            currency=self.prices.currency,
            is_verified=event == MADE and is_verified(outcome),
            price=sum(known) / len(known) if known and len(known) == len(prices) else None,
        )

    def returns(self, period: LedgerPeriod) -> Iterator[ChangeEntry]:
        """Earlier changes that ended in the period, as their records say."""
        changes = self.plan.fleet.changes if self.plan.fleet else ()
        holders = {decision.workload.ref.uid: self.holder(decision) for decision in self.plan.decisions}
        for change in changes:
            record = change.record
            if record.ended is None or record.end is None or not record.end.returns:
                continue
            is_new = period.begin - _OVERLAP < record.ended <= period.end
            if is_new and change.is_remembered and record.takes:
                holder = holders.get(change.ref.uid) or _holder_of(change)
                yield ChangeEntry(
                    RETURNED,
                    record.ended,
                    record.run,
                    change.ref.uid,
                    holder,
                    record.end.value,
                    record.gpus,
                    currency=self.prices.currency,
                )


def _holder_of(change: FoundChange) -> Holder:
    ref: ObjectRef = change.record.workload or change.ref
    owner = str(change.starter or ref)
    return Holder(ref.namespace, ref.kind, ref.name, owner, "", change.record.priority_class or "", "")
