"""Stuck and not starting: workloads that hold GPUs without making progress. Pure.

Stuck: full utilization without power draw or memory traffic, as in a hung collective. Not starting: pods that are
pending, fail, or have ended beside a sidecar.
"""

import datetime
from collections.abc import Callable

from rightsizer.findings.data_quality import COMPLETENESS_CHECKS, first_issues
from rightsizer.findings.evidence import Candidate, DeviceEvidence, has_replicas, pod_key
from rightsizer.model import Finding, FindingName, Pod, Usage, Usages, Verdict
from rightsizer.text import gpus, span

RECENT = datetime.timedelta(minutes=10)
"""Devices that worked in the last minutes also worked in every longer window."""

MANY_RESTARTS = 5
"""The kubelet waits 10 s, 20 s, 40 s ... before restarts: the fifth comes over five minutes after the first."""


def find_stuck(candidate: Candidate) -> Finding | None:
    """A workload without working devices, of which at least one spins; None if a signal is missing.

    Ranks wait for each other, so one that spins is enough; replicas are independent, so the others may be healthy.
    """
    part = candidate.criteria.stuck
    evidence = candidate.over(part)
    devices = evidence.devices
    spinning = sum(_spins(each, part.minMeanPercent) for each in devices)
    if not spinning or evidence.is_shared:
        return None
    if any(each.draws_power is not False or each.moves_memory is not False for each in devices):
        return None
    if first_issues(evidence, COMPLETENESS_CHECKS):
        return None
    subject = "its GPU" if len(devices) == 1 else f"{spinning} of its {len(devices)} GPUs"
    pods = [pod for pod, of_pod in evidence.held if any(_spins(each, part.minMeanPercent) for each in of_pod)]
    is_whole = len(pods) == len(evidence.held) or not has_replicas(candidate.workload)
    names = (
        () if is_whole else (f"other pods may work: delete only {', '.join(pod.ref.name for pod in pods)}",)
    )
    spun = f"{subject} reported {part.minMeanPercent:g}% or more activity for {span(evidence.window)}"
    return evidence.finding(
        FindingName.STUCK,
        Verdict.ACT if is_whole else Verdict.KEEP,
        f"{spun}, but drew idle power and moved no memory",
        "perhaps a hung NCCL collective: restart the workload",
        *names,
        evidence.levels,
    )


def could_be_stuck(candidate: Candidate, recent: Callable[[], Usages]) -> bool:
    """Whether it could be stuck over a window that was not measured, judging by a longer one.

    Excluded are devices that were never near full utilization, or that worked in the last minutes: `recent` returns
    the highest values of these.
    """
    part = candidate.criteria.stuck
    longer = min((span for span in candidate.measured.usages if span >= part.window), default=None)
    if longer is None:
        return True
    known = candidate.measured.usages[longer]
    if not any(
        _may_spin(usage, part.minMeanPercent)
        for pod in candidate.held
        for usage in known.get(pod_key(pod), ())
    ):
        return False
    if part.window < RECENT:
        return True
    return not any(each.draws_power or each.moves_memory for each in candidate.devices_in(recent()))


def _may_spin(usage: Usage, min_mean_percent: float) -> bool:
    peak = usage.activity_peak
    return bool(usage.invalid) or peak is None or peak * 100 >= min_mean_percent


def _spins(device: DeviceEvidence, min_mean_percent: float) -> bool:
    """By every source of activity: one alone may be forged to get an idle workload stopped."""
    usage = device.usage
    mean = usage.activity_mean if usage.activity_floor is None else usage.activity_floor
    return bool(device.ran) and mean is not None and mean * 100 >= min_mean_percent


def find_not_starting(candidate: Candidate) -> Finding | None:
    """The pods that have held GPUs for long without running."""
    words = tuple(
        f"pod {pod.ref.name} has held {gpus(pod.devices)} for {span(candidate.at - _since(pod, candidate.at))} "
        f"and does not run: {_reason(pod)}"
        for pod in candidate.held
        if _is_stuck_before_start(pod, candidate)
    )
    if not words:
        return None
    return candidate.over_idle().finding(
        FindingName.NOT_STARTING, Verdict.KEEP, *words, "check its events and logs"
    )


def _is_stuck_before_start(pod: Pod, candidate: Candidate) -> bool:
    if pod.is_terminating or pod.started is not None:
        return False
    is_failing = pod.waiting != "" and (pod.restarts == 0 or pod.restarts >= MANY_RESTARTS)
    is_held_long = candidate.at - _since(pod, candidate.at) >= candidate.criteria.not_starting.after
    return is_held_long and (is_failing or pod.phase == "Pending")


def _since(pod: Pod, at: datetime.datetime) -> datetime.datetime:
    """Its creation; now if unknown."""
    return pod.created or at


def _reason(pod: Pod) -> str:
    reason = pod.waiting or pod.phase
    return f"{reason}, {pod.restarts} restarts" if pod.restarts else reason
