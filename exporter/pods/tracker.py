"""Who holds which device in this cycle: what the kubelet says, without what has ended, with what the API server adds.

Must not know NVML or how labels are written.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from exporter.model import Device, PodDetails, PodRef
from exporter.pods.allocations import NVIDIA_RESOURCES, Holdings, holdings, is_gpu, owners_of
from exporter.pods.apiserver import PodWatch
from exporter.pods.claimants import History, Settled, settle
from exporter.pods.podresources import Answer, Kubelet


@dataclasses.dataclass(frozen=True, slots=True)
class Attribution:
    """What is known in one cycle.

    Attributes:
        up: The kubelet answered; None where there is none.
        watch_up: The API server's pods are known and followed; None where they are not wanted.
        names: Namespace and name of the pods that the API server knows, by UID; nothing where it is not asked.
        containers: The same of containers, by the runtime's ids.
    """

    up: bool | None
    watch_up: bool | None = None
    holdings: Holdings = dataclasses.field(default_factory=Holdings)
    names: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    containers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    details: Mapping[tuple[str, str], PodDetails] = dataclasses.field(default_factory=dict)

    def owners(self, device: Device) -> tuple[PodRef, ...]:
        """The pods that hold `device`, sorted by namespace and name, with what is known of them."""
        return tuple(
            dataclasses.replace(owner, details=details)
            if (details := self.details.get((owner.namespace, owner.pod)))
            else owner
            for owner in owners_of(device, self.holdings.owners)
        )

    def allocated(self, device: Device) -> bool | None:
        """Whether a pod holds `device`; None where that is not known."""
        return self.holdings.allocated(device)

    def unattributed(self, devices: Iterable[Device]) -> tuple[tuple[str, int], ...]:
        """How many devices that pods hold are attributed to none of them, by reason; nothing without a kubelet."""
        return () if self.up is None else self.holdings.unattributed(devices)


class Pods:
    """The kubelet, and where it is wanted the API server; both may be None. Asked by one thread."""

    def __init__(
        self, kubelet: Kubelet | None, watch: PodWatch | None = None, *, resource_names: Sequence[str] = ()
    ) -> None:
        self._kubelet = kubelet
        self._watch = watch
        self._names = (NVIDIA_RESOURCES, *resource_names)
        self._history = History()
        self._settled = Settled()

    def ask(self) -> Attribution:
        """Who holds what now, within two seconds."""
        answer = self._kubelet.ask() if self._kubelet is not None else Answer(up=None)
        known = self._watch.known() if self._watch is not None else None
        if answer.up:
            about = [allocation for allocation in answer.allocations if is_gpu(allocation, self._names)]
            self._settled, self._history = settle(about, self._history, known.has_ended if known else {})
        settled = self._settled if answer.allocations else Settled()
        return Attribution(
            up=answer.up,
            watch_up=known.up if known else None,
            holdings=holdings(settled, answer.offers or (), self._names),
            details=known.details if known else {},
            names=known.names if known else {},
            containers=known.containers if known else {},
        )

    def close(self) -> None:
        """End all connections."""
        if self._kubelet is not None:
            self._kubelet.close()
        if self._watch is not None:
            self._watch.close()
