"""Processes and their pods: on a made-up /proc of real files, and on this machine's own."""

import errno
import logging
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.attribution.cgroups import NoPodReason, Placement
from exporter.attribution.procfs import Process, ProcessScanner, read_once, ticks_at

UID = "0f0e0d0c-1111-2222-3333-444455556666"
ID = "5" * 64
POD = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{ID}.scope\n"
OTHER_UID = "aaaaaaaa-1111-2222-3333-444455556666"
OTHER_POD = f"0::/kubepods/burstable/pod{OTHER_UID}/{ID}\n"
IN_POD = Placement(UID, ID)
KERNEL_THREAD = 0x208040
LATER = 10**18  # nanoseconds on the boot clock: after everything
SERVICE = "0::/system.slice/sshd.service\n"


def _stat(
    pid: int, start: int, *, name: str = "python", state: str = "S", flags: int = 0x400000, threads: int = 8
) -> str:
    return f"{pid} ({name}) {state} 1 {pid} {pid} 0 -1 {flags} {'0 ' * 10}{threads} 0 {start} {'0 ' * 29}0\n"


class Proc:
    """A /proc on disk; a process is a folder with two files, and reading one may be made to change another."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.start(1, POD.replace("kubepods", "init"), start=0, name="systemd")
        self.start(2, "0::/\n", start=0, name="kthreadd", flags=KERNEL_THREAD)

    def start(
        self, pid: int, cgroup: str, *, start: int = 5000, name: str = "python", **other: int | str
    ) -> None:
        """A process begins; one with the same PID is no more."""
        folder = self.root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stat").write_text(_stat(pid, start, name=name, **other))  # type: ignore[arg-type]
        (folder / "cgroup").write_text(cgroup)

    def end(self, pid: int) -> None:
        """A process is waited for."""
        for file in ("stat", "cgroup"):
            (self.root / str(pid) / file).unlink()
        (self.root / str(pid)).rmdir()


class Reader:
    """Reads files, and lets other processes do something before each."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self.before: Callable[[str], None] = lambda _: None
        self.reads: list[str] = []

    def __call__(self, path: str, most: int) -> bytes:
        """Read what is asked for, after what happens before it."""
        name = str(Path(path).relative_to(self._proc.root))
        self.before(name)
        self.reads.append(name)
        return read_once(path, most)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    """A host's /proc with nothing but its first two processes."""
    return Proc(tmp_path / "proc")


def _one(processes: ProcessScanner, pid: int, *, listed_at_ns: int = LATER) -> Process:
    found = processes.scan([pid], listed_at_ns=listed_at_ns)
    assert found.off is None
    assert set(found.processes) == {pid}
    return found.processes[pid]


def _why(processes: ProcessScanner, pid: int) -> NoPodReason | None:
    return _one(processes, pid).placement.no_pod_reason


def test_scan_of_a_pod_process_finds_pod_and_container(proc: Proc) -> None:
    """A process is found with its start, pod and container."""
    proc.start(77, POD)
    assert _one(ProcessScanner(proc.root), 77) == Process(77, 5000, IN_POD, "python")


def test_scan_lists_each_process_once(proc: Proc) -> None:
    """A process on several devices is one process, and what has no pod is there with its reason."""
    proc.start(77, POD)
    proc.start(78, OTHER_POD)
    proc.start(79, SERVICE)
    found = ProcessScanner(proc.root).scan([77, 78, 77, 79, 80, 0, -1], listed_at_ns=LATER)
    assert {pid: one.placement.pod_uid or one.placement.no_pod_reason for pid, one in found.processes.items()} == {
        77: UID, 78: OTHER_UID, 79: NoPodReason.HOST, 80: NoPodReason.GONE, 0: NoPodReason.GONE, -1: NoPodReason.GONE,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["a b", "a) S 1 (b", ")", "((", ") ) )", "", "line\nbreak", "\xff"])
def test_scan_reads_processes_with_any_name(proc: Proc, name: str) -> None:
    """Brackets, blanks and line breaks in a process's name do not move its start time."""
    proc.start(77, POD, name=name, start=123456789)
    assert _one(ProcessScanner(proc.root), 77) == Process(77, 123456789, IN_POD, name)


@pytest.mark.parametrize(
    "text", ["", "77 (python)", "77 (python) S 1 2 3", "x" * 9000, "77 (p) S " + "x " * 40]
)
def test_scan_of_an_invalid_stat_is_unreadable(proc: Proc, text: str) -> None:
    """What the kernel never writes is unreadable, and no exception."""
    proc.start(77, POD)
    (proc.root / "77/stat").write_text(text)
    assert _why(ProcessScanner(proc.root), 77) is NoPodReason.UNREADABLE


def test_scan_of_a_binary_cgroup_has_no_pod(proc: Proc) -> None:
    """Bytes that are no UTF-8 are no pod."""
    proc.start(77, POD)
    (proc.root / "77/cgroup").write_bytes(b"0::/\xff\xfe/kubepods\xff/pod\n")
    assert _why(ProcessScanner(proc.root), 77) is NoPodReason.HOST


def test_scan_detects_a_pid_reused_while_reading(proc: Proc) -> None:
    """Another start time after reading than before: neither process's cgroup is used."""
    proc.start(77, POD)
    read = Reader(proc)
    processes = ProcessScanner(proc.root, read=read)
    read.before = lambda name: proc.start(77, OTHER_POD, start=6000) if name == "77/cgroup" else None
    assert _one(processes, 77) == Process(77, None, Placement(no_pod_reason=NoPodReason.REUSED))
    read.before = lambda _: None
    assert _one(processes, 77).placement.pod_uid == OTHER_UID


@pytest.mark.parametrize("reads", [0, 1, 2])
def test_scan_of_an_ending_process_has_no_pod(proc: Proc, reads: int) -> None:
    """Ending before, between or after the reads gives no pod and no exception."""
    proc.start(77, POD)
    read = Reader(proc)
    left = [reads]

    def end(name: str) -> None:
        if name.startswith("77/"):
            if not left[0]:
                proc.end(77)
            left[0] -= 1

    read.before = end
    assert _why(ProcessScanner(proc.root, read=read), 77) is NoPodReason.GONE


def test_scan_of_a_process_younger_than_the_list_is_reused(proc: Proc) -> None:
    """What NVML listed at 50 s cannot be what has the PID since then, nor since the same tick."""
    proc.start(77, POD, start=5000)
    processes = ProcessScanner(proc.root, ticks_per_s=100)
    listed = (49 * 10**9, 50_009_999_999, 50_010_000_000)
    assert [_one(processes, 77, listed_at_ns=ns).placement.no_pod_reason for ns in listed] == [
        NoPodReason.REUSED, NoPodReason.REUSED, None,
    ]  # fmt: skip


def test_scan_of_a_known_process_reads_one_file(proc: Proc) -> None:
    """A second sweep reads one file per process, and has the same answer."""
    proc.start(77, POD)
    read = Reader(proc)
    processes = ProcessScanner(proc.root, read=read)
    first = _one(processes, 77)
    read.reads.clear()
    assert _one(processes, 77) is first
    assert sorted(read.reads) == ["2/stat", "77/stat", "loadavg"]


@pytest.mark.parametrize(
    ("newest", "forks", "pid", "given_out"),
    [
        ((70, 80), 10, 75, True),
        ((70, 80), 10, 80, True),
        ((70, 80), 10, 70, False),
        ((70, 80), 10, 90, False),
        ((90, 20), 10, 95, True),
        ((90, 20), 10, 7, True),
        ((90, 20), 10, 50, False),
        ((80, 80), 0, 80, False),
        ((80, 80), 40_000, 50, True),
        ((70, 80), -1, 50, True),
        ((None, 80), 10, 90, True),
        ((70, None), 10, 90, True),
    ],
)
def test_reuse_of_a_pid_follows_the_kernels_order(
    proc: Proc, newest: tuple[int | None, int | None], forks: int, pid: int, given_out: bool
) -> None:
    """PIDs are given out in turn; where it is not known how far, or where the turn has come round, it may be any."""
    processes = ProcessScanner(proc.root)
    for number, count in zip(newest, (1000, 1000 + forks), strict=True):
        (proc.root / "loadavg").unlink(missing_ok=True)
        if number is not None:
            (proc.root / "loadavg").write_text(f"0.20 0.18 0.12 1/80 {number}\n")
            (proc.root / "stat").write_text(f"cpu 1 2\nprocesses {count}\n")
        found = processes.scan([], listed_at_ns=LATER)
    assert found.may_be_reused(pid) is given_out


def test_scan_forgets_a_process_with_another_start(proc: Proc) -> None:
    """A PID with another start time is another process; nothing remembered is used for it."""
    proc.start(77, POD)
    processes = ProcessScanner(proc.root)
    assert _one(processes, 77).placement.pod_uid == UID
    proc.start(77, OTHER_POD, start=5001)
    assert _one(processes, 77) == Process(77, 5001, Placement(OTHER_UID, ID), "python")
    proc.end(77)
    assert _why(processes, 77) is NoPodReason.GONE


def test_scan_remembers_only_the_last_one(proc: Proc) -> None:
    """The memory holds what the last sweep asked for, however many processes have come and gone."""
    processes = ProcessScanner(proc.root)
    for pid in range(100, 400):
        proc.start(pid, POD)
        _one(processes, pid)
    assert len(processes._known) == 1  # noqa: SLF001 - that it is bounded does not show from outside
    processes.scan([], listed_at_ns=LATER)
    assert not processes._known  # noqa: SLF001


def test_scan_of_a_process_outside_a_container_is_repeated(proc: Proc) -> None:
    """A process in no container yet is read again: runtimes move a process before it becomes the program."""
    proc.start(77, "0::/system.slice/containerd.service\n")
    processes = ProcessScanner(proc.root)
    assert _why(processes, 77) is NoPodReason.HOST
    (proc.root / "77/cgroup").write_text(POD.replace("/cri-containerd", "/crio-conmon"))
    assert _one(processes, 77).placement == Placement(UID)
    (proc.root / "77/cgroup").write_text(POD)
    assert _one(processes, 77).placement == IN_POD


@pytest.mark.parametrize(("cgroup", "why"), [("1:cpu:/\n", NoPodReason.GONE), (POD, None)], ids=["v1", "v2"])
def test_scan_of_a_dead_process_depends_on_the_cgroup_version(
    proc: Proc, cgroup: str, why: NoPodReason | None
) -> None:
    """With cgroup v1 it appears at the root, where it never was; with v2 it remains in its pod."""
    proc.start(77, cgroup, state="Z")
    assert _why(ProcessScanner(proc.root), 77) is why


def test_scan_of_a_containers_proc_is_off_and_logged_once(
    proc: Proc, caplog: pytest.LogCaptureFixture
) -> None:
    """Where process 2 is missing or no kernel thread, nothing is attributed, the reason is given, and said once."""
    proc.start(77, POD)
    proc.end(2)
    processes = ProcessScanner(proc.root)
    for _ in range(2):
        found = processes.scan([77], listed_at_ns=LATER)
        assert found.processes == {77: Process(77, None, Placement(no_pod_reason=NoPodReason.OFF))}
        assert found.off is not None
        assert found.off.endswith("set hostPID")
        proc.start(2, "0::/\n", name="kthreadd")
    proc.start(2, "0::/\n", name="kthreadd", flags=KERNEL_THREAD)
    with caplog.at_level(logging.INFO):
        assert _one(processes, 77).placement == IN_POD
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


def test_scan_of_an_empty_folder_is_off(tmp_path: Path) -> None:
    """An empty folder, or none, is not the host's /proc; hidepid, which leaves it as empty, is named."""
    for root in (tmp_path, tmp_path / "missing"):
        off = ProcessScanner(root).scan([77], listed_at_ns=LATER).off
        assert off is not None
        assert "no process 1" in off
        assert "hidepid" in off


def _deny(part: str) -> Callable[[str, int], bytes]:
    """Reading, where some files are another user's."""

    def read(path: str, most: int) -> bytes:
        if part in path:
            raise PermissionError(errno.EPERM, "Operation not permitted")
        return read_once(path, most)

    return read


def test_scan_of_a_forbidden_process_has_no_pod(proc: Proc) -> None:
    """A refusal costs that process its pod."""
    proc.start(77, POD)
    assert _why(ProcessScanner(proc.root, read=_deny("/77/")), 77) is NoPodReason.NO_PERMISSION
    assert _why(ProcessScanner(proc.root, read=_deny("/77/cgroup")), 77) is NoPodReason.NO_PERMISSION


def test_scan_of_a_forbidden_proc_is_off(proc: Proc) -> None:
    """Where the host's own processes are refused, it is off, and hidepid is where to look."""
    off = ProcessScanner(proc.root, read=_deny("/2/")).scan([77], listed_at_ns=LATER).off
    assert off is not None
    assert "Operation not permitted" in off
    assert "hidepid" in off


def test_scan_in_an_own_pid_namespace_warns_once(proc: Proc, caplog: pytest.LogCaptureFixture) -> None:
    """With the host's /proc but not its PID namespace it works, and says once what newer drivers leave out."""
    proc.start(77, POD)
    (proc.root / "self").symlink_to("424242")
    processes = ProcessScanner(proc.root)
    assert [_one(processes, 77).placement for _ in range(2)] == [IN_POD, IN_POD]
    assert ["hostPID" in record.message for record in caplog.records] == [True]


def test_scan_on_the_host_logs_nothing(proc: Proc, caplog: pytest.LogCaptureFixture) -> None:
    """In the host's namespace there is nothing to say."""
    (proc.root / "self").symlink_to(str(os.getpid()))
    ProcessScanner(proc.root).scan([1], listed_at_ns=LATER)
    assert caplog.records == []


@given(st.integers(0, 2**62), st.sampled_from([100, 250, 1000, 1024]))
def test_ticks_of_a_boot_time_are_exact(boot_ns: int, ticks_per_s: int) -> None:
    """A moment lies in its tick, to the nanosecond, after any uptime."""
    tick = ticks_at(boot_ns, ticks_per_s=ticks_per_s)
    assert tick * 10**9 <= boot_ns * ticks_per_s < (tick + 1) * 10**9


def test_scan_of_many_processes_reads_three_files_each(proc: Proc) -> None:
    """A process costs three reads when it is first seen and one later; the sweep itself no more than a few."""
    pids = range(1000, 1448)
    for pid in pids:
        proc.start(pid, POD)
    reads: list[str] = []

    def read(path: str, most: int) -> bytes:
        reads.append(path)
        return read_once(path, most)

    processes = ProcessScanner(proc.root, read=read)
    for most in (3 * len(pids) + 4, len(pids) + 4):
        reads.clear()
        found = processes.scan(pids, listed_at_ns=LATER)
        assert {one.placement.pod_uid for one in found.processes.values()} == {UID}
        assert len(reads) <= most


def test_scan_leaves_no_file_open(proc: Proc) -> None:
    """Whatever fails, descriptors are given back."""
    proc.start(77, POD)
    (proc.root / "78/stat").mkdir(parents=True)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        ProcessScanner(proc.root).scan([77, 78, 79], listed_at_ns=LATER)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


# This machine's own /proc.


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that sleeps until it is ended."""
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def _own() -> ProcessScanner:
    """This machine's /proc, taken for the host's also where the tests run in a container."""

    def read(path: str, most: int) -> bytes:
        return _stat(2, 0, flags=KERNEL_THREAD).encode() if path == "/proc/2/stat" else read_once(path, most)

    return ProcessScanner(Path("/proc"), read=read)


def _later() -> int:
    """Some ticks from now on the boot clock."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) + 10**9


def test_start_ticks_match_the_boot_clock(child: subprocess.Popen[bytes]) -> None:
    """A child's start time lies between the ticks before and after its start, of the clock that callers are to use."""
    ticks = os.sysconf("SC_CLK_TCK")
    start = _one(_own(), child.pid, listed_at_ns=_later()).start_ticks
    before = _one(_own(), os.getpid(), listed_at_ns=_later()).start_ticks
    assert start is not None
    assert before is not None
    assert before <= start <= ticks_at(time.clock_gettime_ns(time.CLOCK_BOOTTIME), ticks_per_s=ticks)


def test_scan_of_a_real_younger_process_is_reused(child: subprocess.Popen[bytes]) -> None:
    """What began after the moment of the listing is not what was listed."""
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - 600 * 10**9
    assert _one(_own(), child.pid, listed_at_ns=before).placement.no_pod_reason is NoPodReason.REUSED


def test_scan_of_a_real_ending_process_is_gone(child: subprocess.Popen[bytes]) -> None:
    """A process is there, then dead and not waited for, then gone."""
    processes = _own()
    alive = _one(processes, child.pid, listed_at_ns=_later())
    assert alive.start_ticks is not None
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    dead = _one(processes, child.pid, listed_at_ns=_later())
    assert dead.start_ticks == alive.start_ticks
    assert dead.placement.no_pod_reason in {NoPodReason.GONE, alive.placement.no_pod_reason}
    child.wait()
    assert _one(processes, child.pid, listed_at_ns=_later()) == Process(
        child.pid, None, Placement(no_pod_reason=NoPodReason.GONE)
    )


def test_scan_of_real_short_processes_finds_no_pod() -> None:
    """While processes begin and end all the time, none of them is ever taken for a pod's, and nothing fails."""
    processes = _own()
    own = _one(processes, os.getpid(), listed_at_ns=_later()).placement
    reasons = set()
    for _ in range(40):
        with subprocess.Popen(["/bin/true"]) as short:
            for _ in range(20):
                reasons.add(_one(processes, short.pid, listed_at_ns=_later()).placement.no_pod_reason)
    assert reasons <= {own.no_pod_reason, NoPodReason.GONE, NoPodReason.REUSED}


def test_scan_without_file_descriptors_is_unreadable(child: subprocess.Popen[bytes]) -> None:
    """No file descriptor left is a reason, and no exception."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.open("/dev/null", os.O_RDONLY)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        found = _own().scan([child.pid], listed_at_ns=_later())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.processes[child.pid].placement.no_pod_reason is NoPodReason.UNREADABLE
