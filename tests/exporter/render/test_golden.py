"""The whole exposition of three nodes, as dashboards and alerts see it."""

import re
import subprocess
import time

import pytest

from simulator.gpus import Process, ProcessSample
from simulator.nodes.kubelet import Allocation, PodDevices
from simulator.spec import GpuSpec, NodeSpec, Sharing
from tests.conftest import Golden
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Node, Runs, pod, reading

pytestmark = pytest.mark.driver

MIB = 2**20

# What depends on the machine or the moment; of these the golden files hold everything but the value.
_VARIES = re.compile(
    r"^((?:process_\w+|gpu_exporter_(?:collector_duration|last_sample_age)_seconds|gpu_pod_last_active_\w+"
    r"|gpu_(?:pod_|unattributed_)?busy_seconds_total|gpu_pod_memory_used_byte_seconds_total)(?:{.*})?) .*$",
    re.MULTILINE,
)
_PYTHON = re.compile(r'python_version="[^"]*"')


def _h100(node: Node) -> None:
    node.board.set_gpu(0, reading())
    node.board.set_gpu(1, reading(gpu_util_percent=3, power_w=121.5))
    node.pods += [pod("llama-0", node.spec.gpu_uuid(0), container="trainer")]
    node.run(0, Runs(Process(4711, 19 * 2**30), "llama-0", "trainer"), Runs(Process(815, 300 * MIB)))
    for bus in ("0000:1b:00.0", "0000:43:00.0"):
        (node.proc / "driver/nvidia/gpus" / bus).mkdir(parents=True)


def _a100_mig(node: Node) -> None:
    node.board.set_gpu(1, reading(sm_clock_mhz=1410, mem_clock_mhz=1215))
    node.board.set_instance(0, 0, memory_used_bytes=7 * 2**30)
    node.run(0, Runs(Process(4711, 6 * 2**30, instance=0), "notebook-ada"))
    node.run(1, Runs(Process(4712, 20 * 2**30), "train-bert"), Runs(Process(4713, 2**29), "train-bert"))
    node.pods += [
        pod("notebook-ada", node.spec.mig_uuid(0, 0), resource="nvidia.com/mig-3g.20gb"),
        pod("train-bert", node.spec.gpu_uuid(1)),
    ]


def _l40s_shared(node: Node) -> None:
    used = reading(memory_temperature_c=0, power_w=210.0, mem_clock_mhz=9001)
    node.board.set_gpu(0, used)
    uuid = node.spec.gpu_uuid(0)
    node.run(0, Runs(Process(4711, 5 * 2**30), "serve-a"), Runs(Process(4712, 2**30), "serve-b"))
    now_us = time.time_ns() // 1000
    node.board.set_samples(0, [(now_us, 87)], [ProcessSample(now_us, 4711, 87)])
    node.pods += [
        pod("serve-b", f"{uuid}::1", resource="nvidia.com/gpu.shared"),
        pod("serve-a", f"{uuid}::0", f"{uuid}::2", resource="nvidia.com/gpu.shared"),
        PodDevices("web", "no-gpu", (("app", (Allocation("example.com/nic", ("eth1",)),)),)),
    ]


NODES = {
    "h100-whole": (NodeSpec("h100", (GpuSpec("H100-SXM5-80GB"),) * 2), _h100),
    "a100-mig": (
        NodeSpec("a100", (GpuSpec("A100-SXM4-40GB", ("3g.20gb", "2g.10gb")), GpuSpec("A100-SXM4-40GB"))),
        _a100_mig,
    ),
    "l40s-time-sliced": (
        NodeSpec("l40s", (GpuSpec("L40S"),) * 2, sharing=Sharing.TIME_SLICING, replicas=4),
        _l40s_shared,
    ),
}


@pytest.mark.parametrize("name", NODES)
def test_exposition_matches_the_golden_file(name: str, make_node: MakeNode, golden: Golden) -> None:
    """Every line that the exporter serves for a known node is a line that somebody has read and approved."""
    spec, arrange = NODES[name]
    node = make_node(spec)
    arrange(node)
    node.kubelet.start()

    done = node.once("--once", "--node-name=node-1", f"--pod-resources-socket={node.kubelet.socket}")

    assert done.code == 0, done.err
    text = _PYTHON.sub('python_version="<varies>"', _VARIES.sub(r"\1 <varies>", done.out))
    golden(f"{name}.prom", text)


@pytest.mark.prometheus
def test_promtool_complains_only_about_dcgm_names(make_node: MakeNode) -> None:
    """`promtool check metrics` complains about DCGM's own names and about no other."""
    node = make_node(NODES["a100-mig"][0])
    done = node.once("--once", "--pod-resources-socket=")

    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=done.out, capture_output=True, text=True, check=False
    )

    complaints = [line.split(" ")[0] for line in checked.stderr.splitlines()]
    assert complaints
    assert [name for name in complaints if not name.startswith("DCGM_FI_")] == []
