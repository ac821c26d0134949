"""The smallest amounts of a GPU to request from HAMi or gpushare."""

import dataclasses
from typing import Any

import pytest

from rightsizer.model import Device, Finding, FindingName, Node, Pod, Proposal, Usage
from rightsizer.model.offers import pools_of
from tests.rightsizer.build import ALWAYS, H100, busy_usage, findings, pod, usages, workload

GPU, MEM, CORES, PERCENT = (
    "nvidia.com/gpu",
    "nvidia.com/gpumem",
    "nvidia.com/gpucores",
    "nvidia.com/gpumem-percentage",
)
ALIYUN = "aliyun.com/gpu-mem"
T4 = "Tesla T4"


def _node(name: str = "h1", **changes: Any) -> Node:
    """Four T4 of 15,360 MiB, ten places on each, handed out by HAMi."""
    values: dict[str, Any] = {
        "model": "Tesla-T4",
        "gpus": 4,
        "memory_bytes": 15360 << 20,
        "allocatable": {GPU: 40},
        "sharing": "hami",
        "pooled": 4,
    }
    return Node(name, **{**values, **changes})


def _gpushare(**changes: Any) -> Node:
    amounts = {ALIYUN: 60}
    return _node("g1", **{"allocatable": amounts, "sharing": "gpushare", **changes})


def _light(memory_gib: float = 3.0, activity: float = 0.1, traffic: float = 0.05, **changes: Any) -> Usage:
    seen = busy_usage(
        memory_peak_bytes=memory_gib * (1 << 30),
        activity_peak=activity,
        activity_mean=activity / 2,
        traffic_peak=traffic,
        **changes,
    )
    return dataclasses.replace(seen, device=Device("GPU-1", model=T4))


def _sliceable(*pods: Pod, nodes: tuple[Node, ...], usage: Usage | None = None) -> Finding | None:
    item = workload(*pods)
    seen = usages(*((one, (usage or _light(),)) for one in item.pods))
    found = findings(item, seen, nodes=nodes, histories=ALWAYS)
    return next((one for one in found if one.name is FindingName.OVERSIZED_GPU), None)


def _proposal(*pods: Pod, nodes: tuple[Node, ...], usage: Usage | None = None) -> Proposal | None:
    finding = _sliceable(*pods, nodes=nodes, usage=usage)
    return finding.proposal if finding else None


def _by_hami(name: str = "w-0", **asked: int) -> Pod:
    """A pod on HAMi's node; `mem=6000` stands for so many MiB."""
    names = {"mem": MEM, "cores": CORES, "percent": PERCENT}
    amounts = {names[key]: count for key, count in asked.items()}
    return pod(name, node="h1", is_shared=True, resources={GPU: 1, **amounts})


WHOLE = pod(resources={GPU: 1})
FITS: dict[str, tuple[Pod, Node, Usage, dict[str, int] | None]] = {
    # 3 GiB and 20 % are 3,686 MiB, 10 % and 20 % are 12 %: the next steps are 3,840 MiB and 15 %.
    "a-whole-gpu": (WHOLE, _node(), _light(), {GPU: 1, MEM: 3840, CORES: 15}),
    "traffic-counts-as-compute": (WHOLE, _node(), _light(traffic=0.3), {GPU: 1, MEM: 3840, CORES: 40}),
    "all-of-one-by-hami": (_by_hami(), _node(), _light(), {GPU: 1, MEM: 3840, CORES: 15}),
    "as-hami-admits-it": (_by_hami(cores=100), _node(), _light(), {GPU: 1, MEM: 3840, CORES: 15}),
    "less-than-it-asks-for": (_by_hami(mem=8000), _node(), _light(), {GPU: 1, MEM: 3840}),
    "cores-too": (_by_hami(mem=8000, cores=60), _node(), _light(), {GPU: 1, MEM: 3840, CORES: 15}),
    "in-percent": (_by_hami(percent=60), _node(), _light(), {GPU: 1, PERCENT: 25}),
    "not-worth-it": (_by_hami(mem=5000), _node(), _light(), None),
    # 26 GiB and 20 % are 31,949 MiB; the next step, 32,000, is stored as 32k.
    "stored-as-it-is": (
        WHOLE,
        _node(memory_bytes=81920 << 20),
        _light(memory_gib=26),
        {GPU: 1, MEM: 32256, CORES: 15},
    ),
    "needs-nearly-all": (WHOLE, _node(), _light(memory_gib=12), None),
    "another-model": (WHOLE, _node(model="Tesla-P4"), _light(), None),
    "a-closed-node": (WHOLE, _node(is_open=False), _light(), None),
    "memory-not-known": (WHOLE, _node(memory_bytes=None), _light(), None),
    "gpushare": (WHOLE, _gpushare(), _light(), {ALIYUN: 4}),
    "gpushare-stands-for-compute": (WHOLE, _gpushare(), _light(activity=0.5), {ALIYUN: 9}),
    "gpushare-in-mib": (WHOLE, _gpushare(allocatable={ALIYUN: 61440}), _light(), None),
    "less-of-gpushare": (
        pod(node="g1", is_shared=True, resources={ALIYUN: 10}),
        _gpushare(),
        _light(),
        {ALIYUN: 4},
    ),
    "no-amount-of-another-kind": (
        pod(node="g1", is_shared=True, resources={ALIYUN: 10}),
        _gpushare(is_open=False),
        _light(),
        None,
    ),
}


@pytest.mark.parametrize(("held", "node", "usage", "asks"), FITS.values(), ids=FITS.keys())
def test_slice_proposal_is_the_smallest_sufficient_amount(
    held: Pod, node: Node, usage: Usage, asks: dict[str, int] | None
) -> None:
    """Peaks and margins are rounded up; less than a tenth of a GPU is not worth a restart."""
    there = _node(is_open=False) if node.name != "h1" else node
    other = _gpushare(is_open=False) if node.name != "g1" else node
    proposal = _proposal(held, nodes=(there, other), usage=usage)
    assert (dict(proposal.asks) if proposal else None) == asks


def test_slice_evidence_states_peaks_margins_and_savings() -> None:
    """The evidence states what was used, what would be enough, and what it frees."""
    finding = _sliceable(WHOLE, nodes=(_node(),))
    assert finding is not None
    assert finding.words[0] == (
        "peaks of the last 1d: 3.0 GiB memory (margin 20%), 10% activity, 5% memory traffic (margin 20%); "
        "nvidia.com/gpu: 1, nvidia.com/gpumem: 3840, nvidia.com/gpucores: 15 would be enough, with 3.8 GiB and 15% of "
        "the compute; HAMi limits memory in the container's CUDA library, but isolates no faults; bandwidth is shared"
    )
    assert finding.words[1] == (
        "nvidia.com/gpu: 1, nvidia.com/gpumem: 3840, nvidia.com/gpucores: 15 for each pod; frees 0.75 GPUs"
    )
    assert finding.proposal is not None
    assert finding.proposal.frees == pytest.approx(0.75)


def _others(count: int, **asked: int) -> tuple[Pod, ...]:
    return tuple(_by_hami(f"o-{number}", **asked) for number in range(count))


ROOM = {
    "empty": ((), 4),
    "one-left": (_others(3), 4),
    "none-left": (_others(4), 0),
    # Each of these could be on a GPU of its own, and leaves too little of it.
    "four-with-much": (_others(4, mem=12000), 0),
    "three-with-much": (_others(3, mem=12000), 3),
    "many-with-little": (_others(8, mem=1000), 4),
    "compute-is-taken": (_others(4, mem=100, cores=90), 0),
    "no-places": (_others(40, mem=1, cores=1), 0),
    "one-place-each": (_others(36, mem=1, cores=1), 3),
    "few-places": ((*_others(38, mem=1, cores=1), *_others(1, mem=15000, cores=1)), 0),
    "not-readable": ((dataclasses.replace(_by_hami("o"), devices=4, unreadable=("a",)),), 0),
}


@pytest.mark.parametrize(("others", "fits"), ROOM.values(), ids=ROOM.keys())
def test_capacity_beside_other_pods_assumes_the_worst_placement(others: tuple[Pod, ...], fits: int) -> None:
    """It is unknown which pod is on which GPU."""
    pools = pools_of({"h1": _node()}, {"h1": others})[T4]
    assert [pool.takes(3840, 15, 4) for alike in pools for pool in alike] == [fits]


def test_slice_without_capacity_for_all_pods_is_advice() -> None:
    """If nodes have capacity for only some of the pods, nothing is proposed."""
    pods = (_by_hami("w-0"), _by_hami("w-1"), _by_hami("w-2"))
    assert _proposal(*pods, nodes=(_node(),)) is not None
    finding = _sliceable(*pods, nodes=(_node(allocatable={GPU: 4}),))
    assert finding is not None
    words = "no eligible node has this slice free, with enough CPU and memory"
    assert (finding.proposal, finding.words[-1]) == (None, words)


def test_mig_profile_held_by_other_pods_is_not_proposed() -> None:
    """Instances of the device plugin do not count while others hold them."""
    profile = "nvidia.com/mig-1g.10gb"
    card = Node("n9", "NVIDIA-H100-80GB-HBM3", gpus=1, memory_bytes=80 << 30, allocatable={profile: 2})
    item = workload(pod())
    light = dataclasses.replace(_light(), device=dataclasses.replace(_light().device, model=H100))
    seen = usages((item.pods[0], (light,)))
    for count, asks in ((1, [((profile, 1),)]), (2, [])):
        others = workload(*(pod(f"o-{number}", node="n9", resources={profile: 1}) for number in range(count)))
        found = findings(item, seen, nodes=(card,), histories=ALWAYS, around=(others,))
        assert [one.proposal.asks for one in found if one.proposal] == asks
