"""Every form in which a device plugin names a device to the kubelet, as a key that a device can be looked up by.

Pure. The forms are those of NVIDIA's plugin (whole, MIG, replicas), its predecessors, HAMi and GKE's plugin.
"""

import dataclasses
import re

from exporter.model import Device

_UUID = r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"
_REPLICA = r"(?:(?:::|-)\d+)?"  # "::3" in NVIDIA's plugin for time-slicing and MPS, "-3" in HAMi
_BY_UUID = re.compile(rf"((?:GPU|MIG)-{_UUID}){_REPLICA}")
_OLD_MIG = re.compile(
    rf"MIG-(GPU-{_UUID})/(\d+)/\d+{_REPLICA}"
)  # drivers before 470: GPU, GPU instance, compute instance
_GKE = re.compile(r"nvidia(\d+)(?:/gi(\d+))?(?:/vgpu\d+)?")


@dataclasses.dataclass(frozen=True, slots=True)
class DeviceKey:
    """What identifies a device: a UUID or a minor number, and on MIG perhaps the GPU instance beside it."""

    uuid: str | None = None
    minor: int | None = None
    gpu_instance_id: int | None = None


def key_of(device_id: str) -> DeviceKey | None:
    """The key that `device_id` stands for, without its replica number; None for a form that nobody is known to use."""
    if match := _BY_UUID.fullmatch(device_id):
        return DeviceKey(uuid=match[1])
    if match := _OLD_MIG.fullmatch(device_id):
        return DeviceKey(uuid=match[1], gpu_instance_id=int(match[2]))
    if match := _GKE.fullmatch(device_id):
        return DeviceKey(minor=int(match[1]), gpu_instance_id=int(match[2]) if match[2] else None)
    return None


def keys_for(device: Device) -> tuple[DeviceKey, ...]:
    """Every key under which the kubelet may know `device`."""
    instance = device.instance
    number = instance.gpu_instance_id if instance else None
    keys = [DeviceKey(uuid=device.uuid, gpu_instance_id=number)]
    if device.minor is not None:
        keys.append(DeviceKey(minor=device.minor, gpu_instance_id=number))
    if instance:
        keys += [DeviceKey(uuid=uuid) for uuid in instance.uuids]
    return tuple(keys)
