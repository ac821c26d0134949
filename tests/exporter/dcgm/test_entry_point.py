"""The image takes the place of dcgm-exporter's: its entry point, with the arguments and variables of their manifests.

Both are those of dcgm-exporter's chart (main, 7ad5832) and of the GPU Operator (v26, a22dbf6). Only paths and the port
are this machine's.
"""

import contextlib
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from exporter.dcgm.aliases import Ignored, dcgm_flags
from tests.deploy.dockerfile import stages_of
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Exporter, Node, eventually, h100, pod

pytestmark = pytest.mark.driver

ROOT = Path(__file__).parents[3]
UTIL = "DCGM_FI_DEV_GPU_UTIL"
BOTH_LABELS = ("Hostname", "hostname", "pod", "namespace", "container")
LIST = """
# Format
DCGM_FI_DEV_GPU_UTIL,      gauge, GPU utilization (in %).
DCGM_FI_DEV_DEC_UTIL ,     gauge, Decoder utilization (in %).
DCGM_FI_DRIVER_VERSION,    label, Driver Version
DCGM_FI_DEV_VGPU_LICENSE_STATUS, gauge, vGPU License status
"""
CHART_ENV = {
    "DCGM_EXPORTER_KUBERNETES": "true",
    "DCGM_EXPORTER_LISTEN": ":9400",
    "DCGM_EXPORTER_WEB_READ_TIMEOUT": "10s",
    "DCGM_EXPORTER_WEB_WRITE_TIMEOUT": "30s",
    "KUBERNETES_ENABLE_DRA": "true",
    "NODE_NAME": "node-7",
}
OPERATOR_ENV = {
    "DCGM_EXPORTER_LISTEN": ":9400",
    "DCGM_EXPORTER_KUBERNETES": "true",
    "DCGM_EXPORTER_COLLECTORS": "/etc/dcgm-exporter/dcp-metrics-included.csv",
    "NODE_NAME": "node-7",
    "DCGM_REMOTE_HOSTENGINE_INFO": "nvidia-dcgm-dra:5555",
    "DCGM_HPC_JOB_MAPPING_DIR": "/var/lib/dcgm-exporter/job-mapping",
    "KUBERNETES_ENABLE_DRA": "true",
}
LOUD = {"DCGM_REMOTE_HOSTENGINE_INFO", "KUBERNETES_ENABLE_DRA"}


def _image() -> tuple[list[str], dict[str, str]]:
    """The final stage's entry point and its variables."""
    *_, final = stages_of((ROOT / "deploy/Dockerfile").read_text())
    texts = {word: [one.text for one in final if one.word == word] for word in ("ENTRYPOINT", "CMD", "ENV")}
    assert texts["CMD"] == []  # without arguments it is the exporter, too
    (entry,), (variables,) = texts["ENTRYPOINT"], texts["ENV"]
    command: list[str] = json.loads(entry)
    return command, dict(pair.split("=", 1) for pair in shlex.split(variables))


@contextlib.contextmanager
def _container(node: Node, args: Sequence[str], **manifest: str) -> Iterator[Exporter]:
    """The image's command as the kubelet starts it, on a port that is free."""
    (program, *rest), image = _image()
    kept = {name: image[name] for name in image if name not in {"PATH", "HOME"}}
    variables = node.environment(
        **kept,
        **manifest,
        PATH=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        DCGM_EXPORTER_LISTEN="127.0.0.1:0",
        DCGM_POD_RESOURCES_KUBELET_SOCKET=str(node.kubelet.socket),
    )
    with subprocess.Popen(
        [program, *rest, *args], env=variables, stderr=subprocess.PIPE, text=True, cwd="/"
    ) as process:
        try:
            exporter = Exporter(process)
            eventually(lambda: exporter.get("/readyz")[0] == 200)
            yield exporter
        finally:
            process.kill()


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One GPU, held by a pod."""
    node = make_node(h100(1))
    node.pods.append(pod("trainer", node.spec.gpu_uuid(0)))
    node.kubelet.start()
    return node


def _warned(exporter: Exporter) -> set[str]:
    lines = exporter.messages(" is ignored; in dcgm-exporter it ")
    assert all(": " in line.split(" is ignored; ")[1] for line in lines)
    return {line.split(" is ignored;")[0].split()[-1] for line in lines}


def test_image_with_charts_arguments_serves_its_list(node: Node, tmp_path: Path) -> None:
    """`-f` names a mounted list, and the probes' path answers."""
    path = tmp_path / "default-counters.csv"
    path.write_text(LIST)
    variables = {name: value for name, value in CHART_ENV.items() if name != "DCGM_EXPORTER_LISTEN"}
    with _container(node, ["-f", str(path)], **variables) as exporter:
        labels = exporter.series(UTIL, *BOTH_LABELS, "DCGM_FI_DRIVER_VERSION").keys()
        assert labels == {("node-7", "node-7", "trainer", "ml", "main", "570.133.20")}
        assert "DCGM_FI_DEV_DEC_UTIL" in exporter.families()
        assert "DCGM_FI_DEV_GPU_TEMP" not in exporter.families()
        assert exporter.get("/health")[0] == 200
        assert _warned(exporter) == {
            "DCGM_EXPORTER_WEB_READ_TIMEOUT",
            "DCGM_EXPORTER_WEB_WRITE_TIMEOUT",
            "KUBERNETES_ENABLE_DRA",
        }


def test_image_with_operators_variables_serves_default_list(node: Node) -> None:
    """No arguments, and a list that is only in dcgm-exporter's image."""
    variables = {name: value for name, value in OPERATOR_ENV.items() if name != "DCGM_EXPORTER_LISTEN"}
    with _container(node, [], **variables) as exporter:
        assert exporter.series(UTIL, *BOTH_LABELS).keys() == {("node-7", "node-7", "trainer", "ml", "main")}
        assert {"DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE"} <= exporter.families().keys()
        assert _warned(exporter) == LOUD


@pytest.mark.slow
def test_image_with_every_option_without_counterpart_starts(node: Node) -> None:
    """Each has one warning, and none is refused."""
    ignored = [each for each in dcgm_flags() if isinstance(each.handling, Ignored)]
    variables = {each.variable: "true" if each.is_switch else "77" for each in ignored}
    with _container(node, ["--kubernetes"], **variables) as exporter:
        assert exporter.series(UTIL, "pod").keys() == {("trainer",)}
        assert _warned(exporter) == variables.keys()


def test_image_has_what_dcgm_exporters_pod_relies_on() -> None:
    """The NVIDIA runtime gives all GPUs, and root may open the kubelet's socket: the manifests set neither."""
    _, variables = _image()
    assert (variables["NVIDIA_VISIBLE_DEVICES"], variables["NVIDIA_DRIVER_CAPABILITIES"]) == (
        "all",
        "utility",
    )
    *_, final = stages_of((ROOT / "deploy/Dockerfile").read_text())
    assert [one.text for one in final if one.word == "USER"] == ["0:0"]
