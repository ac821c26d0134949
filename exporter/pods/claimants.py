"""Decides which of several pods with the same device id still holds it. Pure: the caller keeps its state.

A kubelet allocates a device id to one pod at a time, also the id of a replica (`<uuid>::3`). If two pods have the same
id, one of them has ended: older kubelets list such pods until they are deleted (Kubernetes issue 132020). The answer
has no order, phases or times, and `Get` returns no more than `List`. But an id is allocated again only after its holder
has ended, so the newest claimant holds it. Earlier answers show which is newest. Claimants that appeared in the same
interval are indistinguishable: then no pod is named.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from exporter.model import Allocation

Pod = tuple[str, str]
"""Namespace and name."""
Id = tuple[str, str]
"""Resource and device id."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Claimants:
    """The pods that claim one device id."""

    # number of the answer in which each pod appeared, if it was in every answer since
    since: Mapping[Pod, int]
    ended: frozenset[Pod]  # pods that have lost the id, according to later answers or the API server

    @property
    def newest(self) -> frozenset[Pod]:
        """The newest pods that have not ended."""
        live = {pod: number for pod, number in self.since.items() if pod not in self.ended}
        return frozenset(pod for pod, number in live.items() if number == max(live.values()))


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimantHistory:
    """The state that earlier answers left; no larger than the last answer."""

    answers: int = 0  # number of answers
    claimants: Mapping[Id, _Claimants] = dataclasses.field(default_factory=dict)  # by device id


@dataclasses.dataclass(frozen=True, slots=True)
class SettledAllocations:
    """The kubelet's answer without ended pods."""

    allocations: tuple[Allocation, ...] = ()
    disputed: frozenset[Id] = frozenset()  # device ids whose holder is unknown
    # claimed devices whose holder is unknown: all but one of several claims without shares have adminAccess
    contested: frozenset[str] = frozenset()


def settle(
    allocations: Iterable[Allocation], history: ClaimantHistory, has_ended: Mapping[Pod, bool]
) -> tuple[SettledAllocations, ClaimantHistory]:
    """Remove ended pods from an answer.

    `allocations`: the answer. Pods may share a resource claim, and claims with a share id a device. `history`: the
    result of the previous call. `has_ended`: from the API server; empty if it is not queried.
    """
    allocations = tuple(allocations)
    listed: dict[Id, set[Pod]] = {}
    for allocation in allocations:
        if allocation.owner.claim is None:
            listed.setdefault(_id(allocation), set()).add(_pod(allocation))
    number = history.answers + 1
    claimants = {
        key: _claimants(pods, history.claimants.get(key), number, has_ended) for key, pods in listed.items()
    }
    disputed = frozenset(key for key, found in claimants.items() if len(found.newest) > 1)
    live = [held for held in allocations if not has_ended.get(_pod(held), False)]
    shared = {held.device_id for held in live if held.owner.claim is not None and held.owner.claim.share_id}
    contested = _contested(held for held in live if held.device_id not in shared)
    kept = tuple(
        allocation
        for allocation in allocations
        if (
            not has_ended.get(_pod(allocation), False)
            and allocation.device_id not in contested
            # a claim without a share of a shared device observes it
            and (bool(allocation.owner.claim.share_id) or allocation.device_id not in shared)
            if allocation.owner.claim is not None
            else _id(allocation) not in disputed and _pod(allocation) in claimants[_id(allocation)].newest
        )
    )
    return SettledAllocations(kept, disputed, contested), ClaimantHistory(number, claimants)


def _contested(allocations: Iterable[Allocation]) -> frozenset[str]:
    """Devices of claims of which one has a device in common with another.

    The scheduler gives a device to one claim, and to claims with adminAccess, which only observe. The kubelet does not
    tell them apart, so each of these claims may be an observer, also of its other devices.
    """
    claims: dict[str, set[Pod]] = {}
    for claim in (held.owner.claim for held in allocations):
        if claim is not None:
            claims.setdefault(claim.device, set()).add((claim.namespace, claim.name))
    rivals = {claim for found in claims.values() if len(found) > 1 for claim in found}
    return frozenset(device for device, found in claims.items() if not rivals.isdisjoint(found))


def _claimants(
    pods: set[Pod], before: _Claimants | None, number: int, has_ended: Mapping[Pod, bool]
) -> _Claimants:
    before = before or _Claimants({}, frozenset())
    since = {pod: before.since.get(pod, number) for pod in pods}
    # a running pod with the same name is another pod
    ended = frozenset(pod for pod in pods if has_ended.get(pod, pod in before.ended))
    found = _Claimants(since, ended)
    newest = found.newest
    return _Claimants(since, frozenset(pods - newest))


def _pod(allocation: Allocation) -> Pod:
    return allocation.owner.namespace, allocation.owner.pod


def _id(allocation: Allocation) -> Id:
    return allocation.resource, allocation.device_id
