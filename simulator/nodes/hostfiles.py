"""The /proc and /var/log of a simulated host, as kernel, containerd (systemd, cgroup v2) and kubelet write them."""

import os
import shutil
import threading
import time
from pathlib import Path

from simulator.nodes.devices import Container

COMMAND = "python"
_INIT, _KTHREADD = 1, 2
_PF_INIT, _PF_USER, _PF_KERNEL = 0x00400100, 0x00400000, 0x00208040
"""Flags (include/linux/sched.h) as 1 shows them, any other program, and kthreadd: with PF_KTHREAD."""
_COMMAND_BYTES = 15  # TASK_COMM_LEN less the zero that ends it
_FIELDS = 52
_SIGCHLD = 17
_UNLIMITED = 2**64 - 1


class HostFiles:
    """A host's /proc and /var/log, in folders that must not exist yet. Safe to use from several threads."""

    def __init__(self, proc: Path, logs: Path, *, boot_s: float | None = None) -> None:
        self.proc = proc
        self.logs = logs.absolute()  # for the links
        self._boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) if boot_s is None else boot_s
        self._lock = threading.Lock()
        self._forks = 0
        self._containers: dict[str, set[Container]] = {}
        for folder in (proc, logs):
            folder.mkdir(parents=True)
        for name in ("pods", "containers"):
            (logs / name).mkdir()
        self._write(_INIT, _stat(_INIT, "systemd", flags=_PF_INIT, start_ticks=1), "/init.scope")
        self.give_out(_KTHREADD)
        self._write(_KTHREADD, _stat(_KTHREADD, "kthreadd", flags=_PF_KERNEL, start_ticks=1), "/")

    def admit(self, container: Container) -> None:
        """The kubelet makes the folder of a container's logs, and the link to its log; nothing if they are there."""
        with self._lock:
            known = self._containers.setdefault(container.uid, set())
            if container in known:
                return
            known.add(container)
            log = self._pod_folder(container) / container.name / "0.log"
            log.parent.mkdir(parents=True, exist_ok=True)
            log.touch()
            self._link(container).symlink_to(log)

    def forget(self, pod_uid: str) -> None:
        """The kubelet removes a pod's logs; nothing where it has none."""
        with self._lock:
            for container in self._containers.pop(pod_uid, ()):
                self._link(container).unlink(missing_ok=True)
                shutil.rmtree(self._pod_folder(container), ignore_errors=True)

    def start(self, pid: int, container: Container, *, started_s: float, command: str = COMMAND) -> None:
        """Start process `command` in `container`; `started_s` (Unix) is at least the host's boot time."""
        self.admit(container)
        pod = f"kubepods-burstable-pod{container.uid.replace('-', '_')}.slice"
        path = f"/kubepods.slice/kubepods-burstable.slice/{pod}/cri-containerd-{container.id}.scope"
        self._begin(pid, command, path, started_s=started_s)

    def start_service(self, pid: int, command: str, *, unit: str, started_s: float) -> None:
        """A process of the host itself begins: of systemd's service `unit`, without a pod."""
        self._begin(pid, command, f"/system.slice/{unit}", started_s=started_s)

    def end(self, pid: int) -> None:
        """A process ends; all of it is gone at once."""
        with self._lock:
            ended = self.proc / f".ended-{pid}"
            (self.proc / str(pid)).rename(ended)
            shutil.rmtree(ended)

    def _begin(self, pid: int, command: str, cgroup: str, *, started_s: float) -> None:
        ticks = int((started_s - self._boot_s) * os.sysconf("SC_CLK_TCK"))
        stat = _stat(pid, command, flags=_PF_USER, start_ticks=max(1, ticks))
        with self._lock:
            self._write(pid, stat, cgroup)
        self.give_out(pid)

    def give_out(self, pid: int) -> None:
        """The kernel gives this PID to a process, also to one that is too short-lived to be seen here."""
        with self._lock:
            self._forks += 1
            for name, text in (
                ("loadavg", f"0.00 0.00 0.00 1/100 {pid}\n"),
                ("stat", f"cpu  1 0 1 100 0 0 0 0 0 0\nctxt 100\nprocesses {self._forks}\nprocs_running 1\n"),
            ):
                made = self.proc / f".{name}"
                made.write_text(text)
                made.rename(self.proc / name)

    def _write(self, pid: int, stat: str, cgroup: str) -> None:
        """Under another name first: a process is there with all its files, or not at all."""
        made = self.proc / f".begins-{pid}"
        made.mkdir()
        (made / "stat").write_text(stat)
        (made / "cgroup").write_text(f"0::{cgroup}\n")
        made.rename(self.proc / str(pid))

    def _pod_folder(self, container: Container) -> Path:
        return self.logs / "pods" / f"{container.namespace}_{container.pod}_{container.uid}"

    def _link(self, container: Container) -> Path:
        """As the kubelet does, which leaves 255 characters of a name (kuberuntime/legacy.go)."""
        name = f"{container.pod}_{container.namespace}_{container.name}-{container.id}"[:251]
        return self.logs / "containers" / f"{name}.log"


def _stat(pid: int, command: str, *, flags: int, start_ticks: int) -> str:
    """The line of /proc/<pid>/stat: proc(5)'s fields by their numbers there; what is not named is 0."""
    is_kernel = flags == _PF_KERNEL
    parent = 0 if pid <= _KTHREADD else _INIT
    named = {
        4: parent,
        5: 0 if is_kernel else pid,  # process group
        6: 0 if is_kernel else pid,  # session
        8: -1,  # the terminal's foreground group: no terminal
        9: flags,
        18: 20,  # priority
        20: 1,  # threads
        22: start_ticks,
        25: _UNLIMITED,  # resident memory allowed
        38: _SIGCHLD,
    }
    numbers = " ".join(str(named.get(field, 0)) for field in range(4, _FIELDS + 1))
    return f"{pid} ({command[:_COMMAND_BYTES]}) S {numbers}\n"
