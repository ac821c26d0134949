"""The exporter on the real node: its DaemonSet as the chart renders it, and scrapes of it."""

import http.client
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks._timelapse import samples
from simulator.realnode.images import python_image
from simulator.realnode.node import Node
from tests.deploy.chart import render
from tests.node.cluster import Cluster, Object
from tests.waiting import wait_until

IMAGE = "localhost/gpu-rightsizer:1"
_PACKAGES = ("exporter", "h2", "hpack", "hyperframe", "prometheus_client", "pynvml")
_VALUES: Object = {"image": {"registry": "localhost/", "repository": "gpu-rightsizer", "tag": "1"}}
_PORT = 9400
_OF_GPU = "DCGM_FI_DEV_FB_USED"


def import_exporter(node: Node, archive: Path) -> None:
    """Make the image of this checkout's exporter known to the node."""
    packages = [_place(name) for name in _PACKAGES]
    python_image(archive, IMAGE, packages=packages, command="gpu-exporter", module="exporter")
    node.import_image(archive)


def _place(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    path = Path(spec.origin)
    return path.parent if path.name == "__init__.py" else path


class Exporter:
    """The exporter's DaemonSet, installed in a namespace; scraped at its pod's address."""

    def __init__(self, cluster: Cluster, **values: Any) -> None:
        self._cluster = cluster
        chosen = {"interval": "1s", "metrics": "full", "attribution": {"enabled": True}, **values}
        objects = render({**_VALUES, "exporter": chosen}, namespace=cluster.namespace, only=["exporter"])
        self._objects = [found for found in objects if found["kind"] in {"ServiceAccount", "DaemonSet"}]
        self.pod: Object = {}

    def __enter__(self) -> Self:
        space = f"namespaces/{self._cluster.namespace}"
        for body in self._objects:
            path = "/api/v1" if body["kind"] == "ServiceAccount" else "/apis/apps/v1"
            self._cluster.client.create(f"{path}/{space}/{body['kind'].lower()}s", body)
        wait_until(self._is_ready)
        return self

    def __exit__(self, *_: object) -> None:
        space = f"/apis/apps/v1/namespaces/{self._cluster.namespace}/daemonsets"
        for found in self._cluster.client.get(space)["items"]:
            self._cluster.client.delete(f"{space}/{found['metadata']['name']}")

    def log(self) -> str:
        """Its output."""
        pattern = f"{self._cluster.namespace}_*/exporter/*.log"
        files = (self._cluster.node.root / "var/log/pods").glob(pattern)
        return "".join(path.read_text() for path in sorted(files))

    def scrape(self) -> list[tuple[str, Mapping[str, str], float]]:
        """Name, labels and value of every series."""
        connection = http.client.HTTPConnection(self.pod["status"]["podIP"], _PORT)
        connection.sock = self._cluster.node.connection(self.pod["status"]["podIP"], _PORT)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        assert answer.status == http.HTTPStatus.OK, text
        return list(samples(text))

    def holders(self, namespace: str, name: str = _OF_GPU) -> list[tuple[str, str]]:
        """Pod and container of each series of a metric, but 0 of a container that has ended, in a namespace."""
        return sorted(
            (labels["pod"], labels.get("container", ""))
            for found, labels, value in self.scrape()
            if found == name and labels.get("namespace") == namespace and (value or name == _OF_GPU)
        )

    def devices(self, namespace: str, name: str) -> list[tuple[str, str]]:
        """Container and UUID, of the GPU or MIG device, of each series of a metric that `holders` tells of."""
        return sorted(
            (labels.get("container", ""), labels.get("mig_uuid") or labels.get("UUID", ""))
            for found, labels, value in self.scrape()
            if found == name and labels.get("namespace") == namespace and (value or name == _OF_GPU)
        )

    def values(self, name: str) -> dict[str, float]:
        """The values of a metric by the UUID of the GPU or MIG device."""
        return {
            labels.get("mig_uuid") or labels.get("UUID", ""): value
            for found, labels, value in self.scrape()
            if found == name
        }

    def _is_ready(self) -> bool:
        pods = self._cluster.client.get(f"/api/v1/namespaces/{self._cluster.namespace}/pods")["items"]
        for found in pods:
            if found["metadata"].get("labels", {}).get("app.kubernetes.io/component") == "exporter":
                self.pod = found
                statuses = found["status"].get("containerStatuses", ())
                return bool(statuses) and all(status["ready"] for status in statuses)
        return False
