"""Samples the devices, finds the pods of their processes, and keeps the ledger of usage.

Must not know formats, HTTP, or how anything is read.
"""

import dataclasses
import enum
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from exporter.attribution.cgroups import NoPodReason
from exporter.attribution.ledger import Attribution, Ledger
from exporter.attribution.podnames import PodLogFolders, PodName
from exporter.attribution.processowners import ProcessOwner, ProcessOwners
from exporter.attribution.procfs import Process, ProcessScan, ProcessScanner
from exporter.attribution.records import (
    ATTRIBUTION_OFF,
    MIG_INSTANCES,
    MPS_SERVER,
    SHARED,
    UNKNOWN_POD,
    BusySource,
    DeviceObservation,
    Holder,
    UsageOwner,
    UsageTable,
)
from exporter.model import Device, PodRef
from exporter.pods.tracker import PodAssignments

_LOG = logging.getLogger(__name__)
_NS_PER_US = 1000
_US_PER_S = 1_000_000
_CALM_NS = 60 * 10**9  # after the last poll that found a device shared
_MPS_SERVER = "nvidia-cuda-mps"  # -server, and -control: the kernel keeps 15 characters


class AttributionStatus(enum.Enum):
    """Whether processes can be attributed to pods; if not, the reason as in the label `reason` of a metric.

    NO_HOST_PROC: /proc is not the host's. NO_POD_NAMES: no source maps pod UIDs to names.
    """

    ON = ""
    NO_HOST_PROC = "no_host_proc"
    NO_POD_NAMES = "no_pod_names"


@dataclasses.dataclass(frozen=True, slots=True)
class HostContext:
    """The node's processes, pod names and clocks."""

    processes: ProcessScanner
    names: PodLogFolders
    boot_ns: Callable[[], int]  # the boot clock (CLOCK_BOOTTIME), which dates processes, in nanoseconds
    unix_ns: Callable[[], int]  # Unix time in nanoseconds
    ticks_per_s: int  # unit in which the kernel dates the start of processes


class ObserveDevices(Protocol):
    """Reads each device's activity since the previous call."""

    def __call__(self, *, until: float) -> Mapping[str, DeviceObservation]:
        """Read the observations by device key, waiting for no device beyond `until` (monotonic seconds)."""


class Attributor:
    """Attributes the usage of a node's devices."""

    def __init__(self, observe: ObserveDevices, host: HostContext, table: UsageTable) -> None:
        self._observe = observe
        self._host = host
        self._table = table
        self._owners = ProcessOwners()
        self._ledger = Ledger()
        # whether attribution worked in the last sample; None before the first
        self.status: AttributionStatus | None = None
        # whether some device's usage goes to its holder, so that each sample needs the current holder
        self.needs_assignments = False
        self.in_use: frozenset[Device] = frozenset()  # devices with a process of some pod
        # whether for a while each device was used by its only pod: the driver's buffers then wait for a late poll
        self.is_calm = False
        self._shared_until_ns = 0  # by the boot clock

    def poll(self, pods: PodAssignments, *, until: float) -> None:
        """Sample all devices and record their usage, waiting for none beyond `until` (monotonic seconds)."""
        boot_ns, unix_ns = self._host.boot_ns(), self._host.unix_ns()
        observed = self._observe(until=until)
        scan = self._host.processes.scan(set().union(*map(_pids, observed.values())), listed_at_ns=boot_ns)
        self._update_status(pods, is_off=scan.off is not None)
        if self.status is AttributionStatus.ON:
            self._find_owners(scan, pods, booted_us=(unix_ns - boot_ns) // _NS_PER_US)
        else:
            self._owners.clear()
        self.in_use = frozenset(entry.device for entry in observed.values() if self._is_in_use(entry))
        self.needs_assignments = self.status is not AttributionStatus.ON or any(
            entry.observation.samples is None for entry in observed.values()
        )
        shared: set[bool | None] = set()
        with_mig = {entry.device.uuid for entry in observed.values() if entry.device.instance is not None}
        for entry in observed.values():
            has_instances = entry.device.instance is None and entry.device.uuid in with_mig
            attribution = (
                Attribution(reason=MIG_INSTANCES) if has_instances else self._attribution(entry.device, pods)
            )
            self._ledger.record(entry.observation, attribution)
            shared.add(_is_shared(entry, attribution))
        if True in shared:
            self._shared_until_ns = boot_ns + _CALM_NS
        self.is_calm = shared == {False} and boot_ns >= self._shared_until_ns
        self._ledger.retain({entry.device.uuid for entry in observed.values()}, observed.keys())

    def _is_in_use(self, entry: DeviceObservation) -> bool:
        owners = {self._owners.owner_now(process.pid) for process in entry.observation.processes or ()}
        return any(isinstance(owner, Holder) or owner == UNKNOWN_POD for owner in owners)

    def publish(self) -> None:
        """Publish the ledger in the usage table."""
        self._table.devices = self._ledger.snapshot()

    def _update_status(self, pods: PodAssignments, *, is_off: bool) -> None:
        before = self.status
        if is_off:
            self.status = AttributionStatus.NO_HOST_PROC  # logged by the scanner
        elif pods.names or self._host.names.exist:
            self.status = AttributionStatus.ON
        else:
            self.status = AttributionStatus.NO_POD_NAMES
        if self.status is AttributionStatus.NO_POD_NAMES is not before:
            _LOG.warning(
                "attributing processes to pods is off: %s does not exist, and its folders map pod UIDs to names; "
                "mount the host's folder, or set --pod-logs to its mount point",
                self._host.names.folder,
            )

    def _find_owners(self, scan: ProcessScan, pods: PodAssignments, *, booted_us: int) -> None:
        placements = (process.placement for process in scan.processes.values())
        found = [placement for placement in placements if placement.no_pod_reason is None]
        holders = {PodName(*pod) for of_key in pods.allocations.owners.values() for pod in of_key}
        self._host.names.refresh(
            {placement.pod_uid for placement in found} - pods.names.keys(),
            {placement.container_id for placement in found if placement.container_id}
            - pods.containers.keys(),
            {name for name in holders if (name.namespace, name.name) not in pods.names.values()},
        )
        tick_us = _US_PER_S // self._host.ticks_per_s
        owners = {}
        for pid, process in scan.processes.items():
            start_us = booted_us + (process.start_ticks or 0) * tick_us
            owner = self._owner(process, pods)
            owners[pid] = ProcessOwner(owner, process.start_ticks, start_us, start_us + tick_us)
        self._owners.update(owners, scan.may_be_reused)

    def _owner(self, process: Process, pods: PodAssignments) -> UsageOwner:
        placement = process.placement
        if placement.no_pod_reason is not None:
            # A process chooses its own name. In a pod, its usage is the pod's, whatever the name.
            outside_pods = placement.no_pod_reason in {NoPodReason.HOST, NoPodReason.CONTAINER}
            is_server = process.name == _MPS_SERVER and outside_pods
            return MPS_SERVER if is_server else placement.no_pod_reason.value
        name = self._pod_name(placement.pod_uid, pods)
        if name is None:
            return UNKNOWN_POD
        container_id = placement.container_id
        container = pods.containers.get(container_id) or self._host.names.container(container_id)
        return Holder(name.namespace, name.name, container)

    def _pod_name(self, uid: str, pods: PodAssignments) -> PodName | None:
        known = pods.names.get(uid)
        return PodName(*known) if known else self._host.names.pod(uid)

    def _attribution(self, device: Device, pods: PodAssignments) -> Attribution:
        owners = pods.owners(device)
        is_complete = pods.up is not False
        if self.status is not AttributionStatus.ON:
            return Attribution(tuple(map(_holder, owners)), is_complete=is_complete, reason=ATTRIBUTION_OFF)
        named = [owner for owner in owners if self._is_known(owner, pods)]
        return Attribution(
            tuple(map(_holder, named)),
            unknown_pods=len(owners) - len(named) + len(pods.allocations.unplaced),
            is_complete=is_complete,
            owner_between=self._owners.owner_between,
            owner_now=self._owners.owner_now,
            reason=SHARED,
        )

    def _is_known(self, owner: PodRef, pods: PodAssignments) -> bool:
        name = PodName(owner.namespace, owner.pod)
        return (owner.namespace, owner.pod) in pods.names.values() or self._host.names.knows(name)


def _is_shared(entry: DeviceObservation, attribution: Attribution) -> bool | None:
    """Whether another than one pod used or holds a device; None if that or its busy time may pass between two polls."""
    observation, owner_now = entry.observation, attribution.owner_now
    if observation.source is BusySource.TICKS:
        return None  # it is the driver's value of one moment
    if attribution.reason == MIG_INSTANCES:
        return False  # its instances tell
    if owner_now is None or observation.processes is None:
        return None
    users = {owner_now(pid) for pid in _pids(entry)} | set(attribution.holders)
    pods = {user if isinstance(user, str) else f"{user.namespace}/{user.pod}" for user in users}
    return len(pods) > 1 or attribution.unknown_pods > 0 or any(isinstance(user, str) for user in users)


def _pids(entry: DeviceObservation) -> set[int]:
    listed = {process.pid for process in entry.observation.processes or ()}
    return listed | {sample.pid for sample in entry.observation.samples or ()}


def _holder(owner: PodRef) -> Holder:
    return Holder(owner.namespace, owner.pod, owner.container)
