"""The reasons why a machine cannot run a real node; imports nothing that starts one."""

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_TOOLS = ("bash", "busybox", "ip", "mount", "nsenter", "runc", "unshare")


def obstacle() -> str:
    """The first reason why no node can run on this machine; empty if there is none."""
    return next(_obstacles(), "")


def _obstacles() -> Iterator[str]:
    if os.geteuid() != 0:
        yield "a real node needs root"
    if platform.machine() != "x86_64":
        yield f"a real node was tried on x86_64 only, not on {platform.machine()}"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        yield f"not on the path: {', '.join(missing)}; scripts/install-tools --node installs it"
    if b"/ld-linux" in Path(shutil.which("busybox") or "").read_bytes():
        yield "busybox is linked dynamically; a container needs the package busybox-static"
    if (CGROUPS / "cgroup.controllers").exists():
        yield f"{CGROUPS} has version 2, whose controllers the kubelet would enable for the whole machine"
    if not os.access(CGROUPS, os.W_OK) or not (CGROUPS / "pids/cgroup.procs").exists():
        yield f"{CGROUPS}: no cgroups that can be written to"
    script = "mount --make-rprivate / && ip link add trial type bridge"
    command = ["unshare", "--mount", "--net", "sh", "-c", script]
    trial = subprocess.run(command, capture_output=True, text=True, check=False)
    if trial.returncode:
        yield f"no namespaces can be made here: {trial.stderr.strip()}"
