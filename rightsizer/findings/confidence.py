"""How far a finding can be relied upon, and why. Pure."""

import dataclasses
from collections.abc import Iterator

from rightsizer.findings.data_quality import INCOMPLETE, first_doubt
from rightsizer.findings.evidence import Evidence
from rightsizer.findings.idle_history import Rhythm, is_covered
from rightsizer.findings.input_bound import what_it_waits_for
from rightsizer.kinds.patches import original_replicas
from rightsizer.model import Confidence, Finding
from rightsizer.text import span


def gaps_in_proof(evidence: Evidence, rhythm: Rhythm | None) -> Iterator[str]:
    """What stands against giving each pod less; nothing where that is proven.

    One that pauses for longer than the window may need what it has when it comes back.
    """
    doubt = first_doubt(evidence, INCOMPLETE)
    if doubt is not None:
        yield from doubt[1]
    if not is_covered(rhythm, evidence.case.criteria.idle, evidence.window):
        pause = f"pauses of up to {span(rhythm.longest_return_s)}" if rhythm else "pauses of unknown length"
        yield f"it makes {pause}: a window of {span(evidence.window)} is too short to say what it needs"
    if original_replicas(evidence.case.workload.annotations) is not None:
        yield "some of its replicas were taken away; it is judged anew when they are back"


def judged(finding: Finding, evidence: Evidence, rhythm: Rhythm | None) -> Finding:
    """The finding with its confidence; the reason stands last in its words.

    High where counters, activity, a second signal and a history without gaps say the same.
    """
    confidence, reason = _confidence(evidence, rhythm)
    return dataclasses.replace(finding, confidence=confidence, words=(*finding.words, reason))


def _confidence(evidence: Evidence, rhythm: Rhythm | None) -> tuple[Confidence, str]:
    waits = what_it_waits_for(evidence.case)
    if waits:
        return Confidence.LOW, f"confidence low: it waits for {waits}, and might use more without"
    if rhythm is None:
        return Confidence.LOW, "confidence low: its earlier pauses are not known"
    if rhythm.unknown_s:
        return Confidence.LOW, "confidence low: its history has gaps"
    if any(seen.usage.busy_s is None for seen in evidence.seen):
        return Confidence.MEDIUM, "confidence medium: samples and its history agree; there are no counters"
    counted_s = max((seen.usage.busy_s or 0.0 for seen in evidence.seen), default=0.0)
    if round(counted_s, 1):
        return (
            Confidence.MEDIUM,
            f"confidence medium: counters saw {counted_s:.1f} s of work between the samples",
        )
    return Confidence.HIGH, "confidence high: counters, samples and its history agree"
