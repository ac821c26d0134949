"""What sensors show follows from what runs: watts, joules, degrees and bytes, past and present alike."""

import statistics
from typing import Any

import pytest

from simulator.gpus.cards import CARDS
from simulator.nodes.machine import Machine
from simulator.nodes.physics import MPS_SERVER_BYTES
from simulator.spec import Archetype, GpuSpec, Kind, NodeSpec, Sharing, WorkloadSpec
from simulator.workloads.archetypes import Actor
from simulator.workloads.behavior import truth
from simulator.workloads.draws import DAY_S, HOUR_S

NOW_S = 1_795_219_200
BOOT_S = NOW_S - 5 * DAY_S
H100 = CARDS["H100-SXM5-80GB"]
WHOLE = NodeSpec("whole", (GpuSpec("H100-SXM5-80GB"),) * 2)


def _actor(archetype: Archetype, *, name: str = "w", age_s: float = 3 * DAY_S, **more: Any) -> Actor:
    spec = WorkloadSpec(Kind.JOB, "ns", name, archetype, **more)
    return Actor(seed=3, spec=spec, ordinal=0, device=0, start_s=NOW_S - age_s)


def _with(archetype: Archetype, **more: Any) -> Machine:
    machine = Machine(WHOLE, boot_s=BOOT_S)
    machine.occupy(WHOLE.gpu_uuid(0), _actor(archetype, **more))
    return machine


@pytest.mark.parametrize("archetype", Archetype)
def test_energy_is_integral_of_power(archetype: Archetype) -> None:
    """Between any two instants the energy counter grows by the power shown in each second between them."""
    machine = _with(archetype, age_s=2 * HOUR_S, works_s=HOUR_S)
    seconds = range(NOW_S - 3 * 3600, NOW_S)
    samples = machine.samples(0, seconds)
    shown_j = samples.energy_j[-1] - samples.energy_j[0]
    assert shown_j == pytest.approx(sum(samples.power_w[:-1]), rel=1e-9)
    assert all(
        later > earlier for earlier, later in zip(samples.energy_j, samples.energy_j[1:], strict=False)
    )


def test_history_equals_readings() -> None:
    """What is written as history is what the sensors showed at that second."""
    machine = _with(Archetype.NOTEBOOK, works_s=1e9)
    seconds = range(NOW_S - 86400, NOW_S, 977)
    past = machine.samples(0, seconds)
    for index, second in enumerate(seconds):
        reading = machine.reading(0, second)
        assert reading.gpu_util_percent == past.utilization[index]
        assert reading.memory_util_percent == past.memory_utilization[index]
        assert reading.memory_used_bytes == past.memory_used[index]
        assert reading.power_w == past.power_w[index]
        assert reading.energy_j == pytest.approx(past.energy_j[index])
        assert reading.temperature_c == past.temperature_c[index]
        assert reading.memory_temperature_c == past.memory_temperature_c[index]
        assert (reading.sm_clock_mhz, reading.mem_clock_mhz) == (
            past.sm_clock_mhz[index],
            past.mem_clock_mhz[index],
        )


def test_power_of_h100_depends_on_context_and_work() -> None:
    """An H100 draws 70 W empty, 116 to 123 W with an idle model (p5 to p95), 150 to 700 W at work."""
    seconds = range(NOW_S - 3600, NOW_S)
    empty = Machine(WHOLE, boot_s=BOOT_S).samples(0, seconds).power_w
    assert statistics.mean(empty) == pytest.approx(70, abs=0.5)
    loaded = statistics.quantiles(_with(Archetype.ZOMBIE, spins=False).samples(0, seconds).power_w, n=20)
    assert loaded[0] == pytest.approx(116.6, abs=0.7)
    assert loaded[-1] == pytest.approx(123, abs=0.7)
    busy = _with(Archetype.TRAIN_STALL).samples(0, seconds)
    worked = [power for power, seen in zip(busy.power_w, busy.utilization, strict=True) if seen]
    assert min(worked) > 140
    assert max(worked) <= H100.max_power_w


def test_spinning_gpu_shows_full_utilization_at_idle_power() -> None:
    """A hung collective: 100 %, at idle power, without memory traffic."""
    reading = _with(Archetype.ZOMBIE, spins=True).reading(0, NOW_S)
    assert reading.gpu_util_percent == 100
    assert reading.memory_util_percent == 0
    assert reading.power_w == pytest.approx(H100.loaded_power_w, rel=0.08)
    assert reading.memory_used_bytes > H100.usable_bytes // 3


def test_utilization_matches_busy_intervals() -> None:
    """Seconds with utilization are the seconds of the busy intervals."""
    machine, actor = _with(Archetype.INFERENCE_DIURNAL), _actor(Archetype.INFERENCE_DIURNAL)
    samples = machine.samples(0, range(NOW_S - 86400, NOW_S))
    seen_s = sum(1 for value in samples.utilization if value)
    busy = truth(actor, NOW_S - 86400, NOW_S)
    assert seen_s == busy.busy_s


def test_temperature_follows_power_with_delay() -> None:
    """A GPU under load grows warm within minutes, and its memory stays warmer than it is."""
    machine = _with(Archetype.TRAIN_STEADY, age_s=6 * HOUR_S)
    before, after = machine.reading(0, NOW_S - 7 * HOUR_S), machine.reading(0, NOW_S - 5 * HOUR_S)
    assert before.temperature_c < 35
    assert after.temperature_c > 60
    assert after.memory_temperature_c > after.temperature_c


def test_released_device_is_idle_and_keeps_its_past() -> None:
    """After a release the GPU is idle; its energy counter goes on, and its past stays what it was."""
    machine = _with(Archetype.TRAIN_STEADY)
    before = machine.reading(0, NOW_S)
    past = machine.samples(0, range(NOW_S - 3600, NOW_S, 60))
    machine.release(WHOLE.gpu_uuid(0), at_s=NOW_S + 10)
    assert machine.reading(0, NOW_S) == before
    assert machine.samples(0, range(NOW_S - 3600, NOW_S, 60)) == past
    after = machine.reading(0, NOW_S + 11)
    assert (after.gpu_util_percent, after.memory_used_bytes) == (0, 0)
    assert after.energy_j > before.energy_j
    assert machine.reading(1, NOW_S).memory_used_bytes == 0


def test_time_sliced_tenants_add_up() -> None:
    """On a time-sliced GPU memory adds up and utilization does, up to 100."""
    node = NodeSpec("shared", (GpuSpec("L40S"),), sharing=Sharing.TIME_SLICING, replicas=4)
    uuid = node.gpu_uuid(0)
    machine = Machine(node, boot_s=BOOT_S)
    machine.occupy(f"{uuid}::0", _actor(Archetype.ZOMBIE, name="idle", spins=False))
    alone = machine.reading(0, NOW_S)
    machine.occupy(f"{uuid}::1", _actor(Archetype.TRAIN_STALL, name="one"))
    machine.occupy(f"{uuid}::2", _actor(Archetype.TRAIN_STEADY, name="two"))
    seconds = range(NOW_S - 7200, NOW_S)
    samples = machine.samples(0, seconds)
    assert alone.gpu_util_percent == 0
    assert max(samples.utilization) == 100
    assert min(samples.memory_used) > alone.memory_used_bytes
    assert max(samples.memory_used) <= CARDS["L40S"].usable_bytes
    assert samples.energy_j[-1] - samples.energy_j[0] == pytest.approx(sum(samples.power_w[:-1]), rel=1e-9)


def test_division_shares_add_up_to_utilization() -> None:
    """Whole percents of those at work, in proportion, that add up to what the sensors show."""
    node = NodeSpec("shared", (GpuSpec("L40S"),), sharing=Sharing.TIME_SLICING, replicas=4)
    machine = Machine(node, boot_s=BOOT_S)
    names = (("idle", Archetype.ZOMBIE), ("one", Archetype.TRAIN_STEADY), ("two", Archetype.TRAIN_STALL))
    for number, (name, archetype) in enumerate(names):
        spins = False if archetype is Archetype.ZOMBIE else None
        machine.occupy(f"{node.gpu_uuid(0)}::{number}", _actor(archetype, name=name, spins=spins))
    seen = set()
    for second in range(NOW_S - 7200, NOW_S, 10):
        division = machine.division(0, second)
        own = [one.utilization_at(second) for one, _ in division.shares]
        shares = [percent for _, percent in division.shares]
        assert division.percent == machine.reading(0, second).gpu_util_percent == sum(shares)
        for percent, alone in zip(shares, own, strict=True):
            assert percent == pytest.approx(division.percent * alone / sum(own), abs=1)
        seen.add(tuple(one.tenant.actor.spec.name for one, _ in division.shares))
    assert {("one", "two"), ("one",)} <= seen <= {("one", "two"), ("one",), ("two",), ()}


def test_counters_of_tenants_are_the_sums_of_each_second() -> None:
    """Busy seconds and energy, at whatever steps they are read: also of work between two of these."""
    node = NodeSpec("shared", (GpuSpec("L40S"),), sharing=Sharing.TIME_SLICING, replicas=3)
    machine = Machine(node, boot_s=BOOT_S)
    courses = (Archetype.TRAIN_STALL, Archetype.NOTEBOOK, Archetype.INFERENCE_LONGTAIL)
    for number, archetype in enumerate(courses):
        actor = _actor(archetype, name=archetype.value, works_s=1e9, age_s=4 * HOUR_S - 1000 * number)
        machine.occupy(f"{node.gpu_uuid(0)}::{number}", actor)
    begin = NOW_S - 4 * 3600 - 600
    samples = machine.samples(0, range(begin, NOW_S + 1, 600))
    busy_s, energy_j = dict.fromkeys(courses, 0.0), 0.0
    for second in range(begin, NOW_S):
        division = machine.division(0, second)
        energy_j += machine.reading(0, second).power_w * division.percent / 100
        for one, percent in division.shares:
            busy_s[one.tenant.actor.spec.archetype] += percent / 100
    assert [len(used.busy_s) for used in samples.tenants.values()] == [len(samples.power_w)] * 3
    for tenant, used in samples.tenants.items():
        # Each second's whole percents are rounded at random
        assert used.busy_s[-1] == pytest.approx(busy_s[tenant.actor.spec.archetype], rel=0.01)
        assert used.busy_s[0] == used.memory[0] == 0
        assert used.busy_s == sorted(used.busy_s)
    held = {one.tenant: one.held_bytes for one in machine.present(0, NOW_S)}
    assert {tenant: used.memory[-1] for tenant, used in samples.tenants.items()} == held
    assert sum(used.energy_j[-1] for used in samples.tenants.values()) == pytest.approx(energy_j, rel=0.01)


def test_mps_server_holds_memory_while_it_has_clients() -> None:
    """What its clients hold and the server's own is what the card shows, and never more than it has."""
    node = NodeSpec("mps", (GpuSpec("T4"),), sharing=Sharing.MPS, replicas=48)
    machine = Machine(node, boot_s=BOOT_S)
    assert machine.reading(0, NOW_S).memory_used_bytes == 0
    for number in range(48):
        actor = _actor(Archetype.ZOMBIE, name=f"w{number}", works_s=0.0, spins=False)
        machine.occupy(f"{node.gpu_uuid(0)}::{number}", actor)
    clients = sum(one.held_bytes for one in machine.present(0, NOW_S))
    used = machine.reading(0, NOW_S).memory_used_bytes
    assert used - clients == MPS_SERVER_BYTES
    assert used <= CARDS["T4"].usable_bytes


def test_context_age_spans_phases_with_context() -> None:
    """It began with the pod, also right at that instant, and is gone when the work is."""
    machine = _with(Archetype.OVERALLOCATED, age_s=HOUR_S, works_s=HOUR_S / 2)
    at_work, stopped = (machine.present(0, NOW_S - after)[0] for after in (HOUR_S / 2 + 1, HOUR_S / 2))
    assert (at_work.phase.context, stopped.phase.context) == (True, False)
    assert at_work.tenant.context_since_s(NOW_S - HOUR_S / 2 - 1) == NOW_S - HOUR_S
    assert at_work.tenant.context_since_s(NOW_S - HOUR_S) == NOW_S - HOUR_S
    assert stopped.held_bytes == 0


def test_mig_instance_has_own_memory_and_power_share() -> None:
    """Memory is counted by instance; the card's sensors see each instance's part."""
    node = NodeSpec("cut", (GpuSpec("A100-SXM4-40GB", mig=("3g.20gb", "1g.5gb")),))
    machine = Machine(node, boot_s=BOOT_S)
    machine.occupy(node.mig_uuid(0, 1), _actor(Archetype.TRAIN_STEADY))
    at = NOW_S - 1800
    first, second = machine.instances(0, at)
    assert (first.memory_used_bytes, first.activity_percent) == (0, 0)
    assert 0 < second.memory_used_bytes <= CARDS["A100-SXM4-40GB"].mig_profiles["1g.5gb"].memory_bytes
    reading = machine.reading(0, at)
    assert reading.memory_used_bytes == second.memory_used_bytes
    assert second.activity_percent > 60
    assert 5 <= reading.gpu_util_percent <= 20


def test_history_of_instance_equals_its_readings() -> None:
    """Second by second, as the machine would have been read."""
    node = NodeSpec("cut", (GpuSpec("H100-SXM5-80GB", mig=("3g.40gb", "1g.10gb")),))
    machine = Machine(node, boot_s=BOOT_S)
    machine.occupy(node.mig_uuid(0, 0), _actor(Archetype.TRAIN_STALL))
    seconds = range(NOW_S - 3600, NOW_S, 60)
    samples = machine.samples(0, seconds)
    shown = [machine.instances(0, second) for second in seconds]
    for number in range(2):
        assert samples.instance_memory[number] == [one[number].memory_used_bytes for one in shown]
        assert samples.instance_activity[number] == [one[number].activity_percent for one in shown]
    assert len(set(samples.instance_activity[0])) > 5


def test_reading_before_boot_raises_value_error() -> None:
    """Asking for an instant before the boot is an error, not an idle GPU."""
    with pytest.raises(ValueError, match="driver was loaded"):
        Machine(WHOLE, boot_s=BOOT_S).reading(0, BOOT_S - 1)
