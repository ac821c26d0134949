"""Which of several pods that the kubelet names for one device id still has it. Pure: its memory is handed to it.

A kubelet gives a device id to one pod at a time, a replica's (`<uuid>::3`) as well as a whole device's: two pods with
the same id at once mean that one of them has ended (older kubelets list such pods until they are deleted, Kubernetes
issue 132020). A listing has no order that means anything, no phases and no times; and `Get` knows no more than `List`.
What is left is that the id is given away again only after its holder has ended: the newest claimant has it. Who came
first is known from earlier answers. Claimants that appeared within one interval cannot be told apart: nobody is named.
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
    """Of one device id.

    Attributes:
        since: In which answer each pod appeared with it, of those that had it in every answer since.
        ended: Those that have lost it, by what later answers or the API server said.
    """

    since: Mapping[Pod, int]
    ended: frozenset[Pod]

    @property
    def newest(self) -> frozenset[Pod]:
        """Those of which no newer claimant is known."""
        live = {pod: number for pod, number in self.since.items() if pod not in self.ended}
        return frozenset(pod for pod, number in live.items() if number == max(live.values()))


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """What earlier answers are remembered for; no larger than the last one.

    Attributes:
        answers: How many there were.
        claimants: By device id.
    """

    answers: int = 0
    claimants: Mapping[Id, _Claimants] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Settled:
    """An answer of the kubelet without what has ended.

    Attributes:
        allocations: Who holds what.
        disputed: Device ids of which it cannot be told who holds them.
    """

    allocations: tuple[Allocation, ...] = ()
    disputed: frozenset[Id] = frozenset()


def settle(
    allocations: Iterable[Allocation], history: History, has_ended: Mapping[Pod, bool]
) -> tuple[Settled, History]:
    """Take from a fresh answer what pods hold that have ended.

    Args:
        allocations: The answer. Claimed devices are taken as they are: claims may be shared.
        history: What the call before has returned.
        has_ended: By the API server; empty where it is not asked.
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
    kept = tuple(
        allocation
        for allocation in allocations
        if (
            not has_ended.get(_pod(allocation), False)
            if allocation.owner.claim is not None
            else _id(allocation) not in disputed and _pod(allocation) in claimants[_id(allocation)].newest
        )
    )
    return Settled(kept, disputed), History(number, claimants)


def _claimants(
    pods: set[Pod], before: _Claimants | None, number: int, has_ended: Mapping[Pod, bool]
) -> _Claimants:
    before = before or _Claimants({}, frozenset())
    since = {pod: before.since.get(pod, number) for pod in pods}
    # a pod of the same name that the API server calls alive is another one
    ended = frozenset(pod for pod in pods if has_ended.get(pod, pod in before.ended))
    found = _Claimants(since, ended)
    newest = found.newest
    return _Claimants(since, frozenset(pods - newest))


def _pod(allocation: Allocation) -> Pod:
    return allocation.owner.namespace, allocation.owner.pod


def _id(allocation: Allocation) -> Id:
    return allocation.resource, allocation.device_id
