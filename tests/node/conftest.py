"""One real node for the whole test session; what its programs logged is shown with a test that fails."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import NODE, find
from simulator.gpus import Board
from simulator.realnode.node import Node
from tests.node.cluster import Cluster
from tests.node.exporting import Exporter, import_exporter
from tests.node.gpus import SPEC, Gpus

_SHOWN_LINES = 40
_SYSCTLS = ("vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops")
_PATHS = (
    *("/opt/containerd", "/usr/libexec/kubernetes", "/var/lib/kubelet", "/run/containerd"),
    "/sys/class/net/cni0",
)


def machine() -> dict[str, object]:
    """The settings of this machine that a kubelet sets, and whether it has what kubelet and containerd make."""
    settings = {name: Path("/proc/sys", name).read_text() for name in _SYSCTLS}
    return {**settings, **{path: Path(path).exists() for path in _PATHS}}


@pytest.fixture(scope="session")
def machine_before() -> dict[str, object]:
    """The machine before the node started."""
    return machine()


@pytest.fixture(scope="session")
def gpus(machine_before: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpus]:
    """The GPUs of a real node that is Ready; for tests with the marker `node`."""
    del machine_before  # it was looked at first
    folder = tmp_path_factory.mktemp("node")
    file = folder / "board"
    with (
        Board(file, SPEC) as board,
        ControlPlane(folder / "controlplane", find(), simulates_kubelets=False) as plane,
        Node(folder / "node", find(NODE), plane, board=file) as running,
    ):
        import_exporter(running, folder / "exporter.tar")
        with Gpus(running, board) as offered:
            yield offered


@pytest.fixture(scope="session")
def node(gpus: Gpus) -> Node:
    """The real node."""
    return gpus.node


@pytest.fixture(scope="session")
def exporter(node: Node) -> Iterator[Exporter]:
    """The exporter as the chart runs it on the real node, with attribution of shared GPUs."""
    with Cluster(node) as cluster, Exporter(cluster) as running:
        yield running


@pytest.fixture
def cluster(node: Node) -> Iterator[Cluster]:
    """The node's cluster with a namespace of the test's own."""
    with Cluster(node) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the end of the node's logs to the report of a test that failed while it ran."""
    report = yield
    node = getattr(item, "funcargs", {}).get("node")
    if report.failed and isinstance(node, Node):
        for log in node.logs:
            lines = log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
            report.sections.append((f"end of {log}", "\n".join(lines)))
    return report
