"""Everything about one workload side by side: its pods, what was measured of each device, and what judges it. Pure.

A device counts as used as soon as one of its signals says so, and as unused only where the judge of the finding has
seen all of them: what is not known is neither.
"""

import dataclasses
import datetime
import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rightsizer.findings.idle_history import Rhythm, began, matters, rhythm_of_pods
from rightsizer.model import (
    Finding,
    FindingName,
    Fleet,
    Measured,
    Pod,
    PodKey,
    Usage,
    Usages,
    Verdict,
    Workload,
)
from rightsizer.policy.criteria import Criteria
from rightsizer.policy.schema import Judging, Thresholds
from rightsizer.text import GIB, instant, percent, span

_HOUR = datetime.timedelta(hours=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """One device of one pod, and what each of its signals says; None where that signal says nothing.

    Attributes:
        ran: Whether a kernel ran, by activity or by counters.
        draws_power: Whether the board drew more than an idle one with a model loaded.
        moves_memory: Whether the memory bus was active.
        is_glimpsed: Whether only counters saw it run, between the samples.
    """

    usage: Usage
    ran: bool | None
    draws_power: bool | None
    moves_memory: bool | None
    is_glimpsed: bool = False

    @property
    def is_used(self) -> bool:
        """Whether any signal says that something happened."""
        return bool(self.ran or self.draws_power or self.moves_memory)

    @property
    def works(self) -> bool:
        """Whether it ran, and not at an idle board's power all the time."""
        return bool(self.ran) and (self.is_glimpsed or self.draws_power is not False)


@dataclasses.dataclass(frozen=True)
class Evidence:
    """A workload over one window. Without slots, so that what follows from it is worked out once.

    Attributes:
        held: Its pods that hold GPUs, with their devices; both in a fixed order.
        grace: Added to the window before anything new is judged.
        coverage: Least share of the window with samples, 0 to 1.
    """

    case: "Case"
    held: tuple[tuple[Pod, tuple[Seen, ...]], ...]
    window: datetime.timedelta
    grace: datetime.timedelta
    coverage: float

    @functools.cached_property
    def seen(self) -> list[Seen]:
        """Every device of every pod."""
        return [seen for _, devices in self.held for seen in devices]

    @functools.cached_property
    def is_in_use(self) -> bool:
        """Whether something was measured at work: then it stays, whatever is not known about the rest."""
        return any(seen.works for seen in self.seen)

    @property
    def is_shared(self) -> bool:
        """Whether any of its pods may share its GPU with others."""
        return any(pod.is_shared for pod, _ in self.held)

    def finding(self, name: FindingName, verdict: Verdict, words: Iterable[str]) -> Finding:
        """A finding with the levels that were measured."""
        return Finding(name=name, verdict=verdict, words=tuple(words), window=self.window, **self._levels)

    @functools.cached_property
    def _levels(self) -> dict[str, Any]:
        usages = [seen.usage for seen in self.seen]
        is_measured = bool(usages) and all(usage.activity_peak is not None for usage in usages)
        return {
            "coverage": min([usage.coverage for usage in usages], default=0.0),
            "busy_gpus": sum([seen.ran is True for seen in self.seen]) if is_measured else None,
            "activity_mean": _mean([usage.activity_mean for usage in usages]),
            "activity_peak": _highest([usage.activity_peak for usage in usages]),
            "memory_peak_bytes": _highest([usage.memory_peak_bytes for usage in usages]),
            "power_mean_w": _mean([usage.power_mean_w for usage in usages]),
            "power_peak_w": _highest([usage.power_peak_w for usage in usages]),
        }


@dataclasses.dataclass(frozen=True)
class Case:
    """A workload to judge: all that the findings are made from. Without slots, as Evidence."""

    workload: Workload
    measured: Measured
    criteria: Criteria
    fleet: Fleet

    @property
    def at(self) -> datetime.datetime:
        """The instant as of which it is judged."""
        return self.measured.at

    @functools.cached_property
    def held(self) -> tuple[Pod, ...]:
        """Its pods that hold GPUs, by name."""
        return tuple(sorted((pod for pod in self.workload.pods if pod.holds), key=_name))

    def over(self, part: Judging, percent: float, *, window: datetime.timedelta | None = None) -> Evidence:
        """The evidence for one finding.

        Args:
            part: The finding's window, grace and coverage.
            percent: Utilization that no sample may exceed for nothing to have run.
            window: Instead of the part's own; one that was measured.
        """
        span = window or part.window
        key = (span, percent, part.grace, part.minCoverage)
        known = self._known.get(key)
        if known is None:
            known = Evidence(self._bare, self._read(span, percent), span, part.grace, part.minCoverage)
            self._known[key] = known
        return known

    def over_idle(self) -> Evidence:
        """The evidence for idleness."""
        return self.over(self.criteria.idle, self.criteria.idle.maxUtilizationPercent)

    @functools.cached_property
    def _bare(self) -> "Case":
        """The same, for evidence to refer to: it is kept by this one, and circles stay until garbage is sought."""
        return Case(self.workload, self.measured, self.criteria, self.fleet)

    @functools.cached_property
    def _known(self) -> dict[tuple[datetime.timedelta, float, datetime.timedelta, float], Evidence]:
        """Evidence that several findings look at."""
        return {}

    def glimpsed(self, usages: Usages) -> Iterator[Seen]:
        """What the signals say of its devices in other usages, of whatever time."""
        gauge = _Gauge(self.criteria.idle, self.criteria.idle.maxUtilizationPercent, datetime.timedelta())
        for pod in self.held:
            yield from gauge.read(pod, usages.get(key_of(pod), ()))

    def _read(self, window: datetime.timedelta, percent: float) -> tuple[tuple[Pod, tuple[Seen, ...]], ...]:
        usages = self.measured.usages.get(window, {})
        gauge = _Gauge(self.criteria.idle, percent, window)
        return tuple((pod, gauge.read(pod, usages.get(key_of(pod), ()))) for pod in self.held)

    @functools.cached_property
    def rhythm(self) -> Rhythm | None:
        """How it pauses; None where the history of one of its pods is not known."""
        since = self.at - self.criteria.idle.history
        begins = self.measured.begins
        found = rhythm_of_pods(
            self.held, self.measured.histories, since=max(since, begins) if begins else since, at=self.at
        )
        return found.remembering(self.workload.came_back_after) if found else None

    @property
    def shortfall(self) -> str:
        """Why its history reaches back less than the policy asks for; empty where it does not, or need not."""
        idle, begins = self.criteria.idle, self.measured.begins
        if begins is None or not matters(idle) or begins <= self.at - idle.history:
            return ""
        starts = [began(pod) for pod in self.held]
        if all(start is not None and start >= begins for start in starts):
            return ""
        return (
            f"Prometheus's record begins {instant(begins)}, {span(self.at - begins)} ago; "
            f"idle.history asks for {span(idle.history)}"
        )


@dataclasses.dataclass(slots=True)
class _Gauge:
    """What each signal is held against."""

    idle: Thresholds
    percent: float
    window: datetime.timedelta
    limits: dict[str, float | None] = dataclasses.field(default_factory=dict)

    def read(self, pod: Pod, usages: Sequence[Usage]) -> tuple[Seen, ...]:
        ordered = usages if len(usages) == 1 else sorted(usages, key=_device)
        return tuple([self._seen(pod, usage) for usage in ordered])

    def _seen(self, pod: Pod, usage: Usage) -> Seen:
        # Power and memory traffic are the whole board's: what another pod on it does is no evidence about this one.
        is_others_too = usage.is_own and pod.is_shared
        power, traffic = self._draws_power(usage), None
        if usage.traffic_peak is not None:
            traffic = usage.traffic_peak * 100 > self.idle.maxMemoryTrafficPercent
        is_active = _is_active(usage, self.percent)
        is_glimpsed = not is_active and _counted(usage, self.window, self.idle.maxBusySecondsPerHour)
        return Seen(
            usage,
            _ran(usage, worked=is_active or is_glimpsed),
            None if is_others_too and power else power,
            None if is_others_too and traffic else traffic,
            is_glimpsed,
        )

    def _draws_power(self, usage: Usage) -> bool | None:
        model = usage.device.model
        if model not in self.limits:
            self.limits[model] = self.idle.idle_power_w(model)
        limit = self.limits[model]
        return None if limit is None or usage.power_peak_w is None else usage.power_peak_w > limit


def ran(usage: Usage, window: datetime.timedelta, *, percent: float, busy_s_per_hour: float) -> bool | None:
    """Whether a kernel ran: activity above a percentage, or counters by more; None where activity is unknown."""
    return _ran(usage, worked=_is_active(usage, percent) or _counted(usage, window, busy_s_per_hour))


def _ran(usage: Usage, *, worked: bool) -> bool | None:
    return worked if worked or usage.activity_peak is not None else None


def key_of(pod: Pod) -> PodKey:
    """Under which a pod's measurements are filed."""
    return pod.ref.namespace, pod.ref.name


def _is_active(usage: Usage, percent: float) -> bool:
    return usage.activity_peak is not None and usage.activity_peak * 100 > percent


def _counted(usage: Usage, window: datetime.timedelta, busy_s_per_hour: float) -> bool:
    """Counters say that something ran, though perhaps no sample caught it."""
    return usage.busy_s is not None and usage.busy_s > busy_s_per_hour * (window / _HOUR)


def _name(pod: Pod) -> str:
    return pod.ref.name


def _device(usage: Usage) -> tuple[str, str]:
    return usage.device.uuid, usage.device.instance


def _highest(values: list[float | None]) -> float | None:
    return max([value for value in values if value is not None], default=None)


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def levels(evidence: Evidence) -> str:
    """Activity, power, memory and coverage over all devices."""
    finding = evidence.finding(FindingName.BUSY, Verdict.KEEP, ())
    parts = [f"activity mean {percent(finding.activity_mean)}, peak {percent(finding.activity_peak)}"]
    if finding.power_peak_w is not None:
        parts.append(f"power peak {finding.power_peak_w:.0f} W")
    if finding.memory_peak_bytes is not None:
        parts.append(f"memory peak {finding.memory_peak_bytes / GIB:.1f} GiB")
    parts.append(f"coverage {finding.coverage:.0%}")
    return ", ".join(parts)
