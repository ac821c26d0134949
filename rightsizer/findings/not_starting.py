"""Not starting: pods that hold GPUs and do not run (pending, failing, or ended beside a sidecar). Pure."""

import datetime

from rightsizer.findings.evidence import Candidate
from rightsizer.model import Finding, FindingName, Pod, Verdict
from rightsizer.text import gpus, span

MANY_RESTARTS = 5
"""The kubelet waits 10 s, 20 s, 40 s ... before restarts: the fifth comes over five minutes after the first."""


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
        FindingName.NOT_STARTING, Verdict.KEEP, (*words, "check its events and logs")
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
