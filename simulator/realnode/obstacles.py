"""The reasons why a machine cannot run a real node; imports nothing that starts one."""

import os
import shutil
import subprocess
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
_TOOLS = ("bash", "busybox", "ip", "mount", "nsenter", "runc", "unshare")


def obstacle() -> str:
    """The reason why no node can run on this machine; empty if there is none."""
    if os.geteuid() != 0:
        return "a real node needs root"
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        return f"not on the path: {', '.join(missing)}; scripts/install-tools --node installs it"
    if not os.access(CGROUPS, os.W_OK) or not list(CGROUPS.glob("**/cgroup.procs"))[:1]:
        return f"{CGROUPS}: no cgroups that can be written to"
    trial = subprocess.run(
        ["unshare", "--mount", "--net", "mount", "--make-rprivate", "/"],
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if trial.returncode == 0 else f"no namespaces can be made here: {trial.stderr.strip()}"
