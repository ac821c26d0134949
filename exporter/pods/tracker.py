"""Pods that hold devices now: the kubelet's answer without ended pods, and details from the API server.

Must not know NVML or how labels are written.
"""

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence

from exporter.model import Allocation, Device, PodDetails, PodRef
from exporter.pods.allocations import GPU_RESOURCES, AllocationMap, is_gpu, map_allocations, owners_of
from exporter.pods.apiserver import PodWatch
from exporter.pods.claimants import ClaimantHistory, SettledAllocations, settle
from exporter.pods.podresources import Kubelet, KubeletAnswer

_NEEDS_ANNOTATIONS = (
    "only annotations name the GPUs of some pods (HAMi, gpushare, Volcano vGPU): such pods are not shown; "
    "set --pod-uid"
)
_NEEDS_OBSERVERS = (
    "several claims hold a GPU, all but one with adminAccess: their pods are not shown; "
    "set --admin-access-namespaces"
)


@dataclasses.dataclass(frozen=True, slots=True)
class PodAssignments:
    """The pods and their devices in one cycle."""

    up: bool | None  # the kubelet answered; None without a kubelet
    # the API server's pods are known and watched; None if they are not requested
    watch_up: bool | None = None
    allocations: AllocationMap = dataclasses.field(default_factory=AllocationMap)
    # namespace and name of the API server's pods, by UID
    names: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    # names of their containers, by the runtime's ids
    containers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    details: Mapping[tuple[str, str], PodDetails] = dataclasses.field(default_factory=dict)
    hints: tuple[str, ...] = ()  # which settings are missing, and why

    def owners(self, device: Device) -> tuple[PodRef, ...]:
        """The pods that hold `device`, sorted by namespace and name, with their details."""
        return tuple(
            dataclasses.replace(owner, details=details)
            if (details := self.details.get((owner.namespace, owner.pod)))
            else owner
            for owner in owners_of(device, self.allocations.owners)
        )

    def allocated(self, device: Device, *, is_in_use: bool) -> bool | None:
        """Whether a pod holds `device`; None if unknown.

        `is_in_use`: a pod's process is on it. The kubelet does not list what init containers hold.
        """
        return (self.up is not None and is_in_use) or self.allocations.allocated(device)

    def replicas(self, device: Device) -> int | None:
        """The number of replicas under which the kubelet offers `device`; None if unknown."""
        return self.allocations.replicas(device)

    def shares(self, device: Device) -> tuple[int, ...]:
        """The number of replicas of `device` that each of its `owners` holds."""
        return self.allocations.shares(device)

    def unattributed(self, devices: Iterable[Device]) -> tuple[tuple[str, int], ...]:
        """Number of devices that pods hold but that match no known device, by reason; empty without a kubelet."""
        return () if self.up is None else self.allocations.unattributed(devices)


class PodTracker:
    """Asks the kubelet and, if there is a watch, the API server. For one thread."""

    def __init__(
        self,
        kubelet: Kubelet | None,
        watch: PodWatch | None = None,
        *,
        resource_names: Sequence[str] = (),
        observers: Collection[str] = (),
    ) -> None:
        """`observers`: namespaces of claims with adminAccess, whose pods hold no device."""
        self._kubelet = kubelet
        self._watch = watch
        self._names = (*GPU_RESOURCES, *resource_names)
        self._observers = observers
        self._history = ClaimantHistory()
        self._settled = SettledAllocations()

    def poll(self) -> PodAssignments:
        """The current assignments, within two seconds."""
        answer = self._kubelet.poll() if self._kubelet is not None else KubeletAnswer(up=None)
        known = self._watch.known() if self._watch is not None else None
        if answer.up:
            about = [
                held for held in answer.allocations if is_gpu(held, self._names) and not self._observes(held)
            ]
            self._settled, self._history = settle(about, self._history, known.has_ended if known else {})
        settled = self._settled if answer.allocations else SettledAllocations()
        found = map_allocations(settled, answer.offers or (), self._names, known.gpus if known else {})
        hints = {_NEEDS_ANNOTATIONS: known is None and found.unplaced, _NEEDS_OBSERVERS: settled.contested}
        return PodAssignments(
            up=answer.up,
            watch_up=known.up if known else None,
            allocations=found,
            details=known.details if known else {},
            names=known.names if known else {},
            containers=known.containers if known else {},
            hints=tuple(hint for hint, needed in hints.items() if needed),
        )

    def _observes(self, allocation: Allocation) -> bool:
        claim = allocation.owner.claim
        return claim is not None and claim.namespace in self._observers

    def close(self) -> None:
        """Close all connections."""
        if self._kubelet is not None:
            self._kubelet.close()
        if self._watch is not None:
            self._watch.close()
