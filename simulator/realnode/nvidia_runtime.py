"""A container runtime that gives containers the simulated driver, as NVIDIA's does with the real one; then it is runc.

Usage: nvidia_runtime.py LIBRARY BOARD ARGUMENTS-OF-RUNC
"""

import json
import os
import sys
from pathlib import Path

_LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
_BOARD = "/run/simulated-gpus"


def _add_driver(bundle: Path, library: str, board: str) -> None:
    """Mount the driver if the container asks for GPUs by its environment."""
    path = bundle / "config.json"
    config = json.loads(path.read_text())
    environment = config["process"]["env"]
    wanted = [entry.partition("=")[2] for entry in environment if entry.startswith("NVIDIA_VISIBLE_DEVICES=")]
    if not wanted or wanted[-1] in {"", "void", "none"}:
        return
    environment.append(f"SIMULATOR_NVML_BOARD={_BOARD}")
    for source, destination in ((library, _LIBRARY), (board, _BOARD)):
        mount = {"type": "bind", "source": source, "destination": destination, "options": ["rbind", "ro"]}
        config["mounts"].append(mount)
    path.write_text(json.dumps(config))


def main(library: str, board: str, arguments: list[str]) -> None:
    """Change what runc is about to create, and become runc."""
    if "create" in arguments:
        _add_driver(Path(arguments[arguments.index("--bundle") + 1]), library, board)
    os.execvp("runc", ["runc", *arguments])  # noqa: S606 - the search path is the node's


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
