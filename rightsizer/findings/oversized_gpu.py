"""Oversized GPU: what a pod needs at most fits a MIG profile, a share or amounts of a GPU that some node offers. Pure.

Memory and activity have to fit with their margins, and so does memory traffic: it is the second signal, without which
nothing is proposed.
"""

import dataclasses

from rightsizer.findings.confidence import gaps_in_proof, judged
from rightsizer.findings.evidence import Case, Evidence
from rightsizer.findings.gpu_slices import Held, Need, Part, held_by, parts_of
from rightsizer.findings.node_room import Room
from rightsizer.model import Action, Finding, FindingName, Proposal, Usage, Verdict
from rightsizer.text import GIB, gpus, percent, span

LEAST_GAIN = 0.1
"""Of a GPU, for each pod: for less nobody's pods are made anew."""
NOWHERE = "no node that its pods may come to has it free now, with CPU and memory for them"


def find_oversized_gpu(case: Case) -> Finding | None:
    """The smallest part that would do for each pod; advice only where no node offers it, or that is not proven."""
    part = case.criteria.oversized_gpu
    evidence = case.over(part, case.criteria.idle.maxUtilizationPercent)
    usages = [seen.usage for seen in evidence.seen]
    if not evidence.is_in_use or len({usage.device.model for usage in usages}) != 1:
        return None
    held = held_by(case, usages)
    need = _need(case, usages, held) if held is not None else None
    if need is None or held is None or need.compute >= held.compute or need.bandwidth >= held.bandwidth:
        return None
    fitting = sorted(
        (
            each
            for each in parts_of(case, usages[0].device.model, held, need)
            if each.share <= held.share - LEAST_GAIN and each.fits(need)
        ),
        key=lambda each: (each.share, each.asks),
    )
    if not fitting:
        return None
    return _finding(evidence, usages, fitting, held)


def _finding(evidence: Evidence, usages: list[Usage], fitting: list[Part], held: Held) -> Finding:
    case = evidence.case
    model = usages[0].device.model
    room = Room(case.fleet, case.workload, model)
    offered = next((part for part in fitting if room.has(part.asks)), None)
    words = _words(case, usages, offered or fitting[0], held)
    rhythm = case.rhythm if offered else None
    hindrances = tuple(gaps_in_proof(evidence, rhythm)) if offered else (NOWHERE,)
    if hindrances or offered is None:
        return evidence.finding(FindingName.OVERSIZED_GPU, Verdict.KEEP, (words, *hindrances))
    frees = len(evidence.held) * (held.share - offered.share)
    proposal = Proposal(
        Action.RESLICE,
        frees,
        f"{offered} for each pod: {gpus(frees)} less",
        asks=offered.asks,
        model=model,
        pods=tuple(pod.ref.name for pod, _ in evidence.held),
    )
    finding = evidence.finding(FindingName.OVERSIZED_GPU, Verdict.ACT, (words, proposal.words))
    return dataclasses.replace(judged(finding, evidence, rhythm), proposal=proposal)


def _need(case: Case, usages: list[Usage], held: Held) -> Need | None:
    """The highest need of any pod; None where one was not measured. Of an instance, shares are those of its own."""
    part = case.criteria.oversized_gpu
    memory = [usage.memory_peak_bytes for usage in usages]
    activity = [usage.activity_peak for usage in usages]
    traffic = [usage.traffic_peak for usage in usages]
    if None in memory or None in activity or None in traffic:
        return None
    by_activity = 1 + part.activityMarginPercent / 100
    return Need(
        memory_bytes=max(filter(None, memory), default=0.0) * (1 + part.memoryMarginPercent / 100),
        compute=max(filter(None, activity), default=0.0) * by_activity * held.compute,
        bandwidth=max(filter(None, traffic), default=0.0) * by_activity * held.bandwidth,
    )


def _words(case: Case, usages: list[Usage], part: Part, held: Held) -> str:
    margins = case.criteria.oversized_gpu
    memory = max((usage.memory_peak_bytes or 0.0) for usage in usages) / GIB
    of = f" of its {held.name}" if held.name else ""
    asked = f" of the {held.memory_bytes / GIB:.1f} asked for" if held.memory_bytes else ""
    note = f"; {part.note}" if part.note else ""
    return (
        f"its peaks in the last {span(margins.window)} were {memory:.1f} GiB of memory{asked} "
        f"(and a margin of {margins.memoryMarginPercent:g}%), "
        f"{percent(max(usage.activity_peak or 0.0 for usage in usages))} activity and "
        f"{percent(max(usage.traffic_peak or 0.0 for usage in usages))} memory traffic{of} "
        f"(and {margins.activityMarginPercent:g}%): {part} with {part.memory_bytes / GIB:.1f} GiB and "
        f"{percent(part.compute)} of the compute would do{note}"
    )
