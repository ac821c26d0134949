"""The GPUs of the real node: a simulated driver on which a pod's processes appear, and NVIDIA's resources."""

import contextlib
import threading
from pathlib import Path
from typing import Self

from simulator.gpus import Board, Process
from simulator.realnode.deviceplugin import VISIBLE_DEVICES, DevicePlugin
from simulator.realnode.node import Node
from simulator.spec import GpuSpec, NodeSpec

_CARD = "H100-SXM5-80GB"
WHOLE, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
SPEC = NodeSpec("real-node", (*[GpuSpec(_CARD)] * 5, GpuSpec(_CARD, ("1g.10gb", "1g.10gb"))))
"""Four whole GPUs, one with four replicas, one with two MIG devices."""
SHARED_GPU, MIG_GPU = 4, 5
OFFERED = {
    WHOLE: [SPEC.gpu_uuid(index) for index in range(SHARED_GPU)],
    SHARED: [f"{SPEC.gpu_uuid(SHARED_GPU)}::{number}" for number in range(4)],
    MIG: [SPEC.mig_uuid(MIG_GPU, instance) for instance in range(2)],
}
USED_BYTES = 2**30
_POLL_S = 0.2
_PLACES: dict[str, tuple[int, int | None]] = {
    **{SPEC.gpu_uuid(index): (index, None) for index in range(MIG_GPU)},
    **{SPEC.mig_uuid(MIG_GPU, instance): (MIG_GPU, instance) for instance in range(2)},
}


class Gpus:
    """Device plugins, and a driver whose processes are those that see a GPU in their environment."""

    def __init__(self, node: Node, board: Board) -> None:
        self.node = node
        self._board = board
        self._stopped = threading.Event()
        self._stack = contextlib.ExitStack()
        self._folder = node.root / "var/lib/kubelet/device-plugins"
        self.plugins: dict[str, DevicePlugin] = {}

    def __enter__(self) -> Self:
        for resource in OFFERED:
            self.start_plugin(resource)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        for plugin in self.plugins.values():
            plugin.stop()

    def start_plugin(self, resource: str) -> None:
        """Start the plugin of a resource."""
        self.plugins[resource] = DevicePlugin(self._folder, resource, OFFERED[resource]).__enter__()

    def stop_plugin(self, resource: str) -> None:
        """End the plugin of a resource."""
        self.plugins.pop(resource).stop()

    def _run(self) -> None:
        while not self._stopped.wait(_POLL_S):
            found: dict[int, list[Process]] = {index: [] for index in range(len(SPEC.gpus))}
            for path in (self.node.root / "proc").glob("[0-9]*/environ"):
                for uuid in _visible(path):
                    if uuid in _PLACES:
                        index, instance = _PLACES[uuid]
                        found[index].append(Process(int(path.parent.name), USED_BYTES, instance=instance))
            for index, processes in found.items():
                self._board.set_processes(index, processes)


def _visible(environ: Path) -> list[str]:
    try:
        entries = environ.read_bytes().decode(errors="replace").split("\0")
    except OSError:  # it has ended
        return []
    values = [entry.partition("=")[2] for entry in entries if entry.startswith(f"{VISIBLE_DEVICES}=")]
    return values[-1].split(",") if values else []
