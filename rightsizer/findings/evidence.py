"""The evidence about one workload: traits of its kind, its pods, measurements of each device, and the criteria. Pure.

A device counts as used if any signal shows use, and as unused only if all signals that a finding needs say so. To add
a kind with interchangeable replicas, or one that finishes, add its name to a set.
"""

import dataclasses
import datetime
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rightsizer.findings.idle_history import (
    ActivityHistory,
    history_matters,
    history_of_pods,
    observed_since,
    possible_pause_s,
)
from rightsizer.kinds import kind_of
from rightsizer.kinds.patches import original_replicas
from rightsizer.kube.owner_kinds import owner_kind
from rightsizer.kube.pod_names import ANY_NAMES, PodNames
from rightsizer.model import (
    Action,
    Finding,
    FindingName,
    Fleet,
    History,
    Measured,
    Pod,
    PodKey,
    Proposal,
    ServingLoad,
    Slot,
    Usage,
    Usages,
    Verdict,
    Workload,
)
from rightsizer.policy.effective import Criteria
from rightsizer.policy.thresholds import Judging, Thresholds
from rightsizer.text import GIB, percent

_HOUR = datetime.timedelta(hours=1)
_ROUNDING_S = 1.0  # of a counter over a window: a pod that worked no longer did not work
_FIRST_PODS = datetime.timedelta(minutes=10)
"""A controller creates its first pods within this time."""


def has_replicas(workload: Workload) -> bool:
    """Whether its pods are interchangeable; pods of a gang are not."""
    row = owner_kind(workload.ref.group, workload.ref.kind)
    return row is not None and row.has_replicas and not workload.gang


def is_grouped(workload: Workload) -> bool:
    """Whether a replica is a group of pods."""
    return names_of(workload).is_group


def names_of(workload: Workload) -> PodNames:
    """The way in which its kind names pods."""
    row = owner_kind(workload.ref.group, workload.ref.kind)
    return row.names if row is not None else ANY_NAMES


def roles_of(workload: Workload) -> tuple[str, ...]:
    """The labels that name the roles of its pods; empty if all pods of its kind are alike."""
    row = kind_of(workload.ref)
    return row.roles if row is not None else ()


def is_batch(workload: Workload) -> bool:
    """Whether it finishes by itself."""
    row = owner_kind(workload.ref.group, workload.ref.kind)
    return row is not None and row.ends


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceEvidence:
    """One device of one pod and what each signal shows; None if a signal is not available."""

    usage: Usage
    ran: bool | None  # whether a kernel ran, by activity or counters
    draws_power: bool | None  # whether it drew more power than an idle board with a loaded model
    moves_memory: bool | None  # whether there was memory traffic
    seen_by_counters_only: bool = False  # whether only counters, and no sample, show that a kernel ran

    @property
    def is_used(self) -> bool:
        """Whether any signal shows use."""
        return bool(self.ran or self.draws_power or self.moves_memory)

    @property
    def works(self) -> bool:
        """Whether a kernel ran, and not only at idle power."""
        return bool(self.ran) and (self.seen_by_counters_only or self.draws_power is not False)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A workload over one window. Without slots, so that properties can be cached."""

    candidate: "Candidate"
    # Its pods that hold GPUs, with their devices, both sorted
    held: tuple[tuple[Pod, tuple[DeviceEvidence, ...]], ...]
    window: datetime.timedelta
    grace: datetime.timedelta  # additional time before a young pod is judged
    coverage: float  # required share of the window with samples, 0 to 1
    # Devices that its pods do not hold, and on which they worked, or may have
    others: Mapping[PodKey, tuple[DeviceEvidence, ...]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def devices(self) -> list[DeviceEvidence]:
        """Every device that its pods hold."""
        return [gpu for _, devices in self.held for gpu in devices]

    @functools.cached_property
    def elsewhere(self) -> list[tuple[Pod, DeviceEvidence]]:
        """Each device that one of its pods used, or may have used, without holding it."""
        return [(pod, gpu) for pod, _ in self.held for gpu in self.others.get(pod_key(pod), ())]

    @functools.cached_property
    def is_in_use(self) -> bool:
        """Whether any device works, or any server had requests: then it is kept, even if others are unknown."""
        devices = (*self.devices, *(gpu for _, gpu in self.elsewhere))
        return any(gpu.works for gpu in devices) or self._has_requests

    @property
    def _has_requests(self) -> bool:
        """Whether its servers count requests in the window: bursts between two samples show in no GPU metric."""
        serving = self.candidate.measured.serving
        within = max((window for window in serving if window <= self.window), default=None)
        loads = {} if within is None else serving[within]
        return any(
            (load := loads.get(pod_key(pod))) is not None and load.has_requests for pod, _ in self.held
        )

    @property
    def spin_cause(self) -> str:
        """The likely cause of a GPU that spins without work: only several GPUs have collectives."""
        waits = "hung NCCL collective" if len(self.devices) > 1 else "kernel that does not end"
        return f"perhaps a {waits}"

    @property
    def is_shared(self) -> bool:
        """Whether any of its pods shares a GPU."""
        return any(pod.is_shared for pod, _ in self.held)

    @property
    def number(self) -> int:
        """Number of GPUs and MIG instances that its pods hold; shares of one count once."""
        return (
            len({gpu.usage.device for gpu in self.devices})
            if self.is_shared
            else self.candidate.workload.devices
        )

    def uses_little(self, max_mean_percent: float) -> bool:
        """Whether it works, and no device's mean activity is higher."""
        means = [gpu.usage.activity_mean for gpu in self.devices]
        are_low = all(mean is not None and mean * 100 <= max_mean_percent for mean in means)
        return bool(means) and self.is_in_use and are_low

    def finding(
        self, name: FindingName, verdict: Verdict, *words: str, proposal: Proposal | None = None
    ) -> Finding:
        """A finding with the measured levels in numbers."""
        return Finding(name, verdict, words, proposal=proposal, window=self.window, **self._levels)

    def advice(self, name: FindingName, words: str, missing: Iterable[str]) -> Finding | None:
        """A finding whose change is not proven, with the reasons; None if the workload may be idle."""
        if not self.is_in_use:
            return None
        return self.finding(name, Verdict.KEEP, words, *missing, self.levels)

    def call(self, name: FindingName, words: str, proposal: Proposal) -> Finding:
        """A finding that calls for a change."""
        return self.finding(name, Verdict.ACT, words, proposal.words, self.levels, proposal=proposal)

    @functools.cached_property
    def levels(self) -> str:
        """Activity, power, memory and coverage over all devices, in words."""
        levels = self._levels
        mean, peak = percent(levels["activity_mean"]), percent(levels["activity_peak"])
        parts = [f"GPU activity mean {mean}, peak {peak}"]
        if (power_w := levels["power_peak_w"]) is not None:
            has_neighbours = self.is_shared or any(gpu.usage.device.instance for gpu in self.devices)
            parts.append(f"peak power {'of the whole GPU ' if has_neighbours else ''}{power_w:.0f} W")
        if (memory_bytes := levels["memory_peak_bytes"]) is not None:
            parts.append(f"peak memory {memory_bytes / GIB:.1f} GiB")
        if (first_token_s := levels["first_token_s"]) is not None:
            parts.append(f"time to first token {first_token_s:.2g} s")
        return ", ".join([*parts, f"sample coverage {levels['coverage']:.0%}"])

    @functools.cached_property
    def _levels(self) -> dict[str, Any]:
        usages = [gpu.usage for gpu in self.devices]
        is_measured = bool(usages) and all(usage.activity_peak is not None for usage in usages)
        return {
            "coverage": min([usage.coverage for usage in usages], default=0.0),
            "busy_gpus": sum([gpu.ran is True for gpu in self.devices]) if is_measured else None,
            "activity_mean": _mean([usage.activity_mean for usage in usages]),
            "activity_peak": _highest([usage.activity_peak for usage in usages]),
            "memory_peak_bytes": _highest([usage.memory_peak_bytes for usage in usages]),
            "power_mean_w": _mean([usage.power_mean_w for usage in usages]),
            "power_peak_w": _highest([usage.power_peak_w for usage in usages]),
            "first_token_s": _highest([load.first_token_s for load in self.candidate.loads.values()]),
        }


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A workload to judge, with all inputs of the findings. Without slots, so that properties can be cached."""

    workload: Workload
    measured: Measured
    criteria: Criteria
    fleet: Fleet

    @functools.cached_property
    def loads(self) -> Mapping[PodKey, ServingLoad]:
        """The load of its inference servers in the minutes in which replicas are counted, as far as it is known."""
        loads = self.measured.serving.get(self.criteria.tooManyReplicas.window, {})
        return {key: loads[key] for key in map(pod_key, self.held) if key in loads}

    @property
    def at(self) -> datetime.datetime:
        """The time at which it is judged."""
        return self.measured.at

    @property
    def wide_windows(self) -> frozenset[datetime.timedelta]:
        """The windows in which its usage is known: those it is judged by first, and the longest of the fleet."""
        measured = self.measured.usages.keys()
        return frozenset(measured & {*self.criteria.wide_windows, *sorted(measured)[-1:]})

    @functools.cached_property
    def original_replicas(self) -> int | None:
        """The number of replicas before gpu-rightsizer scaled it down; None if it did not."""
        return original_replicas(self.workload.annotations)

    @functools.cached_property
    def held(self) -> tuple[Pod, ...]:
        """The pods that hold GPUs, by name."""
        return tuple(sorted((pod for pod in self.workload.pods if pod.holds), key=lambda pod: pod.ref.name))

    @functools.cached_property
    def roles(self) -> "Mapping[str, Candidate]":
        """Each role of its pods as a workload of its own, whose UID ends with it; empty if a pod has none."""
        labels = roles_of(self.workload)
        found: dict[str, list[Pod]] = {}
        for pod in self.workload.pods if labels else ():
            role = next((pod.labels[label] for label in labels if label in pod.labels), "")
            found.setdefault(role, []).append(pod)
        return {role: self._of_role(role, pods) for role, pods in sorted(found.items()) if "" not in found}

    def _of_role(self, role: str, pods: Sequence[Pod]) -> "Candidate":
        ref = dataclasses.replace(self.workload.ref, uid=f"{self.workload.ref.uid}/{role}")
        workload = dataclasses.replace(self.workload, ref=ref, pods=tuple(pods), size=None)
        return dataclasses.replace(self, workload=workload)

    def over(
        self, part: Judging, percent: float | None = None, *, window: datetime.timedelta | None = None
    ) -> Evidence:
        """The evidence for one finding, with its grace and coverage.

        A device counts as idle up to `percent` utilization, by default that of `idle`. `window` is a measured one that
        replaces the finding's own.
        """
        span = window or part.window
        percent = self.criteria.idle.maxUtilizationPercent if percent is None else percent
        key = (span, percent, part.grace, part.minCoverage)
        known = self._known.get(key)
        if known is None:
            read = self._read(span, percent)
            held = tuple((pod, tuple(gpu for gpu in gpus if gpu.usage.is_held)) for pod, gpus in read)
            others = {pod_key(pod): tuple(gpu for gpu in gpus if not gpu.usage.is_held) for pod, gpus in read}
            known = Evidence(self._bare, held, span, part.grace, part.minCoverage, others)
            self._known[key] = known
        return known

    def over_idle(self) -> Evidence:
        """The evidence for idleness."""
        return self.over(self.criteria.idle)

    def over_short(self) -> Evidence:
        """The evidence for idleness in the last part of the window."""
        return self.over(self.criteria.idle, window=self.criteria.idle.short_window)

    @functools.cached_property
    def unused_reason(self) -> str:
        """Why a stop loses nothing, in words: it never worked, or no process holds memory; else empty.

        Pods that replaced others do not show what these did, so the present ones must be the first, or old enough. Nor
        do they where replicas were removed, or somebody resumed it.
        """
        history, created, idle = self.history, self.workload.created, self.criteria.idle
        limit = idle.maxEmptyMemoryMiB * GIB / 1024
        peaks = [gpu.usage.memory_peak_bytes for gpu in self.over_short().devices]
        is_elsewhere = self.over_short().elsewhere or any(pod.reach for pod in self.held)
        is_empty = (
            bool(peaks) and not is_elsewhere and all(peak is not None and peak <= limit for peak in peaks)
        )
        starts = [pod.created for pod in self.held]
        are_first = created is not None and all(start and start <= created + _FIRST_PODS for start in starts)
        past = self.workload.past
        is_unchanged = all(change.removed_unused and change.end is None for change in past) and (
            self.original_replicas is None or bool(past)
        )
        never_worked = history and not (history.worked or history.unknown_s or self.record_s)
        if are_first and is_unchanged and never_worked:
            is_whole = created is not None and created >= self.at - idle.history
            return "it never worked since it was created" if is_whole else "it never worked in its history"
        since = self.at - idle.window - idle.grace
        if is_empty and (are_first or all(pod.started and pod.started <= since for pod in self.held)):
            return "no process holds memory on its GPUs"
        return ""

    @property
    def shortest_idle_s(self) -> float:
        """The shortest required idle time, in seconds."""
        idle = self.criteria.idle
        return min(idle.unusedWindow.total_seconds() if self.unused_reason else math.inf, idle.shortest_s)

    @functools.cached_property
    def _bare(self) -> "Candidate":
        """A copy for evidence to refer to, which avoids reference cycles."""
        return Candidate(self.workload, self.measured, self.criteria, self.fleet)

    @functools.cached_property
    def _known(self) -> dict[tuple[datetime.timedelta, float, datetime.timedelta, float], Evidence]:
        """Cached evidence, which several findings use."""
        return {}

    def devices_in(self, usages: Usages) -> Iterator[DeviceEvidence]:
        """The evidence of its devices in other usages, of any time."""
        gauge = _Thresholds(
            self.criteria.idle, self.criteria.idle.maxUtilizationPercent, datetime.timedelta()
        )
        for pod in self.held:
            yield from gauge.read(pod, usages.get(pod_key(pod), ()))

    def _read(
        self, window: datetime.timedelta, percent: float
    ) -> tuple[tuple[Pod, tuple[DeviceEvidence, ...]], ...]:
        usages = self.measured.usages.get(window, {})
        gauge = _Thresholds(self.criteria.idle, percent, window)
        return tuple((pod, gauge.read(pod, usages.get(pod_key(pod), ()))) for pod in self.held)

    @functools.cached_property
    def history(self) -> ActivityHistory | None:
        """Idle periods of its pods; None if the history of one of them is unknown."""
        found = self.history_by(self.measured.histories)
        if found is None:
            return None
        scaled_down = (change for change in self.workload.past if change.action == Action.SCALE_DOWN)
        scaled = [change.at for change in scaled_down if not change.removed_unused]
        since_s = (self.at - max(scaled)).total_seconds() if scaled else math.inf
        return found.with_revert(self.workload.came_back_after).idle_for_at_most(max(since_s, 0.0))

    def history_by(self, histories: Mapping[PodKey, History]) -> ActivityHistory | None:
        """The idle periods by these histories of its pods; None if one of them is unknown.

        A pod whose GPUs only init containers could use has none, unless it works on others, or may.
        """
        since, begins = self.at - self.criteria.idle.history, self.measured.begins
        pods = [pod for pod in self.held if pod.usable or pod.reach or _worked(histories.get(pod_key(pod)))]
        since = max(since, begins) if begins else since
        return history_of_pods(pods or self.held, histories, since=since, at=self.at)

    @property
    def record_s(self) -> float | None:
        """Length of Prometheus's record in seconds, if it lacks a part of the history that the policy asks for."""
        idle, begins = self.criteria.idle, self.measured.begins
        if begins is None or not history_matters(idle) or begins <= self.at - idle.history:
            return None
        starts = [observed_since(pod) for pod in self.held]
        if all(start is not None and start >= begins for start in starts):
            return None
        return (self.at - begins).total_seconds()

    def required_idle_s(self, history: ActivityHistory) -> float:
        """Seconds without work after which it counts as idle.

        With a shorter record than the policy asks for, it grows by that factor, but idle for the whole record is idle.
        """
        idle, record_s = self.criteria.idle, self.record_s
        alike_s = self.measured.pauses_s.get(self.workload.ref.full_kind, ())
        pause_s = min(possible_pause_s(history, idle, alike_s), idle.history.total_seconds())
        if record_s is None:
            return max(self.shortest_idle_s, pause_s)
        return max(self.shortest_idle_s * self.stretch, min(pause_s * self.stretch, record_s))

    @property
    def stretch(self) -> float:
        """Factor on the required idle time because the record is short: 1 with a whole one.

        A record that will not grow asks for no more than it can show.
        """
        if not self.record_s:
            return 1.0
        stretch = self.criteria.idle.history.total_seconds() / self.record_s
        if not self.measured.is_full:
            return stretch
        return min(stretch, max(self.record_s / self.shortest_idle_s, 1.0))


@dataclasses.dataclass(slots=True)
class _Thresholds:
    """The thresholds of each signal."""

    idle: Thresholds
    percent: float
    window: datetime.timedelta
    limits: dict[str, float | None] = dataclasses.field(default_factory=dict)

    def read(self, pod: Pod, usages: Sequence[Usage]) -> tuple[DeviceEvidence, ...]:
        ordered = usages if len(usages) == 1 else sorted(usages, key=_device_key)
        return tuple(
            [self._device(pod, usage) if usage.is_held else self._elsewhere(usage) for usage in ordered]
        )

    def _elsewhere(self, usage: Usage) -> DeviceEvidence:
        """Evidence of a device that the pod does not hold: counters show what it did there, gauges what anybody did."""
        ran, traffic = (
            kernel_ran(usage, self.window, self.idle, percent=self.percent),
            usage.traffic_peak or 0.0,
        )
        moved = usage.traffic_s is not None and usage.traffic_s > self._limit_s
        is_quiet = not self._draws_power(usage) and traffic * 100 <= self.idle.maxMemoryTrafficPercent
        if not usage.is_own:
            ran = False if ran is False and is_quiet else None
        return DeviceEvidence(usage, ran, None, moved or None, bool(ran))

    @property
    def _limit_s(self) -> float:
        """The longest work in the window that counts as none, in seconds."""
        return self.idle.maxBusySecondsPerHour * (self.window / _HOUR)

    def _device(self, pod: Pod, usage: Usage) -> DeviceEvidence:
        # Power and memory traffic are measured per board: another pod on it could cause them.
        is_others_too = usage.is_own and (pod.is_shared or usage.is_visited)
        power, traffic = self._draws_power(usage), None
        if usage.traffic_peak is not None:
            traffic = usage.traffic_peak * 100 > self.idle.maxMemoryTrafficPercent
        if is_others_too and traffic is not False and usage.traffic_s is not None:
            traffic = False if usage.traffic_s <= self._limit_s else None
        ran = kernel_ran(usage, self.window, self.idle, percent=self.percent)
        return DeviceEvidence(
            usage,
            ran,
            None if is_others_too and power else power,
            None if is_others_too and traffic else traffic,
            bool(ran) and not _is_active(usage, self.percent),
        )

    def _draws_power(self, usage: Usage) -> bool | None:
        model = usage.device.model
        if model not in self.limits:
            self.limits[model] = self.idle.idle_power_w(model)
        limit = self.limits[model]
        # No board draws 0 W.
        return None if limit is None or not usage.power_peak_w else usage.power_peak_w > limit


def kernel_ran(usage: Usage, window: datetime.timedelta, idle: Thresholds, *, percent: float) -> bool | None:
    """Whether a kernel ran, by activity or counters; None if unknown.

    Work of a shared GPU without a known pod may be this pod's. Up to a bound it counts as such; above, it is unknown.
    """
    hours = window / _HOUR
    limit_s, busy_s, unattributed_s = (
        idle.maxBusySecondsPerHour * hours,
        usage.busy_s or 0.0,
        usage.unattributed_s,
    )
    if _is_active(usage, percent) or busy_s - unattributed_s > limit_s:
        return True
    if not unattributed_s:
        return None if usage.activity_peak is None else False
    is_idle = busy_s - unattributed_s <= _ROUNDING_S and busy_s <= limit_s
    return False if is_idle and unattributed_s <= idle.maxUnattributedSecondsPerHour * hours else None


def pod_key(pod: Pod) -> PodKey:
    """The key of a pod's measurements."""
    return pod.ref.namespace, pod.ref.name


def _is_active(usage: Usage, percent: float) -> bool:
    return usage.activity_peak is not None and usage.activity_peak * 100 > percent


def _device_key(usage: Usage) -> tuple[str, str]:
    return usage.device.uuid, usage.device.instance


def _highest(values: list[float | None]) -> float | None:
    return max([value for value in values if value is not None], default=None)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _worked(history: History | None) -> bool:
    return history is not None and Slot.BUSY in history.slots
