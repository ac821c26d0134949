"""Idle or finished: no activity on any of a workload's GPUs, for as long as its history requires. Pure.

One busy device of one replica keeps the whole workload.
"""

import dataclasses
import datetime

from rightsizer.findings.data_quality import IDLENESS_CHECKS, first_issues, with_confidence
from rightsizer.findings.evidence import Candidate, Evidence, is_batch
from rightsizer.findings.idle_history import ActivityHistory, history_matters, required_idle_s
from rightsizer.model import Finding, FindingName, Verdict
from rightsizer.text import instant, span


def find_idle(candidate: Candidate) -> Finding | None:
    """The finding about a workload without visible activity."""
    evidence = candidate.over_idle()
    if evidence.is_in_use:
        return None
    if issues := first_issues(evidence, IDLENESS_CHECKS):
        return evidence.finding(issues[0].code, Verdict.UNKNOWN, *(issue.message for issue in issues))
    history = candidate.history
    verdict = _verdict(candidate, history)
    name = _name(evidence, history) if verdict is Verdict.ACT else FindingName.IDLE_TOO_BRIEFLY
    words = filter(None, (_nothing_ran(evidence), _pauses(candidate, history, verdict), evidence.levels))
    finding = with_confidence(evidence.finding(name, verdict, *words), evidence, history)
    return dataclasses.replace(
        finding,
        idle_s=max(history.idle_s if history else 0.0, evidence.window.total_seconds()),
        longest_return_s=history.longest_return_s if history else None,
    )


def _verdict(candidate: Candidate, history: ActivityHistory | None) -> Verdict:
    """ACT if it has been idle for long enough; UNKNOWN if only gaps in its history prevent that."""
    if not history_matters(candidate.criteria.idle):
        return Verdict.ACT
    if history is None:
        return Verdict.UNKNOWN
    # The idle period may have begun within a slot that counts as busy, so it can be one slot longer.
    if history.idle_s + history.slot_s >= required_idle_s(history.longest_return_s, candidate.criteria.idle):
        return Verdict.ACT
    if history.unseen_s + history.slot_s >= required_idle_s(
        history.certain_return_s, candidate.criteria.idle
    ):
        return Verdict.UNKNOWN
    return Verdict.KEEP


def _name(evidence: Evidence, history: ActivityHistory | None) -> FindingName:
    if history is not None and history.worked and is_batch(evidence.candidate.workload):
        return FindingName.FINISHED
    return FindingName.IDLE


def _nothing_ran(evidence: Evidence) -> str:
    gpus = evidence.candidate.workload.gpus
    subject = "its GPU" if gpus == 1 else f"all {gpus} GPUs"
    limit = f"{evidence.candidate.criteria.idle.maxUtilizationPercent:g}%"
    return f"{subject} stayed at or below {limit} utilization for the last {span(evidence.window)}"


def _recorded_s(candidate: Candidate, length_s: float) -> float:
    """A length, limited to the existing history: its first slot counts as a whole one."""
    begins = candidate.measured.begins
    return min(length_s, (candidate.at - begins).total_seconds()) if begins else length_s


def _pauses(candidate: Candidate, history: ActivityHistory | None, verdict: Verdict) -> str:
    """The present idle period, the longest one before, and when it will count as idle."""
    if history is None:
        is_needed = history_matters(candidate.criteria.idle)
        return "its earlier idle periods are unknown: a pod has no history" if is_needed else ""
    reach = span(_recorded_s(candidate, history.span_s))
    parts = [f"idle for {span(_recorded_s(candidate, history.idle_s))}"]
    if history.noted_s and history.noted_s >= history.certain_return_s:
        parts.append(f"resumed after an idle period of {span(history.noted_s)}")
    elif history.certain_return_s:
        parts.append(
            f"longest idle period before activity: {span(history.certain_return_s)} in the last {reach}"
        )
    elif history.worked:
        parts.append(f"no earlier idle period in the last {reach}")
    else:
        parts.append(f"no activity in {reach} of history")
    if history.longest_return_s > history.certain_return_s:
        parts.append(
            f"no data for {span(history.unknown_s)}, so an idle period may have lasted "
            f"{span(history.longest_return_s)}"
        )
    if verdict is not Verdict.ACT:
        left_s = required_idle_s(history.longest_return_s, candidate.criteria.idle) - history.idle_s
        parts.append(f"counts as idle from {instant(candidate.at + datetime.timedelta(seconds=left_s))}")
    return "; ".join(parts)
