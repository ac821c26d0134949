"""Oversized GPU: a MIG profile, a share or an amount of a GPU that some node offers would be enough for each pod. Pure.

Memory, activity and memory traffic must all fit, with margins.
"""

from collections.abc import Iterator

from rightsizer.findings.data_quality import missing_proof, with_confidence
from rightsizer.findings.evidence import Candidate, Evidence
from rightsizer.findings.free_capacity import FreeCapacity
from rightsizer.findings.gpu_slices import ISOLATION, GpuSlice, HeldSlice, SliceNeed, held_slice, slices_of
from rightsizer.kinds import row_of
from rightsizer.kinds.kind import Steering
from rightsizer.model import Action, Finding, FindingName, Proposal, Usage, Verdict
from rightsizer.text import GIB, count, gpus, percent, span

NOWHERE = "no eligible node has this slice free, with enough CPU and memory"


def find_oversized_gpu(candidate: Candidate) -> Finding | None:
    """The smallest sufficient slice for each pod; only advice if no node offers it or it is not proven."""
    part = candidate.criteria.oversizedGpu
    evidence = candidate.over(part)
    usages = [gpu.usage for gpu in evidence.devices]
    is_elsewhere = any(gpu.is_used for _, gpu in evidence.elsewhere)  # so the need is not measured
    if is_elsewhere or not evidence.is_in_use or len({usage.device.model for usage in usages}) != 1:
        return None
    held = held_slice(candidate, usages)
    need = _need(candidate, usages, held) if held is not None else None
    if need is None or held is None or need.compute >= held.compute or need.bandwidth >= held.bandwidth:
        return None
    is_untrusted = candidate.criteria.sharing.is_untrusted(candidate.workload, candidate.fleet)
    fitting = sorted(
        (
            gpu_slice
            for gpu_slice in slices_of(candidate, usages[0].device.model, held, need)
            if gpu_slice.share <= held.share - part.minSavingPercent / 100
            and gpu_slice.fits(need)
            and not (is_untrusted and gpu_slice.method != "mig")
        ),
        key=lambda gpu_slice: (gpu_slice.share, gpu_slice.asks),
    )
    if not fitting:
        return None
    return _finding(evidence, usages, fitting, held)


def _finding(evidence: Evidence, usages: list[Usage], fitting: list[GpuSlice], held: HeldSlice) -> Finding:
    candidate = evidence.candidate
    model = usages[0].device.model
    capacity = FreeCapacity(candidate.fleet, candidate.workload, model)
    blocked = {part.asks: capacity.sharing_blocker(part.asks, candidate.criteria.sharing) for part in fitting}
    allowed = [part for part in fitting if not blocked[part.asks]]
    offered = next((part for part in allowed if capacity.fits(part.asks)), None)
    shown = offered or (allowed or fitting)[0]
    words = _reason(candidate, usages, shown, held)
    history = candidate.history if offered else None
    words += _without_nvlink(evidence, shown)
    if offered:
        missing = (*missing_proof(evidence, history), *_connected(evidence, offered))
    else:
        free = [part for part in fitting if blocked[part.asks] and capacity.fits(part.asks)]
        refused = [f"{part} is free, but {blocked[part.asks]}" for part in free[:1]]
        missing = (*([] if shown in free else [NOWHERE]), *refused)
    if missing or offered is None:
        return evidence.finding(FindingName.OVERSIZED_GPU, Verdict.KEEP, words, *missing)
    frees = len(evidence.held) * (held.share - offered.share)
    proposal = Proposal(
        Action.RESLICE,
        frees,
        f"{offered} for each pod; frees {gpus(frees)}",
        asks=offered.asks,
        model=model,
        pods=tuple(pod.ref.name for pod, _ in evidence.held),
    )
    finding = evidence.finding(
        FindingName.OVERSIZED_GPU, Verdict.ACT, words, proposal.words, proposal=proposal
    )
    return with_confidence(finding, evidence, history)


def _without_nvlink(evidence: Evidence, part: GpuSlice) -> str:
    """Loss of NVLink in a MIG instance, in words; empty if its GPUs have none, or it is unknown."""
    known = evidence.candidate.measured.nvlink
    most = max((len(known.get(gpu.usage.device.uuid, ())) for gpu in evidence.devices), default=0)
    if not most or not part.is_instance:
        return ""
    return f"; a MIG instance has no NVLink, which connects its GPU with {count(most, 'other')}"


def _connected(evidence: Evidence, part: GpuSlice) -> Iterator[str]:
    """Why pods that know each other by number, as those of a StatefulSet, keep GPUs that NVLink connects."""
    row, known = row_of(evidence.candidate.workload), evidence.candidate.measured.nvlink
    own = {gpu.usage.device.uuid for gpu in evidence.devices}
    are_numbered = row is not None and row.steering is Steering.TAIL
    if part.is_instance and are_numbered and any(own & known.get(uuid, frozenset()) for uuid in own):
        yield "NVLink connects GPUs of its pods, which may work together"


def _need(candidate: Candidate, usages: list[Usage], held: HeldSlice) -> SliceNeed | None:
    """The highest need of any pod, as fractions of the GPU; None if a signal is missing."""
    part = candidate.criteria.oversizedGpu
    memory = [usage.memory_peak_bytes for usage in usages]
    activity = [usage.activity_peak for usage in usages]
    traffic = [usage.traffic_peak for usage in usages]
    if None in (*memory, *activity, *traffic):
        return None
    by_activity = 1 + part.activityMarginPercent / 100
    return SliceNeed(
        memory_bytes=max(filter(None, memory), default=0.0) * (1 + part.memoryMarginPercent / 100),
        compute=max(filter(None, activity), default=0.0) * by_activity * held.compute,
        bandwidth=max(filter(None, traffic), default=0.0) * by_activity * held.bandwidth,
    )


def _reason(candidate: Candidate, usages: list[Usage], part: GpuSlice, held: HeldSlice) -> str:
    margins = candidate.criteria.oversizedGpu
    memory = max((usage.memory_peak_bytes or 0.0) for usage in usages) / GIB
    of = f" of its {held.name}" if held.name else ""
    requested = f" of {held.memory_bytes / GIB:.1f} GiB requested" if held.memory_bytes else ""
    return (
        f"peaks of the last {span(margins.window)}: {memory:.1f} GiB memory{requested} "
        f"(margin {margins.memoryMarginPercent:g}%), "
        f"{percent(max(usage.activity_peak or 0.0 for usage in usages))} activity, "
        f"{percent(max(usage.traffic_peak or 0.0 for usage in usages))} memory traffic{of} "
        f"(margin {margins.activityMarginPercent:g}%); {part} would be enough, with "
        f"{part.memory_bytes / GIB:.1f} GiB and {percent(part.compute)} of the compute; {ISOLATION[part.method]}"
    )
