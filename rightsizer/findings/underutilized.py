"""Unusable and wrong GPUs, input-bound, underutilized and busy: only reported, never acted upon. Pure."""

from rightsizer.findings.data_quality import COMPLETENESS_CHECKS, first_issues, wait_reason
from rightsizer.findings.evidence import Candidate, Evidence, pod_key
from rightsizer.model import Finding, FindingName, Verdict
from rightsizer.text import device, gpus, span


def find_unusable_gpus(candidate: Candidate) -> Finding | None:
    """GPUs that stay reserved until the pod ends, although only init containers request them, which have ended."""
    words = tuple(
        f"pod {pod.ref.name} reserves {gpus(pod.unusable)} that only its init containers could use, which have ended"
        for pod in candidate.held
        if pod.unusable and pod.started is not None
    )
    if not words:
        return None
    advice = "request GPUs in main containers or sidecars, or not at all"
    return candidate.over_idle().finding(FindingName.UNUSABLE_GPUS, Verdict.KEEP, *words, advice)


def find_input_bound(candidate: Candidate) -> Finding | None:
    """A workload whose GPUs wait for CPU, disk or network, and do little."""
    waits, part = wait_reason(candidate), candidate.criteria.inputBound
    if not waits or not (evidence := candidate.over(part)).uses_little(part.maxMeanPercent):
        return None
    words = f"it waits for {waits} (mean of the last {span(evidence.window)})"
    return evidence.finding(FindingName.INPUT_BOUND, Verdict.KEEP, words, evidence.levels)


def find_underutilized(candidate: Candidate) -> Finding | None:
    """A workload with low mean activity on all of its devices."""
    part = candidate.criteria.underutilized
    evidence = candidate.over(part)
    if not evidence.uses_little(part.maxMeanPercent) or first_issues(evidence, COMPLETENESS_CHECKS):
        return None
    words = (
        f"mean activity of each GPU was at most {part.maxMeanPercent:g}% in the last {span(evidence.window)}; in use, "
        "so only reported"
    )
    return evidence.finding(
        FindingName.UNDERUTILIZED, Verdict.KEEP, words, *_sharing(evidence), evidence.levels
    )


def find_wrong_gpu(candidate: Candidate) -> Finding | None:
    """A workload that works on GPUs that the kubelet did not give to its pods."""
    evidence = candidate.over_idle()
    words: list[str] = []
    reasons = set()
    for pod, held in evidence.held:
        names = [f"{device(gpu.usage)} ({'used' if gpu.is_used else 'unused'})" for gpu in held]
        for gpu in evidence.others.get(pod_key(pod), ()):
            own_s = (gpu.usage.busy_s or 0.0) - gpu.usage.unattributed_s
            if gpu.is_used:
                reasons.add(pod.reach or _CHECK)
                words.append(
                    f"pod {pod.ref.name} worked for {span(max(own_s, gpu.usage.traffic_s or 0.0))} of the last "
                    f"{span(evidence.window)} on {device(gpu.usage)}, which the kubelet did not give it; "
                    f"it holds {', '.join(names) or 'GPUs without series'}"
                )
    if not words:
        return None
    return evidence.finding(FindingName.WRONG_GPU, Verdict.KEEP, *words, *sorted(reasons), evidence.levels)


_CHECK = "check which GPUs its containers see: NVIDIA_VISIBLE_DEVICES, CDI devices, privileged containers"


def find_busy(candidate: Candidate) -> Finding | None:
    """A workload that works."""
    evidence = candidate.over_idle()
    if not evidence.is_in_use:
        return None
    words = (_what_worked(evidence), *_sharing(evidence), evidence.levels)
    return evidence.finding(FindingName.BUSY, Verdict.KEEP, *words)


def _sharing(evidence: Evidence) -> tuple[str, ...]:
    """A remark if the measured activity includes other pods."""
    is_all_own = all(gpu.usage.is_own for gpu in evidence.devices)
    if not evidence.is_shared or is_all_own:
        return ()
    return ("pods share the GPU; its activity includes that of the other pods",)


def _what_worked(evidence: Evidence) -> str:
    pods = [any(gpu.ran for gpu in devices) for _, devices in evidence.held]
    held = evidence.number
    busy = sum(gpu.ran is True for gpu in evidence.devices)
    if not all(pods):
        words = f"{sum(pods)} of {len(pods)} pods"
    elif busy < held and not evidence.is_shared:
        words = f"{busy} of {gpus(held)}"
    else:
        words = "its GPU" if held == 1 else f"all {held} GPUs"
    was = "was" if words == "its GPU" else "were"
    return f"{words} {was} active in the last {span(evidence.window)}"
