"""Input-bound: GPUs wait for CPU, disk or network. Only reported, never acted upon. Pure."""

from rightsizer.findings.evidence import Candidate, measured_levels, pod_key
from rightsizer.model import Finding, FindingName, Verdict, Waits
from rightsizer.text import percent, span


def find_input_bound(candidate: Candidate) -> Finding | None:
    """A workload that waits, and uses its GPUs little."""
    waits = wait_reason(candidate)
    if not waits:
        return None
    part = candidate.criteria.input_bound
    evidence = candidate.over(part, candidate.criteria.idle.maxUtilizationPercent)
    means = [each.usage.activity_mean for each in evidence.devices]
    if not means or not evidence.is_in_use:
        return None
    if any(mean is None or mean * 100 > part.maxMeanPercent for mean in means):
        return None
    words = (f"it waits for {waits} (mean of the last {span(evidence.window)})", measured_levels(evidence))
    return evidence.finding(FindingName.INPUT_BOUND, Verdict.KEEP, words)


def wait_reason(candidate: Candidate) -> str:
    """What its pods wait for, in words; empty for short waits and without measurements."""
    found: dict[str, float] = {}
    for pod in candidate.held if candidate.measured.waits else ():
        waits = candidate.measured.waits.get(pod_key(pod))
        for what, share in _shares(waits) if waits else ():
            if share is not None and share * 100 >= candidate.criteria.input_bound.minWaitPercent:
                found[what] = max(share, found.get(what, 0.0))
    return " and ".join(f"{what} {percent(share)} of the time" for what, share in found.items())


def _shares(waits: Waits) -> tuple[tuple[str, float | None], ...]:
    return (
        ("its CPU limit", waits.cpu_throttled),
        ("CPU", waits.cpu_pressure),
        ("disk or network", waits.io_pressure),
    )
