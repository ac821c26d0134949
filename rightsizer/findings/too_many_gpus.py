"""Too many GPUs: some of each pod's GPUs are used, others never are. Pure.

Such a pod is not idle: it is a pod to shrink. Pods of one workload are alike, so the one that uses most says what each
needs. A GPU counts as used as soon as any signal says so.
"""

import dataclasses

from rightsizer.findings.confidence import gaps_in_proof, judged
from rightsizer.findings.evidence import Case, Evidence, levels
from rightsizer.model import Action, Finding, FindingName, Proposal, Verdict
from rightsizer.text import gpus, span


def find_too_many_gpus(case: Case) -> Finding | None:
    """What each pod could do without; advice only where that is not proven."""
    part = case.criteria.too_many_gpus
    evidence = case.over(part, part.maxUtilizationPercent)
    held = max((pod.devices for pod, _ in evidence.held), default=0)
    used = max((sum(seen.is_used for seen in devices) for _, devices in evidence.held), default=0)
    if evidence.is_shared or not 0 < used < held or any(pod.devices != held for pod, _ in evidence.held):
        return None
    needed = rounded(used, held)
    if needed == held:
        return None
    rhythm = case.rhythm
    words = f"{_worked(evidence)} GPUs worked in the last {span(evidence.window)}"
    hindrances = tuple(gaps_in_proof(evidence, rhythm))
    if hindrances:
        if not evidence.is_in_use:
            return None
        return evidence.finding(
            FindingName.TOO_MANY_GPUS, Verdict.KEEP, (words, *hindrances, levels(evidence))
        )
    proposal = _proposal(evidence, held=held, used=used, needed=needed)
    finding = evidence.finding(
        FindingName.TOO_MANY_GPUS, Verdict.ACT, (words, proposal.words, levels(evidence))
    )
    return dataclasses.replace(judged(finding, evidence, rhythm), proposal=proposal)


def rounded(used: int, held: int) -> int:
    """How many to keep: what divides those held, so that parallel groups stay even and NVLink pairs stay whole.

    A number that nothing divides evenly is kept as used; a power of two stays one.
    """
    for number in range(used, held):
        if held % number == 0:
            return number
    return held if held & (held - 1) == 0 else used


def _worked(evidence: Evidence) -> str:
    used = sum(seen.is_used for seen in evidence.seen)
    return f"{used} of {evidence.case.workload.gpus}"


def _proposal(evidence: Evidence, *, held: int, used: int, needed: int) -> Proposal:
    pods = [pod.ref.name for pod, _ in evidence.held]
    why = f"; {used} were used, {needed} divides {held} evenly" if needed != used else ""
    words = f"{needed} of {held} GPUs suffice for each pod{why}"
    frees = float((held - needed) * len(pods))
    return Proposal(
        Action.RESIZE, frees, f"{words}: {gpus(frees)} less", gpus_per_pod=needed, pods=tuple(pods)
    )
