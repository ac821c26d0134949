"""Looks at the devices between and with the cycles, finds out whose the processes on them are, and keeps the ledger.

Must not know formats, HTTP, or how anything is read.
"""

import dataclasses
import enum
import logging
from collections.abc import Callable, Mapping
from typing import Protocol

from exporter.attribution.cgroups import NoPod
from exporter.attribution.ledger import Ledger, Whose
from exporter.attribution.podnames import PodName, PodNames
from exporter.attribution.processowners import Tenant, Tenants
from exporter.attribution.procfs import Attribution as Found
from exporter.attribution.procfs import Process, Processes
from exporter.attribution.records import CUT, MPS_SERVER, OFF, SHARED, UNNAMED, Books, Holder, Seen, Who
from exporter.model import Device, PodRef
from exporter.pods.tracker import Attribution

_LOG = logging.getLogger(__name__)
_NS_PER_US = 1000
_US_PER_S = 1_000_000
_MPS_SERVER = "nvidia-cuda-mps"  # -server, and -control: the kernel keeps 15 characters


class Telling(enum.Enum):
    """Whether processes can be told apart by pod, and if not, why: the `reason` label of a metric.

    NO_HOST_PROC: /proc is not the host's. NO_POD_NAMES: nothing says what the pod of a UID is called.
    """

    ON = ""
    NO_HOST_PROC = "no_host_proc"
    NO_POD_NAMES = "no_pod_names"


@dataclasses.dataclass(frozen=True, slots=True)
class Host:
    """What there is on the node beside the GPUs.

    Attributes:
        processes: Where processes belong.
        names: What pods are called.
        boot_ns: The boot clock (CLOCK_BOOTTIME), which dates processes, in nanoseconds.
        unix_ns: Unix time in nanoseconds.
        ticks_per_s: In which the kernel counts the starts of processes.
    """

    processes: Processes
    names: PodNames
    boot_ns: Callable[[], int]
    unix_ns: Callable[[], int]
    ticks_per_s: int


class Observe(Protocol):
    """Reads what each device did since the previous call."""

    def __call__(self, *, until: float) -> Mapping[str, Seen]:
        """By device key, waiting for no device beyond `until` (monotonic seconds)."""


class Accountant:
    """Keeps the accounts of a node's devices.

    Attributes:
        telling: Whether processes could be told apart at the last look.
        relies_on_holders: Whether there are devices whose work goes to whoever holds them: who that is must be known at
            each look.
    """

    def __init__(self, observe: Observe, host: Host, books: Books) -> None:
        self._observe = observe
        self._host = host
        self._books = books
        self._tenants = Tenants()
        self._ledger = Ledger()
        self.telling: Telling | None = None
        self.relies_on_holders = False

    def look(self, pods: Attribution, *, until: float) -> None:
        """Look at all devices, and enter what they did.

        Args:
            pods: Who holds what.
            until: Monotonic time in seconds beyond which no device is waited for.
        """
        boot_ns, unix_ns = self._host.boot_ns(), self._host.unix_ns()
        seen = self._observe(until=until)
        found = self._host.processes.find(set().union(*map(_pids, seen.values())), listed_at_ns=boot_ns)
        self._tell(pods, is_off=found.off is not None)
        if self.telling is Telling.ON:
            self._recognise(found, pods, booted_us=(unix_ns - boot_ns) // _NS_PER_US)
        else:
            self._tenants.forget()
        self.relies_on_holders = self.telling is not Telling.ON or any(
            one.observation.samples is None for one in seen.values()
        )
        cut = {one.device.uuid for one in seen.values() if one.device.instance is not None}
        for one in seen.values():
            is_cut = one.device.instance is None and one.device.uuid in cut
            whose = Whose(why_not=CUT) if is_cut else self._whose(one.device, pods)
            self._ledger.record(one.observation, whose)
        self._ledger.retain({one.device.uuid for one in seen.values()}, seen.keys())

    def publish(self) -> None:
        """Let the books show what has been entered."""
        self._books.entries = self._ledger.entries()

    def _tell(self, pods: Attribution, *, is_off: bool) -> None:
        """Note whether processes can be told apart, and say so where that has changed."""
        before = self.telling
        if is_off:
            self.telling = Telling.NO_HOST_PROC  # said by who looked
        elif pods.names or self._host.names.is_there:
            self.telling = Telling.ON
        else:
            self.telling = Telling.NO_POD_NAMES
        if self.telling is Telling.NO_POD_NAMES is not before:
            _LOG.warning(
                "attributing processes to pods is off: %s is not there, whose folders say what a pod's UID is called: "
                "mount the host's, or name where it is mounted by --pod-logs",
                self._host.names.folder,
            )

    def _recognise(self, found: Found, pods: Attribution, *, booted_us: int) -> None:
        """Whose each process is."""
        processes = found.processes
        places = [process.place for process in processes.values() if not process.place.why_not]
        owners = {PodName(*pod) for holders in pods.holdings.owners.values() for pod in holders}
        self._host.names.refresh(
            {place.pod_uid for place in places} - pods.names.keys(),
            {place.container_id for place in places if place.container_id} - pods.containers.keys(),
            {owner for owner in owners if (owner.namespace, owner.name) not in pods.names.values()},
        )
        tick_us = _US_PER_S // self._host.ticks_per_s
        tenants = {}
        for pid, process in processes.items():
            start_us = booted_us + (process.start_ticks or 0) * tick_us
            who = self._who(process, pods)
            tenants[pid] = Tenant(who, process.start_ticks, start_us, start_us + tick_us)
        self._tenants.update(tenants, found.is_given_out)

    def _who(self, process: Process, pods: Attribution) -> Who:
        place = process.place
        if place.why_not is not None:
            # Its own choice of a name tells nothing of a process in a pod: that is its pod's in any case.
            is_server = process.name == _MPS_SERVER and place.why_not in {NoPod.HOST, NoPod.CONTAINER}
            return MPS_SERVER if is_server else place.why_not.value
        name = self._named(place.pod_uid, pods)
        if name is None:
            return UNNAMED
        container = pods.containers.get(place.container_id) or self._host.names.container(place.container_id)
        return Holder(name.namespace, name.name, container or _only_container(name, pods))

    def _named(self, uid: str, pods: Attribution) -> PodName | None:
        known = pods.names.get(uid)
        return PodName(*known) if known else self._host.names.pod(uid)

    def _whose(self, device: Device, pods: Attribution) -> Whose:
        owners = pods.owners(device)
        is_complete = pods.up is not False
        if self.telling is not Telling.ON:
            return Whose(tuple(map(_holder, owners)), is_complete=is_complete, why_not=OFF)
        named = [owner for owner in owners if self._is_named(owner, pods)]
        return Whose(
            tuple(map(_holder, named)),
            unnamed=len(owners) - len(named),
            is_complete=is_complete,
            between=self._tenants.between,
            now=self._tenants.now,
            why_not=SHARED,
        )

    def _is_named(self, owner: PodRef, pods: Attribution) -> bool:
        name = PodName(owner.namespace, owner.pod)
        return (owner.namespace, owner.pod) in pods.names.values() or self._host.names.knows(name)


def _pids(seen: Seen) -> set[int]:
    """All that the driver speaks of."""
    listed = {process.pid for process in seen.observation.processes or ()}
    return listed | {sample.pid for sample in seen.observation.samples or ()}


def _holder(owner: PodRef) -> Holder:
    return Holder(owner.namespace, owner.pod, owner.container)


def _only_container(name: PodName, pods: Attribution) -> str:
    """The one of a pod's containers that holds GPUs; empty where there are several, or none."""
    pod = name.namespace, name.name
    found = {holders[pod].container for holders in pods.holdings.owners.values() if pod in holders}
    return found.pop() if len(found) == 1 else ""
