"""GPUs that pods can use without holding them: of their node, or where a process of theirs is. Pure.

A pod's own counter tells what it did there. Without one, work of anybody may be the pod's.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from rightsizer.model import Device, Fleet, History, Measured, PodKey, Slot, Usage, Usages, strongest

InReach = Mapping[PodKey, Mapping[str, str]]
"""UUIDs of the GPUs in reach of each pod, each with its node."""


def gpus_in_reach(fleet: Fleet, measured: Measured) -> InReach:
    """The GPUs in reach of each pod that holds some."""
    found: dict[PodKey, dict[str, str]] = {}
    for pod in (pod for workload in fleet.workloads for pod in workload.pods if pod.holds):
        key, node = (pod.ref.namespace, pod.ref.name), measured.nodes.get(pod.node)
        known = (usage for usages in measured.usages.values() for usage in usages.get(key, ()))
        uuids = {usage.device.uuid for usage in known if not (usage.is_held or usage.is_own)}
        if pod.reach and node is not None:
            uuids |= node.boards
        if uuids:
            found[key] = dict.fromkeys(sorted(uuids), pod.node)
    return found


def nodes_of(reach: InReach) -> dict[str, str]:
    """The node of each of the GPUs."""
    return {uuid: node for of_pod in reach.values() for uuid, node in of_pod.items()}


def with_reach(usages: Usages, devices: Mapping[str, Sequence[Usage]], reach: InReach) -> Usages:
    """The usages, with what may have been the pods' on GPUs that they do not hold."""
    found = dict(usages)
    for pod, uuids in reach.items():
        own = [usage for usage in usages.get(pod, ()) if usage.is_held or usage.is_own]
        places = {(usage.device.uuid, usage.device.instance) for usage in own}
        others = (usage for uuid in uuids for usage in devices.get(uuid, (Usage(Device(uuid)),)))
        found[pod] = (
            *own,
            *(_of_anybody(use) for use in others if (use.device.uuid, use.device.instance) not in places),
        )
    return found


def _of_anybody(usage: Usage) -> Usage:
    """A device as a pod may have used it: if counters tell all pods' parts, and have none of its, only what is left."""
    if usage.busy_s is None:
        return dataclasses.replace(usage, is_held=False)
    return Usage(
        usage.device,
        activity_mean=0.0,
        activity_peak=0.0,
        busy_s=usage.unattributed_s,
        unattributed_s=usage.unattributed_s,
        is_own=True,
        is_held=False,
    )


def with_reach_histories(
    histories: Mapping[PodKey, History], devices: Mapping[str, History], reach: InReach
) -> dict[PodKey, History]:
    """The histories, unknown where a GPU in reach worked and nothing tells for whom."""
    found = dict(histories)
    for pod, own in histories.items():
        uuids = reach.get(pod, {})
        rows = [own.slots, *(as_long(own, devices.get(uuid)) for uuid in uuids)]
        found[pod] = dataclasses.replace(own, slots=strongest(rows))
    return found


def as_long(own: History, device: History | None) -> bytes:
    """The last slots of a device, as many as there are of the pod; unknown ones where it has fewer."""
    unknown = bytes([Slot.UNKNOWN]) * len(own.slots)
    slots = b"" if device is None or device.slot_s != own.slot_s else device.slots
    return (
        (unknown + slots)[len(slots) :] if len(slots) < len(unknown) else slots[len(slots) - len(unknown) :]
    )


def wanted(reach: InReach, pods: Iterable[PodKey]) -> InReach:
    """Select these pods."""
    return {pod: reach[pod] for pod in pods if pod in reach}
