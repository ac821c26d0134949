"""Input-bound: it works, but waits for CPU, disk or network more than for its GPUs. Named, never punished. Pure."""

from rightsizer.findings.evidence import Case, key_of, levels
from rightsizer.model import Finding, FindingName, Verdict, Waits
from rightsizer.text import percent, span


def find_input_bound(case: Case) -> Finding | None:
    """What it waits for, where it uses its GPUs little meanwhile."""
    waits = what_it_waits_for(case)
    if not waits:
        return None
    part = case.criteria.input_bound
    evidence = case.over(part, case.criteria.idle.maxUtilizationPercent)
    means = [seen.usage.activity_mean for seen in evidence.seen]
    if not means or not evidence.is_in_use:
        return None
    if any(mean is None or mean * 100 > part.maxMeanPercent for mean in means):
        return None
    words = (f"it waits for {waits} (means of the last {span(evidence.window)})", levels(evidence))
    return evidence.finding(FindingName.INPUT_BOUND, Verdict.KEEP, words)


def what_it_waits_for(case: Case) -> str:
    """For what one of its pods waits too long, in words; empty where for nothing, or where that is not measured."""
    found: dict[str, float] = {}
    for pod in case.held if case.measured.waits else ():
        waits = case.measured.waits.get(key_of(pod))
        for what, share in _shares(waits) if waits else ():
            if share is not None and share * 100 >= case.criteria.input_bound.minWaitPercent:
                found[what] = max(share, found.get(what, 0.0))
    return " and ".join(f"{what} {percent(share)} of the time" for what, share in found.items())


def _shares(waits: Waits) -> tuple[tuple[str, float | None], ...]:
    return (
        ("its CPU limit", waits.cpu_throttled),
        ("CPU", waits.cpu_pressure),
        ("disk or network", waits.io_pressure),
    )
