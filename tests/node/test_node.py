"""The real node itself: a pod's processes and cgroup come and go, and the machine stays as it was."""

import pytest

from tests.node.cluster import Cluster, pod
from tests.node.conftest import machine

pytestmark = pytest.mark.node


def test_pod_on_real_node_has_process_and_cgroup_until_deleted(cluster: Cluster) -> None:
    """The kubelet's own path, under the node's cgroup; both are gone with the pod."""
    created = cluster.run(pod("a"))
    uid = created["metadata"]["uid"]
    ((name, (process,)),) = cluster.processes(created).items()
    assert name == "main"
    path = cluster.node.root / "proc" / str(process)
    assert (path / "comm").read_text() == "sleep\n"
    assert f"/kubepods/besteffort/pod{uid}/" in (path / "cgroup").read_text()
    cluster.delete("a")
    assert not path.exists()


def test_real_node_leaves_the_machine_as_it_was(cluster: Cluster, machine_before: dict[str, object]) -> None:
    """The kubelet reads back what it wants, and the node has its own network and folders."""
    assert (cluster.node.root / "proc/sys/vm/overcommit_memory").read_text() == "1\n"
    cluster.node.run("ip", "address", "show", "cni0")
    assert machine() == machine_before
