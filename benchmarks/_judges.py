"""Who is asked at each step which workloads should give their GPUs back: our own judgement, and plain rules.

Ours are the very stages that `plan` runs after Prometheus has answered; here the answers are read off a Record.
"""

import dataclasses
import datetime
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from benchmarks._fleet import MINUTES, SAMPLES, STEP_S, Member, Record
from rightsizer.decide import decide
from rightsizer.model import (
    Action,
    Change,
    Concurrency,
    Decision,
    Device,
    FindingName,
    Fleet,
    History,
    Measured,
    Mode,
    ObjectRef,
    Pod,
    PodKey,
    Usage,
    Usages,
    Verdict,
    Workload,
)
from rightsizer.policy.document import API_VERSION, Match, Policy, Rule
from rightsizer.policy.rule import IDLENESS
from rightsizer.policy.rules import Rulebook
from simulator.cards import CARDS

HOUR_STEPS = 3600 // STEP_S
_MEMORY = 80e9
_BUSY = bytes(int(percent > 1) for percent in range(256))
"""Of the highest sample of a step: whether it is above the threshold of the defaults."""

ENFORCING = Policy(
    apiVersion=API_VERSION,
    kind="Policy",
    rules=(
        Rule(
            name="everything",
            match=Match(everything=True),
            mode=Mode.ENFORCE,
            findings={FindingName.STUCK: "enforce"},
            actions=tuple(action for action in Action if action is not Action.NOTIFY),
        ),
    ),
)
"""The built-in defaults, enforced on everything: so the judgement is measured, and nothing that stands before it."""
_API_VERSIONS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "Job": "batch/v1",
    "Pod": "v1",
    "PyTorchJob": "kubeflow.org/v1",
    "Notebook": "kubeflow.org/v1",
    "InferenceService": "serving.kserve.io/v1beta1",
}


@dataclasses.dataclass(slots=True)
class Standing:
    """A workload as it stands now.

    Attributes:
        since_s: When its present pods began.
        changed_s: When it was last made to give its GPUs back; None where it never was.
        resumes_s: When it will be back; None while it runs.
        noticed_s: Since when it has been under notice; None where it is not.
    """

    member: Member
    since_s: float
    changed_s: float | None = None
    resumes_s: float | None = None
    noticed_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """What a judge says of a workload.

    Attributes:
        finding: By which it condemns it; empty where it only advises.
        window_s: The window that it looked at.
        notice_s: How long before the change it gives notice.
        replicas: How many it would leave; None where all.
        frees: GPUs that its advice would free of those of each pod.
    """

    standing: Standing
    finding: str
    window_s: float
    notice_s: float = 0.0
    replicas: int | None = None
    frees: float = 0.0


class Judge(Protocol):
    """Someone who says which workloads should give their GPUs back."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    def judge(self, standings: Sequence[Standing], at_s: int) -> Iterator[Word]:
        """Its word on those of the workloads on which it has one."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """Highest utilization 0 over a window: of any GPU (then one is enough to condemn all), or of all.

    Attributes:
        grace_s: How much longer than the window pods must have run.
    """

    name: str
    window_s: int
    grace_s: int
    is_any: bool

    def judge(self, standings: Sequence[Standing], at_s: int) -> Iterator[Word]:
        """Its word."""
        for one in standings:
            if at_s - one.since_s < self.window_s + self.grace_s:
                continue
            stop = _step(one.member, at_s)
            start = stop - self.window_s // STEP_S
            idle = (not any(record.activity[start:stop]) for record in itertools.chain(*one.member.records))
            if (any if self.is_any else all)(idle):
                yield Word(one, "idle", self.window_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Ours:
    """The stages assess and decide, under a policy.

    Attributes:
        has_counters: Whether our exporter's counters are there, or gauges alone, as of dcgm-exporter.
    """

    name: str = "gpu-rightsizer"
    policy: Policy = ENFORCING
    has_counters: bool = False

    def judge(self, standings: Sequence[Standing], at_s: int) -> Iterator[Word]:
        """What would be enforced, and of advice what is about replicas and GPUs of each pod."""
        at = _instant(at_s)
        workloads = {_uid(one.member): _workload(one.member, one.since_s) for one in standings}
        changes = tuple(
            Change(workloads[_uid(one.member)].ref, _instant(one.changed_s), one.member.gpus)
            for one in standings
            if one.changed_s is not None
        )
        rulebook = Rulebook(self.policy, Fleet(tuple(workloads.values()), {}, {}, changes), at=at)
        sight = _Sight(standings, at_s, has_counters=self.has_counters)
        by_uid = {_uid(one.member): one for one in standings}
        for decision in decide(sight.measured(rulebook), rulebook):
            standing = by_uid[decision.workload.ref.uid]
            if _condemns(decision):
                wait = rulebook.on(decision.workload).notify_before or datetime.timedelta()
                window = decision.finding.window or datetime.timedelta()
                yield Word(
                    standing, decision.finding.name, window.total_seconds(), notice_s=wait.total_seconds()
                )
            else:
                yield from _advice(standing, decision)


def _condemns(decision: Decision) -> bool:
    """Whether all is to be given back; of a kind that cannot be stopped yet, whether it would be."""
    is_whole = decision.finding.name in {*IDLENESS, FindingName.STUCK}
    if decision.finding.verdict is not Verdict.ACT or not is_whole or decision.blocks:
        return False
    return all(veto.rule == "kind" for veto in decision.vetoes)


def _advice(standing: Standing, decision: Decision) -> Iterator[Word]:
    for finding in (decision.finding, *decision.also):
        if finding.proposal is None or finding.verdict is not Verdict.ACT:
            continue
        if finding.name is FindingName.TOO_MANY_REPLICAS:
            yield Word(standing, "", 0.0, replicas=finding.proposal.replicas)
        elif finding.name is FindingName.TOO_MANY_GPUS:
            yield Word(standing, "", 0.0, frees=finding.proposal.frees)


@dataclasses.dataclass(frozen=True, slots=True)
class _Sight:
    """What Prometheus would answer at an instant."""

    standings: Sequence[Standing]
    at_s: int
    has_counters: bool

    def measured(self, rulebook: Rulebook) -> Measured:
        """All that is asked of it."""
        criteria = list(rulebook.all_criteria())
        windows = sorted({window for each in criteria for window in each.windows})
        history_s = max(each.idle.history for each in criteria).total_seconds()
        days = max(each.too_many_replicas.days for each in criteria)
        histories = [self._histories(one, history_s) for one in self.standings]
        return Measured(
            at=_instant(self.at_s),
            usages={window: self._usages(int(window.total_seconds())) for window in windows},
            histories=dict(itertools.chain.from_iterable(each.items() for each in histories)),
            concurrency={
                _uid(one.member): self._concurrency(one, days)
                for one in self.standings
                if one.member.spec.replicas > 1
            },
        )

    def _usages(self, window_s: int) -> Usages:
        steps = window_s // STEP_S
        found: dict[PodKey, list[Usage]] = {}
        for one in self.standings:
            stop = _step(one.member, self.at_s)
            first = max(stop - steps, _step(one.member, int(one.since_s)))
            covered = min(1.0, (self.at_s - one.since_s) / window_s)
            if first >= stop:
                continue
            for pod, records in enumerate(one.member.records):
                found[_pod_key(one.member, pod)] = [
                    self._usage(record, device, first, stop, covered)
                    for device, record in zip(_devices(one.member, pod), records, strict=True)
                ]
        return found

    def _usage(self, record: Record, device: Device, first: int, stop: int, covered: float) -> Usage:
        samples = (stop - first) * SAMPLES
        return Usage(
            device=device,
            activity_mean=(record.activity_sum[stop] - record.activity_sum[first]) / samples / 100,
            activity_peak=max(record.activity[first:stop]) / 100,
            traffic_peak=max(record.traffic[first:stop]) / 100,
            memory_peak_bytes=max(record.held[first:stop]) / 100 * _MEMORY,
            power_mean_w=(record.watts_sum[stop] - record.watts_sum[first]) / samples,
            power_peak_w=max(record.watts[first:stop]),
            busy_s=record.busy_s[stop] - record.busy_s[first] if self.has_counters else None,
            coverage=covered,
            holes=0 if covered == 1 else math.ceil((1 - covered) * 96),
            is_fresh=True,
        )

    def _histories(self, one: Standing, span_s: float) -> Mapping[PodKey, History]:
        stop = _step(one.member, self.at_s)
        hours = int(min(span_s, self.at_s - one.since_s)) // 3600
        first = stop - hours * HOUR_STEPS
        return {
            _pod_key(one.member, pod): History(_instant(self.at_s), 3600.0, self._hours(records, first, stop))
            for pod, records in enumerate(one.member.records)
        }

    def _hours(self, records: Sequence[Record], first: int, stop: int) -> bytes:
        rows: list[bytes] = []
        for record in set(records):
            steps = record.activity[first:stop].translate(_BUSY)
            rows.extend((steps[::2], steps[1::2]))
            if self.has_counters:
                rows.extend((record.ran[first:stop:2], record.ran[first + 1 : stop : 2]))
        return bytes(map(max, *rows))

    def _concurrency(self, one: Standing, days: int) -> Concurrency:
        counts, stop = one.member.busy, _step(one.member, self.at_s) * MINUTES
        since = int((one.since_s - one.member.start_s) // 60)
        earlier = [stop - day * 1440 for day in range(1, days + 1)]
        return Concurrency(
            tuple(counts[max(stop - 60, since) : stop]),
            tuple(max(counts[start : start + 60]) for start in earlier if start >= since),
        )


def _workload(member: Member, since_s: float) -> Workload:
    name, since = member.spec.name, _instant(since_s)
    pods = tuple(
        Pod(
            ref=ObjectRef("v1", "Pod", *_pod_key(member, pod)),
            node="node",
            phase="Running",
            devices=member.spec.gpus,
            is_shared=False,
            started=since,
            priority_class="",
            priority=0,
            is_ready=True,
            is_terminating=False,
            is_static=False,
            labels={},
            annotations={},
            created=since,
        )
        for pod in range(member.spec.replicas)
    )
    return Workload(
        ref=ObjectRef(_API_VERSIONS[member.kind], member.kind, "team", name, _uid(member)),
        generation=1,
        resource_version="1",
        pods=pods,
        size=len(pods) if member.kind in {"Deployment", "StatefulSet"} else None,
        labels={},
        annotations={},
        namespace_annotations={},
        budgets={},
        created=_instant(member.start_s),
    )


def _devices(member: Member, pod: int) -> list[Device]:
    model = CARDS[member.card].name
    return [Device(f"GPU-{_uid(member)}-{pod}-{device}", model=model) for device in range(member.spec.gpus)]


def _uid(member: Member) -> str:
    return member.spec.name


def _pod_key(member: Member, pod: int) -> PodKey:
    return "team", f"{member.spec.name}-{pod}"


def _step(member: Member, at_s: float) -> int:
    """How many of a workload's steps are over; one that has begun is not."""
    return int((at_s - member.start_s) // STEP_S)


def _instant(at_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)
