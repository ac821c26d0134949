"""Adds up what the looks at a device bring, by user. Pure: its only memory is itself.

The parts of a device's busy time and energy add up to the whole exactly, because they are whole numbers and what
cannot be given to anybody stands in an account of its own.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from exporter.attribution.processowners import GONE, REUSED
from exporter.attribution.records import (
    CUT,
    GAP,
    NO_PROCESS,
    OFF,
    PERCENT_US_PER_S,
    SHARED,
    UNSAMPLED,
    Entry,
    Holder,
    Listed,
    Observation,
    Part,
    Use,
    Who,
)
from exporter.attribution.shares import share

_NEVER_HOLDS = {CUT, GAP, NO_PROCESS, OFF, SHARED, UNSAMPLED}
"""Reasons for time or memory that no process is given as."""
_US_PER_S = 1_000_000
_UJ_PER_MJ = 1000
_UJ_PER_J = 1_000_000


@dataclasses.dataclass(frozen=True, slots=True)
class Whose:
    """What is known about the users of a device at a look.

    Attributes:
        holders: The containers that hold it, as the kubelet says.
        unnamed: Of how many more pods that hold it no process could be recognised.
        is_complete: Those are all; else the kubelet did not answer, and whoever held it before is kept.
        between: Whose a process was between two instants; None where processes cannot be told apart.
        now: Whose a process is; None as above.
        why_not: The reason of what then is nobody's.
    """

    holders: tuple[Holder, ...] = ()
    unnamed: int = 0
    is_complete: bool = True
    between: Callable[[int, int, int], Who] | None = None
    now: Callable[[int], Who] | None = None
    why_not: str = SHARED

    @property
    def only(self) -> Holder | None:
        """Who holds it alone."""
        pods = {(holder.namespace, holder.pod) for holder in self.holders}
        return self.holders[0] if len(pods) == 1 and not self.unnamed else None


@dataclasses.dataclass(slots=True)
class _Account:
    """One user's. Busy time in percent of microseconds, energy in microjoules, memory in byte microseconds.

    Attributes:
        is_told_apart: What the device does for him can be told from what it does for others.
        is_gone: He was not there at the last look; what he did until then is still to be shown, once.
        marked_busy: The busy time at the last mark; `recent_percent` is his share of the time between the last two.
    """

    is_told_apart: bool = True
    is_gone: bool = False
    busy: int = 0
    marked_busy: int = 0
    recent_percent: float | None = None
    energy: int = 0
    memory: int | None = None
    memory_time: int = 0
    processes: int | None = None
    last_active_us: int | None = None

    def active(self, busy: int, to_us: int) -> None:
        self.busy += busy
        self.last_active_us = to_us

    def mark(self, span_us: int) -> None:
        self.recent_percent = (self.busy - self.marked_busy) / span_us
        self.marked_busy = self.busy


@dataclasses.dataclass(slots=True)
class _Device:
    """One device's accounts.

    Attributes:
        only: Who held it alone at the last look.
        carried: Energy of looks that had no new slices, in microjoules.
        energy_mj: The last reading.
        waiting: Parts of looks that had no reading of energy, and `waiting_us`, `waiting_gap_us`, their time.
        covered_us: How much time its slices cover; `marked_us`, up to the last mark.
    """

    accounts: dict[Who, _Account] = dataclasses.field(default_factory=dict)
    whole: _Account = dataclasses.field(default_factory=_Account)
    idle: int = 0
    gaps: int = 0
    gap_us: int = 0
    covered_us: int = 0
    marked_us: int = 0
    only: Holder | None = None
    carried: int = 0
    energy_mj: int | None = None
    waiting: dict[Who, int] = dataclasses.field(default_factory=dict)
    waiting_us: int = 0
    waiting_gap_us: int = 0
    last: Observation | None = None
    is_exact: bool | None = None
    has_energy: bool = False
    is_fresh: bool = False

    def account(self, who: Who) -> _Account:
        return self.accounts.setdefault(who, _Account())

    def mark(self) -> None:
        """What is recent begins here, if there is anything new: without a new slice the share stays what it was."""
        span_us, self.marked_us = self.covered_us - self.marked_us, self.covered_us
        if span_us:
            for account in (self.whole, *self.accounts.values()):
                account.mark(span_us)


class Ledger:
    """All devices' accounts."""

    def __init__(self) -> None:
        self._devices: dict[str, _Device] = {}

    def record(self, seen: Observation, whose: Whose) -> None:
        """Take over what a look at a device brought."""
        device = self._devices.setdefault(seen.key, _Device())
        self._admit(device, seen, whose)
        parts = _by_user(_portions(device, seen, whose))
        for who, busy, to_us in parts:
            device.account(who).active(busy, to_us)
        if busy := _busy(seen):
            device.whole.active(busy, seen.slices[-1].to_us)
        device.covered_us += _covered_us(seen)
        device.gaps += seen.gaps
        device.gap_us += seen.gap_us
        _record_energy(device, seen, parts)
        _record_memory(device, seen, whose)
        device.only = whose.only
        device.last = seen
        device.is_fresh = True

    def retain(self, prefixes: Collection[str], keys: Collection[str]) -> None:
        """Forget the devices that are gone: those whose key begins with one of `prefixes` and is not among `keys`."""
        for key in [key for key in self._devices if key not in keys and key.startswith(tuple(prefixes))]:
            del self._devices[key]

    def entries(self) -> Mapping[str, Entry]:
        """The devices that have been looked at since this was last asked: nothing is known of the others."""
        fresh = {key: device for key, device in self._devices.items() if device.is_fresh}
        for device in fresh.values():
            device.is_fresh = False
            device.mark()
        found = {key: _entry(device) for key, device in fresh.items()}
        for device in fresh.values():
            device.accounts = {who: one for who, one in device.accounts.items() if not one.is_gone}
        return found

    def _admit(self, device: _Device, seen: Observation, whose: Whose) -> None:
        """Open accounts for who is there, and note which pods are not any more."""
        present: set[Who] = set(whose.holders)
        if whose.now is not None:
            present |= {whose.now(process.pid) for process in seen.processes or ()}
        for who in present:
            device.account(who)
        is_complete = whose.is_complete and (whose.now is None or seen.processes is not None)
        pods = {(who.namespace, who.pod) for who in present if isinstance(who, Holder)}
        can_tell = _can_tell(seen, whose)
        for who, account in device.accounts.items():
            if isinstance(who, Holder):
                account.is_gone = is_complete and (who.namespace, who.pod) not in pods
                account.is_told_apart = can_tell


def _can_tell(seen: Observation, whose: Whose) -> bool:
    """Whether what a device does for one container can be told from what it does for others."""
    return (whose.between is not None and seen.samples is not None) or whose.only is not None


_Portion = tuple[Who, int, int]
"""Whose, how busy, and until when."""


def _portions(device: _Device, seen: Observation, whose: Whose) -> Iterable[_Portion]:
    """Who gets which part of the slices."""
    if not seen.slices:
        return
    to_us = seen.slices[-1].to_us
    if whose.between is not None and seen.samples is not None:
        found = share(seen.slices, seen.samples)
        if seen.samples:
            device.is_exact = found.is_exact
        for portion in found.parts:
            # What ended before it could be looked at is nobody's also where one pod holds the device: the host works
            # on it, too.
            yield whose.between(portion.pid, portion.from_us, portion.to_us), portion.busy, portion.to_us
        if found.rest:
            yield UNSAMPLED, found.rest, to_us
        return
    device.is_exact = None
    # Who has it for himself only now did not do what was done before.
    only = whose.only if device.last is None or _is_same_pod(whose.only, device.only) else None
    if busy := _busy(seen):
        yield _only_user(seen, whose, only), busy, to_us


def _by_user(portions: Iterable[_Portion]) -> list[_Portion]:
    """What each gets in all, until when he was last given some."""
    found: dict[Who, tuple[int, int]] = {}
    for who, busy, to_us in portions:
        before, until_us = found.get(who, (0, 0))
        found[who] = before + busy, max(until_us, to_us)
    return [(who, busy, to_us) for who, (busy, to_us) in found.items()]


def _is_same_pod(one: Holder | None, other: Holder | None) -> bool:
    return one is not None and other is not None and (one.namespace, one.pod) == (other.namespace, other.pod)


def _only_user(seen: Observation, whose: Whose, only: Holder | None) -> Who:
    """Whose a device's work is where processes have no samples: the one who holds it alone, if nobody else is on it."""
    if only is None or (whose.now is not None and seen.processes is None):
        return whose.why_not
    if whose.now is None:
        return only
    # What ended before it could be looked at speaks for nobody and against nobody.
    users = {whose.now(process.pid) for process in seen.processes or ()} - {GONE, REUSED}
    if any(
        isinstance(user, str) or (user.namespace, user.pod) != (only.namespace, only.pod) for user in users
    ):
        return whose.why_not
    return users.pop() if len(users) == 1 else only


def _busy(seen: Observation) -> int:
    return sum(piece.busy for piece in seen.slices)


def _covered_us(seen: Observation) -> int:
    return sum(piece.to_us - piece.from_us for piece in seen.slices)


def _record_energy(device: _Device, seen: Observation, parts: Sequence[_Portion]) -> None:
    """Share the energy by time: each gets what the device used in the part of the time that it worked for him."""
    for who, busy, _ in parts:
        device.waiting[who] = device.waiting.get(who, 0) + busy
    device.waiting_us += _covered_us(seen) + seen.gap_us
    device.waiting_gap_us += seen.gap_us
    if seen.energy_mj is None and device.energy_mj is not None:
        return  # what it is shared by waits for it
    before, device.energy_mj = device.energy_mj, seen.energy_mj
    grown_mj = _grown_mj(before, seen.energy_mj)
    device.carried += (grown_mj or 0) * _UJ_PER_MJ
    # What was carried until there is a source is known, also where the counter has begun anew since.
    if seen.source is not None and (grown_mj is not None or device.carried):
        device.has_energy = True
    if device.waiting_us:  # else it is shared with the next slices
        energy, device.carried = device.carried, 0
        device.whole.energy += energy
        device.idle += energy - sum(_energies(device, energy))
        device.waiting, device.waiting_us, device.waiting_gap_us = {}, 0, 0


def _grown_mj(before: int | None, now: int | None) -> int | None:
    """By how much the counter grew; None where that is not known, as after the driver was loaded anew."""
    return None if before is None or now is None or now < before else now - before


def _energies(device: _Device, energy: int) -> Iterable[int]:
    """What of `energy` goes to whom."""
    parts = dict(device.waiting)
    if device.waiting_gap_us:
        parts[GAP] = device.waiting_gap_us * 100
    for who, busy in parts.items():
        part = energy * busy // (device.waiting_us * 100)
        device.account(who).energy += part
        yield part


def _record_memory(device: _Device, seen: Observation, whose: Whose) -> None:
    """What each holds now, and its integral: between two looks, the mean of both."""
    span_us = max(0, seen.at_us - device.last.at_us) if device.last is not None else 0
    held = _held(seen, whose)
    for who in held or ():
        account = device.account(who)
        account.is_told_apart = account.is_told_apart and who != NO_PROCESS
    for who, account in device.accounts.items():
        nothing = (None, None) if who in _NEVER_HOLDS else (0, 0)
        memory, processes = (None, None) if held is None else held.get(who, nothing)
        if memory is not None and account.memory is not None:
            account.memory_time += (memory + account.memory) * span_us // 2
        account.memory, account.processes = memory, processes
    device.whole.memory = seen.memory_used_bytes


def _held(seen: Observation, whose: Whose) -> dict[Who, tuple[int | None, int | None]] | None:
    """Memory and number of processes of each; None where processes cannot be told apart, or are not listed."""
    if whose.now is None or seen.processes is None:
        return None
    by_user: dict[Who, list[Listed]] = {}
    for process in seen.processes:
        by_user.setdefault(whose.now(process.pid), []).append(process)
    held: dict[Who, tuple[int | None, int | None]] = {
        who: (_total(process.memory_bytes for process in found), len(found)) for who, found in by_user.items()
    }
    total = _total(memory for memory, _ in held.values())
    if seen.memory_used_bytes is not None and total is not None and seen.memory_used_bytes > total:
        held[NO_PROCESS] = seen.memory_used_bytes - total, None
    return held


def _total(amounts: Iterable[int | None]) -> int | None:
    """The sum; None where one of them is not known."""
    found = list(amounts)
    known = [amount for amount in found if amount is not None]
    return sum(known) if len(known) == len(found) else None


def _entry(device: _Device) -> Entry:
    uses = {who: _use(account, device) for who, account in device.accounts.items()}
    return Entry(
        source=device.last.source if device.last is not None else None,
        is_exact=device.is_exact,
        whole=_use(device.whole, device),
        idle_energy_j=device.idle / _UJ_PER_J if device.has_energy else None,
        gaps=device.gaps,
        gap_s=device.gap_us / _US_PER_S,
        holders={who: use for who, use in uses.items() if isinstance(who, Holder)},
        rest={who: use for who, use in uses.items() if isinstance(who, str)},
        errors=device.last.errors if device.last is not None else {},
    )


def _use(account: _Account, device: _Device) -> Use:
    last = device.last
    is_known = last is not None and last.source is not None and account.is_told_apart
    has_shares = last is not None and Part.SHARES not in last.errors
    last_us = account.last_active_us
    return Use(
        busy_s=account.busy / PERCENT_US_PER_S if is_known else None,
        recent_percent=account.recent_percent if is_known and has_shares else None,
        energy_j=account.energy / _UJ_PER_J if is_known and device.has_energy else None,
        memory_bytes=account.memory,
        memory_byte_s=None if account.memory is None else account.memory_time / _US_PER_S,
        processes=account.processes,
        last_active_s=None if last_us is None or not is_known else last_us / _US_PER_S,
    )
