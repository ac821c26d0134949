"""Whether the devices of a node that are free would satisfy ResourceClaims, as the scheduler's allocator decides. Pure.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from rightsizer.model import (
    CounterSet,
    DeviceChoice,
    DeviceId,
    DeviceInventory,
    DraDevice,
    EqualAttribute,
    WaitingClaim,
)

MAX_TRIES = 20_000
"""After this many tries on a node nothing is found; the scheduler has a time limit instead."""
_Equal = Mapping[tuple[int, int], object]
"""The values that constraints hold to, by claim and the place of the constraint in it."""


@dataclasses.dataclass(slots=True)
class Tries:
    """How many tries are left for several searches together: tenants write claims, and must not slow a plan down."""

    left: int = 2_000_000


def allocate(
    claims: Sequence[WaitingClaim],
    inventory: DeviceInventory,
    node: str,
    held: Collection[DeviceId],
    tries: Tries,
) -> tuple[DeviceId, ...] | None:
    """Devices of a node for all of these claims together; None if they do not fit, or too many tries were needed.

    Args:
        claims: What a pod waits for.
        inventory: All devices.
        node: The node's name.
        held: Devices that others hold.
        tries: What is left of them; one for each search, and one for each device that it tries.
    """
    if not claims:
        return ()
    limit = min(MAX_TRIES, tries.left)
    search = _Search(inventory, node, held, limit)
    wanted = [(claim, place) for claim in claims for place in range(len(claim.requests))]
    is_found = search.finds(wanted, {})
    tries.left -= limit - max(search.left, 0) + 1
    return tuple(one.id for one in search.taken) if is_found else None


class _Search:
    """Depth first; `taken` are the devices that were chosen so far, `left` is the number of tries."""

    def __init__(self, inventory: DeviceInventory, node: str, held: Collection[DeviceId], limit: int) -> None:
        self._devices = inventory.nodes.get(node, ())
        self._is_complete = node not in inventory.incomplete
        self._free = {one.id for one in self._devices if one.id not in held}
        self._counters = {
            key: dict(amounts) for key, amounts in _of_pools(inventory.counters, self._devices).items()
        }
        self._used: dict[str, list[DraDevice]] = {}
        self.left = limit
        self.taken: list[DraDevice] = []
        for one in self._devices:
            if one.id in held:
                self._use(one)

    def finds(self, wanted: Sequence[tuple[WaitingClaim, int]], equal: _Equal) -> bool:
        """Whether all that is wanted fits."""
        if not wanted:
            return True
        (claim, place), rest = wanted[0], wanted[1:]
        request = claim.requests[place]
        constraints = [
            ((id(claim), number), each)
            for number, each in enumerate(claim.constraints)
            if request.name in each.requests
        ]
        return any(
            self.finds(rest, kept)
            for choice in request.choices
            for kept in self._choose(self._candidates(choice), choice.count, constraints, equal)
        )

    def _candidates(self, choice: DeviceChoice) -> Sequence[DraDevice]:
        """Eligible devices: free ones, or all for a choice of all, which the allocator refuses in incomplete pools."""
        if choice.count is None:
            return [one for one in self._devices if self._is_complete and one.id in choice.eligible]
        free = self._free & choice.eligible
        return [one for one in self._devices if one.id in free]

    def _choose(
        self,
        candidates: Sequence[DraDevice],
        count: int | None,
        constraints: Sequence[tuple[tuple[int, int], EqualAttribute]],
        equal: _Equal,
    ) -> Iterator[_Equal]:
        """Take this many candidates, in each way, or all; each time what constraints hold to. The last ones stay."""
        wanted = len(candidates) if count is None else count
        if not wanted:
            if count is not None:
                yield equal
            return
        for at, one in enumerate(candidates[: len(candidates) - wanted + 1]):
            self.left -= 1
            if self.left < 0:
                return
            kept = _kept(one, constraints, equal)
            if kept is not None and self._take(one):
                yield from self._choose(candidates[at + 1 :], wanted - 1, constraints, kept)
                self._release(one)

    def _take(self, one: DraDevice) -> bool:
        """Take a device, if it is free and the counters suffice."""
        if one.id not in self._free or not self._fits(one):
            return False
        self._free.remove(one.id)
        self.taken.append(one)
        self._use(one)
        return True

    def _release(self, one: DraDevice) -> None:
        self._free.add(one.id)
        self.taken.remove(one)
        self._used[one.gpu].remove(one)
        self._consume(one, -1)

    def _fits(self, one: DraDevice) -> bool:
        """Whether the counters suffice; a whole GPU and a MIG device of it exclude each other also without them."""
        beside = self._used.get(one.gpu, ())
        is_apart = all(one.profile and other.profile for other in beside)
        return is_apart and all(
            amount <= self._counters.get(_set_of(one, name), {}).get(counter, 0)
            for name, amounts in one.consumes
            for counter, amount in amounts.items()
        )

    def _use(self, one: DraDevice) -> None:
        self._used.setdefault(one.gpu, []).append(one)
        self._consume(one, 1)

    def _consume(self, one: DraDevice, sign: int) -> None:
        for name, amounts in one.consumes:
            left = self._counters.setdefault(_set_of(one, name), {})
            for counter, amount in amounts.items():
                left[counter] = left.get(counter, 0) - sign * amount


def _set_of(one: DraDevice, name: str) -> CounterSet:
    return CounterSet(one.id.driver, one.id.pool, name)


def _of_pools(
    counters: Mapping[CounterSet, Mapping[str, int]], devices: Sequence[DraDevice]
) -> dict[CounterSet, Mapping[str, int]]:
    """The counters that these devices consume."""
    names = {_set_of(one, name) for one in devices for name, _ in one.consumes}
    return {name: counters[name] for name in names if name in counters}


def _kept(
    one: DraDevice, constraints: Sequence[tuple[tuple[int, int], EqualAttribute]], equal: _Equal
) -> _Equal | None:
    """The values that constraints hold to with this device as well; None if it differs."""
    kept = dict(equal)
    for key, constraint in constraints:
        value = constraint.values.get(one.id)
        if value is None or kept.setdefault(key, value) != value:
            return None
    return kept
