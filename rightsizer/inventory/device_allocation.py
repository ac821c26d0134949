"""Whether a node has as many free devices as ResourceClaims ask for. Pure.

Devices are given in order, and never exchanged again: the scheduler, which tries every way, finds one where this does.

https://kubernetes.io/docs/concepts/scheduling-eviction/dynamic-resource-allocation/
"""

import collections
import dataclasses
from collections.abc import Collection, Mapping, Sequence

from rightsizer.model import (
    MAX_OF_CLAIM,
    Counters,
    CounterSet,
    DeviceChoice,
    DeviceId,
    DeviceInventory,
    DraDevice,
    Holding,
    WaitingClaim,
)

_DEVICES_PER_TRY = 50
"""Number of devices of a node that are looked at for one more try: a node with MIG has hundreds."""
MAX_OF_POD = 128
"""Devices that are looked for together: tenants write any number."""
Held = Mapping[DeviceId, Collection[Holding]]
"""What is held of each device that is not free."""


@dataclasses.dataclass(slots=True)
class Tries:
    """How many tries are left for several searches together: tenants write claims, and must not slow a plan down."""

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
    """Devices of a node for all of these claims together; None if they do not fit, or no tries are left.

    Args:
        claims: What a pod waits for.
        inventory: All devices.
        node: The node's name.
        held: What others hold.
        tries: What is left of them; one for each choice, more on nodes with many devices.
        freed: What of that they would not hold any more.
    """
    if not claims:
        return ()
    devices = inventory.nodes.get(node, ())
    most = [
        sum(max(_count(each, devices) for each in one.choices) for one in claim.requests) for claim in claims
    ]
    if max(most) > MAX_OF_CLAIM or sum(most) > MAX_OF_POD or tries.left <= 0:
        return None
    found = _NodeDevices(inventory, node)
    found.hold(held, freed)
    choosy_first = sorted(
        (each.choices for claim in claims for each in claim.requests),
        key=lambda choices: min(len(choice.eligible) for choice in choices),
    )
    tries.left -= 1 + sum(map(len, choosy_first)) * (1 + len(devices) // _DEVICES_PER_TRY)
    is_found = all(any(map(found.take_all, choices)) for choices in choosy_first)
    return tuple(found.taken) if is_found else None


def _count(choice: DeviceChoice, devices: Collection[DraDevice]) -> int:
    return sum(one.id in choice.eligible for one in devices) if choice.count is None else choice.count


def count_free(devices: Collection[DeviceId], inventory: DeviceInventory, node: str) -> int:
    """How many of these devices of a node can be allocated at least, each whole, beside what is held."""
    found = _NodeDevices(inventory, node)
    found.hold(inventory.held, ())
    return sum(
        found.take_all(DeviceChoice(frozenset({one.id})))
        for one in inventory.nodes.get(node, ())
        if one.id in devices
    )


class _NodeDevices:
    """The devices of a node; `taken` is what was chosen so far."""

    def __init__(self, inventory: DeviceInventory, node: str) -> None:
        self._devices = inventory.nodes.get(node, ())
        self._by_id = {one.id: one for one in self._devices}
        self._counters = {
            key: dict(amounts) for key, amounts in _of_pools(inventory.counters, self._devices).items()
        }
        self._capacity = {one.id: dict(one.capacity) for one in self._devices if one.is_shareable}
        self._holdings: dict[DeviceId, set[Holding]] = collections.defaultdict(set)
        self._used: dict[str, list[DraDevice]] = {}
        self.taken: list[Holding] = []

    def hold(self, held: Held, freed: Collection[Holding]) -> None:
        """Note what others hold, without what they would not hold any more."""
        for device in self._devices:
            for one in held.get(device.id, ()):
                if one not in freed:
                    self._hold(one)

    def take_all(self, choice: DeviceChoice) -> bool:
        """Take the first devices that a choice accepts, as many as it asks for; none if there are too few."""
        eligible = [one for one in self._devices if one.id in choice.eligible]
        wanted = len(eligible) if choice.count is None else choice.count
        taken: list[Holding] = []
        for one in eligible:
            if len(taken) < wanted and (found := self._take(one, choice)) is not None:
                taken.append(found)
        if len(taken) == wanted and (wanted or choice.count is not None):
            return True
        for each in reversed(taken):
            self._release(each)
        return False

    def _is_free(self, one: DraDevice) -> bool:
        """Whether nobody holds it, or all who do hold parts of it."""
        return all(one.is_shareable and held.share for held in self._holdings.get(one.id, ()))

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
