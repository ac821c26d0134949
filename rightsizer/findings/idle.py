"""Idle or finished: no activity on any of a workload's GPUs, for as long as its history requires. Pure.

One busy device of one replica keeps the whole workload.
"""

import dataclasses
import datetime
import math

from rightsizer.findings.data_quality import (
    IDLENESS_CHECKS,
    first_issues,
    old_enough_from,
    with_confidence,
)
from rightsizer.findings.evidence import Candidate, Evidence, is_batch
from rightsizer.findings.idle_history import ActivityHistory, history_matters
from rightsizer.model import Finding, FindingName, Verdict
from rightsizer.policy.thresholds import Thresholds
from rightsizer.text import instant, span


def find_idle(candidate: Candidate) -> Finding | None:
    """The finding about a workload without visible activity."""
    evidence = candidate.over_idle()
    if candidate.held and all(pod.started and pod.unusable == pod.devices > 0 for pod in candidate.held):
        return None  # no running container can use a GPU
    issues = () if evidence.is_in_use else first_issues(evidence, IDLENESS_CHECKS)
    if not evidence.is_in_use and not issues:
        return _finding(evidence, candidate.history)
    if not issues or issues[0].code is FindingName.TOO_YOUNG:
        early = _so_far(candidate)
        if early or evidence.is_in_use:
            return early
    return evidence.finding(issues[0].code, Verdict.UNKNOWN, *(issue.message for issue in issues))


def could_be_idle(candidate: Candidate) -> bool:
    """Whether it was idle over the window, or over the last part of it: then its history matters."""
    return any(map(_is_idle, (candidate.over_idle(), candidate.over_short())))


def _is_idle(evidence: Evidence) -> bool:
    return not evidence.is_in_use and not first_issues(evidence, IDLENESS_CHECKS)


def _so_far(candidate: Candidate) -> Finding | None:
    """Finding of the last part of the window: idle if a stop loses nothing, else the time that it has to wait.

    None before a notice may be given.
    """
    evidence, history = candidate.over_short(), candidate.history
    if evidence.window == candidate.criteria.idle.window or history is None or not _is_idle(evidence):
        return None
    finding = _finding(evidence, history)
    return finding if finding.is_noticeable or finding.verdict is Verdict.ACT else None


def _finding(evidence: Evidence, history: ActivityHistory | None) -> Finding:
    candidate, idle = evidence.candidate, evidence.candidate.criteria.idle
    is_enough = evidence.window == idle.window or bool(candidate.unused_reason)
    verdict = _verdict(candidate, history) if is_enough else Verdict.KEEP
    required_s = candidate.required_idle_s(history) if history else None
    from_ = None if verdict is Verdict.ACT else _counts_from(candidate, history, required_s)
    name = _name(evidence, history) if verdict is Verdict.ACT else FindingName.IDLE_TOO_BRIEFLY
    idle_s = max(history.idle_s if history else 0.0, evidence.window.total_seconds())
    told = (
        _nothing_ran(evidence),
        _pauses(candidate, history, from_),
        _returned(idle, idle_s),
        evidence.levels,
    )
    finding = with_confidence(evidence.finding(name, verdict, *filter(None, told)), evidence, history)
    return dataclasses.replace(
        finding,
        idle_s=idle_s,
        longest_return_s=history.longest_return_s if history else None,
        required_idle_s=required_s,
        counts_from=from_,
        is_noticeable=required_s is not None
        and idle_s >= min(required_s / 2, idle.noticeAfter.total_seconds()),
    )


def _counts_from(
    candidate: Candidate, history: ActivityHistory | None, required_s: float | None
) -> datetime.datetime | None:
    """Time from which it counts as idle if it stays idle; its pods must be old enough then.

    With a short record that grows it is the earliest time: less is required later.
    """
    if history is None or required_s is None:
        return None
    left_s, record_s = required_s - history.idle_s, candidate.record_s
    if record_s and not candidate.measured.is_full:
        sides = (record_s - history.idle_s, 2 * math.sqrt(required_s * record_s))
        grown_s = (math.hypot(*sides) - record_s - history.idle_s) / 2
        left_s = max(grown_s, required_s / candidate.stretch - history.idle_s)
    left = datetime.timedelta(seconds=left_s)
    evidence = candidate.over_short() if candidate.unused_reason else candidate.over_idle()
    return max(candidate.at + left, old_enough_from(evidence) or candidate.at)


def _verdict(candidate: Candidate, history: ActivityHistory | None) -> Verdict:
    """ACT if it has been idle for long enough; UNKNOWN if only gaps in its history prevent that."""
    if not history_matters(candidate.criteria.idle):
        return Verdict.ACT
    if history is None:
        return Verdict.UNKNOWN
    # The idle period may have begun within a slot that counts as busy, so it can be one slot longer.
    if history.idle_s + history.slot_s >= candidate.required_idle_s(history):
        return Verdict.ACT
    if history.unseen_s + history.slot_s >= candidate.required_idle_s(history.certain):
        return Verdict.UNKNOWN
    return Verdict.KEEP


def _name(evidence: Evidence, history: ActivityHistory | None) -> FindingName:
    if history is not None and history.worked and is_batch(evidence.candidate.workload):
        return FindingName.FINISHED
    return FindingName.IDLE


def _nothing_ran(evidence: Evidence) -> str:
    held = evidence.number
    measured = held if evidence.is_shared else len(evidence.devices)
    every = "its GPU" if held == 1 else f"all {held} GPUs"
    subject = every if measured == held else f"{measured} of its {held} GPUs"
    limit = f"{evidence.candidate.criteria.idle.maxUtilizationPercent:g}%"
    words = f"{subject} stayed at or below {limit} utilization for the last {span(evidence.window)}"
    if measured < held:
        words += "; only init containers could use the rest"
    if any(gpu.usage.is_by_board for gpu in evidence.devices):
        words += ", by idle power and clocks of the whole board"
    reason = evidence.candidate.unused_reason
    return f"{words}; {reason}" if reason else words


def _returned(idle: Thresholds, idle_s: float) -> str:
    """Share of its kind that worked again after as long, in words, where the policy has learned it."""
    row = idle.return_rate(idle_s)
    if row is None:
        return ""
    within = span(idle.returnsWithin.total_seconds())
    gaps = "the idle periods" if row.gaps is None else f"{row.gaps} idle periods"
    return f"{row.percent:g}% of {gaps} of its kind of {span(row.after)} ended with work within {within}"


def _recorded_s(candidate: Candidate, length_s: float) -> float:
    """A length, limited to the existing history: its first slot counts as a whole one."""
    begins = candidate.measured.begins
    return min(length_s, (candidate.at - begins).total_seconds()) if begins else length_s


def _pauses(
    candidate: Candidate, history: ActivityHistory | None, counts_from: datetime.datetime | None
) -> str:
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
    is_full = candidate.measured.is_full
    if candidate.record_s:
        parts.append(
            f"Prometheus {'keeps' if is_full else 'has'} only {span(candidate.record_s)} of data, so the required "
            f"idle time is {candidate.stretch:.1f} times as long"
        )
    if counts_from:
        grows = candidate.record_s and not is_full
        parts.append(f"counts as idle from {instant(counts_from)}{' at the earliest' if grows else ''}")
    return "; ".join(parts)
