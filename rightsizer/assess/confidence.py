"""How far a finding can be relied upon, and why. Pure."""

import dataclasses

from rightsizer.assess.evidence import Evidence
from rightsizer.assess.rhythm import Rhythm
from rightsizer.assess.starved import what_it_waits_for
from rightsizer.model import Confidence, Finding


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
