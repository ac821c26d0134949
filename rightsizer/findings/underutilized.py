"""Underutilized and busy: what is said of a workload that works. Pure."""

from rightsizer.findings.data_quality import INCOMPLETE, first_doubt
from rightsizer.findings.evidence import Case, Evidence, levels
from rightsizer.model import Finding, FindingName, Verdict
from rightsizer.text import span


def find_underutilized(case: Case) -> Finding | None:
    """A workload each of whose devices works, far below what it could."""
    part = case.criteria.underutilized
    evidence = case.over(part, case.criteria.idle.maxUtilizationPercent)
    means = [seen.usage.activity_mean for seen in evidence.seen]
    if not means or not evidence.is_in_use:
        return None
    if any(mean is None or mean * 100 > part.maxMeanPercent for mean in means):
        return None
    if first_doubt(evidence, INCOMPLETE) is not None:
        return None
    words = (
        f"none of its GPUs was above {part.maxMeanPercent:g}% on average in the last {span(evidence.window)}"
    )
    return evidence.finding(
        FindingName.UNDERUTILIZED, Verdict.KEEP, (words, *sharing(evidence), levels(evidence))
    )


def find_busy(case: Case) -> Finding | None:
    """A workload that works, whatever is not known about parts of it."""
    evidence = case.over_idle()
    if not evidence.is_in_use:
        return None
    return evidence.finding(
        FindingName.BUSY, Verdict.KEEP, (_what_worked(evidence), *sharing(evidence), levels(evidence))
    )


def sharing(evidence: Evidence) -> tuple[str, ...]:
    """A word on whose activity was measured, where that is not the pod's alone."""
    is_all_own = all(seen.usage.is_own for seen in evidence.seen)
    if not evidence.is_shared or is_all_own:
        return ()
    return ("it shares its GPU, whose activity counts for everyone on it",)


def _what_worked(evidence: Evidence) -> str:
    pods = [any(seen.ran for seen in devices) for _, devices in evidence.held]
    gpus = evidence.case.workload.gpus
    busy = sum(seen.ran is True for seen in evidence.seen)
    if not all(pods):
        words = f"{sum(pods)} of {len(pods)} pods"
    elif busy < gpus and not evidence.is_shared:
        words = f"{busy} of {gpus} GPUs"
    else:
        words = "its GPU" if gpus == 1 else f"all its {gpus} GPUs"
    return f"{words} worked in the last {span(evidence.window)}"
