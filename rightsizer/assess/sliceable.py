"""Sliceable: what a pod needs at most fits a MIG profile or a share of a GPU that some node offers now. Pure.

Memory and activity have to fit with their margins, and so does memory traffic: it is the second signal, without which
nothing is proposed.
"""

import dataclasses
from collections.abc import Iterator

from rightsizer.assess.confidence import judged
from rightsizer.assess.evidence import Case, Evidence
from rightsizer.assess.mig import Card, Profile, card_of
from rightsizer.assess.proof import gaps_in_proof
from rightsizer.assess.words import GIB, gpus, percent, span
from rightsizer.model import Action, Finding, FindingName, Node, Proposal, Usage, Verdict

WHOLE = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"


@dataclasses.dataclass(frozen=True, slots=True)
class Need:
    """What a pod needs at most, margins included: bytes, and shares of a whole GPU of its model."""

    memory_bytes: float
    compute: float
    bandwidth: float


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """A part of a GPU that can be asked for.

    Attributes:
        share: What it takes away from the GPU, 0 to 1.
        note: What is to be known of it, for people.
    """

    resource: str
    share: float
    memory_bytes: float
    compute: float
    bandwidth: float
    is_offered: bool
    note: str = ""

    def fits(self, need: Need) -> bool:
        """Whether it suffices."""
        return (
            need.memory_bytes <= self.memory_bytes
            and need.compute <= self.compute
            and need.bandwidth <= self.bandwidth
        )


def find_sliceable(case: Case) -> Finding | None:
    """The smallest part that would do for each pod; advice only where no node offers it, or that is not proven."""
    if any(pod.devices != 1 or pod.is_shared for pod in case.held):
        return None
    part = case.criteria.sliceable
    evidence = case.over(part, case.criteria.idle.maxUtilizationPercent)
    usages = [seen.usage for seen in evidence.seen]
    if not evidence.is_in_use or len({usage.device.model for usage in usages}) != 1:
        return None
    card, holds = card_of(usages[0].device.model), _holds(usages)
    need = _need(case, usages, holds) if holds is not None else None
    if need is None or holds is None or need.compute >= holds.compute or need.bandwidth >= holds.bandwidth:
        return None
    parts = [each for each in _parts(case, card, usages[0].device.model) if each.share < holds.share]
    fitting = sorted(
        (each for each in parts if each.fits(need)), key=lambda each: (each.share, each.resource)
    )
    if not fitting:
        return None
    return _finding(evidence, usages, fitting, holds)


def _finding(evidence: Evidence, usages: list[Usage], fitting: list[Part], holds: Profile) -> Finding:
    case = evidence.case
    offered = next((part for part in fitting if part.is_offered), None)
    words = _words(case, usages, offered or fitting[0], holds)
    rhythm = case.rhythm if offered else None
    hindrances = tuple(gaps_in_proof(evidence, rhythm)) if offered else ("no node offers it now",)
    if hindrances or offered is None:
        return evidence.finding(FindingName.SLICEABLE, Verdict.KEEP, (words, *hindrances))
    frees = len(evidence.held) * (holds.share - offered.share)
    proposal = Proposal(
        Action.RESLICE,
        frees,
        f"{offered.resource} for each pod: {gpus(frees)} less",
        resource=offered.resource,
        pods=tuple(pod.ref.name for pod, _ in evidence.held),
    )
    finding = evidence.finding(FindingName.SLICEABLE, Verdict.ACT, (words, proposal.words))
    return dataclasses.replace(judged(finding, evidence, rhythm), proposal=proposal)


_WHOLE_GPU = Profile("", 1.0, 1.0, 0.0)


def _holds(usages: list[Usage]) -> Profile | None:
    """What each pod holds now, as a part of its GPU; None where they differ, or the profile is not known."""
    names = {usage.device.instance_profile if usage.device.instance else "" for usage in usages}
    if names == {""}:
        return None if any(usage.device.instance for usage in usages) else _WHOLE_GPU
    card = card_of(usages[0].device.model)
    profiles = [profile for profile in card.profiles if {profile.name} == names] if card else []
    return profiles[0] if profiles else None


def _need(case: Case, usages: list[Usage], holds: Profile) -> Need | None:
    """The highest need of any pod; None where one was not measured. Of an instance, shares are those of its own."""
    part = case.criteria.sliceable
    memory = [usage.memory_peak_bytes for usage in usages]
    activity = [usage.activity_peak for usage in usages]
    traffic = [usage.traffic_peak for usage in usages]
    if None in memory or None in activity or None in traffic:
        return None
    by_activity = 1 + part.activityMarginPercent / 100
    return Need(
        memory_bytes=max(filter(None, memory), default=0.0) * (1 + part.memoryMarginPercent / 100),
        compute=max(filter(None, activity), default=0.0) * by_activity * holds.compute,
        bandwidth=max(filter(None, traffic), default=0.0) * by_activity * holds.bandwidth,
    )


def _parts(case: Case, card: Card | None, model: str) -> Iterator[Part]:
    """Everything that a GPU of this model can be cut into, and whether a node offers that now."""
    for profile in card.profiles if card else ():
        nodes = case.fleet.offers.get(profile.resource, ())
        yield Part(
            resource=profile.resource,
            share=profile.share,
            memory_bytes=profile.memory_bytes,
            compute=profile.compute,
            bandwidth=profile.bandwidth,
            is_offered=any(card_of(node.model) is card for node in nodes),
        )
    for node in case.fleet.offers.get(SHARED, ()):
        if _plain(node.model) == _plain(model) and node.memory_bytes and node.gpus:
            yield _shared_part(node, node.memory_bytes, node.gpus)


def _shared_part(node: Node, memory_bytes: int, count: int) -> Part:
    share = count / node.allocatable[SHARED]
    note = "" if node.sharing == "mps" else "nothing keeps those who share it from each other's memory"
    return Part(SHARED, share, share * memory_bytes, share, share, is_offered=True, note=note)


def _plain(model: str) -> str:
    return model.replace("-", " ")


def _words(case: Case, usages: list[Usage], part: Part, holds: Profile) -> str:
    margins = case.criteria.sliceable
    memory = max((usage.memory_peak_bytes or 0.0) for usage in usages) / GIB
    of = f" of its {holds.name}" if holds.name else ""
    note = f"; {part.note}" if part.note else ""
    return (
        f"its peaks in the last {span(margins.window)} were {memory:.1f} GiB of memory "
        f"(and a margin of {margins.memoryMarginPercent:g}%), "
        f"{percent(max(usage.activity_peak or 0.0 for usage in usages))} activity and "
        f"{percent(max(usage.traffic_peak or 0.0 for usage in usages))} memory traffic{of} "
        f"(and {margins.activityMarginPercent:g}%): {part.resource} with {part.memory_bytes / GIB:.1f} GiB and "
        f"{percent(part.compute)} of the compute would do{note}"
    )
