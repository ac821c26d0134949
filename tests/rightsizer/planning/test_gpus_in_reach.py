"""GPUs that pods can use without holding them."""

import dataclasses

from rightsizer.model import Device, NodeCoverage, Slot, Usage
from rightsizer.planning.gpus_in_reach import gpus_in_reach, nodes_of, with_reach, with_reach_histories
from tests.rightsizer import build

KEY = ("research", "w-0")
REACH = {KEY: {"GPU-b": "n1"}}
OWN = build.idle_usage()
B = dataclasses.replace(build.busy_usage(), device=Device("GPU-b"))


def test_gpus_in_reach_are_those_of_the_node_or_of_a_process() -> None:
    """Without reach and without a process elsewhere there are none."""
    plain, privileged = build.pod(), build.pod(reach="privileged")
    nodes = {"n1": NodeCoverage(2, 1, 1.0, frozenset({"GPU-a", "GPU-b"}))}
    elsewhere = Usage(Device("GPU-c"), is_held=False)
    for one, rows, uuids in (
        (plain, (OWN,), set()),
        (plain, (OWN, elsewhere), {"GPU-c"}),
        (privileged, (OWN,), {"GPU-a", "GPU-b"}),
    ):
        item = build.workload(one)
        seen = build.measured(item, build.usages((one, rows)), nodes=nodes)
        assert nodes_of(gpus_in_reach(build.fleet(item), seen)) == dict.fromkeys(uuids, "n1")


def test_with_reach_uncounted_device_is_of_anybody() -> None:
    """What is missing is unknown; a pod that is not in reach keeps its usages."""
    found = with_reach({KEY: (OWN,)}, {"GPU-b": (B,)}, REACH)
    assert found[KEY] == (OWN, dataclasses.replace(B, is_held=False))
    (_, unknown) = with_reach({KEY: (OWN,)}, {}, REACH)[KEY]
    assert (unknown.activity_peak, unknown.is_own, unknown.is_held) == (None, False, False)


def test_with_reach_counted_device_is_idle_but_for_what_is_left() -> None:
    """The pod has no counter there, so that it did nothing of what is known."""
    counted = dataclasses.replace(B, busy_s=5000.0, unattributed_s=7.0)
    (_, row) = with_reach({KEY: (OWN,)}, {"GPU-b": (counted,)}, REACH)[KEY]
    assert (row.busy_s, row.unattributed_s, row.is_own, row.is_held) == (7.0, 7.0, True, False)
    own = dataclasses.replace(row, busy_s=100.0)
    assert with_reach({KEY: (OWN, own)}, {"GPU-b": (counted,)}, REACH)[KEY] == (OWN, own)


def test_with_reach_histories_work_of_anybody_is_unknown() -> None:
    """Also where the device has no history, or a shorter one."""
    own = build.history("....")
    unknown = dataclasses.replace(own, slots=bytes([Slot.IDLE, Slot.UNKNOWN]))
    (found,) = with_reach_histories({KEY: own}, {"GPU-b": unknown}, REACH).values()
    assert len(found.slots) == len(own.slots)
    assert found.slots[-2:] == bytes([Slot.IDLE, Slot.UNKNOWN])
    assert set(found.slots[:-2]) == {Slot.UNKNOWN}
    (found,) = with_reach_histories({KEY: own}, {}, REACH).values()
    assert set(found.slots) == {Slot.UNKNOWN}
