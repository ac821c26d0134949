"""Device ids and the join of allocations with devices, case by case."""

import pytest

from exporter.model import Allocation, Claim, Device, Instance, PodRef
from exporter.pods.allocations import index, owners_of
from exporter.pods.deviceids import DeviceKey, key_if_only_gpu, key_of, keys_of_annotations

GPU = "GPU-8f7c9b1e-1111-2222-3333-444455556666"
OTHER = "GPU-00000000-1111-2222-3333-444455556666"
MIG = "MIG-9a9a9a9a-1111-2222-3333-444455556666"
MIG_2 = "MIG-9b9b9b9b-1111-2222-3333-444455556666"

WHOLE = Device(0, 3, GPU, "00000000:1B:00.0", "NVIDIA H100 80GB HBM3")
SLICE = Device(0, 3, GPU, "00000000:1B:00.0", "NVIDIA H100 80GB HBM3", Instance("3g.40gb", 2, (MIG, MIG_2)))


@pytest.mark.parametrize(
    ("device_id", "key"),
    [
        pytest.param(GPU, DeviceKey(uuid=GPU), id="whole"),
        pytest.param(f"{GPU}::0", DeviceKey(uuid=GPU), id="replica"),
        pytest.param(f"{GPU}::17", DeviceKey(uuid=GPU), id="replica-17"),
        pytest.param(f"{GPU}-4", None, id="hami"),
        pytest.param(f"{GPU}-_-4", None, id="gpushare"),
        pytest.param(MIG, DeviceKey(uuid=MIG), id="mig"),
        pytest.param(f"{MIG}::1", DeviceKey(uuid=MIG), id="mig-replica"),
        pytest.param(f"MIG-{GPU}/7/0", DeviceKey(uuid=GPU, gpu_instance_id=7), id="mig-before-470"),
        pytest.param(
            f"MIG-{GPU}/7/0::2", DeviceKey(uuid=GPU, gpu_instance_id=7), id="mig-before-470-replica"
        ),
        pytest.param("nvidia0", DeviceKey(minor=0), id="gke"),
        pytest.param("nvidia11", DeviceKey(minor=11), id="gke-11"),
        pytest.param("nvidia0/vgpu3", DeviceKey(minor=0), id="gke-shared"),
        pytest.param("nvidia2/gi5", DeviceKey(minor=2, gpu_instance_id=5), id="gke-mig"),
        pytest.param("nvidia2/gi5/vgpu0", DeviceKey(minor=2, gpu_instance_id=5), id="gke-mig-shared"),
        pytest.param("", None, id="empty"),
        pytest.param("nvidia", None, id="no-number"),
        pytest.param("nvidia0/gi", None, id="no-instance"),
        pytest.param("nvidiactl", None, id="control-device"),
        pytest.param("GPU-short", None, id="short"),
        pytest.param(f"{GPU}::", None, id="no-replica"),
        pytest.param(f"{GPU}::x", None, id="replica-x"),
        pytest.param(f" {GPU}", None, id="space"),
        pytest.param(f"{GPU}\n", None, id="newline"),
        pytest.param("eth1", None, id="network-card"),
    ],
)
def test_device_ids_of_each_plugin_are_parsed(device_id: str, key: DeviceKey | None) -> None:
    """Each form that is known to be in use is understood, and nothing else is taken for a device."""
    assert key_of(device_id) == key


@pytest.mark.parametrize(
    ("device_id", "key"),
    [
        (f"{GPU}-4", DeviceKey(uuid=GPU)),
        (f"{GPU}-_-79", DeviceKey(uuid=GPU)),
        (GPU, None),
        (f"{GPU}::4", None),
        (f"{GPU}-core-4", None),
        (f"{GPU}-_-", None),
    ],
)
def test_ids_of_plugins_with_schedulers_name_a_gpu_at_random(device_id: str, key: DeviceKey | None) -> None:
    """They are right only on a node with one GPU; an id that the kubelet chose on purpose is not among them."""
    assert key_if_only_gpu(device_id) == key


GPUSHARE, HAMI, VOLCANO = (
    "ALIYUN_COM_GPU_MEM_IDX",
    "hami.io/vgpu-devices-allocated",
    "volcano.sh/vgpu-ids-new",
)


HAMI_MIG = "hami.io/vgpu-mig-allocations"
INSTANCE = f"""{{"containerIndex": 0, "deviceIndex": 0, "gpuUUID": "{GPU}", "profile": "1g.5gb",
"placement": {{"start": 6, "size": 1}}, "migUUID": "MIG-a", "gpuInstanceID": 7, "computeInstanceID": 0}}"""
"""From Project-HAMi/HAMi v2.10.0, pkg/device/nvidia/mig_allocations.go and mig_startup_test.go."""


@pytest.mark.parametrize(
    ("annotations", "keys"),
    [
        pytest.param({}, None, id="none"),
        pytest.param({GPUSHARE: "2"}, (DeviceKey(index=2),), id="gpushare"),
        pytest.param({GPUSHARE: "-1"}, (), id="gpushare-failed"),
        pytest.param({HAMI: f"{GPU},NVIDIA,3000,0:;"}, (DeviceKey(uuid=GPU),), id="hami"),
        pytest.param(
            {HAMI: f";{GPU},NVIDIA,3000,0:{OTHER},NVIDIA,3000,0:;{GPU},NVIDIA,1,0:;"},
            (DeviceKey(uuid=GPU), DeviceKey(uuid=OTHER)),
            id="hami-two-containers-after-an-init-container",
        ),
        pytest.param({HAMI: f"{GPU}[1-0],NVIDIA,3000,0:;"}, (), id="hami-mig-template"),
        pytest.param(
            {HAMI: f"{GPU},NVIDIA,4864,0:;", HAMI_MIG: f"[{INSTANCE},{INSTANCE.replace(' 7', ' 9')}]"},
            (DeviceKey(uuid=GPU, gpu_instance_id=7), DeviceKey(uuid=GPU, gpu_instance_id=9)),
            id="hami-mig-instances",
        ),
        pytest.param(
            {HAMI: f"{GPU},NVIDIA,4864,0:;", HAMI_MIG: f'[{INSTANCE}, {{"gpuUUID": "{GPU}"}}]'},
            (),
            id="hami-mig-instance-not-made-yet",
        ),
        *(
            pytest.param({HAMI: f"{GPU},NVIDIA,1,0:;", HAMI_MIG: text}, (), id=f"hami-mig-{name}")
            for name, text in {
                "no-json": "GPU",
                "empty": "[]",
                "number": "7",
                "numbers": "[7]",
                "no-number": f'[{{"gpuUUID": "{GPU}", "gpuInstanceID": "7"}}]',
                "no-uuid": '[{"gpuUUID": 5, "gpuInstanceID": 7}]',
                "deep": "[" * 9000,
            }.items()
        ),
        pytest.param({HAMI: f"{MIG},NVIDIA,3000,0:;"}, (DeviceKey(uuid=MIG),), id="hami-mig"),
        pytest.param({VOLCANO: f"{OTHER},NVIDIA,1024,0:"}, (DeviceKey(uuid=OTHER),), id="volcano"),
        pytest.param({VOLCANO: 7, HAMI: None, GPUSHARE: ["0"]}, (), id="no-text"),
        pytest.param({VOLCANO: 7, HAMI: None}, None, id="no-lists"),
    ],
)
def test_annotations_of_schedulers_are_parsed(
    annotations: dict[str, object], keys: tuple[DeviceKey, ...] | None
) -> None:
    """The devices of a pod as each scheduler writes them; empty if one of them is unknown, None if none is written."""
    assert keys_of_annotations(annotations) == keys


def _allocation(
    pod: str, device_id: str, *, resource: str = "nvidia.com/gpu", container: str = "c"
) -> Allocation:
    return Allocation(PodRef("ml", pod, container), resource, device_id)


@pytest.mark.parametrize(
    ("device", "allocations", "pods"),
    [
        pytest.param(WHOLE, [], [], id="free"),
        pytest.param(WHOLE, [_allocation("a", GPU)], ["a"], id="whole"),
        pytest.param(WHOLE, [_allocation("a", OTHER)], [], id="someone-elses"),
        pytest.param(
            WHOLE, [_allocation("b", f"{GPU}::1"), _allocation("a", f"{GPU}::0")], ["a", "b"], id="shared"
        ),
        pytest.param(
            WHOLE, [_allocation("a", f"{GPU}::1"), _allocation("a", f"{GPU}::0")], ["a"], id="two-replicas"
        ),
        pytest.param(WHOLE, [_allocation("a", "nvidia3")], ["a"], id="by-minor-and-not-by-index"),
        pytest.param(WHOLE, [_allocation("a", "nvidia0")], [], id="index-is-no-minor"),
        pytest.param(
            WHOLE, [_allocation("a", GPU), _allocation("a", "nvidia3")], ["a"], id="two-forms-of-one"
        ),
        pytest.param(WHOLE, [_allocation("a", MIG)], [], id="an-instance-is-not-its-gpu"),
        pytest.param(SLICE, [_allocation("a", GPU)], [], id="a-gpu-is-not-its-instance"),
        pytest.param(SLICE, [_allocation("a", MIG)], ["a"], id="instance"),
        pytest.param(
            SLICE, [_allocation("b", MIG_2), _allocation("a", MIG)], ["a", "b"], id="two-compute-instances"
        ),
        pytest.param(SLICE, [_allocation("a", "nvidia3/gi2")], ["a"], id="instance-by-minor"),
        pytest.param(SLICE, [_allocation("a", f"MIG-{GPU}/2/0")], ["a"], id="instance-by-old-form"),
        pytest.param(SLICE, [_allocation("a", "nvidia3/gi4")], [], id="another-instance"),
        pytest.param(WHOLE, [_allocation("a", GPU, resource="example.com/gpu")], [], id="another-vendor"),
        pytest.param(
            WHOLE, [_allocation("a", GPU, resource="nvidia.com/gpu.shared")], ["a"], id="renamed-resource"
        ),
    ],
)
def test_owners_of_a_device_are_found_by_any_key(
    device: Device, allocations: list[Allocation], pods: list[str]
) -> None:
    """The holders of a device, each once, in order of name."""
    assert [owner.pod for owner in owners_of(device, index(allocations))] == pods


def test_owner_with_several_containers_shows_none() -> None:
    """Where several containers of a pod have a device, it is unknown which one uses it."""
    both = [_allocation("a", f"{GPU}::0", container="z"), _allocation("a", f"{GPU}::1", container="b")]
    assert owners_of(WHOLE, index(both)) == (PodRef("ml", "a", ""),)


def test_owner_with_a_claim_of_several_containers_shows_none() -> None:
    """Also of a claim; a container that the kubelet repeats is still one."""
    claim = Claim("c", "ml", "gpu.nvidia.com", "node", "gpu-3")
    used = [
        Allocation(PodRef("ml", "a", name, claim), claim.driver, claim.device) for name in ("z", "z", "b")
    ]
    assert owners_of(WHOLE, index(used[:2])) == (PodRef("ml", "a", "z", claim),)
    assert owners_of(WHOLE, index(used)) == (PodRef("ml", "a", "", claim),)


def test_device_without_minor_matches_no_minor_key() -> None:
    """Where the driver does not give a minor number, GKE's ids match nothing."""
    unknown = Device(0, None, GPU, "00000000:1B:00.0", "m")
    assert owners_of(unknown, index([_allocation("a", "nvidia0")])) == ()
