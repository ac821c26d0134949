"""The smallest sufficient GPU slice that some node offers."""

import dataclasses
from collections.abc import Iterable
from typing import Any

import pytest

from rightsizer.findings.finders import assess
from rightsizer.findings.gpu_slices import CARDS, card_of
from rightsizer.model import (
    Allocation,
    CounterSet,
    DeviceId,
    DeviceInventory,
    DraDevice,
    FindingName,
    Fleet,
    Holding,
    Node,
    ObjectRef,
    Pod,
    Quota,
    Usage,
    Verdict,
    WaitingPod,
)
from tests.rightsizer.build import (
    ALWAYS,
    H100,
    busy_usage,
    criteria,
    device,
    findings,
    fleet,
    measured,
    pod,
    usages,
    workload,
)


def _node(resources: dict[str, int], **changes: Any) -> Node:
    model = "NVIDIA-H100-80GB-HBM3"
    return Node(
        "n9",
        **{"model": model, "gpus": 1, "memory_bytes": 85_520_809_984, "allocatable": resources, **changes},
    )


def _light(
    memory_gib: float = 4.0, activity: float = 0.1, traffic: float | None = 0.05, **changes: Any
) -> Usage:
    return busy_usage(
        memory_peak_bytes=memory_gib * (1 << 30),
        activity_peak=activity,
        activity_mean=activity / 2,
        traffic_peak=traffic,
        **changes,
    )


MIXED = _node({"nvidia.com/mig-1g.10gb": 7, "nvidia.com/mig-2g.20gb": 1, "nvidia.com/mig-3g.40gb": 1})
FITS = {
    "smallest": (_light(), MIXED, "nvidia.com/mig-1g.10gb"),
    "memory-to-the-margin": (_light(memory_gib=7.4), MIXED, "nvidia.com/mig-1g.10gb"),
    "memory-above-the-margin": (_light(memory_gib=7.6), MIXED, "nvidia.com/mig-2g.20gb"),
    "compute-above-the-margin": (_light(activity=0.13), MIXED, "nvidia.com/mig-2g.20gb"),
    "bandwidth-above-the-margin": (_light(traffic=0.11), MIXED, "nvidia.com/mig-2g.20gb"),
    "half": (_light(memory_gib=25), MIXED, "nvidia.com/mig-3g.40gb"),
    "next-that-is-offered": (_light(), _node({"nvidia.com/mig-3g.40gb": 2}), "nvidia.com/mig-3g.40gb"),
    "a-share": (_light(), _node({"nvidia.com/gpu.shared": 4}, sharing="mps"), "nvidia.com/gpu.shared"),
    "too-small-a-share": (_light(memory_gib=20), _node({"nvidia.com/gpu.shared": 4}, sharing="mps"), None),
    "nothing-offered": (_light(), _node({"nvidia.com/gpu": 8}), None),
    "offered-by-a-closed-node": (_light(), dataclasses.replace(MIXED, is_open=False), None),
    "offered-by-another-model": (_light(), dataclasses.replace(MIXED, model="NVIDIA-A100-SXM4-80GB"), None),
    "traffic-not-measured": (_light(traffic=None), MIXED, None),
    "half-of-the-window": (_light(coverage=0.5), MIXED, None),
    "needs-all": (_light(memory_gib=70), MIXED, None),
}


@pytest.mark.parametrize(("usage", "node", "resource"), FITS.values(), ids=FITS.keys())
def test_oversized_gpu_proposes_the_smallest_offered_slice(
    usage: Usage, node: Node, resource: str | None
) -> None:
    """It covers peaks of memory, activity and traffic with margins, and some node has it free."""
    item = workload(pod())
    found = findings(item, usages((item.pods[0], (usage,))), nodes=(node,), histories=ALWAYS)
    proposals = [dict(finding.proposal.asks) for finding in found if finding.proposal is not None]
    assert proposals == ([{resource: 1}] if resource else [])


WAITING = WaitingPod(
    ObjectRef("v1", "Pod", "x", "w"), {"deviceclass:gpu.nvidia.com": 1}, 10, "high", frozenset({"n9"}), {}
)
_MIG_DEVICE = "deviceclass:mig.nvidia.com/1g.10gb"


def _claimable(
    held: int = 0,
    classes: Iterable[str] = ("gpu.nvidia.com", "mig.nvidia.com"),
    own: str = "gpu.nvidia.com",
    quotas: tuple[Quota, ...] = (),
) -> Fleet:
    """A node with a GPU that can become seven MIG devices, of which some are held, and a pod with a whole GPU."""
    parts = [
        DraDevice(
            DeviceId("gpu.nvidia.com", "n9", f"mig-{place}"),
            "n9",
            "bus-0",
            "NVIDIA-H100-80GB-HBM3",
            profile="1g.10gb",
            consumes=(("gpu-0", {"slices": 1}),),
        )
        for place in range(8)
    ]
    counters = {CounterSet("gpu.nvidia.com", "n9", "gpu-0"): {"slices": 7}}
    allocations = {("x", str(n)): Allocation((Holding(parts[n].id),), frozenset({"u"})) for n in range(held)}
    devices = DeviceInventory({"n9": tuple(parts)}, counters, allocations, classes=frozenset(classes))
    item = workload(pod(resources={f"deviceclass:{own}": 1}))
    return dataclasses.replace(fleet(item, nodes=(_node({}),)), devices=devices, quotas=quotas)


@pytest.mark.parametrize(
    ("around", "is_offered"),
    [
        (_claimable(), True),
        (_claimable(held=6), True),
        (_claimable(held=7), False),
        (_claimable(classes=()), None),
        (_claimable(classes=("our-gpus", "mig.nvidia.com"), own="our-gpus"), None),
        (
            _claimable(quotas=(Quota("research", "q", "deviceclass:mig.nvidia.com", hard=0, used=0),)),
            False,
        ),
        (dataclasses.replace(_claimable(), waiting=(WAITING,)), False),
    ],
    ids=[
        "free",
        "one-is-free",
        "counters-are-used-up",
        "no-class-of-mig",
        "class-of-their-own",
        "quota",
        "a-pod-waits-for-devices",
    ],
)
def test_oversized_gpu_of_a_claim_proposes_a_mig_device_that_can_be_allocated(
    around: Fleet, *, is_offered: bool | None
) -> None:
    """By its DeviceClass and profile; advice if none is free, and nothing without the class."""
    (item,) = around.workloads
    found = assess(
        item, measured(item, usages((item.pods[0], (_light(),))), histories=ALWAYS), criteria(), around
    )
    oversized = [one for one in found if one.name is FindingName.OVERSIZED_GPU]
    assert bool(oversized) == (is_offered is not None)
    proposals = [dict(one.proposal.asks) for one in oversized if one.proposal is not None]
    assert proposals == ([{_MIG_DEVICE: 1}] if is_offered else [])


def test_oversized_gpu_evidence_states_peaks_and_margins() -> None:
    """The evidence states use, margins, the slice, and what it frees."""
    item = workload(pod(), pod("w-1"))
    found = usages(*((one, (_light(),)) for one in item.pods))
    finding = findings(item, found, nodes=(MIXED,), histories=ALWAYS)[0]
    assert finding.words[0] == (
        "peaks of the last 1d: 4.0 GiB memory (margin 20%), 10% activity, 5% memory traffic (margin 20%); "
        "nvidia.com/mig-1g.10gb would be enough, with 9.0 GiB and 14.3% of the compute; MIG isolates memory, "
        "bandwidth and faults; power, PCIe and a reset of the GPU are shared"
    )
    assert finding.proposal is not None
    assert finding.proposal.words == "nvidia.com/mig-1g.10gb for each pod; frees 1.7 GPUs"
    assert finding.proposal.frees == pytest.approx(12 / 7)


def test_oversized_gpu_without_an_offer_is_advice() -> None:
    """The finding names the slice and says that no node has it free."""
    item = workload(pod())
    finding = findings(item, usages((item.pods[0], (_light(),))), histories=ALWAYS)[0]
    assert (finding.name, finding.verdict, finding.proposal) == (
        FindingName.OVERSIZED_GPU,
        Verdict.KEEP,
        None,
    )
    assert finding.words[-1] == "no eligible node has this slice free, with enough CPU and memory"


def _instance(profile: str, **changes: Any) -> Usage:
    usage = _light(**changes)
    return dataclasses.replace(
        usage, device=dataclasses.replace(usage.device, instance="3", instance_profile=profile)
    )


@pytest.mark.parametrize(
    ("profile", "activity", "resource"),
    [
        ("3g.40gb", 0.2, "nvidia.com/mig-1g.10gb"),
        ("3g.40gb", 0.5, "nvidia.com/mig-2g.20gb"),
        ("1g.10gb", 0.2, None),
        ("9g.99gb", 0.2, None),
    ],
    ids=["a-third-of-it", "two-thirds-of-it", "smallest-already", "unknown-profile"],
)
def test_oversized_mig_instance_proposes_a_smaller_one(
    profile: str, activity: float, resource: str | None
) -> None:
    """Activity of a MIG instance is relative to the instance."""
    item = workload(pod())
    found = usages((item.pods[0], (_instance(profile, activity=activity, traffic=0.01),)))
    proposal = findings(item, found, nodes=(MIXED,), histories=ALWAYS)[0].proposal
    assert (proposal.asks if proposal else None) == (((resource, 1),) if resource else None)


MODELS = {
    "NVIDIA A30": "1g.6gb",
    "NVIDIA A100-SXM4-40GB": "1g.5gb",
    "NVIDIA A100 80GB PCIe": "1g.10gb",
    H100: "1g.10gb",
    "NVIDIA H100 PCIe": "1g.10gb",
    "NVIDIA H100 NVL": "1g.12gb",
    "NVIDIA GH200 480GB": "1g.12gb",
    "NVIDIA GH200 144G HBM3e": "1g.18gb",
    "NVIDIA H20": "1g.12gb",
    "NVIDIA H200": "1g.18gb",
    "NVIDIA B200": "1g.23gb",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "1g.24gb",
    "NVIDIA GB200": None,
    "NVIDIA L40S": None,
    "Tesla T4": None,
}


@pytest.mark.parametrize(("model", "smallest"), MODELS.items(), ids=MODELS.keys())
def test_card_of_a_model_has_its_mig_profiles(model: str, smallest: str | None) -> None:
    """By DCGM's name, and by the label of GPU Feature Discovery."""
    for spelling in (model, model.replace(" ", "-")):
        card = card_of(spelling)
        assert (card.profiles[0].name if card else None) == smallest


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.models[0])
def test_mig_profile_memory_matches_its_name(card: Any) -> None:
    """The largest profile is the whole GPU."""
    for profile in card.profiles:
        named = float(profile.name.split(".")[1].removesuffix("gb"))
        assert 0.85 * named <= profile.memory_bytes / (1 << 30) <= 0.96 * named
    assert card.profiles[-1].share == 1.0


A100 = dataclasses.replace(
    _light(), device=dataclasses.replace(_light().device, model="NVIDIA A100 80GB PCIe")
)


@pytest.mark.parametrize(
    ("pods", "used"),
    [
        ((pod(is_shared=True),), (_light(),)),
        ((pod(), pod("w-1")), (_light(), A100)),
    ],
    ids=["shared-already", "two-models"],
)
def test_oversized_gpu_with_shares_or_mixed_models_is_not_proposed(
    pods: tuple[Pod, ...], used: tuple[Usage, ...]
) -> None:
    """A share is not a whole GPU, and two models have no common slice."""
    found = usages(*((one, (usage,)) for one, usage in zip(pods, used, strict=True)))
    names = {finding.name for finding in findings(workload(*pods), found, nodes=(MIXED,), histories=ALWAYS)}
    assert FindingName.OVERSIZED_GPU not in names


WITHOUT = "a MIG instance has no NVLink, which connects its GPU with 3 others"
CONNECTED = "NVLink connects GPUs of its pods, which may work together"


@pytest.mark.parametrize(
    ("kind", "peers", "node", "expected"),
    [
        pytest.param(
            "Deployment", "GPU-other GPU-00000000 GPU-00000001", MIXED, (Verdict.ACT, True), id="replicas"
        ),
        pytest.param(
            "StatefulSet", "GPU-other GPU-00000000 GPU-00000001", MIXED, (Verdict.KEEP, True), id="ordinals"
        ),
        pytest.param("StatefulSet", "GPU-other GPU-more GPU-rest", MIXED, (Verdict.ACT, True), id="apart"),
        pytest.param("StatefulSet", "", MIXED, (Verdict.ACT, False), id="no-nvlink"),
        pytest.param("StatefulSet", None, MIXED, (Verdict.ACT, False), id="unknown"),
        pytest.param(
            "StatefulSet",
            "GPU-other GPU-00000000 GPU-00000001",
            _node({"nvidia.com/gpu.shared": 4}, sharing="mps"),
            (Verdict.ACT, False),
            id="no-instance",
        ),
    ],
)
def test_oversized_gpu_keeps_nvlink_of_pods_that_may_work_together(
    kind: str, peers: str | None, node: Node, expected: tuple[Verdict, bool]
) -> None:
    """A MIG instance has none: the plan says what is lost, and only advises on pods with numbers."""
    item = workload(pod(), pod("w-1"), kind=kind)
    found = usages(*((one, (_light(device=device(index)),)) for index, one in enumerate(item.pods)))
    nvlink = {} if peers is None else {device(index).uuid: frozenset(peers.split()) for index in (0, 1)}
    finding = findings(item, found, nodes=(node,), histories=ALWAYS, nvlink=nvlink)[0]
    assert finding.name is FindingName.OVERSIZED_GPU
    assert (finding.verdict, finding.words[0].endswith(WITHOUT)) == expected
    assert (CONNECTED in finding.words) is (finding.verdict is Verdict.KEEP)
