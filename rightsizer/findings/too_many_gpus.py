"""Too many GPUs: each pod uses some of its GPUs and never the others. Pure.

Pods of one workload are alike, so the pod that uses most determines the need. Any signal of use counts.
"""

import datetime
import itertools
from collections.abc import Iterable, Iterator, Mapping

from rightsizer.findings.data_quality import missing_proof, with_confidence
from rightsizer.findings.evidence import Candidate, Evidence
from rightsizer.findings.idle_history import observed_since
from rightsizer.model import Action, Device, Finding, FindingName, Pod, Proposal
from rightsizer.text import gpus, span


def find_too_many_gpus(candidate: Candidate) -> Finding | None:
    """The GPUs that each pod does not need; only advice if that is not proven."""
    part, held = candidate.criteria.tooManyGpus, max((pod.usable for pod in candidate.held), default=0)
    if held <= 1 or any(pod.is_shared or pod.usable != held for pod in candidate.held):
        return None
    evidence = candidate.over(part, part.maxUtilizationPercent)
    by_pod = _used(candidate, evidence)
    used = max(map(len, by_pod.values()), default=0)
    if not 0 < used < held:
        return None
    needed = gpus_to_keep(used, held, nvlink_group(evidence))
    if needed == held:
        return None
    history = candidate.history
    worked = sum(map(len, by_pod.values()))
    reach = max(_lived(pod, _over_longest(candidate)) for pod, _ in evidence.held) * _longest(candidate)
    words = f"{worked} of {candidate.workload.devices} GPUs were used in the last {span(reach)}"
    words += _connection(candidate, by_pod.values())
    missing = (*_unseen(candidate, evidence), *missing_proof(evidence, history))
    if missing and not any(missing_proof(_over_longest(candidate), history)):
        evidence, missing = _over_longest(candidate), ()
    if missing:
        return evidence.advice(FindingName.TOO_MANY_GPUS, words, missing)
    proposal = _proposal(evidence, held=held, used=used, needed=needed)
    return with_confidence(evidence.call(FindingName.TOO_MANY_GPUS, words, proposal), evidence, history)


def _longest(candidate: Candidate) -> datetime.timedelta:
    return max(candidate.criteria.tooManyGpus.window, candidate.criteria.idle.window)


def _over_longest(candidate: Candidate) -> Evidence:
    part = candidate.criteria.tooManyGpus
    return candidate.over(part, part.maxUtilizationPercent, window=_longest(candidate))


def _used(candidate: Candidate, evidence: Evidence) -> Mapping[str, set[Device]]:
    """The devices of each pod that were used in the window, or in the longer one for idleness even with gaps."""
    longer = _over_longest(candidate)
    found: dict[str, set[Device]] = {}
    for pod, devices in (*evidence.held, *longer.held):
        found.setdefault(pod.ref.name, set()).update(gpu.usage.device for gpu in devices if gpu.is_used)
    return found


def _unseen(candidate: Candidate, evidence: Evidence) -> Iterator[str]:
    """Reasons against a verdict: a device may have worked in a part of the longer window that has no data of it."""
    longer = _over_longest(candidate)
    known = {
        (pod.ref.name, gpu.usage.device)
        for pod, devices in longer.held
        for gpu in devices
        if gpu.ran is not None and gpu.usage.coverage >= longer.coverage * _lived(pod, longer)
    }
    if any(
        (pod.ref.name, gpu.usage.device) not in known for pod, devices in evidence.held for gpu in devices
    ):
        yield f"some of its GPUs have no data of the last {span(longer.window)}, or of a part of it"


def _lived(pod: Pod, evidence: Evidence) -> float:
    """The share of the window in which the pod existed."""
    since = observed_since(pod)
    return 1.0 if since is None else min(1.0, (evidence.candidate.at - since) / evidence.window)


def nvlink_group(evidence: Evidence) -> int | None:
    """The number of GPUs that NVLink connects with one another, 1 without NVLink; None if unknown, or not the same."""
    known = evidence.candidate.measured.nvlink
    sizes = {len(known.get(gpu.usage.device.uuid, ())) + 1 for gpu in evidence.devices}
    is_known = all(gpu.usage.device.uuid in known for gpu in evidence.devices)
    return sizes.pop() if is_known and len(sizes) == 1 else None


def _connection(candidate: Candidate, used: Iterable[set[Device]]) -> str:
    """Whether NVLink connects GPUs that a pod used, in words; empty if none has NVLink, or it is unknown."""
    nvlink = candidate.measured.nvlink
    boards = [sorted({device.uuid for device in devices}) for devices in used]
    pairs = [pair for uuids in boards for pair in itertools.combinations(uuids, 2)]
    peers = [nvlink.get(uuid) for pair in pairs for uuid in pair]
    if None in peers or not any(peers):
        return ""
    if not any(other in nvlink[uuid] for uuid, other in pairs):
        return "; NVLink does not connect them"
    return "; NVLink connects them; NVIDIA's device plugin prefers connected GPUs, but does not guarantee it"


def gpus_to_keep(used: int, held: int, group: int | None = None) -> int:
    """GPUs to keep per pod: a divisor of those held keeps parallel groups even.

    Without a divisor it is the number of used ones, or all of a power of two. If that is more than one `group` of GPUs
    with NVLink, whole groups are kept.
    """
    even = (number for number in range(used, held) if held % number == 0)
    least = next(even, held if held & (held - 1) == 0 else used)
    fitting = (number for number in range(least, held) if not group or number <= group or number % group == 0)
    return next(fitting, held)


def _proposal(evidence: Evidence, *, held: int, used: int, needed: int) -> Proposal:
    pods = [pod.ref.name for pod, _ in evidence.held]
    reason = f"divides {held} evenly" if held % needed == 0 else "keeps groups of GPUs with NVLink whole"
    why = f" ({used} were used; {needed} {reason})" if needed != used else ""
    words = f"each pod needs {needed} of its {held} GPUs{why}"
    frees = sum((held - needed) * pod.share for pod, _ in evidence.held)
    return Proposal(
        Action.RESIZE, frees, f"{words}; resize frees {gpus(frees)}", gpus_per_pod=needed, pods=tuple(pods)
    )
