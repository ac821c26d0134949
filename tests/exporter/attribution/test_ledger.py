"""The arithmetic of usage: nothing is lost, nothing is invented, no counter falls."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from exporter.attribution.ledger import Attribution, Ledger
from exporter.attribution.processowners import GONE, REUSED, ProcessOwner, ProcessOwners
from exporter.attribution.records import (
    PERCENT_US_PER_S,
    BusySource,
    DeviceProcess,
    DeviceUsage,
    Holder,
    Observation,
    ProcessSample,
    Slice,
    Usage,
    UsageOwner,
)
from exporter.attribution.shares import share

US = 1_000_000
MIB = 2**20
GPU = "GPU-0"
A, B, C = (Holder("ml", name, "main") for name in "abc")
SIDECAR = Holder("ml", "a", "sidecar")
PIDS: Mapping[int, UsageOwner] = {1: A, 2: B, 3: C, 4: "host", 5: "unnamed_pod", 6: SIDECAR}


def knowing(holders: Sequence[Holder] = (), **changes: Any) -> Attribution:
    """What is known where every process can be recognised."""
    known = Attribution(
        tuple(holders),
        owner_between=lambda pid, _from, _to: PIDS.get(pid, GONE),
        owner_now=lambda pid: PIDS.get(pid, GONE),
    )
    return dataclasses.replace(known, **changes)


def look(at_s: float, percent: int = 0, **changes: Any) -> Observation:
    """A sample of a device with this busy time in the last second; `by_pid` is that of its processes."""
    at_us = int(at_s * US)
    by_pid: Mapping[int, int] | None = changes.pop("by_pid", {})
    return dataclasses.replace(
        Observation(
            GPU,
            at_us,
            BusySource.SAMPLES,
            slices=(Slice(at_us - US, at_us, percent * US),),
            samples=None
            if by_pid is None
            else tuple(ProcessSample(at_us, *sample) for sample in by_pid.items()),
            processes=(),
        ),
        **changes,
    )


def on(*pids: int, memory: int | None = MIB) -> tuple[DeviceProcess, ...]:
    """Processes on a device."""
    return tuple(DeviceProcess(pid, memory) for pid in pids)


def entry(ledger: Ledger) -> DeviceUsage:
    """What it says of the device."""
    return ledger.snapshot()[GPU]


def _sums(found: DeviceUsage, get: Callable[[Usage], float | None], unit: int) -> tuple[int, int]:
    """The device's own and its parts, in whole units."""
    parts = (get(use) for use in (*found.containers.values(), *found.unattributed.values()))
    return round((get(found.total) or 0) * unit), sum(
        round(part * unit) for part in parts if part is not None
    )


_PERIODS = st.sampled_from((166_667, 200_000, 1_000_000))


@st.composite
def _looks(draw: st.DrawFn, *, sampled: bool) -> list[Observation]:
    """Samples of a device with gaps, shares above 100 %, failures, and unknown or restarted energy counters."""
    at_us, energy = 10**15, draw(st.integers(0, 10**6))
    found = []
    for _ in range(draw(st.integers(1, 8))):
        slices, samples, gaps, gap_us = [], [], 0, 0
        for _ in range(draw(st.integers(0, 6))):
            before, at_us = at_us, at_us + draw(_PERIODS)
            fate = draw(st.integers(0, 9))
            if fate == 0:
                gaps, gap_us = gaps + 1, gap_us + at_us - before
                continue
            slices.append(Slice(before, at_us, draw(st.integers(0, 100)) * (at_us - before)))
            off_us = 7 if fate == 1 else 0
            samples += [
                ProcessSample(at_us - off_us, pid, draw(st.integers(0, 100)))
                for pid in draw(st.sets(st.integers(1, 7), max_size=5))
            ]
        if is_failure := draw(st.integers(0, 9)) == 0:
            slices, samples, gaps, gap_us = [], [], 0, 0
        energy = 0 if draw(st.integers(0, 9)) == 0 else energy + draw(st.integers(0, 10**6))
        processes = st.sets(st.integers(1, 7)).map(lambda pids: on(*sorted(pids)))
        found.append(
            Observation(
                GPU,
                at_us + 5,
                None if is_failure else BusySource.SAMPLES,
                slices=tuple(slices),
                gaps=gaps,
                gap_us=gap_us,
                samples=tuple(samples) if sampled and not is_failure else None,
                processes=draw(st.none() | processes),
                memory_used_bytes=draw(st.none() | st.integers(0, 20 * MIB)),
                energy_mj=draw(st.sampled_from((None, energy, energy))),
            )
        )
    return found


def _counters(found: DeviceUsage) -> dict[tuple[str, UsageOwner], float]:
    """All that may never decrease."""
    uses: list[tuple[UsageOwner, Usage]] = [
        ("", found.total),
        *found.containers.items(),
        *found.unattributed.items(),
    ]
    single = {"idle": found.idle_energy_j, "gaps": found.gaps, "gap_s": found.gap_s}
    by_user = {
        (name, who): value
        for who, use in uses
        for name in ("busy_s", "energy_j", "memory_byte_s", "last_active_s")
        if (value := getattr(use, name)) is not None
    }
    return by_user | {(name, ""): value for name, value in single.items() if value is not None}


def _check(looks: Sequence[Observation], whose: Attribution) -> None:
    """That the parts are the whole after each look, and no counter runs backwards."""
    ledger, before = Ledger(), dict[tuple[str, UsageOwner], float]()
    for seen in looks:
        ledger.record(seen, whose)
        found = entry(ledger)
        if seen.source is None:
            assert found.total.busy_s is None
            continue
        busy, parts = _sums(found, lambda use: use.busy_s, PERCENT_US_PER_S)
        assert parts == busy
        energy, parts = _sums(found, lambda use: use.energy_j, US)
        assert parts + round((found.idle_energy_j or 0) * US) == energy
        assert 0 <= (found.idle_energy_j or 0) <= (found.total.energy_j or 0)
        now = _counters(found)
        assert all(now.get(key, value) >= value for key, value in before.items())
        before = before | now


@settings(deadline=None)
@given(_looks(sampled=True))
def test_ledger_with_samples_splits_busy_time_and_energy_exactly(looks: list[Observation]) -> None:
    """On a shared device with process samples, busy time and energy add up exactly in every case."""
    _check(looks, knowing((A, B, C)))


@settings(deadline=None)
@given(_looks(sampled=False), st.sampled_from(((A,), (A, B), ())))
def test_ledger_without_samples_splits_busy_time_and_energy_exactly(
    looks: list[Observation], holders: tuple[Holder, ...]
) -> None:
    """They also add up without process samples, with any number of holders."""
    ledger, before = Ledger(), 0.0
    _check(looks, knowing(holders, is_complete=False))
    for seen in looks:
        ledger.record(seen, knowing(holders))
        found = entry(ledger)
        if len(holders) != 1:
            assert {use.busy_s for use in found.containers.values()} <= {None}
            assert {use.energy_j for use in found.containers.values()} <= {None}
        assert (found.total.busy_s or before) >= before
        before = found.total.busy_s or before


_UNSOURCED = Observation(GPU, 10**15, None)
_BEGUN_ANEW = (
    dataclasses.replace(_UNSOURCED, energy_mj=0),
    dataclasses.replace(_UNSOURCED, energy_mj=1),
    _UNSOURCED,
    Observation(
        GPU, 10**15 + US, BusySource.SAMPLES, (Slice(10**15, 10**15 + US, 0),), samples=(), energy_mj=0
    ),
)
"""The counter grows while there is no source of busy time, and restarts before there is one."""


@settings(deadline=None)
@example(list(_BEGUN_ANEW))
@given(_looks(sampled=True))
def test_ledger_energy_is_the_growth_of_the_counter(looks: list[Observation]) -> None:
    """A device's energy is what its counter grew by between looks that tell it, but for those over which it fell."""
    ledger, grown, before = Ledger(), 0, None
    for seen in looks:
        ledger.record(seen, knowing((A,)))
        if seen.energy_mj is not None:
            grown += max(0, seen.energy_mj - (seen.energy_mj if before is None else before))
            before = seen.energy_mj
    found = entry(ledger)
    assert (found.total.energy_j or 0) * 1000 <= grown + 1e-6
    if looks[-1].slices and looks[-1].energy_mj is not None and looks[-1].source is not None:
        assert (found.total.energy_j or 0) * 1000 == pytest.approx(grown)


@settings(deadline=None)
@given(_looks(sampled=True))
def test_shares_of_a_period_match_its_samples(looks: list[Observation]) -> None:
    """In a period by itself a process gets its sample, within half a percent for each sample there and the device's."""
    for seen in looks:
        for piece in seen.slices:
            samples = [one for one in seen.samples or () if one.at_us == piece.to_us]
            found = share((piece,), samples)
            span_us = piece.to_us - piece.from_us
            assert sum(part.busy for part in found.parts) + found.rest == piece.busy
            assert found.rest >= 0
            asked = {one.pid: one.percent * span_us for one in samples}
            missing = piece.busy - sum(asked.values())
            slack = span_us * (len(samples) + 1) / 2
            for part in found.parts:
                assert (part.from_us, part.to_us) == piece[:2]
                if 0 <= missing < slack:
                    assert asked[part.pid] - 1 <= part.busy <= asked[part.pid] + slack
                if missing > slack:
                    assert part.busy == asked[part.pid]
                if missing < 0:
                    assert part.busy <= asked[part.pid]


@pytest.mark.parametrize(
    ("busy", "asked", "off_us", "parts", "rest"),
    [
        pytest.param(50, [30, 20], 0, [30, 20], 0, id="as-they-are"),
        pytest.param(99, [33, 33, 32], 0, [33.34, 33.34, 32.33], 0, id="missing-by-rounding"),
        pytest.param(50, [30, 10], 0, [30, 10], 10, id="missing"),
        pytest.param(50, [60, 40], 0, [30, 20], 0, id="too-much"),
        pytest.param(50, [0, 0], 0, [], 50, id="nobody"),
        pytest.param(50, [3, 1], 7, [37.5, 12.5], 0, id="at-other-instants"),
    ],
)
def test_shares_of_a_period_are_proportional_within_rounding(
    busy: int, asked: list[int], off_us: int, parts: list[float], rest: float
) -> None:
    """In proportion where only rounding is missing or there is too much, or where only proportions are known."""
    samples = [ProcessSample(US - off_us, pid, percent) for pid, percent in enumerate(asked)]
    found = share((Slice(0, US, busy * US),), samples)
    assert [part.busy / US for part in found.parts] == pytest.approx(parts, abs=0.01)
    assert found.rest / US == pytest.approx(rest, abs=0.01)
    assert found.is_exact is not bool(off_us)


def test_ledger_publishes_a_gone_pod_once_more() -> None:
    """An owner without a hold or a process on the device is shown once more, with its last work, then removed."""
    ledger = Ledger()
    ledger.record(look(1, 80, by_pid={1: 30, 2: 50}, processes=on(1, 2)), knowing((A,)))
    assert entry(ledger).containers.keys() == {A, B}
    ledger.record(look(2, 40, by_pid={1: 30, 2: 10}, processes=on(1)), knowing())
    assert entry(ledger).containers[B].busy_s == pytest.approx(0.6)
    ledger.record(look(3, 30, by_pid={1: 30}, processes=on(1)), knowing())
    assert entry(ledger).containers.keys() == {A}
    ledger.record(look(3.5), knowing())
    ledger.snapshot()
    ledger.record(look(3.7), knowing())
    assert entry(ledger).containers == {}
    ledger.record(look(4, 50, by_pid={2: 50}, processes=on(2)), knowing())
    assert entry(ledger).containers[B].busy_s == 0.5


@pytest.mark.parametrize("by_pid", [{}, None], ids=["process-samples", "none"])
def test_ledger_counters_of_each_reason_start_at_zero(by_pid: dict[int, int] | None) -> None:
    """The first increase of a series that was not there before is lost to increase()."""
    ledger = Ledger()
    ledger.record(look(1, by_pid=by_pid), knowing([A, B]))
    first = entry(ledger).unattributed
    assert {one.busy_s for one in first.values()} == {0.0}
    assert {(one.memory_bytes, one.energy_j, one.processes) for one in first.values()} == {(None, None, None)}
    ledger.record(look(2, 60, by_pid=None if by_pid is None else {99: 60}), knowing([A, B]))
    after = entry(ledger).unattributed
    assert [name for name, one in after.items() if one.busy_s] == [GONE if by_pid == {} else "shared"]
    assert after.keys() == first.keys()


def test_ledger_keeps_counters_over_a_restart_of_the_process() -> None:
    """While its pod holds the device the counters stay, also those of a container that the kubelet does not name."""
    ledger = Ledger()
    ledger.record(look(1, 90, by_pid={1: 30, 6: 60}, processes=on(1, 6)), knowing((A,)))
    ledger.record(look(2), knowing((A,)))
    found = entry(ledger).containers
    assert {who: (use.busy_s, use.processes, use.memory_bytes) for who, use in found.items()} == {
        A: (0.3, 0, 0),
        SIDECAR: (0.6, 0, 0),
    }
    ledger.record(look(3, 10, by_pid={6: 10}, processes=on(6)), knowing((A,)))
    assert entry(ledger).containers[SIDECAR].busy_s == 0.7


@pytest.mark.parametrize("by_pid", [{1: 40}, None], ids=["sampled", "held-alone"])
def test_ledger_keeps_counters_while_the_kubelet_is_away(by_pid: dict[int, int] | None) -> None:
    """While the holders are unknown, counters keep their values or are absent, and continue afterwards."""
    ledger = Ledger()
    ledger.record(look(1, 40, by_pid=by_pid, processes=on(1)), knowing((A,)))
    before = entry(ledger).containers[A]
    assert before.busy_s == 0.4
    ledger.record(look(2, by_pid=None if by_pid is None else {}), knowing(is_complete=False))
    assert entry(ledger).containers[A].busy_s == (None if by_pid is None else 0.4)
    ledger.record(look(3, 40, by_pid=by_pid, processes=on(1)), knowing((A,)))
    ledger.record(look(4, 40, by_pid=by_pid, processes=on(1)), knowing((A,)))
    # The only holder now may not have been the only one before.
    assert entry(ledger).containers[A].busy_s == pytest.approx(0.8 if by_pid is None else 1.2)


def test_ledger_keeps_accounts_if_processes_are_not_listed() -> None:
    """A sample without a process list ends no account; only memory is unknown."""
    ledger = Ledger()
    ledger.record(look(1, 40, by_pid={2: 40}, processes=on(2)), knowing())
    ledger.record(look(2, 40, by_pid={2: 40}, processes=None), knowing())
    assert entry(ledger).containers[B] == Usage(
        busy_s=0.8,
        recent_percent=40.0,
        memory_bytes=None,
        memory_byte_s=None,
        last_active_s=2.0,
        engines_s=(0.0, 0.0, 0.0),
    )
    ledger.record(look(3, 40, by_pid={2: 40}, processes=on(2)), knowing())
    assert entry(ledger).containers[B].memory_byte_s == 0  # of the time in between it is not known


def test_ledger_without_samples_on_a_shared_gpu_has_memory_only() -> None:
    """On a shared device without samples each pod has memory and its integral, and no busy time: absent, not zero."""
    ledger = Ledger()
    for at_s in (1, 2, 3):
        ledger.record(look(at_s, 50, by_pid=None, processes=on(1, 2)), knowing((A, B)))
    found = entry(ledger)
    for who in (A, B):
        assert found.containers[who] == Usage(memory_bytes=MIB, memory_byte_s=2 * MIB, processes=1)
    assert found.unattributed["shared"].busy_s == found.total.busy_s == 1.5


def test_ledger_with_a_second_holder_pauses_busy_time() -> None:
    """If work cannot be separated, there is no counter of busy time; it continues later. Memory is known."""
    ledger = Ledger()
    ledger.record(look(1, 50, by_pid=None, processes=on(1)), knowing((A,)))
    ledger.record(look(2, 50, by_pid=None, processes=on(1)), knowing((A,)))
    assert entry(ledger).containers[A].busy_s == 1.0
    ledger.record(look(3, 50, by_pid=None, processes=on(1)), knowing((A, B)))
    assert entry(ledger).containers[A] == Usage(memory_bytes=MIB, memory_byte_s=2 * MIB, processes=1)
    ledger.record(look(4, 50, by_pid=None, processes=on(1)), knowing((A,)))
    assert entry(ledger).containers[A].busy_s == 1.0  # B may have worked until now
    ledger.record(look(5, 50, by_pid=None, processes=on(1)), knowing((A,)))
    assert entry(ledger).containers[A].busy_s == 1.5


def test_ledger_without_a_new_sample_keeps_the_recent_share() -> None:
    """The recent share stays until there is something newer: a gauge that came and went would look like idleness."""
    ledger = Ledger()
    ledger.record(look(1, 40, by_pid={1: 40}, processes=on(1)), knowing((A,)))
    assert entry(ledger).containers[A].recent_percent == 40
    ledger.record(look(1.1, by_pid={}, slices=(), processes=on(1)), knowing((A,)))
    assert entry(ledger).containers[A].recent_percent == 40
    ledger.record(look(2, 20, by_pid={1: 20}, processes=on(1)), knowing((A,)))
    assert entry(ledger).containers[A].recent_percent == 20


def test_ledger_omits_devices_that_were_not_sampled() -> None:
    """Of a device that hangs nothing is said, and what was known goes on with the next look; a cut one is forgotten."""
    ledger = Ledger()
    ledger.record(look(1, 40, by_pid={1: 40}, processes=on(1)), knowing((A,)))
    assert ledger.snapshot().keys() == {GPU}
    assert ledger.snapshot() == {}
    ledger.record(look(2, 40, by_pid={1: 40}, processes=on(1)), knowing((A,)))
    assert entry(ledger).containers[A].busy_s == 0.8
    ledger.retain({GPU}, {f"{GPU}/MIG-1"})
    ledger.record(look(3, 40, by_pid={1: 40}, processes=on(1)), knowing((A,)))
    assert entry(ledger).containers[A].busy_s == 0.4


@pytest.mark.parametrize("holders", [(), (A,), (A, B)], ids=["free", "held-alone", "shared"])
def test_ledger_leaves_a_vanished_process_unattributed(holders: tuple[Holder, ...]) -> None:
    """The owner is never guessed, even with one holder: the host's processes may run there as well."""
    ledger = Ledger()
    for at_s in (1, 2):
        ledger.record(look(at_s, 60, by_pid={1: 20, 9: 40}, processes=on(1)), knowing(holders))
    found = entry(ledger)
    assert found.containers[A].busy_s == pytest.approx(0.4)
    assert found.unattributed[GONE].busy_s == pytest.approx(0.8)


TICK = 10_000
FIRST = ProcessOwner(A, 100, 50 * US, 50 * US + TICK)
SECOND = ProcessOwner(B, 200, 60 * US, 60 * US + TICK)
UNREAD = ProcessOwner("no_permission")


@pytest.mark.parametrize(
    ("before", "now", "from_s", "to_s", "who"),
    [
        pytest.param(None, None, 59, 59.5, GONE, id="never-seen"),
        pytest.param(None, FIRST, 59, 59.5, A, id="new"),
        pytest.param(None, FIRST, 49, 49.9, REUSED, id="before-its-start"),
        pytest.param(FIRST, FIRST, 59, 59.5, A, id="there-all-the-time"),
        pytest.param(FIRST, None, 59, 59.5, A, id="ended-since"),
        pytest.param(FIRST, ProcessOwner(GONE), 59, 59.5, A, id="gone-when-looked-at"),
        pytest.param(FIRST, SECOND, 59, 60, A, id="the-one-before"),
        pytest.param(FIRST, SECOND, 60.1, 60.3, B, id="the-one-after"),
        pytest.param(FIRST, SECOND, 59.9, 60.1, REUSED, id="in-between"),
        pytest.param(FIRST, SECOND, 60, 60.1, REUSED, id="in-the-same-tick"),
        pytest.param(UNREAD, UNREAD, 59, 59.5, "no_permission", id="may-not-be-read"),
        pytest.param(UNREAD, None, 59, 59.5, GONE, id="could-not-be-read-and-ended"),
        pytest.param(FIRST, UNREAD, 59, 59.5, "no_permission", id="cannot-be-read-any-more"),
    ],
)
def test_process_owner_of_a_pid_between_instants_is_certain_or_a_reason(
    before: ProcessOwner | None, now: ProcessOwner | None, from_s: float, to_s: float, who: UsageOwner
) -> None:
    """Work of a PID goes to its process of that time, even after its end; in doubt to no owner."""
    owners = ProcessOwners()
    owners.update({} if before is None else {7: before}, lambda _: False)
    owners.update({} if now is None else {7: now}, lambda _: False)
    assert owners.owner_between(7, int(from_s * US), int(to_s * US)) == who


def test_process_owner_of_a_reused_pid_is_a_reason() -> None:
    """An ended process does not get the last work of its PID if another process may have reused the PID."""
    owners = ProcessOwners()
    owners.update({7: FIRST}, lambda _: False)
    owners.update({}, lambda pid: pid == 7)
    assert owners.owner_between(7, 59 * US, 60 * US) == REUSED
    owners.update({7: FIRST}, lambda _: False)
    owners.clear()
    assert owners.owner_between(7, 59 * US, 60 * US) == GONE
