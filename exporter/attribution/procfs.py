"""Which pod each process belongs to, read from the host's /proc and guarded against all that may change in between.

Must not know devices or what the answer is used for. A failure is an outcome here, never an exception or a guess.
"""

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from exporter.attribution.cgroups import NoPod, Place, place

_LOG = logging.getLogger(__name__)
_NS_PER_S = 10**9
_INIT = 1
_KTHREADD = 2  # the first kernel thread; there are kernel threads in the machine's own PID namespace only
_PF_KTHREAD = 0x00200000  # include/linux/sched.h
_DEAD = frozenset({b"Z", b"X", b"x"})
_MOST_OF_STAT = 4096  # bytes; some 52 numbers and a name of 64
_MOST_OF_COUNTERS = 1 << 20  # bytes; some numbers for each of thousands of interrupts
_FORKS = re.compile(rb"^processes (\d+)$", re.MULTILINE)
_FEWEST_PIDS = 30_000  # of pid_max, 32768 or more, without the first 300 and those in use
_MOST_OF_CGROUP = 65536  # bytes; v1 has some 14 lines with a path of up to 4096 each
# fields of /proc/<pid>/stat behind the name, see proc(5): its number there less 3
_STATE, _FLAGS, _START_TIME = 0, 6, 19


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
    """What is known of a process; its PID and start time together name it for as long as the machine runs.

    Attributes:
        pid: In the host's PID namespace.
        start_ticks: Clock ticks from the machine's boot to its start; None where it could not be read.
        place: Where it belongs.
        name: The kernel's, of up to 15 characters; a process can change its own.
    """

    pid: int
    start_ticks: int | None
    place: Place
    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Attribution:
    """What is known after a sweep.

    Attributes:
        processes: Every process that was asked for, by its PID.
        off: Why processes cannot be attributed at all; None where they can.
        given_out: The PIDs that were the newest at the sweep before and at this one; None where that is not known, or
            where so many were given out in between that the kernel may have come round.
    """

    processes: Mapping[int, Process]
    off: str | None = None
    given_out: tuple[int, int] | None = None

    def is_given_out(self, pid: int) -> bool:
        """Whether `pid` may have been given to a process since the sweep before.

        The kernel gives PIDs out in ascending order and begins again at the end (kernel/pid.c, idr_alloc_cyclic).
        """
        if self.given_out is None:
            return True
        before, now = self.given_out
        return before < pid <= now if before <= now else pid > before or pid <= now


@dataclasses.dataclass(frozen=True, slots=True)
class _Stat:
    name: str
    is_dead: bool
    is_kernel_thread: bool
    start_ticks: int


def ticks_at(boot_ns: int, *, ticks_per_s: int) -> int:
    """The clock tick in which the boot clock showed `boot_ns`, as the kernel computes start times: rounded down."""
    return boot_ns * ticks_per_s // _NS_PER_S


def read_once(path: str, most: int) -> bytes:
    """A file's first bytes in one call, which for a process's files in /proc is all of it at one instant."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, most)
    finally:
        os.close(file)


class _GivenOut(NamedTuple):
    """The newest PID, and how many processes and threads have been started since the machine was."""

    newest: int
    forks: int


def _range(before: _GivenOut | None, now: _GivenOut | None) -> tuple[int, int] | None:
    if before is None or now is None or not 0 <= now.forks - before.forks < _FEWEST_PIDS:
        return None
    return before.newest, now.newest


class Processes:
    """The processes of the host."""

    def __init__(
        self,
        proc_root: Path,
        *,
        ticks_per_s: int | None = None,
        read: Callable[[str, int], bytes] = read_once,
    ) -> None:
        """Remember where to look; nothing is read yet.

        Args:
            proc_root: The host's /proc.
            ticks_per_s: In which unit the kernel writes start times; by default as it says itself.
            read: Reads up to a number of bytes of a file, by its path.
        """
        self._root = str(proc_root)
        self._read = read
        self._ticks_per_s = ticks_per_s or os.sysconf("SC_CLK_TCK")
        # Who is in which container: no process leaves the one that it was started in. Holds the last sweep's only.
        self._known: dict[int, Process] = {}
        self._newest: _GivenOut | None = None
        self._said: str | None = None
        self._was_asked = False

    def find(self, pids: Iterable[int], *, listed_at_ns: int) -> Attribution:
        """The place of each process, to be asked once per sweep and for all devices together.

        Args:
            pids: As NVML lists them.
            listed_at_ns: When NVML was asked, by the boot clock (CLOCK_BOOTTIME): what began later is another process.
        """
        off = self._why_off()
        self._report(off)
        before, self._newest = self._newest, None if off is not None else self._given_out()
        if off is not None:
            self._known = {}
            unplaced = Place(why_not=NoPod.OFF)
            return Attribution({pid: Process(pid, None, unplaced) for pid in pids}, off)
        listed_in = ticks_at(listed_at_ns, ticks_per_s=self._ticks_per_s)
        processes = {pid: self._look(pid, listed_in) for pid in set(pids)}
        self._known = {
            pid: found for pid, found in processes.items() if found.place.container_id and _is_in_pod(found)
        }
        return Attribution(processes, given_out=_range(before, self._newest))

    def _look(self, pid: int, listed_in: int) -> Process:
        """Where `pid` is, if it is the same process before and after looking, and was there when NVML listed it."""
        try:
            before = self._stat(pid)
            # Also in the same tick, which leaves no doubt: nothing is on a GPU 10 ms after its start.
            if before.start_ticks >= listed_in:
                return Process(pid, None, Place(why_not=NoPod.REUSED))
            known = self._known.get(pid)
            if known is not None and known.start_ticks == before.start_ticks:
                return known
            found = place(self._read(f"{self._root}/{pid}/cgroup", _MOST_OF_CGROUP).decode(errors="replace"))
            after = self._stat(pid)
        except OSError as error:
            return Process(pid, None, Place(why_not=_why(error)))
        except ValueError:
            return Process(pid, None, Place(why_not=NoPod.UNREADABLE))
        if after.start_ticks != before.start_ticks:
            return Process(pid, None, Place(why_not=NoPod.REUSED))
        if after.is_dead and found.why_not is NoPod.HOST:  # cgroup v1 shows what has ended at the root
            found = Place(why_not=NoPod.GONE)
        return Process(pid, before.start_ticks, found, before.name)

    def _given_out(self) -> "_GivenOut | None":
        """How far the kernel has come: for the reader's own PID namespace, which must be the host's."""
        try:
            newest = int(self._read(f"{self._root}/loadavg", _MOST_OF_STAT).split()[-1])
            counted = _FORKS.search(self._read(f"{self._root}/stat", _MOST_OF_COUNTERS))
        except (OSError, ValueError, IndexError):
            return None
        return None if counted is None or self._is_elsewhere() else _GivenOut(newest, int(counted[1]))

    def _why_off(self) -> str | None:
        """Why this is not the host's /proc, or tells too little; None where all is well."""
        try:
            if self._stat(_KTHREADD).is_kernel_thread:
                return None
        except FileNotFoundError:
            if not self._has(_INIT):
                return (
                    f"{self._root} shows no process 1: it is no /proc, or was mounted with hidepid (then run the "
                    "exporter as a member of the group of its gid= option)"
                )
        except (OSError, ValueError) as error:
            words = error.strerror if isinstance(error, OSError) else str(error)
            return f"reading {self._root}/{_KTHREADD}/stat: {words}; see {self._root}/mounts for hidepid"
        return (
            f"{self._root} is a container's own, not the host's, and its PIDs are not those that NVML speaks of: "
            "set hostPID"
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
        """Say it when it begins and when it ends."""
        if off is not None and off != self._said:
            _LOG.warning("attributing processes to pods is off: %s", off)
        elif off is None and self._said is not None:
            _LOG.info("attributing processes to pods: %s is the host's now", self._root)
        if off is None and not self._was_asked and self._is_elsewhere():
            _LOG.warning(
                "%s is the host's /proc, but the exporter has a PID namespace of its own, and newer drivers list the "
                "processes of their caller's namespace only: set hostPID",
                self._root,
            )
        self._said = off
        self._was_asked = True

    def _is_elsewhere(self) -> bool:
        """Whether this process has another PID under this /proc: then its own namespace is not that of the host."""
        try:
            return (Path(self._root) / "self").readlink().name != str(os.getpid())
        except OSError:
            return False

    def _stat(self, pid: int) -> _Stat:
        """What matters of /proc/<pid>/stat. The name is in brackets, and may itself hold brackets and blanks."""
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
    return process.place.why_not is None


def _why(error: OSError) -> NoPod:
    """What an error of the kernel means for a process: reading on about one that has ended is ESRCH."""
    match error:
        case FileNotFoundError() | ProcessLookupError():
            return NoPod.GONE
        case PermissionError():
            return NoPod.NO_PERMISSION
        case _:
            return NoPod.UNREADABLE
