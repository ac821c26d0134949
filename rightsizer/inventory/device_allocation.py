"""Whether the devices of a node that are free would satisfy ResourceClaims, as the scheduler's allocator decides. Pure.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

import collections
import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence

from rightsizer.model import (
    MAX_OF_CLAIM,
    AttributeConstraint,
    Counters,
    CounterSet,
    DeviceChoice,
    DeviceId,
    DeviceInventory,
    DraDevice,
    Holding,
    WaitingClaim,
)

MAX_TRIES = 20_000
"""Maximum number of tries on a node before nothing counts as found; the scheduler has a time limit instead."""
_DEVICES_PER_TRY = 50
"""Number of devices of a node that are looked at for one more try: a node with MIG has hundreds."""
MAX_OF_POD = 128
"""Devices that are looked for together: tenants write any number."""
Held = Mapping[DeviceId, Collection[Holding]]
"""Holdings on each device that is not free."""
_Taken = Mapping[tuple[int, int], frozenset[object]]
"""The values of the devices that were taken, by claim and the place of the constraint in it."""


@dataclasses.dataclass(slots=True)
class Tries:
    """Tries left for several searches together: tenants write claims, and must not slow a plan down."""

    left: int = 2_000_000


def allocate(
    claims: Sequence[WaitingClaim],
    inventory: DeviceInventory,
    node: str,
    held: Held,
    tries: Tries,
    *,
    freed: Collection[Holding] = (),
) -> tuple[Holding, ...] | None:
    """Devices of a node for all of these claims together; None if they do not fit, or too many tries were needed.

    Args:
        claims: What a pod waits for.
        inventory: All devices.
        node: The node's name.
        held: What others hold.
        tries: What is left of them; one for each search and each device that it tries, more on nodes with many devices.
        freed: What of that they would not hold any more.
    """
    if not claims:
        return ()
    devices = inventory.nodes.get(node, ())
    most = [
        sum(max(_count(each, devices) for each in one.choices) for one in claim.requests) for claim in claims
    ]
    if max(most) > MAX_OF_CLAIM or sum(most) > MAX_OF_POD:
        return None
    limit = min(MAX_TRIES, tries.left)
    search = _Search(inventory, node, limit)
    search.hold(held, freed)
    wanted = [(claim, place) for claim in claims for place in range(len(claim.requests))]
    is_found = search.finds(wanted, {})
    tries.left -= limit - max(search.left, 0) + 1 + search.scan_cost
    return tuple(search.taken) if is_found else None


def _count(choice: DeviceChoice, devices: Collection[DraDevice]) -> int:
    return sum(one.id in choice.eligible for one in devices) if choice.count is None else choice.count


def count_free(devices: Collection[DeviceId], inventory: DeviceInventory, node: str) -> int:
    """Lower bound of these devices of a node that can be allocated, each whole, beside what is held."""
    search = _Search(inventory, node, MAX_TRIES)
    search.hold(inventory.held, ())
    choice = DeviceChoice(frozenset(devices))
    return sum(
        search.takes(one, choice) for one in inventory.nodes.get(node, ()) if one.id in choice.eligible
    )


class _Search:
    """Depth first; `taken` is what was chosen so far, `left` is the number of tries.

    `scan_cost` is what it costs to look at all devices once.
    """

    def __init__(self, inventory: DeviceInventory, node: str, limit: int) -> None:
        self._devices = inventory.nodes.get(node, ())
        self._by_id = {one.id: one for one in self._devices}
        self._counters = {
            key: dict(amounts) for key, amounts in _of_pools(inventory.counters, self._devices).items()
        }
        self._capacity = {one.id: dict(one.capacity) for one in self._devices if one.is_shareable}
        self._holdings: dict[DeviceId, set[Holding]] = collections.defaultdict(set)
        self._used: dict[str, list[DraDevice]] = {}
        self.scan_cost = len(self._devices) // _DEVICES_PER_TRY
        self.left = limit
        self.taken: list[Holding] = []

    def hold(self, held: Held, freed: Collection[Holding]) -> None:
        """Note what others hold, without what they would not hold any more."""
        for device in self._devices:
            for one in held.get(device.id, ()):
                if one not in freed:
                    self._hold(one)

    def finds(self, wanted: Sequence[tuple[WaitingClaim, int]], values: _Taken) -> bool:
        """Whether all that is wanted fits."""
        if not wanted:
            return True
        (claim, place), rest = wanted[0], wanted[1:]
        request = claim.requests[place]
        return any(
            self.finds(rest, kept)
            for choice in request.choices
            for kept in self._choose(
                self._candidates(choice),
                choice,
                choice.count,
                [
                    ((id(claim), number), each)
                    for number, each in enumerate(claim.constraints)
                    if each.requests & {request.name, f"{request.name}/{choice.name}"}
                ],
                values,
            )
        )

    def _candidates(self, choice: DeviceChoice) -> Sequence[DraDevice]:
        """Eligible devices: free ones, or all for a choice of all."""
        self.left -= self.scan_cost
        return [
            one
            for one in self._devices
            if one.id in choice.eligible and (choice.count is None or self._is_free(one))
        ]

    def _is_free(self, one: DraDevice) -> bool:
        """Whether nobody holds it, or all who do hold parts of it."""
        return all(one.is_shareable and held.share for held in self._holdings.get(one.id, ()))

    def _choose(
        self,
        candidates: Sequence[DraDevice],
        choice: DeviceChoice,
        count: int | None,
        constraints: Sequence[tuple[tuple[int, int], AttributeConstraint]],
        values: _Taken,
    ) -> Iterator[_Taken]:
        """Take this many candidates, in each way, or all; each time the values taken. The last ones stay."""
        wanted = len(candidates) if count is None else count
        if not wanted:
            if count is not None:
                yield values
            return
        for at, one in enumerate(candidates):
            # Of a device that has room for several parts, each request of a claim may have one.
            rest = candidates[at + 1 :]
            if len(rest) < wanted - 1:
                return
            self.left -= 1
            if self.left < 0:
                return
            kept = _kept(one, constraints, values)
            taken = self._take(one, choice) if kept is not None else None
            if kept is not None and taken is not None:
                yield from self._choose(rest, choice, wanted - 1, constraints, kept)
                self._release(taken)

    def takes(self, one: DraDevice, choice: DeviceChoice) -> bool:
        """Take a device, and keep it; whether it could be taken."""
        return self._take(one, choice) is not None

    def _take(self, one: DraDevice, choice: DeviceChoice) -> Holding | None:
        """Take a device, or a part of it, if that is free and the counters suffice."""
        if not self._is_free(one) or not (self._holdings.get(one.id) or self._fits(one)):
            return None
        consumed = choice.consumes.get(one.id, {}) if one.is_shareable else {}
        if any(amount > self._capacity[one.id].get(name, 0) for name, amount in consumed.items()):
            return None
        share = self._new_share(one.id) if one.is_shareable else ""
        taken = Holding(one.id, share, tuple(sorted(consumed.items())))
        self.taken.append(taken)
        self._hold(taken)
        return taken

    def _new_share(self, one: DeviceId) -> str:
        """A name that no part of the device has."""
        known = {each.share for each in self._holdings[one]}
        return next(name for name in map(str, range(len(known) + 1)) if name not in known)

    def _release(self, one: Holding) -> None:
        self.taken.remove(one)
        device, others = self._by_id[one.id], self._holdings[one.id]
        others.remove(one)
        self._consume(self._capacity.get(one.id), dict(one.consumed), -1)
        if not others:
            self._used[device.gpu].remove(device)
            self._count(device, -1)

    def _hold(self, one: Holding) -> None:
        """Note what is held; the first part of a device takes its counters."""
        device, others = self._by_id[one.id], self._holdings[one.id]
        if not others:
            self._used.setdefault(device.gpu, []).append(device)
            self._count(device, 1)
        others.add(one)
        self._consume(self._capacity.get(one.id), dict(one.consumed), 1)

    def _fits(self, one: DraDevice) -> bool:
        """Whether the counters suffice, and none of its pool is overdrawn.

        A whole GPU and a MIG device of it exclude each other also without counters.
        """
        beside = self._used.get(one.gpu, ())
        is_apart = all(one.profile and other.profile for other in beside)
        of_pool = (
            [left for key, left in self._counters.items() if key[:2] == one.id[:2]] if one.consumes else []
        )
        return (
            is_apart
            and all(left >= 0 for each in of_pool for left in each.values())
            and all(
                amount <= self._counters.get(_set_of(one, name), {}).get(counter, 0)
                for name, amounts in one.consumes
                for counter, amount in amounts.items()
            )
        )

    def _count(self, one: DraDevice, sign: int) -> None:
        for name, amounts in one.consumes:
            self._consume(self._counters.setdefault(_set_of(one, name), {}), amounts, sign)

    @staticmethod
    def _consume(left: dict[str, int] | None, amounts: Counters, sign: int) -> None:
        if left is not None:
            for name, amount in amounts.items():
                left[name] = left.get(name, 0) - sign * amount


def _set_of(one: DraDevice, name: str) -> CounterSet:
    return CounterSet(one.id.driver, one.id.pool, name)


def _of_pools(
    counters: Mapping[CounterSet, Mapping[str, int]], devices: Sequence[DraDevice]
) -> dict[CounterSet, Mapping[str, int]]:
    """The counters that these devices consume."""
    names = {_set_of(one, name) for one in devices for name, _ in one.consumes}
    return {name: counters[name] for name in names if name in counters}


def _kept(
    one: DraDevice, constraints: Sequence[tuple[tuple[int, int], AttributeConstraint]], values: _Taken
) -> _Taken | None:
    """The values that were taken, with this device's; None if a constraint forbids it."""
    kept = dict(values)
    for key, constraint in constraints:
        value, before = constraint.values.get(one.id), kept.get(key, frozenset())
        is_known = value in before
        if value is None or (is_known if constraint.is_distinct else before and not is_known):
            return None
        kept[key] = before | {value}
    return kept
