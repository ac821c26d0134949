"""Adds up the usage of devices by owner. Pure: its only state is its own.

The parts of a device's busy time and energy add up to the total exactly: they are whole numbers, and what has no known
owner has an account of its own.
"""

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from exporter.attribution.cgroups import NoPodReason
from exporter.attribution.processowners import GONE, REUSED
from exporter.attribution.records import (
    ATTRIBUTION_OFF,
    GAP,
    MIG_INSTANCES,
    MPS_SERVER,
    NO_PROCESS,
    PERCENT_US_PER_S,
    SHARED,
    UNKNOWN_POD,
    UNSAMPLED,
    DeviceProcess,
    DeviceUsage,
    Holder,
    Observation,
    Slice,
    Usage,
    UsageOwner,
    UsagePart,
)
from exporter.attribution.shares import share

_NEVER_PROCESSES = {MIG_INSTANCES, GAP, NO_PROCESS, ATTRIBUTION_OFF, SHARED, UNSAMPLED}
"""Reasons that are never the owner of a process."""
_BY_PROCESS = {reason.value for reason in NoPodReason} - {ATTRIBUTION_OFF} | {
    MPS_SERVER,
    UNKNOWN_POD,
    UNSAMPLED,
}
"""Reasons why busy time by process has no pod."""
_US_PER_S = 1_000_000
_UJ_PER_MJ = 1000
_UJ_PER_J = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Attribution:
    """Knowledge of one sample about the owners of a device's usage."""

    holders: tuple[Holder, ...] = ()  # containers that hold the device, from the kubelet
    unknown_pods: int = 0  # number of further pods that hold it; their processes cannot be recognized
    is_complete: bool = True  # the kubelet answered; otherwise earlier holders are kept
    # the owner of a PID between two instants; None without process attribution
    owner_between: Callable[[int, int, int], UsageOwner] | None = None
    # the owner of a PID now; None without process attribution
    owner_now: Callable[[int], UsageOwner] | None = None
    reason: str = SHARED  # the owner of usage that belongs to no known container

    @property
    def only_holder(self) -> Holder | None:
        """The holder, if a single pod holds the device."""
        pods = {(holder.namespace, holder.pod) for holder in self.holders}
        return self.holders[0] if len(pods) == 1 and not self.unknown_pods else None


@dataclasses.dataclass(slots=True)
class _Account:
    """Usage of one owner. Busy time in percent of microseconds, energy in microjoules, memory in byte microseconds."""

    is_separable: bool = True  # the owner's usage is measured apart from others'
    # the owner was absent in the last sample; its usage until then is published once more
    is_gone: bool = False
    busy: int = 0
    # busy time at the last mark. `recent_percent` is the share between the last two marks.
    marked_busy: int = 0
    recent_percent: float | None = None
    energy: int = 0
    memory: int | None = None
    memory_time: int = 0
    # of memory, encoders and decoders, as of busy time
    engines: list[int] = dataclasses.field(default_factory=lambda: [0, 0, 0])
    processes: int | None = None
    last_active_us: int | None = None

    def add_busy(self, busy: int, to_us: int) -> None:
        self.busy += busy
        self.last_active_us = to_us

    def mark(self, span_us: int) -> None:
        self.recent_percent = (self.busy - self.marked_busy) / span_us
        self.marked_busy = self.busy


@dataclasses.dataclass(slots=True)
class _Device:
    """The accounts of one device."""

    accounts: dict[UsageOwner, _Account] = dataclasses.field(default_factory=dict)
    total: _Account = dataclasses.field(default_factory=_Account)
    idle: int = 0
    gaps: int = 0
    gap_us: int = 0
    covered_us: int = 0  # time that the slices cover; `marked_us` is that up to the last mark
    marked_us: int = 0
    only_holder: Holder | None = None  # of the last sample
    carried: int = 0  # energy of samples without new slices, in microjoules
    energy_mj: int | None = None  # the last reading
    # busy time by owner that waits for an energy reading. `waiting_us` and `waiting_gap_us` are its time.
    waiting: dict[UsageOwner, int] = dataclasses.field(default_factory=dict)
    waiting_us: int = 0
    waiting_gap_us: int = 0
    last: Observation | None = None
    is_exact: bool | None = None
    has_energy: bool = False
    by_process: bool = False  # the last observation separates processes
    # why busy time can be without a pod: counters of these start at 0, as the first increase of a series is lost
    reasons: set[str] = dataclasses.field(default_factory=set)
    is_fresh: bool = False

    def account(self, owner: UsageOwner) -> _Account:
        return self.accounts.setdefault(owner, _Account())

    def mark(self) -> None:
        """Start a new recent period. Without a new slice, shares stay as they were."""
        span_us, self.marked_us = self.covered_us - self.marked_us, self.covered_us
        if span_us:
            for account in (self.total, *self.accounts.values()):
                account.mark(span_us)


class Ledger:
    """The accounts of all devices."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def record(self, observation: Observation, attribution: Attribution) -> None:
        """Add one sample of a device."""
        device = self._devices.setdefault(observation.key, _Device())
        _update_owners(device, observation, attribution)
        parts = _by_owner(_portions(device, observation, attribution))
        for owner, busy, to_us in parts:
            device.account(owner).add_busy(busy, to_us)
        if busy := _busy(observation):
            device.total.add_busy(busy, observation.slices[-1].to_us)
        device.covered_us += _covered_us(observation)
        device.gaps += observation.gaps
        device.gap_us += observation.gap_us
        _record_engines(device, observation, attribution)
        _record_energy(device, observation, parts)
        _record_memory(device, observation, attribution)
        device.only_holder = attribution.only_holder
        device.last = observation
        device.is_fresh = True

    def retain(self, prefixes: Collection[str], keys: Collection[str]) -> None:
        """Forget devices that are gone: their key starts with one of `prefixes` and is not among `keys`."""
        for key in [key for key in self._devices if key not in keys and key.startswith(tuple(prefixes))]:
            del self._devices[key]

    def snapshot(self) -> Mapping[str, DeviceUsage]:
        """Usage of the devices that were sampled since the previous call."""
        fresh = {key: device for key, device in self._devices.items() if device.is_fresh}
        for device in fresh.values():
            device.is_fresh = False
            device.mark()
        found = {key: _device_usage(device) for key, device in fresh.items()}
        for device in fresh.values():
            accounts = device.accounts.items()
            device.accounts = {owner: account for owner, account in accounts if not account.is_gone}
        return found


def _update_owners(device: _Device, observation: Observation, attribution: Attribution) -> None:
    """Open accounts for new owners, and mark the pods that are gone."""
    owner_now = attribution.owner_now
    present: set[UsageOwner] = set(attribution.holders)
    if owner_now is not None:
        present |= {owner_now(process.pid) for process in observation.processes or ()}
    for owner in present:
        device.account(owner)
    is_complete = attribution.is_complete and (owner_now is None or observation.processes is not None)
    pods = {(owner.namespace, owner.pod) for owner in present if isinstance(owner, Holder)}
    by_process = attribution.owner_between is not None and observation.samples is not None
    device.reasons |= {attribution.reason, *(_BY_PROCESS if by_process else ())}
    for owner, account in device.accounts.items():
        if isinstance(owner, Holder):
            account.is_gone = is_complete and (owner.namespace, owner.pod) not in pods
            account.is_separable = by_process or attribution.only_holder is not None


_OwnedTime = tuple[UsageOwner, int, int]
"""Owner, busy time, and the end of that time."""


def _portions(device: _Device, observation: Observation, attribution: Attribution) -> Iterable[_OwnedTime]:
    if not observation.slices:
        return
    to_us = observation.slices[-1].to_us
    if attribution.owner_between is not None and observation.samples is not None:
        found = share(observation.slices, observation.samples)
        if observation.samples:
            device.is_exact = found.is_exact
        for portion in found.parts:
            # A process that ended before its pod was read has no owner, even if one pod holds the device: the host's
            # processes use it too.
            owner = attribution.owner_between(portion.pid, portion.from_us, portion.to_us)
            yield owner, portion.busy, portion.to_us
        if found.rest:
            yield UNSAMPLED, found.rest, to_us
        return
    device.is_exact = None
    # A pod that just became the only holder did not cause the earlier usage.
    only = attribution.only_holder
    if device.last is not None and not _is_same_pod(only, device.only_holder):
        only = None
    if busy := _busy(observation):
        yield _only_user(observation, attribution, only), busy, to_us


def _by_owner(portions: Iterable[_OwnedTime]) -> list[_OwnedTime]:
    found: dict[UsageOwner, tuple[int, int]] = {}
    for owner, busy, to_us in portions:
        before, until_us = found.get(owner, (0, 0))
        found[owner] = before + busy, max(until_us, to_us)
    return [(owner, busy, to_us) for owner, (busy, to_us) in found.items()]


def _is_same_pod(was: Holder | None, now: Holder | None) -> bool:
    return was is not None and now is not None and (was.namespace, was.pod) == (now.namespace, now.pod)


def _only_user(observation: Observation, attribution: Attribution, only: Holder | None) -> UsageOwner:
    """The owner of a device's usage without process samples: its only holder, if no other process is on it."""
    owner_now = attribution.owner_now
    if only is None or (owner_now is not None and observation.processes is None):
        return attribution.reason
    if owner_now is None:
        return only
    # Processes that ended before their pod was read prove nothing.
    users = {owner_now(process.pid) for process in observation.processes or ()} - {GONE, REUSED}
    if any(
        isinstance(user, str) or (user.namespace, user.pod) != (only.namespace, only.pod) for user in users
    ):
        return attribution.reason
    if len(users) > 1:
        return only._replace(container="")
    return users.pop() if users else only


def _busy(observation: Observation) -> int:
    return sum(piece.busy for piece in observation.slices)


def _covered_us(observation: Observation) -> int:
    return sum(piece.to_us - piece.from_us for piece in observation.slices)


def _record_engines(device: _Device, observation: Observation, attribution: Attribution) -> None:
    """Add the time in which memory, encoders and decoders worked for each process. What is unknown counts in full."""
    samples, owner_between = observation.samples, attribution.owner_between
    device.by_process = samples is not None and owner_between is not None
    if samples is None or owner_between is None or not observation.slices:
        return
    whole = Slice(observation.slices[0].from_us, observation.slices[-1].to_us, 0)
    pieces = {piece.to_us: piece for piece in observation.slices} if device.is_exact else {}
    times = collections.Counter(sample.pid for sample in samples)
    for sample in samples:
        piece = pieces.get(sample.at_us, whole)
        span_us = (piece.to_us - piece.from_us) // (times[sample.pid] if piece is whole else 1)
        owner = owner_between(sample.pid, piece.from_us, piece.to_us)
        for engine, percent in enumerate(sample.engines):
            known, share = (owner, percent) if percent <= 100 else (UNSAMPLED, 100)  # noqa: PLR2004 - percent
            if share:
                device.account(known).engines[engine] += share * span_us
    if UsagePart.SHARES in observation.errors:
        unsampled = device.account(UNSAMPLED)
        unsampled.engines = [time + 100 * _covered_us(observation) for time in unsampled.engines]


def _record_energy(device: _Device, observation: Observation, parts: Sequence[_OwnedTime]) -> None:
    """Split energy by time: each owner gets the energy of the time in which the device worked for it."""
    for owner, busy, _ in parts:
        device.waiting[owner] = device.waiting.get(owner, 0) + busy
    device.waiting_us += _covered_us(observation) + observation.gap_us
    device.waiting_gap_us += observation.gap_us
    if observation.energy_mj is None and device.energy_mj is not None:
        return  # the busy time waits for the next reading
    before, device.energy_mj = device.energy_mj, observation.energy_mj
    grown_mj = _grown_mj(before, observation.energy_mj)
    device.carried += (grown_mj or 0) * _UJ_PER_MJ
    # Carried energy is known even if the counter was reset since.
    if observation.source is not None and (grown_mj is not None or device.carried):
        device.has_energy = True
    if device.waiting_us:  # otherwise the energy is split with the next slices
        energy, device.carried = device.carried, 0
        device.total.energy += energy
        device.idle += energy - sum(_energies(device, energy))
        device.waiting, device.waiting_us, device.waiting_gap_us = {}, 0, 0


def _grown_mj(before: int | None, now: int | None) -> int | None:
    """The growth of the counter; None if unknown, such as after the driver was reloaded."""
    return None if before is None or now is None or now < before else now - before


def _energies(device: _Device, energy: int) -> Iterable[int]:
    """Add each owner's part of `energy` to its account."""
    parts = dict(device.waiting)
    if device.waiting_gap_us:
        parts[GAP] = device.waiting_gap_us * 100
    for owner, busy in parts.items():
        part = energy * busy // (device.waiting_us * 100)
        device.account(owner).energy += part
        yield part


def _record_memory(device: _Device, observation: Observation, attribution: Attribution) -> None:
    """Record the memory of each owner and its integral: between two samples, the mean of both."""
    span_us = max(0, observation.at_us - device.last.at_us) if device.last is not None else 0
    held = _held(observation, attribution)
    for owner in held or ():
        account = device.account(owner)
        account.is_separable = account.is_separable and owner != NO_PROCESS
    for owner, account in device.accounts.items():
        nothing = (None, None) if owner in _NEVER_PROCESSES else (0, 0)
        memory, processes = (None, None) if held is None else held.get(owner, nothing)
        if memory is not None and account.memory is not None:
            account.memory_time += (memory + account.memory) * span_us // 2
        account.memory, account.processes = memory, processes
    device.total.memory = observation.memory_used_bytes


def _held(
    observation: Observation, attribution: Attribution
) -> dict[UsageOwner, tuple[int | None, int | None]] | None:
    """Memory and number of processes by owner; None without process attribution or a list of processes."""
    if attribution.owner_now is None or observation.processes is None:
        return None
    by_owner: dict[UsageOwner, list[DeviceProcess]] = {}
    for process in observation.processes:
        by_owner.setdefault(attribution.owner_now(process.pid), []).append(process)
    held: dict[UsageOwner, tuple[int | None, int | None]] = {
        owner: (_total(process.memory_bytes for process in found), len(found))
        for owner, found in by_owner.items()
    }
    total = _total(memory for memory, _ in held.values())
    used = observation.memory_used_bytes
    if used is not None and total is not None and used > total:
        held[NO_PROCESS] = used - total, None
    return held


def _total(amounts: Iterable[int | None]) -> int | None:
    """The sum; None if one amount is unknown."""
    found = list(amounts)
    known = [amount for amount in found if amount is not None]
    return sum(known) if len(known) == len(found) else None


def _device_usage(device: _Device) -> DeviceUsage:
    is_known = device.last is not None and device.last.source is not None
    usage: dict[UsageOwner, Usage] = dict.fromkeys(device.reasons if is_known else (), Usage(busy_s=0.0))
    usage |= {owner: _usage(account, device) for owner, account in device.accounts.items()}
    return DeviceUsage(
        source=device.last.source if device.last is not None else None,
        is_exact=device.is_exact,
        total=_usage(device.total, device),
        idle_energy_j=device.idle / _UJ_PER_J if device.has_energy else None,
        gaps=device.gaps,
        gap_s=device.gap_us / _US_PER_S,
        containers={owner: use for owner, use in usage.items() if isinstance(owner, Holder)},
        unattributed={owner: use for owner, use in usage.items() if isinstance(owner, str)},
        errors=device.last.errors if device.last is not None else {},
    )


def _usage(account: _Account, device: _Device) -> Usage:
    last = device.last
    is_known = last is not None and last.source is not None and account.is_separable
    has_shares = last is not None and UsagePart.SHARES not in last.errors
    last_us = account.last_active_us
    engines_s = tuple(time / PERCENT_US_PER_S for time in account.engines)
    return Usage(
        busy_s=account.busy / PERCENT_US_PER_S if is_known else None,
        recent_percent=account.recent_percent if is_known and has_shares else None,
        energy_j=account.energy / _UJ_PER_J if is_known and device.has_energy else None,
        memory_bytes=account.memory,
        memory_byte_s=None if account.memory is None else account.memory_time / _US_PER_S,
        processes=account.processes,
        engines_s=engines_s if is_known and device.by_process else None,
        last_active_s=None if last_us is None or not is_known else last_us / _US_PER_S,
    )
