"""Pods on a real node: created by manifests, and looked at from the API server, the node's /proc and its cgroups."""

import contextlib
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from simulator.kubeclient import KubeClient, KubeClientError
from simulator.realnode.node import BUSYBOX, Node
from tests.waiting import wait_until

Object = dict[str, Any]


def container(name: str = "main", *command: str, **more: object) -> Object:
    """A container that sleeps, or runs this command."""
    return {"name": name, "image": BUSYBOX, **({"command": list(command)} if command else {}), **more}


def gpus(count: int = 1, resource: str = "nvidia.com/gpu") -> Object:
    """The resources of a container with GPUs and nothing else, which is BestEffort."""
    return {"limits": {resource: count}}


def pod(name: str, *containers: Object, **spec: object) -> Object:
    """A pod that ends one second after it is deleted."""
    whole = {"containers": list(containers) or [container()], "terminationGracePeriodSeconds": 1, **spec}
    return {"metadata": {"name": name}, "spec": whole}


class Cluster:
    """A namespace of a real node's cluster.

    Attributes:
        node: The one node.
        namespace: This test's own.
    """

    def __init__(self, node: Node) -> None:
        self.node = node
        self.client = KubeClient(node.endpoint)
        self.namespace = f"team-{uuid.uuid4().hex[:6]}"
        self._pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def __enter__(self) -> Self:
        self.client.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        account = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/default"
        wait_until(lambda: self._exists(account))
        return self

    def __exit__(self, *_: object) -> None:
        for found in self.client.get(self._pods)["items"]:
            self._delete(found["metadata"]["name"])
        wait_until(lambda: not self.client.get(self._pods)["items"])
        self.client.delete(f"/api/v1/namespaces/{self.namespace}")

    def run(self, body: Mapping[str, Any], *, phase: str = "Running") -> Object:
        """The pod, once all of its containers run, or once it has another phase."""
        name = self.client.create(self._pods, dict(body))["metadata"]["name"]
        wait_until(lambda: self._has_come_to(name, phase))
        return self.get(name)

    def get(self, name: str) -> Object:
        """A pod as the API server has it."""
        return self.client.get(f"{self._pods}/{name}")

    def delete(self, name: str) -> None:
        """Delete a pod and wait until it is gone."""
        self._delete(name)
        wait_until(lambda: not self._exists(f"{self._pods}/{name}"))

    def _delete(self, name: str) -> None:
        with contextlib.suppress(KubeClientError):  # its owner may be faster
            self.client.delete(f"{self._pods}/{name}")

    def debug(self, name: str, added: Object) -> Object:
        """The pod with an ephemeral container, once that runs."""
        self.client.patch(
            f"{self._pods}/{name}/ephemeralcontainers", {"spec": {"ephemeralContainers": [added]}}
        )
        wait_until(
            lambda: any(
                "running" in found["state"]
                for found in self.get(name)["status"].get("ephemeralContainerStatuses", ())
            )
        )
        return self.get(name)

    def kill(self, pod: Mapping[str, Any], container: str) -> None:
        """Kill a container's processes, as the kernel does when memory is short."""
        for process in self.processes(pod)[container]:
            self.node.run("kill", "-9", str(process))

    def processes(self, pod: Mapping[str, Any]) -> dict[str, list[int]]:
        """Process ids of a pod as the node has them, by the name of the container, which its id tells."""
        statuses = [
            status
            for kind in ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
            for status in pod["status"].get(kind, ())
        ]
        names = {
            status["containerID"].rpartition("/")[2]: status["name"]
            for status in statuses
            if "containerID" in status
        }
        found: dict[str, list[int]] = {}
        for path, text in self._cgroups_of_processes():
            for container_id, name in names.items():
                if container_id in text:
                    found.setdefault(name, []).append(int(path.parent.name))
        return found

    def _cgroups_of_processes(self) -> Sequence[tuple[Path, str]]:
        found = []
        for path in (self.node.root / "proc").glob("[0-9]*/cgroup"):
            try:
                found.append((path, path.read_text()))
            except OSError:  # it has ended
                continue
        return found

    def _has_come_to(self, name: str, phase: str) -> bool:
        status = self.get(name)["status"]
        statuses = status.get("containerStatuses", ())
        runs = all("running" in found["state"] for found in statuses) or phase != "Running"
        return bool(status.get("phase") == phase and runs)

    def _exists(self, path: str) -> bool:
        try:
            self.client.get(path)
        except KubeClientError as error:
            if error.status == 404:
                return False
            raise
        return True
