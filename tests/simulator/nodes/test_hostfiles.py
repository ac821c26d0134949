"""A made-up host shows its processes and its pods' logs as a kernel and a kubelet do."""

import os
import time
from pathlib import Path

import pytest

from simulator.nodes.devices import Container
from simulator.nodes.hostfiles import HostFiles

UID = "0f3c2a9e-1b2d-4c3e-8f4a-5b6c7d8e9f00"
MAIN = Container("team-a", "train-0", UID, "main")
PF_KTHREAD = 0x00200000


@pytest.fixture
def host(tmp_path: Path) -> HostFiles:
    """A host that was started at 1000 (Unix seconds)."""
    return HostFiles(tmp_path / "proc", tmp_path / "log", boot_s=1000.0)


def _stat(host: HostFiles, pid: int) -> tuple[str, list[str]]:
    """The name, and the fields behind it, in the kernel's numbering less 3."""
    head, _, rest = (host.proc / str(pid) / "stat").read_text().partition(") ")
    assert head.startswith(f"{pid} (")
    assert rest.endswith("\n")
    return head.partition("(")[2], rest.split()


def _tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_process_stat_has_52_fields(host: HostFiles) -> None:
    """Name, state, parent and start in ticks since the host's start stand where proc(5) says, as in a real stat."""
    host.start(4711, MAIN, started_s=1012.345)
    name, fields = _stat(host, 4711)
    assert name == "python"
    assert fields[:2] == ["S", "1"]
    assert int(fields[22 - 3]) == int(12.345 * os.sysconf("SC_CLK_TCK"))
    assert not int(fields[9 - 3]) & PF_KTHREAD
    real = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    assert len(fields) + 2 == len(real) + 2 == 52


def test_process_cgroup_is_that_of_its_container(host: HostFiles) -> None:
    """The path is that of systemd's driver and containerd: the UID with underscores, an id of 64 digits."""
    host.start(4711, MAIN, started_s=1012.0)
    [line] = (host.proc / "4711" / "cgroup").read_text().splitlines()
    assert line == (
        "0::/kubepods.slice/kubepods-burstable.slice/"
        "kubepods-burstable-pod0f3c2a9e_1b2d_4c3e_8f4a_5b6c7d8e9f00.slice/"
        f"cri-containerd-{MAIN.id}.scope"
    )
    assert len(MAIN.id) == 64
    assert set(MAIN.id) <= set("0123456789abcdef")


def test_processes_1_and_2_are_init_and_kthreadd(host: HostFiles) -> None:
    """1 is systemd and 2 a kernel thread, which there are in the machine's own PID namespace only."""
    (init, init_fields), (second, second_fields) = _stat(host, 1), _stat(host, 2)
    assert (init, second) == ("systemd", "kthreadd")
    assert int(second_fields[9 - 3]) & PF_KTHREAD
    assert not int(init_fields[9 - 3]) & PF_KTHREAD
    assert (host.proc / "1" / "cgroup").read_text() == "0::/init.scope\n"


def test_process_older_than_host_starts_at_first_tick(host: HostFiles) -> None:
    """A start before the host's own is its first tick, never 0 or less."""
    host.start(4711, MAIN, started_s=10.0)
    assert _stat(host, 4711)[1][22 - 3] == "1"


def test_host_boot_time_defaults_to_this_machine(tmp_path: Path) -> None:
    """A process of now starts at what the boot clock shows now, so that both can be compared."""
    host = HostFiles(tmp_path / "proc", tmp_path / "log")
    before_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    host.start(4711, MAIN, started_s=time.time())
    after_s = time.clock_gettime(time.CLOCK_BOOTTIME)
    started_s = int(_stat(host, 4711)[1][22 - 3]) / os.sysconf("SC_CLK_TCK")
    assert before_s - 0.1 <= started_s <= after_s + 0.1


def test_service_process_has_unit_cgroup_and_short_name(host: HostFiles) -> None:
    """A host's process is in its unit's cgroup, under the 15 bytes of name that the kernel keeps."""
    host.start_service(4711, "nvidia-cuda-mps-server", unit="nvidia-mps.service", started_s=time.time())
    assert _stat(host, 4711)[0] == "nvidia-cuda-mps"
    assert (host.proc / "4711" / "cgroup").read_text() == "0::/system.slice/nvidia-mps.service\n"
    assert _tree(host.logs) == {"pods", "containers"}


def test_ended_process_leaves_no_files(host: HostFiles) -> None:
    """After its end /proc is as before its start; its pod's logs stay until the pod goes."""
    before = _tree(host.proc)
    host.start(4711, MAIN, started_s=1012.0)
    host.end(4711)
    assert _tree(host.proc) == before
    assert any((host.logs / "containers").iterdir())


def test_pod_logs_are_named_as_by_kubelet(host: HostFiles) -> None:
    """A folder per pod with its UID, and per container a link, with the runtime's id, to its log."""
    side = Container("team-a", "train-0", UID, "side")
    for container in (MAIN, side, MAIN):
        host.admit(container)
    pod = host.logs / "pods" / f"team-a_train-0_{UID}"
    links = {path.name: path for path in (host.logs / "containers").iterdir()}
    assert set(links) == {
        f"train-0_team-a_main-{MAIN.id}.log",
        f"train-0_team-a_side-{side.id}.log",
    }
    assert links[f"train-0_team-a_main-{MAIN.id}.log"].resolve() == pod.resolve() / "main" / "0.log"
    assert MAIN.id != side.id


def test_log_links_in_relative_folder_resolve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host in a relative folder has links that lead to its logs."""
    monkeypatch.chdir(tmp_path)
    HostFiles(Path("proc"), Path("log")).admit(MAIN)
    [link] = (tmp_path / "log/containers").iterdir()
    assert link.is_file()


def test_forgotten_pod_loses_its_logs_only(host: HostFiles) -> None:
    """Only that pod's logs go, and a pod of the same name that comes later has its own."""
    other = Container("team-a", "train-0", "1" + UID[1:], "main")
    host.start(4711, MAIN, started_s=1012.0)
    host.admit(other)
    host.end(4711)
    host.forget(UID)
    host.forget(UID)
    assert [path.name for path in (host.logs / "pods").iterdir()] == [f"team-a_train-0_{other.uid}"]
    assert [path.name for path in (host.logs / "containers").iterdir()] == [
        f"train-0_team-a_main-{other.id}.log"
    ]


def test_existing_folder_is_refused(host: HostFiles) -> None:
    """A host never mixes with what is there, such as this machine's own /proc."""
    with pytest.raises(FileExistsError):
        HostFiles(Path("/proc"), host.logs.parent / "other")
    with pytest.raises(FileExistsError):
        HostFiles(host.logs.parent / "another", host.logs)
