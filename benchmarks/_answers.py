"""What Prometheus and the API server would answer about the made-up fleet at an instant, read off its records."""

import dataclasses
import datetime
import itertools
import math
from collections.abc import Mapping, Sequence

from benchmarks._fleet import Fleet, Member
from benchmarks._records import MINUTES, SAMPLES, SCRAPE_S, STEP_S, WATTS, Record, Spans
from rightsizer.findings.idle_history import longest_pauses, pauses_by_kind
from rightsizer.findings.replicas import counted_window
from rightsizer.findings.stuck import IdlePower
from rightsizer.model import (
    ChangeRecord,
    Concurrency,
    Device,
    History,
    Measured,
    ObjectRef,
    Pod,
    PodKey,
    Slot,
    Usage,
    Usages,
    WorkLevel,
    Workload,
)
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.usage.sample_coverage import MAX_SLOTS, SAMPLES_PER_SLOT
from simulator.gpus.cards import CARDS

HOUR_STEPS = 3600 // STEP_S
FULL = 95
_MINUTE = datetime.timedelta(minutes=1)
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
    "Service": "serving.knative.dev/v1",
}


@dataclasses.dataclass(slots=True)
class Standing:
    """A workload as it stands now.

    Attributes:
        gpus: How many each pod holds now.
        since_s: When its present pods were created.
        annotations: Of the object.
        changes: What was changed of it.
        resumes_s: When it will be back; None while it runs.
        came_back_s: The longest pause after which it was put back.
        is_asleep: Whether it is behind something that stops and wakes it by its requests from now on.
        replies_s: When its owner answers the notice; None where there is none, or no answer.
    """

    member: Member
    gpus: int
    since_s: float
    annotations: dict[str, str] = dataclasses.field(default_factory=dict)
    changes: list[ChangeRecord] = dataclasses.field(default_factory=list)
    resumes_s: float | None = None
    came_back_s: float = 0.0
    is_asleep: bool = False
    replies_s: float | None = None

    def started_by(self, at_s: float) -> tuple[float, int]:
        """When its containers were last started, and how often they were restarted."""
        restarts = [one for one in self.member.restarts if self.since_s < one <= at_s]
        return (restarts[-1] if restarts else self.since_s), len(restarts)


@dataclasses.dataclass(frozen=True, slots=True)
class Sight:
    """What Prometheus would answer at an instant."""

    fleet: Fleet
    standings: Sequence[Standing]
    at_s: int

    def measured(self, evaluator: PolicyEvaluator) -> Measured:
        """All that is asked of it.

        Raises:
            ValueError: The policy asks for what is not on record here.
        """
        criteria = list(evaluator.all_criteria())
        if any(each.idle.maxUtilizationPercent != 1 for each in criteria):
            raise ValueError("maxUtilizationPercent must be 1 here, as by default")
        windows = sorted({window for each in criteria for window in each.windows})
        history_s = max(each.idle.history for each in criteria).total_seconds()
        counted = max(counted_window(each.tooManyReplicas) for each in criteria) // _MINUTE
        found = {window: self._usages(window.total_seconds()) for window in windows}
        histories: dict[PodKey, History] = {}
        for one in self.standings:
            histories.update(self._histories(one, min(history_s, self.fleet.kept_s)))
        work: dict[PodKey, WorkLevel] = {}
        for one in filter(self._spins, self.standings):
            work.update(self._work(one, min(history_s, self.fleet.kept_s)))
        begins = self.at_s - self.fleet.kept_s
        return Measured(
            at=instant(self.at_s),
            usages=found,
            histories=histories,
            pauses_s=pauses_by_kind(longest_pauses(evaluator.fleet.workloads, histories, instant(self.at_s))),
            work=work,
            idle_power=IdlePower.of(found[windows[-1]]).lowest,
            concurrency={
                uid(one.member): self._concurrency(one, counted)
                for one in self.standings
                if one.member.replicas > 1
            },
            begins=instant(begins) if self.fleet.kept_s < history_s else None,
        )

    def _usages(self, window_s: float) -> Usages:
        # A window that is no whole number of steps begins with the step that it cuts: so nothing is left out.
        steps = math.ceil(window_s / STEP_S)
        found: dict[PodKey, list[Usage]] = {}
        for one in self.standings:
            stop = step(one.member, self.at_s)
            first = max(stop - steps, step(one.member, one.since_s))
            if first >= stop:
                continue
            for pod, records in enumerate(one.member.records):
                seen = self._seen(one, pod, window_s)
                known: dict[int, Usage] = {}
                usages = found[_pod_key(one, pod)] = []
                for device, record in zip(_devices(one, pod), records, strict=False):
                    if id(record) not in known:
                        known[id(record)] = self._usage(record, device, first, stop, seen)
                        usages.append(known[id(record)])
                    else:
                        usages.append(dataclasses.replace(known[id(record)], device=device))
        return found

    def _seen(self, one: Standing, pod: int, window_s: float) -> tuple[float, int, bool]:
        """Coverage, slots without a sample, and whether there are samples in the last one."""
        slots = max(1, min(MAX_SLOTS, int(window_s // (SCRAPE_S * SAMPLES_PER_SLOT))))
        slot_s, since_s = window_s / slots, self.at_s - window_s
        lost = _within(self.fleet.lost[one.member.nodes[pod]], since_s, self.at_s)
        young_s = max(0.0, one.since_s - since_s)
        holes, missed, is_fresh = int(young_s // slot_s), young_s, True
        for begin, end in lost:
            missed += end - begin
            first = math.ceil((max(begin, one.since_s) - since_s - SCRAPE_S) / slot_s)
            holes += max(0, int((end - since_s + SCRAPE_S) // slot_s) - max(0, first))
            is_fresh = is_fresh and end - max(begin, self.at_s - slot_s) < slot_s / 2
        return max(0.0, 1 - missed / window_s), holes, is_fresh

    def _usage(
        self, record: Record, device: Device, first: int, stop: int, seen: tuple[float, int, bool]
    ) -> Usage:
        samples = record.samples_sum[stop] - record.samples_sum[first]
        coverage, holes, is_fresh = seen
        if not samples:
            return Usage(device, is_fresh=False)
        return Usage(
            device=device,
            activity_mean=(record.activity_sum[stop] - record.activity_sum[first]) / samples / 100,
            activity_peak=max(record.activity[first:stop]) / 100,
            traffic_peak=max(record.traffic[first:stop]) / 100,
            memory_peak_bytes=max(record.held[first:stop]) / 100 * _MEMORY,
            power_mean_w=(record.watts_sum[stop] - record.watts_sum[first]) * WATTS / samples,
            power_peak_w=float(max(record.watts[first:stop]) * WATTS),
            busy_s=record.busy_s[stop] - record.busy_s[first] if self.fleet.has_counters else None,
            coverage=coverage,
            holes=holes,
            is_fresh=is_fresh,
        )

    def _histories(self, one: Standing, span_s: float) -> Mapping[PodKey, History]:
        stop = step(one.member, self.at_s)
        hours = int(min(span_s, self.at_s - one.since_s)) // 3600
        return {
            _pod_key(one, pod): History(
                instant(self.at_s), 3600.0, self._hours(one.member, pod, stop)[stop // HOUR_STEPS - hours :]
            )
            for pod in range(one.member.replicas)
        }

    def _hours(self, member: Member, pod: int, stop: int) -> bytes:
        """All hours of a pod up to a step, worked out once for each of the steps in which an hour may end."""
        known, key = member.hours, (pod, stop % HOUR_STEPS)
        if key not in known:
            records = list({id(record): record for record in member.records[pod]}.values())
            known[key] = self._all_hours(records, stop % HOUR_STEPS)
        return known[key][: stop // HOUR_STEPS]

    def _all_hours(self, records: Sequence[Record], first: int) -> bytes:
        sums = records[0].samples_sum
        stop = len(sums) - 1 - (len(sums) - 1 - first) % HOUR_STEPS
        rows: list[bytes] = []
        for record in records:
            steps = record.activity[first:stop].translate(_BUSY)
            rows.extend(steps[place::HOUR_STEPS] for place in range(HOUR_STEPS))
            if self.fleet.has_counters:
                rows.extend(record.ran[first + place : stop : HOUR_STEPS] for place in range(HOUR_STEPS))
        half = HOUR_STEPS * SAMPLES / 2
        return bytes(
            Slot.UNKNOWN if not busy and sums[begin + HOUR_STEPS] - sums[begin] < half else busy
            for busy, begin in zip(map(max, *rows), range(first, stop, HOUR_STEPS), strict=True)
        )

    def _spins(self, one: Standing) -> bool:
        """Whether it may: then the power that it drew at work is asked for."""
        stop = step(one.member, self.at_s)
        first = max(0, stop - 2 * HOUR_STEPS)
        records = [record for records in one.member.records for record in records]
        return any(max(each.activity[first:stop], default=0) >= FULL for each in records) and not any(
            max(each.traffic[first:stop], default=0) > 1 for each in records
        )

    def _work(self, one: Standing, span_s: float) -> dict[PodKey, WorkLevel]:
        stop = step(one.member, self.at_s)
        begins = range(
            stop - int(min(span_s, self.at_s - one.since_s)) // 3600 * HOUR_STEPS, stop, HOUR_STEPS
        )
        found: dict[PodKey, WorkLevel] = {}
        for pod, records in enumerate(one.member.records):
            rows, levels, quiet = [], [], []
            for record in {id(record): record for record in records}.values():
                moved = bytes(max(record.traffic[begin : begin + HOUR_STEPS]) > 1 for begin in begins)
                rows.append(moved)
                powers = [_watts(record, begin) for begin in begins]
                levels.append(max(itertools.compress(powers, moved), default=0.0))
                before = moved[: moved.rfind(1) + 1]
                quiet.append(max((w for w, was in zip(powers, before, strict=False) if not was), default=0.0))
            seen = records[0].samples_sum
            half = HOUR_STEPS * SAMPLES / 2
            traffic = bytes(
                Slot.UNKNOWN if not busy and seen[begin + HOUR_STEPS] - seen[begin] < half else busy
                for busy, begin in zip(map(max, *rows) if len(rows) > 1 else rows[0], begins, strict=True)
            )
            history = History(instant(self.at_s), 3600.0, traffic)
            found[_pod_key(one, pod)] = WorkLevel(
                history, min(filter(None, levels), default=None), max(filter(None, quiet), default=None)
            )
        return found

    def _concurrency(self, one: Standing, counted: int) -> Concurrency:
        counts, stop = one.member.busy, step(one.member, self.at_s) * MINUTES
        since = int((one.since_s - one.member.start_s) // 60)
        known = [*[0] * (counted - stop + since), *counts[max(stop - counted, since) : stop]]
        replicas = one.member.replicas
        return Concurrency(
            tuple(max(count, 0) for count in known), tuple(replicas * (count < 0) for count in known)
        )


def _watts(record: Record, begin: int) -> float:
    """Mean power of an hour."""
    end = begin + HOUR_STEPS
    samples = record.samples_sum[end] - record.samples_sum[begin]
    return (record.watts_sum[end] - record.watts_sum[begin]) * WATTS / samples if samples else 0.0


def _within(spans: Spans, from_s: float, until_s: float) -> list[tuple[float, float]]:
    return [(max(a, from_s), min(b, until_s)) for a, b in spans if a < until_s and b > from_s]


def workload(one: Standing, at_s: float) -> Workload:
    """What the API server would answer about it."""
    member = one.member
    created, (started_s, restarts) = instant(one.since_s), one.started_by(at_s)
    started = instant(started_s)
    pods = tuple(
        Pod(
            ref=ObjectRef("v1", "Pod", *_pod_key(one, pod)),
            node=f"node-{member.nodes[pod]}",
            phase="Running",
            devices=one.gpus,
            is_shared=False,
            started=started,
            priority_class="",
            priority=0,
            is_ready=True,
            is_terminating=False,
            is_static=False,
            labels={},
            annotations={},
            resources={"nvidia.com/gpu": one.gpus},
            created=created,
            restarts=restarts,
        )
        for pod in range(member.replicas)
    )
    return Workload(
        ref=ObjectRef(_API_VERSIONS[member.kind], member.kind, "team", member.name, uid(member)),
        generation=1,
        resource_version="1",
        pods=pods,
        size=len(pods) if member.kind in {"Deployment", "StatefulSet"} else None,
        labels={},
        annotations=dict(one.annotations),
        namespace_annotations={},
        budgets={},
        created=instant(member.start_s),
        past=tuple(one.changes),
        came_back_after=datetime.timedelta(seconds=one.came_back_s) if one.came_back_s else None,
    )


def _devices(one: Standing, pod: int) -> list[Device]:
    model = CARDS[one.member.card].name
    return [Device(f"GPU-{one.member.name}-{pod}-{device}", model=model) for device in range(one.gpus)]


def uid(member: Member) -> str:
    """Of a workload."""
    return member.name


def _pod_key(one: Standing, pod: int) -> PodKey:
    return "team", f"{one.member.name}-{pod}"


def step(member: Member, at_s: float) -> int:
    """How many of a workload's steps are over; one that has begun is not."""
    return int((at_s - member.start_s) // STEP_S)


def instant(at_s: float) -> datetime.datetime:
    """As a time."""
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC)
