"""Devices of resource claims: their names, and the labels that they give to series."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model import Allocation, Claim, Device, Instance, PodRef
from exporter.pods.allocations import index, owners_of
from exporter.pods.deviceids import DeviceKey, key_of, key_of_claimed, keys_for
from simulator.gpus.cards import CARDS
from simulator.gpus.mig import place
from simulator.nodes.kubelet import Allocation as Devices
from simulator.nodes.kubelet import ClaimedDevice, PodDevices
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Exporter, Node, eventually, h100, pod

DRIVER = "gpu.nvidia.com"
UTIL = "DCGM_FI_DEV_GPU_UTIL"
USED = "DCGM_FI_DEV_FB_USED"
UNATTRIBUTED = "gpu_exporter_unattributed_devices"
LABELS = (
    "dra_claim_name", "dra_claim_namespace", "dra_driver_name", "dra_pool_name", "dra_device_name",
    "dra_mig_profile", "dra_mig_device_uuid",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "key"),
    [
        pytest.param("gpu-0", DeviceKey(minor=0), id="gpu"),
        pytest.param("gpu-11", DeviceKey(minor=11), id="gpu-11"),
        pytest.param("gpu-0-mig-1g10gb-19-3", DeviceKey(minor=0, profile_id=19, start=3), id="mig"),
        pytest.param("gpu-2-mig-1g10gb-me-20-6", DeviceKey(minor=2, profile_id=20, start=6), id="mig-me"),
        pytest.param("gpu-0-mig-19-3-1", DeviceKey(minor=0, profile_id=19, start=3), id="mig-to-25.8"),
        pytest.param("gpu-vfio-0", None, id="passed-through"),
        pytest.param("gpu-", None, id="no-number"),
        pytest.param("gpu-0-mig-19-3", None, id="neither-mig"),
        pytest.param("gpu-0-mig-1g10gb-19", None, id="no-start"),
        pytest.param("GPU-0", None, id="upper-case"),
        pytest.param("gpu-٣", None, id="arabic-digits"),
        pytest.param("gpu-" + "9" * 5000, None, id="endless-number"),
        pytest.param("gpu-0\n", None, id="newline"),
        pytest.param("channel-0", None, id="compute-domain"),
        pytest.param("", None, id="empty"),
    ],
)
def test_claimed_device_names_are_parsed(name: str, key: DeviceKey | None) -> None:
    """Each form that a release of the driver gives is understood, and nothing else."""
    assert key_of_claimed(name) == key


numbers = st.integers(0, 999_999_999)
profiles = st.from_regex(r"[1-7]g[0-9]{1,3}gb(-me|-gfx)?", fullmatch=True)


@given(numbers, profiles, numbers, numbers, numbers)
def test_claimed_device_name_survives_a_round_trip(
    minor: int, profile: str, profile_id: int, start: int, size: int
) -> None:
    """The two generations of MIG names say the same and are never taken for each other, nor for a whole GPU."""
    expected = DeviceKey(minor=minor, profile_id=profile_id, start=start)
    assert key_of_claimed(f"gpu-{minor}-mig-{profile}-{profile_id}-{start}") == expected
    assert key_of_claimed(f"gpu-{minor}-mig-{profile_id}-{start}-{size}") == expected
    assert key_of_claimed(f"gpu-{minor}") == DeviceKey(minor=minor)


@given(st.text(max_size=40) | st.from_regex(r"gpu-[0-9a-z٣²-]{0,30}"))
def test_any_claimed_device_name_is_parsed_or_refused(name: str) -> None:
    """No name raises, under either reader of names."""
    key_of_claimed(name)
    key_of(name)


devices = st.builds(
    Device,
    index=st.integers(0, 3),
    minor=st.none() | st.integers(0, 3),
    uuid=st.just("GPU-8f7c9b1e-1111-2222-3333-444455556666"),
    pci_bus_id=st.just("b"),
    model=st.just("m"),
    instance=st.none()
    | st.builds(
        Instance,
        profile=st.just("1g.10gb"),
        gpu_instance_id=st.integers(0, 3),
        uuids=st.just(()),
        profile_id=st.none() | st.integers(0, 3),
        start=st.none() | st.integers(0, 3),
    ),
)


@given(st.lists(devices, max_size=6), st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))
def test_claim_matches_only_its_device(found: list[Device], minor: int, profile_id: int, start: int) -> None:
    """A claimed device's pod is on exactly those devices of which the driver says all that the name says."""
    place = (minor, profile_id, start)
    for name, expected in {
        f"gpu-{minor}": [d for d in found if d.instance is None and d.minor == minor],
        f"gpu-{minor}-mig-1g10gb-{profile_id}-{start}": [
            d for d in found if d.instance and (d.minor, d.instance.profile_id, d.instance.start) == place
        ],
    }.items():
        owner = PodRef("ml", "p", "c", Claim("claim", "ml", DRIVER, "node", name))
        owners = index([Allocation(owner, DRIVER, name)])
        assert [device for device in found if owners_of(device, owners)] == expected


def test_plugin_id_is_not_a_claimed_name() -> None:
    """The names of the two worlds do not mix: "gpu-0" is no plugin's id, and "nvidia0" no claimed device."""
    device = Device(0, 0, "GPU-8f7c9b1e-1111-2222-3333-444455556666", "b", "m")
    claim = Claim("claim", "ml", DRIVER, "node", "nvidia0")
    assert owners_of(device, index([Allocation(PodRef("ml", "p", "c"), "nvidia.com/gpu", "gpu-0")])) == ()
    assert owners_of(device, index([Allocation(PodRef("ml", "p", "c", claim), DRIVER, "nvidia0")])) == ()
    assert len(set(keys_for(device))) == len(keys_for(device))


def _claiming(
    name: str,
    *claimed: str,
    claim: str = "claim",
    driver: str = DRIVER,
    namespace: str = "ml",
    share_id: str | None = None,
) -> PodDevices:
    devices = tuple(
        ("main", ClaimedDevice(claim, namespace, driver, "node-1", one, share_id)) for one in claimed
    )
    return PodDevices(namespace, name, (("main", ()),), devices)


def _pods(exporter: Exporter, family: str = UTIL) -> list[tuple[str, ...]]:
    return sorted(exporter.series(family, "gpu", "GPU_I_PROFILE", "pod"))


def _mig_names(node: Node) -> dict[str, tuple[str, str]]:
    """By profile the names, of today's driver and to v25.8, of the instances of the node's first GPU."""
    gpu = node.spec.gpus[0]
    return {
        placed.profile.name: (
            f"gpu-0-mig-{placed.profile.name.replace('.', '')}-{placed.profile.profile_id}-{placed.start}",
            f"gpu-0-mig-{placed.profile.profile_id}-{placed.start}-{placed.profile.memory_slices}",
        )
        for placed in place(CARDS[gpu.card], gpu.mig)
    }


@pytest.mark.driver
def test_claimed_gpu_has_pod_and_claim_labels(make_node: MakeNode) -> None:
    """A GPU from a claim carries the pod's labels and dcgm-exporter's labels of the claim; the others carry neither."""
    node = make_node(h100(2))
    node.pods.append(_claiming("train", "gpu-1"))
    with node.kubelet, node.exporting() as exporter:
        assert set(exporter.series(UTIL, "gpu", "pod", "container", *LABELS)) == {
            ("0", *[""] * 9),
            ("1", "train", "main", "claim", "ml", DRIVER, "node-1", "gpu-1", "", ""),
        }
        # what is claimed is held, whatever the device plugin's list says
        assert exporter.series("gpu_allocated", "gpu") == {("0",): 0, ("1",): 1}
        assert exporter.series(UNATTRIBUTED, "reason") == {
            ("ambiguous",): 0,
            ("unknown_claim",): 0,
            ("unknown_gpu",): 0,
            ("unknown_id",): 0,
        }


@pytest.mark.driver
@pytest.mark.parametrize("generation", [0, 1], ids=["today", "to-25.8"])
def test_claimed_mig_instance_has_pod_and_claim_labels(generation: int, make_node: MakeNode) -> None:
    """An instance is found by where it lies, under the names of either generation of the driver."""
    node = make_node(NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", ("2g.10gb", "3g.20gb", "1g.5gb")),)))
    name = _mig_names(node)["2g.10gb"][generation]
    node.pods.append(_claiming("notebook", name))
    with node.kubelet, node.exporting() as exporter:
        held = [labels for labels in exporter.series(USED, "GPU_I_PROFILE", "pod", *LABELS) if labels[1]]
        uuid = node.spec.mig_uuid(0, 0)
        assert held == [("2g.10gb", "notebook", "claim", "ml", DRIVER, "node-1", name, "2g.10gb", uuid)]


@pytest.mark.driver
def test_pods_with_one_claim_all_hold_it(make_node: MakeNode) -> None:
    """One series per pod, as where a GPU is shared in other ways; a claim of two devices gives both to its pod."""
    node = make_node(h100(2))
    node.pods += [_claiming("b", "gpu-0", "gpu-1"), _claiming("a", "gpu-0", "gpu-1")]
    with node.kubelet, node.exporting() as exporter:
        assert _pods(exporter) == [("0", "", "a"), ("0", "", "b"), ("1", "", "a"), ("1", "", "b")]


@pytest.mark.driver
def test_claims_with_admin_access_hold_nothing(make_node: MakeNode) -> None:
    """Two monitoring pods observe all GPUs, one of which a pod has: three series of utilization, two free GPUs."""
    node = make_node(h100(3))
    everything = ("gpu-0", "gpu-1", "gpu-2")
    node.pods += [
        _claiming("train", "gpu-1"),
        _claiming("dcgm", *everything, claim="dcgm", namespace="monitoring"),
        _claiming("exporter", *everything, claim="exporter", namespace="monitoring"),
    ]
    with node.kubelet, node.exporting("--admin-access-namespaces=monitoring") as exporter:
        assert _pods(exporter) == [("0", "", ""), ("1", "", "train"), ("2", "", "")]
        assert exporter.series("gpu_allocated", "gpu") == {("0",): 0, ("1",): 1, ("2",): 0}
    with node.kubelet, node.exporting() as exporter:
        # it is not known which claim only observes
        assert _pods(exporter) == [("0", "", ""), ("1", "", ""), ("2", "", "")]
        assert exporter.series("gpu_allocated", "gpu") == {}
        assert exporter.series(UNATTRIBUTED, "reason")["ambiguous",] == 3
        assert len(exporter.messages("set --admin-access-namespaces")) == 1


@pytest.mark.driver
def test_claim_that_has_a_rival_shows_no_gpu_as_allocated(make_node: MakeNode) -> None:
    """One monitoring pod observes all GPUs: those that nobody holds must not look allocated to it."""
    node = make_node(h100(3))
    node.pods += [
        _claiming("train", "gpu-1"),
        _claiming("dcgm", "gpu-0", "gpu-1", claim="dcgm", namespace="monitoring"),
        _claiming("infer", "gpu-2", claim="other"),
    ]
    with node.kubelet, node.exporting() as exporter:
        assert _pods(exporter) == [("0", "", ""), ("1", "", ""), ("2", "", "infer")]
        assert exporter.series("gpu_allocated", "gpu") == {("2",): 1}


@pytest.mark.driver
def test_claims_with_shares_of_a_gpu_all_hold_it(make_node: MakeNode) -> None:
    """A device that the scheduler gives to several claims, each with a share id, has a series for each pod."""
    node = make_node(h100(1))
    node.pods += [
        _claiming(name, "gpu-0", claim=name, share_id=f"a671734a-e8e5-11e4-8fde-42010af0932{name}")
        for name in "12"
    ]
    # without a share they observe
    node.pods += [_claiming(name, "gpu-0", claim=name, namespace="monitoring") for name in ("dcgm", "other")]
    with node.kubelet, node.exporting() as exporter:
        assert _pods(exporter) == [("0", "", "1"), ("0", "", "2")]
        assert exporter.series("gpu_allocated", "gpu") == {("0",): 1}


@pytest.mark.driver
def test_plugin_and_claims_on_one_node_both_work(make_node: MakeNode) -> None:
    """Pods with claims and pods of the device plugin stand side by side, also in one container."""
    node = make_node(h100(3))
    both = (("main", (Devices("nvidia.com/gpu", (node.spec.gpu_uuid(2),)),)),)
    claimed = (("main", ClaimedDevice("claim", "ml", DRIVER, "node-1", "gpu-1")),)
    node.pods += [pod("plugin", node.spec.gpu_uuid(0)), PodDevices("ml", "both", both, claimed)]
    with node.kubelet, node.exporting() as exporter:
        assert _pods(exporter) == [("0", "", "plugin"), ("1", "", "both"), ("2", "", "both")]
        assert sorted(exporter.series(UTIL, "gpu", "dra_claim_name")) == [
            ("0", ""),
            ("1", "claim"),
            ("2", ""),
        ]


@pytest.mark.driver
@pytest.mark.parametrize("function", ["nvmlDeviceGetGpuInstanceById", "nvmlGpuInstanceGetInfo"])
def test_claimed_instance_without_placement_is_unattributed(function: str, make_node: MakeNode) -> None:
    """Without the positions of instances, a claimed instance has no pod, and it is counted."""
    node = make_node(NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", ("2g.10gb", "3g.20gb")),)))
    node.pods.append(_claiming("notebook", _mig_names(node)["2g.10gb"][0]))
    node.board.fault(function, code=4)
    with node.kubelet, node.exporting() as exporter:
        assert {pod for _, _, pod in _pods(exporter, USED)} == {""}
        assert exporter.series(UNATTRIBUTED, "reason")["unknown_claim",] == 1
        assert len(exporter.series(USED, "GPU_I_PROFILE")) == 3
        node.board.clear_faults()
        eventually(lambda: ("0", "2g.10gb", "notebook") in _pods(exporter, USED))
        assert exporter.series(UNATTRIBUTED, "reason")["unknown_claim",] == 0


@pytest.mark.driver
def test_unattributed_claims_exclude_passthrough_gpus(make_node: MakeNode) -> None:
    """Another driver's device, or a GPU that a virtual machine has, is no fault; a GPU that is not there is."""
    node = make_node(h100(1))
    node.pods += [
        _claiming("a", "channel-0", driver="compute-domain.nvidia.com"),
        _claiming("b", "gpu-vfio-0"),
        _claiming("c", "gpu-0", driver="gpu.example.com"),
        _claiming("d", "gpu-7"),
        _claiming("e", "gpu-" + "9" * 6000),
        _claiming("f", 'gpu"\\\n٣'),
    ]
    with node.kubelet, node.exporting() as exporter:
        assert _pods(exporter) == [("0", "", "")]
        assert exporter.series(UNATTRIBUTED, "reason")["unknown_claim",] == 3


@pytest.mark.driver
def test_hostile_claim_names_are_escaped(make_node: MakeNode) -> None:
    """Whatever a claim is called, the exposition is valid and says it."""
    node = make_node(h100(1))
    hostile, shown = 'x"} 1\ninjected{a="\\', 'x"} 1\ufffdinjected{a="\\'
    node.pods.append(_claiming("p", "gpu-0", claim=hostile))
    with node.kubelet, node.exporting() as exporter:
        assert list(exporter.series(UTIL, "dra_claim_name")) == [(shown,)]
        assert "injected" not in exporter.families()
