"""What Prometheus and the API server would answer about the made-up cluster at an instant, read off its records."""

import dataclasses
import datetime
import itertools
import math
from collections.abc import Mapping, Sequence

import msgspec

from benchmarks._fleet import Member
from benchmarks._records import MINUTES, SAMPLES, STEP_S, Record
from rightsizer.changes.record_codec import NOTICE_ANNOTATION
from rightsizer.kinds.notices import Notice
from rightsizer.model import (
    Concurrency,
    Device,
    History,
    Measured,
    ObjectRef,
    Pod,
    PodKey,
    Usage,
    Usages,
    Workload,
)
from rightsizer.policy.effective import PolicyEvaluator
from simulator.gpus.cards import CARDS

HOUR_STEPS = 3600 // STEP_S
_MEMORY = 80e9
_BUSY = bytes(int(percent > 1) for percent in range(256))
"""Of the highest sample of a step: whether it is above the threshold of the defaults."""
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
        notice: The announced action, and when that was; None without a notice.
        came_back_s: The longest pause after which it was put back.
    """

    member: Member
    since_s: float
    changed_s: float | None = None
    resumes_s: float | None = None
    notice: tuple[str, int] | None = None
    came_back_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """What Prometheus would answer at an instant."""

    standings: Sequence[Standing]
    at_s: int
    has_counters: bool

    def measured(self, evaluator: PolicyEvaluator) -> Measured:
        """All that is asked of it.

        Raises:
            ValueError: The policy asks for what is not on record here.
        """
        criteria = list(evaluator.all_criteria())
        windows = sorted({window for each in criteria for window in each.windows})
        if any(window.total_seconds() % STEP_S for window in windows):
            raise ValueError(
                f"windows must be whole steps of {STEP_S} s here: {', '.join(map(str, windows))}"
            )
        if any(each.idle.maxUtilizationPercent != 1 for each in criteria):
            raise ValueError("maxUtilizationPercent must be 1 here, as by default")
        history_s = max(each.idle.history for each in criteria).total_seconds()
        days = max(each.too_many_replicas.days for each in criteria)
        histories = [self._histories(one, history_s) for one in self.standings]
        return Measured(
            at=instant(self.at_s),
            usages={window: self._usages(int(window.total_seconds())) for window in windows},
            histories=dict(itertools.chain.from_iterable(each.items() for each in histories)),
            concurrency={
                uid(one.member): self._concurrency(one, days)
                for one in self.standings
                if one.member.spec.replicas > 1
            },
        )

    def _usages(self, window_s: int) -> Usages:
        steps = window_s // STEP_S
        found: dict[PodKey, list[Usage]] = {}
        for one in self.standings:
            stop = step(one.member, self.at_s)
            first = max(stop - steps, step(one.member, int(one.since_s)))
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
        stop = step(one.member, self.at_s)
        hours = int(min(span_s, self.at_s - one.since_s)) // 3600
        first = stop - hours * HOUR_STEPS
        return {
            _pod_key(one.member, pod): History(instant(self.at_s), 3600.0, self._hours(records, first, stop))
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
        counts, stop = one.member.busy, step(one.member, self.at_s) * MINUTES
        since = int((one.since_s - one.member.start_s) // 60)
        earlier = [stop - day * 1440 for day in range(1, days + 1)]
        return Concurrency(
            tuple(counts[max(stop - 60, since) : stop]),
            tuple(max(counts[start : start + 60]) for start in earlier if start >= since),
        )


def workload(standing: Standing) -> Workload:
    member = standing.member
    name, since = member.spec.name, instant(standing.since_s)
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
        ref=ObjectRef(_API_VERSIONS[member.kind], member.kind, "team", name, uid(member)),
        generation=1,
        resource_version="1",
        pods=pods,
        size=len(pods) if member.kind in {"Deployment", "StatefulSet"} else None,
        labels={},
        annotations=_notes(standing),
        namespace_annotations={},
        budgets={},
        created=instant(member.start_s),
        came_back_after=datetime.timedelta(seconds=standing.came_back_s) if standing.came_back_s else None,
    )


def _notes(standing: Standing) -> dict[str, str]:
    if standing.notice is None:
        return {}
    action, at_s = standing.notice
    notice = Notice(instant(at_s), instant(at_s), action, "idle", "", "r")
    return {NOTICE_ANNOTATION: msgspec.json.encode(notice).decode()}


def _devices(member: Member, pod: int) -> list[Device]:
    model = CARDS[member.card].name
    return [Device(f"GPU-{uid(member)}-{pod}-{device}", model=model) for device in range(member.spec.gpus)]


def uid(member: Member) -> str:
    return member.spec.name


def _pod_key(member: Member, pod: int) -> PodKey:
    return "team", f"{member.spec.name}-{pod}"


def step(member: Member, at_s: float) -> int:
    """How many of a workload's steps are over; one that has begun is not."""
    return int((at_s - member.start_s) // STEP_S)


def instant(at_s: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)
