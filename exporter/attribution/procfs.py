"""Finds the pod of each process in the host's /proc, and detects processes that changed while it was read.

Must not know devices. A failure is a result here, never an exception or a guess.
"""

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from exporter.attribution.cgroups import NoPodReason, Placement, placement

_LOG = logging.getLogger(__name__)
_NS_PER_S = 10**9
_INIT = 1
_KTHREADD = 2  # the first kernel thread; only the machine's own PID namespace has kernel threads
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_DEAD = frozenset({b"Z", b"X", b"x"})
_MOST_OF_STAT = 4096  # bytes; some 52 numbers and a name of 64
_MOST_OF_COUNTERS = 1 << 20  # bytes; some numbers for each of thousands of interrupts
_FORKS = re.compile(rb"^processes (\d+)$", re.MULTILINE)
_FEWEST_PIDS = 30_000  # of pid_max, 32768 or more, without the first 300 and those in use
_MOST_OF_CGROUP = 65536  # bytes; v1 has some 14 lines with a path of up to 4096 each
# fields of /proc/<pid>/stat after the name: the number in proc(5) minus 3
_STATE, _FLAGS, _START_TIME = 0, 6, 19


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """A process. PID and start time together identify it until the machine reboots."""

    pid: int  # in the host's PID namespace
    start_ticks: int | None  # clock ticks from boot to its start; None if unreadable
    placement: Placement
    name: str = ""  # the kernel's, of up to 15 characters; a process can change its own


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessScan:
    """The result of one scan."""

    processes: Mapping[int, Process]  # every requested process by PID
    off: str | None = None  # why no process can be attributed; None if attribution works
    # the newest PID at the previous scan and at this one; None if unknown, or if the kernel may
    # have assigned every PID and begun again
    newest_pids: tuple[int, int] | None = None

    def may_be_reused(self, pid: int) -> bool:
        """Whether the kernel may have assigned `pid` since the previous scan.

        It assigns PIDs in ascending order and wraps around at the end (kernel/pid.c, idr_alloc_cyclic).
        """
        if self.newest_pids is None:
            return True
        before, now = self.newest_pids
        return before < pid <= now if before <= now else pid > before or pid <= now


@dataclasses.dataclass(frozen=True, slots=True)
class _Stat:
    name: str
    is_dead: bool
    is_kernel_thread: bool
    start_ticks: int


def ticks_at(boot_ns: int, *, ticks_per_s: int) -> int:
    """The clock tick of boot time `boot_ns`, rounded down as the kernel does for start times."""
    return boot_ns * ticks_per_s // _NS_PER_S


def read_once(path: str, most: int) -> bytes:
    """A file's first bytes in one call, which is atomic for a process's files in /proc."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, most)
    finally:
        os.close(file)


class _PidCounter(NamedTuple):
    """The newest PID, and the number of processes and threads started since boot."""

    newest: int
    forks: int


def _range(before: _PidCounter | None, now: _PidCounter | None) -> tuple[int, int] | None:
    if before is None or now is None or not 0 <= now.forks - before.forks < _FEWEST_PIDS:
        return None
    return before.newest, now.newest


class ProcessScanner:
    """The processes of the host."""

    def __init__(
        self,
        proc_root: Path,
        *,
        ticks_per_s: int | None = None,
        read: Callable[[str, int], bytes] = read_once,
    ) -> None:
        """Prepare; nothing is read yet.

        `proc_root`: the host's /proc. `ticks_per_s`: unit of the kernel's start times; by default as the kernel
        reports it. `read`: reads up to a number of bytes of a file, by its path.
        """
        self._root = str(proc_root)
        self._read = read
        self._ticks_per_s = ticks_per_s or os.sysconf("SC_CLK_TCK")
        # The last scan's processes in pods: a process never leaves the container in which it was started.
        self._known: dict[int, Process] = {}
        self._newest: _PidCounter | None = None
        self._logged: str | None = None
        self._has_reported = False

    def scan(self, pids: Iterable[int], *, listed_at_ns: int) -> ProcessScan:
        """The placement of each process; call once per sample for all devices together.

        `pids`: NVML's list. `listed_at_ns`: time of that list by the boot clock (CLOCK_BOOTTIME): a later start means
        another process.
        """
        off = self._off_reason()
        self._report(off)
        before, self._newest = self._newest, None if off is not None else self._pid_counter()
        if off is not None:
            self._known = {}
            unplaced = Placement(no_pod_reason=NoPodReason.OFF)
            return ProcessScan({pid: Process(pid, None, unplaced) for pid in pids}, off)
        listed_in = ticks_at(listed_at_ns, ticks_per_s=self._ticks_per_s)
        processes = {pid: self._process(pid, listed_in) for pid in set(pids)}
        self._known = {
            pid: found
            for pid, found in processes.items()
            if found.placement.container_id and _is_in_pod(found)
        }
        return ProcessScan(processes, newest_pids=_range(before, self._newest))

    def _process(self, pid: int, listed_in: int) -> Process:
        """The placement of `pid`, if it was the same process before, during and after reading."""
        try:
            before = self._stat(pid)
            # The same tick counts as later: no process is on a GPU 10 ms after its start.
            if before.start_ticks >= listed_in:
                return Process(pid, None, Placement(no_pod_reason=NoPodReason.REUSED))
            known = self._known.get(pid)
            if known is not None and known.start_ticks == before.start_ticks:
                return known
            found = placement(
                self._read(f"{self._root}/{pid}/cgroup", _MOST_OF_CGROUP).decode(errors="replace")
            )
            after = self._stat(pid)
        except OSError as error:
            return Process(pid, None, Placement(no_pod_reason=_reason(error)))
        except ValueError:
            return Process(pid, None, Placement(no_pod_reason=NoPodReason.UNREADABLE))
        if after.start_ticks != before.start_ticks:
            return Process(pid, None, Placement(no_pod_reason=NoPodReason.REUSED))
        if (
            after.is_dead and found.no_pod_reason is NoPodReason.HOST
        ):  # cgroup v1 shows ended processes at the root
            found = Placement(no_pod_reason=NoPodReason.GONE)
        return Process(pid, before.start_ticks, found, before.name)

    def _pid_counter(self) -> _PidCounter | None:
        """Read in the exporter's own PID namespace, which must be the host's."""
        try:
            newest = int(self._read(f"{self._root}/loadavg", _MOST_OF_STAT).split()[-1])
            counted = _FORKS.search(self._read(f"{self._root}/stat", _MOST_OF_COUNTERS))
        except (OSError, ValueError, IndexError):
            return None
        return None if counted is None or self._has_own_namespace() else _PidCounter(newest, int(counted[1]))

    def _off_reason(self) -> str | None:
        """Why this is not the host's /proc, or shows too little; None if it is usable."""
        try:
            if self._stat(_KTHREADD).is_kernel_thread:
                return None
        except FileNotFoundError:
            if not self._has(_INIT):
                return (
                    f"{self._root} shows no process 1: it is not a /proc, or it is mounted with hidepid (then run the "
                    "exporter as a member of the group in its gid= option)"
                )
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) else str(error)
            return f"reading {self._root}/{_KTHREADD}/stat: {words}; see {self._root}/mounts for hidepid"
        return (
            f"{self._root} is a container's own, not the host's, and its PIDs differ from NVML's: set hostPID"
        )

    def _has(self, pid: int) -> bool:
        try:
            self._read(f"{self._root}/{pid}/stat", 1)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def _report(self, off: str | None) -> None:
        """Log it when attribution stops and when it works again."""
        if off is not None and off != self._logged:
            _LOG.warning("attributing processes to pods is off: %s", off)
        elif off is None and self._logged is not None:
            _LOG.info("attributing processes to pods is on: %s is the host's now", self._root)
        if off is None and not self._has_reported and self._has_own_namespace():
            _LOG.warning(
                "%s is the host's /proc, but the exporter has its own PID namespace, and newer drivers list only the "
                "processes in the caller's namespace: set hostPID",
                self._root,
            )
        self._logged = off
        self._has_reported = True

    def _has_own_namespace(self) -> bool:
        """Whether the exporter has another PID under this /proc, so that its PID namespace is not the host's."""
        try:
            return (Path(self._root) / "self").readlink().name != str(os.getpid())
        except OSError:
            return False

    def _stat(self, pid: int) -> _Stat:
        """Parse /proc/<pid>/stat. The name is in brackets, and may itself hold brackets and blanks."""
        head, _, tail = self._read(f"{self._root}/{pid}/stat", _MOST_OF_STAT).rpartition(b")")
        fields = tail.split()
        if len(fields) <= _START_TIME:
            raise ValueError(f"{self._root}/{pid}/stat: not in the kernel's form")
        return _Stat(
            name=head.partition(b"(")[2].decode(errors="replace"),
            is_dead=fields[_STATE] in _DEAD,
            is_kernel_thread=bool(int(fields[_FLAGS]) & _PF_KTHREAD),
            start_ticks=int(fields[_START_TIME]),
        )


def _is_in_pod(process: Process) -> bool:
    return process.placement.no_pod_reason is None


def _reason(error: OSError) -> NoPodReason:
    """The meaning of a kernel error: reading a process that has ended is ESRCH."""
    match error:
        case FileNotFoundError() | ProcessLookupError():
            return NoPodReason.GONE
        case PermissionError():
            return NoPodReason.NO_PERMISSION
        case _:
            return NoPodReason.UNREADABLE
