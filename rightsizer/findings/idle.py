"""Idle or finished: nothing ran on any of a workload's GPUs, for as long as its own rhythm asks. Pure.

A workload is judged as a whole: one busy device of one replica keeps it.
"""

import dataclasses
import datetime

from rightsizer.findings.confidence import judged
from rightsizer.findings.data_quality import DOUBTS, first_doubt
from rightsizer.findings.evidence import Case, Evidence, levels
from rightsizer.findings.idle_history import Rhythm, matters, needed_s
from rightsizer.findings.kind_traits import is_batch
from rightsizer.model import Finding, FindingName, Verdict
from rightsizer.text import instant, span

CONTEXT_BYTES = 1 << 30
"""More framebuffer than this is held by a loaded model or data set; a bare CUDA context takes about half of it."""


def find_idle(case: Case) -> Finding | None:
    """What is to be said of a workload at which nothing was seen at work; None where something was."""
    evidence = case.over_idle()
    if evidence.is_in_use:
        return None
    doubt = first_doubt(evidence, DOUBTS)
    if doubt is not None:
        return evidence.finding(doubt[0], Verdict.UNKNOWN, doubt[1])
    rhythm = case.rhythm
    verdict = _verdict(case, rhythm)
    name = _name(evidence, rhythm) if verdict is Verdict.ACT else FindingName.IDLE_TOO_BRIEFLY
    words = (_nothing_ran(evidence), _pauses(case, rhythm, verdict), levels(evidence))
    finding = judged(evidence.finding(name, verdict, filter(None, words)), evidence, rhythm)
    return dataclasses.replace(
        finding,
        idle_s=max(rhythm.idle_s if rhythm else 0.0, evidence.window.total_seconds()),
        longest_return_s=rhythm.longest_return_s if rhythm else None,
    )


def _verdict(case: Case, rhythm: Rhythm | None) -> Verdict:
    """Whether it has been idle for long enough; unknown where gaps in its history alone stand against that."""
    if not matters(case.criteria.idle):
        return Verdict.ACT
    if rhythm is None:
        return Verdict.UNKNOWN
    # A slot that has begun before the pause is not part of it, so a pause can be a slot longer than its slots.
    if rhythm.idle_s + rhythm.slot_s >= needed_s(rhythm.longest_return_s, case.criteria.idle):
        return Verdict.ACT
    if rhythm.unseen_s + rhythm.slot_s >= needed_s(rhythm.certain_return_s, case.criteria.idle):
        return Verdict.UNKNOWN
    return Verdict.KEEP


def _name(evidence: Evidence, rhythm: Rhythm | None) -> FindingName:
    if rhythm is not None and rhythm.worked and is_batch(evidence.case.workload):
        return FindingName.FINISHED
    return FindingName.IDLE


def _nothing_ran(evidence: Evidence) -> str:
    gpus = evidence.case.workload.gpus
    whose = "its GPU was not" if gpus == 1 else f"none of its {gpus} GPUs was"
    limit = f"{evidence.case.criteria.idle.maxUtilizationPercent:g}%"
    return f"{whose} above {limit} at any time in the last {span(evidence.window)}"


def _on_record_s(case: Case, length_s: float) -> float:
    """No more than there is a record of: the slots in which that begins count as whole ones."""
    begins = case.measured.begins
    return min(length_s, (case.at - begins).total_seconds()) if begins else length_s


def _pauses(case: Case, rhythm: Rhythm | None, verdict: Verdict) -> str:
    """How long it has been idle beside how long it ever was, and from when on that counts."""
    if rhythm is None:
        is_missed = matters(case.criteria.idle)
        return "how long it paused before is not known: not every pod's history is" if is_missed else ""
    looked = span(_on_record_s(case, rhythm.span_s))
    parts = [f"idle for {span(_on_record_s(case, rhythm.idle_s))}"]
    if rhythm.noted_s and rhythm.noted_s >= rhythm.certain_return_s:
        parts.append(f"was put back after a pause of at most {span(rhythm.noted_s)}")
    elif rhythm.certain_return_s:
        parts.append(f"came back after at most {span(rhythm.certain_return_s)} in {looked}")
    elif rhythm.worked:
        parts.append(f"never came back from a pause in {looked}")
    else:
        parts.append(f"not seen at work in {looked}")
    if rhythm.longest_return_s > rhythm.certain_return_s:
        parts.append(
            f"nothing is known of {span(rhythm.unknown_s)}, and it may have come back "
            f"after {span(rhythm.longest_return_s)}"
        )
    if verdict is not Verdict.ACT:
        left_s = needed_s(rhythm.longest_return_s, case.criteria.idle) - rhythm.idle_s
        parts.append(f"will count as idle from {instant(case.at + datetime.timedelta(seconds=left_s))}")
    return "; ".join(parts)
