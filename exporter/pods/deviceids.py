"""Parses the device ids of all known device plugins into keys that identify a device. Pure.

Known are NVIDIA's plugin (whole, MIG, replicas), its predecessors, GKE's plugin and NVIDIA's DRA driver. Of gpushare,
HAMi and Volcano vGPU the kubelet picks any id: their schedulers choose the GPU, and write it to the pod's annotation.
"""

import dataclasses
import json
import re
from collections.abc import Mapping

from exporter.model import Device

_N = "[0-9]{1,9}"  # Python refuses to read numbers of thousands of digits
_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_REPLICA = r"(?:::[0-9]+)?"  # NVIDIA's plugin, for time-slicing and MPS
_BY_UUID = re.compile(rf"((?:GPU|MIG)-{_UUID}){_REPLICA}")
_OLD_MIG = re.compile(
    rf"MIG-(GPU-{_UUID})/({_N})/{_N}{_REPLICA}"
)  # drivers before 470: GPU, GPU instance, compute instance
_GKE = re.compile(rf"nvidia({_N})(?:/gi({_N}))?(?:/vgpu[0-9]+)?")

# gpushare: "-_-3" (AliyunContainerService/gpushare-device-plugin, nvidia.go: generateFakeDeviceID).
# HAMi: "-3" (Project-HAMi/HAMi, rm/devices.go: GetPluginDevices). Volcano vGPU: "-3"
# (Project-HAMi/volcano-vgpu-device-plugin, plugin/server.go).
_SCHEDULED = re.compile(rf"(GPU-{_UUID})-(?:_-)?{_N}")
_BY_INDEX = "ALIYUN_COM_GPU_MEM_IDX"
"""gpushare, allocate.go: the plugin passes this number on as NVIDIA_VISIBLE_DEVICES, so it is NVML's index."""
_BY_UUIDS = ("hami.io/vgpu-devices-allocated", "volcano.sh/vgpu-ids-new")
"""`UUID,NVIDIA,memory,cores:` for each device, `;` between containers (EncodeContainerDevices of both projects)."""
_BY_MIG = "hami.io/vgpu-mig-allocations"
"""HAMi from v2.10 on, for MIG instances that it makes: a JSON list; the other annotation only names their GPUs."""
_MAX_SCHEDULED = 16_384  # characters of an annotation

# NVIDIA's Network Operator offers network cards as `nvidia.com/hostdev` and the like. Ids of the SR-IOV network device
# plugin (k8snetworkplumbingwg/sriov-network-device-plugin): PCI addresses, and names of subfunctions.
_NETWORK_CARD = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|mlx5_core\.sf\.[0-9]+")

# NVIDIA/k8s-dra-driver-gpu, deviceinfo.go and mig.go: numbers are minor numbers in every release since the first,
# v25.3.0. (Its first four candidates used indexes, which look the same and are not supported.)
_CLAIMED = re.compile(rf"gpu-({_N})")
_CLAIMED_MIG = re.compile(
    rf"gpu-({_N})-mig-(?=[0-9.-]*[a-z])[a-z0-9.-]+-({_N})-({_N})"
)  # GPU, profile, profile's id, first slice
_CLAIMED_MIG_25 = re.compile(
    rf"gpu-({_N})-mig-({_N})-({_N})-{_N}"
)  # to v25.8: GPU, profile's id, first slice, size


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceKey:
    """Identifies a GPU by UUID, minor number or NVML's index; a MIG instance by UUID, id, or profile id and start."""

    uuid: str | None = None
    minor: int | None = None
    gpu_instance_id: int | None = None
    profile_id: int | None = None
    start: int | None = None
    index: int | None = None


def key_of(device_id: str) -> DeviceKey | None:
    """The key of `device_id` without its replica number; None for an unknown form."""
    if match := _BY_UUID.fullmatch(device_id):
        return DeviceKey(uuid=match[1])
    if match := _OLD_MIG.fullmatch(device_id):
        return DeviceKey(uuid=match[1], gpu_instance_id=int(match[2]))
    if match := _GKE.fullmatch(device_id):
        return DeviceKey(minor=int(match[1]), gpu_instance_id=int(match[2]) if match[2] else None)
    return None


def key_if_only_gpu(device_id: str) -> DeviceKey | None:
    """The GPU of an id that the kubelet picked at random: right only on a node with one GPU; None for other forms."""
    match = _SCHEDULED.fullmatch(device_id)
    return DeviceKey(uuid=match[1]) if match else None


def is_network_card(device_id: str) -> bool:
    """Whether it is a network card's, which may be a resource of nvidia.com, too."""
    return _NETWORK_CARD.fullmatch(device_id) is not None


def keys_of_annotations(annotations: Mapping[str, object]) -> tuple[DeviceKey, ...] | None:
    """The devices that a scheduler chose for a pod: None if it says nothing, empty if it says something unknown."""
    names = (_BY_INDEX, _BY_MIG, *_BY_UUIDS)
    index, mig, *lists = [str(annotations.get(name) or "")[:_MAX_SCHEDULED] for name in names]
    if index:
        return (DeviceKey(index=int(index)),) if re.fullmatch(_N, index) else ()
    devices = [entry.split(",")[0] for text in lists for entry in re.split("[:;]", text) if "," in entry]
    keys = dict.fromkeys(_keys_of_mig(mig) if mig else map(key_of, devices))
    return None if not keys else () if None in keys else tuple(key for key in keys if key)


def _keys_of_mig(text: str) -> list[DeviceKey | None]:
    """The instances in HAMi's list. It has no instance id until the device plugin has made the instance."""
    try:
        found = [(key_of(entry["gpuUUID"]), entry["gpuInstanceID"]) for entry in json.loads(text)]
    except (ValueError, LookupError, TypeError, RecursionError):
        found = []
    return [
        dataclasses.replace(gpu, gpu_instance_id=number) if gpu and isinstance(number, int) else None
        for gpu, number in found
    ] or [None]


def key_of_claimed(name: str) -> DeviceKey | None:
    """The key of the DRA driver's device name; None for an unknown form, or a device that NVML cannot show."""
    if match := _CLAIMED.fullmatch(name):
        return DeviceKey(minor=int(match[1]))
    if match := _CLAIMED_MIG_25.fullmatch(name) or _CLAIMED_MIG.fullmatch(name):
        return DeviceKey(minor=int(match[1]), profile_id=int(match[2]), start=int(match[3]))
    return None


def keys_for(device: Device) -> tuple[DeviceKey, ...]:
    """Every key that the kubelet may use for `device`."""
    instance = device.instance
    number = instance.gpu_instance_id if instance else None
    keys = [DeviceKey(uuid=device.uuid, gpu_instance_id=number)]
    if device.minor is not None:
        keys.append(DeviceKey(minor=device.minor, gpu_instance_id=number))
    if instance is None:
        keys.append(DeviceKey(index=device.index))
    if instance and None not in {device.minor, instance.profile_id, instance.start}:
        keys.append(DeviceKey(minor=device.minor, profile_id=instance.profile_id, start=instance.start))
    if instance:
        keys += [DeviceKey(uuid=uuid) for uuid in instance.uuids]
    return tuple(keys)
