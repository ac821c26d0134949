"""A small cluster for the rightsizer: a simulated API server with controllers, and series in a real Prometheus.

Workloads are created while the clock stands in the past, so that their pods are as old as the test needs. Each device
of a pod gets one day of series from a named profile.
"""

import datetime
import pathlib
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import yaml

from simulator.cluster import MovingClock
from simulator.kube import ApiServer, LoggedRequest
from simulator.series_store import SeriesStore
from tests.rightsizer.commands import Run, run_command
from tests.rightsizer.given import (
    CLASSES,
    DAY_S,
    day_of,
    elsewhere,
    manifest,
    priority_class,
    serving,
    waiting,
)
from tests.rightsizer.relay import Relay

BUDGETS = """
budgets:
  - {per: run, workloads: 100}
  - {per: hour, workloads: 100}
  - {scope: namespace, per: run, workloads: 100}
  - {scope: owner, per: day, workloads: 100}
"""
"""The default ones would stop most of a world of a dozen GPUs."""
EXAMPLE = re.sub(
    r"(?m)^# (defaults:|  idle:|    \w+: .*)$",
    r"\1",
    (pathlib.Path(__file__).parents[2] / "deploy/examples/policy.yaml").read_text(),
)
"""With the same window for all kinds, as its comment shows it."""
DEFAULT_POLICY = (
    re.sub(r"^budgets:\n(?:  - .*\n)+", "", EXAMPLE, flags=re.MULTILINE).replace(
        "defaults:\n", "defaults:\n  kinds: []\n"
    )
    + BUDGETS
)


class World:
    """One API server, and the series of its pods in a Prometheus.

    Attributes:
        team: The namespace of this world alone.
        relay: If set, commands query it instead of Prometheus.
        labels: Extra labels of all series that are recorded from now on.
    """

    def __init__(
        self, directory: pathlib.Path, prometheus: SeriesStore, *, exported: bool = True, seed: int = 1
    ) -> None:
        self.clock = MovingClock()
        self.api = ApiServer(clock=self.clock, termination_delay_s=0.0, seed=seed)
        self.prometheus = prometheus
        self.directory = directory
        self.team = f"team-{uuid.uuid4().hex[:8]}"
        self.labels: dict[str, str] = {}
        self.relay: Relay | None = None
        self._exported = exported

    def __enter__(self) -> Self:
        self.api.start()
        self.clock.stand(time.time() - 30 * DAY_S)
        for name, value in CLASSES.items():
            self.api.create(priority_class(name, value))
        self.node("n1")
        self.namespace("gpu-rightsizer")
        self.write_kubeconfig()
        return self

    def __exit__(self, *_: object) -> None:
        self.api.stop()

    # --- given

    def namespace(self, name: str, annotations: Mapping[str, str] | None = None) -> None:
        """A namespace, unless it exists."""
        if self.api.get("Namespace", None, name) is None:
            metadata = {"name": name, "annotations": dict(annotations or {})}
            self.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})

    def node(
        self,
        name: str,
        *,
        resources: Mapping[str, int] | None = None,
        annotations: Mapping[str, str] | None = None,
        **labels: str,
    ) -> None:
        """A node with plenty of GPUs."""
        amounts = {"cpu": "512", "memory": "4Ti", "pods": "500"}
        amounts |= {key: str(value) for key, value in (resources or {"nvidia.com/gpu": 64}).items()}
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "annotations": dict(annotations or {}),
                    "labels": {key.replace("__", "/"): value for key, value in labels.items()},
                },
                "status": {"capacity": amounts, "allocatable": amounts},
            }
        )

    def add(self, kind: str, namespace: str, name: str, given: Mapping[str, Any]) -> None:
        """Create a workload of a given age, and series of its devices from the named profiles."""
        self.clock.stand(time.time() - given.get("age_h", 24.8) * 3600)
        self.namespace(namespace, given.get("namespaceAnnotations"))
        made = manifest(kind, namespace, name, given)
        made["metadata"] |= {"ownerReferences": given["owners"]} if "owners" in given else {}
        self.api.create(made)
        self.api.settle()
        self.clock.run()
        profiles = given.get("usage", "idle")
        if "status" in given:
            obj = created(self.api, kind, namespace, name)
            self.api.update({**obj, "status": given["status"]}, subresource="status")
        self._put(namespace, name, given.get("podStatus"))
        pods = sorted(self.pods_of(namespace, name), key=lambda pod: str(pod["metadata"]["name"]))
        for number, pod in enumerate(pods):
            looks = profiles if isinstance(profiles, str) else profiles[number % len(profiles)]
            self.record(pod, looks, given.get("gpus", 1), given.get("series", {}))
            for work in given.get("elsewhere", {}).get(number, ()):
                meta, node = pod["metadata"], pod["spec"]["nodeName"]
                found = elsewhere(meta["namespace"], meta["name"], work, exported=self._exported, node=node)
                self.prometheus.write(found)
            if "throttled" in given:
                meta = pod["metadata"]
                self.prometheus.write(waiting(meta["namespace"], meta["name"], given["throttled"]))
            if "served" in given:
                meta, address = pod["metadata"], pod["status"]["podIP"]
                self.prometheus.write(serving(meta["namespace"], meta["name"], address, given["served"]))

    def _put(self, namespace: str, name: str, status: Mapping[str, Any] | None) -> None:
        """Set the status of the pods of a workload."""
        for pod in self.pods_of(namespace, name) if status else ():
            self.api.patch(
                "Pod", namespace, pod["metadata"]["name"], {"status": status}, subresource="status"
            )

    def record(
        self,
        pod: Mapping[str, Any],
        looks: str | Sequence[str],
        gpus: int,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        """Write one day of series of the devices of a pod to Prometheus, with these labels, too."""
        names = [looks] * gpus if isinstance(looks, str) else looks
        meta = pod["metadata"]
        self.prometheus.write(
            day_of(
                meta["namespace"],
                meta["name"],
                names,
                exported=self._exported,
                node=pod.get("spec", {}).get("nodeName") or "n1",
                extra={**self.labels, **(labels or {})},
            )
        )

    # --- when

    def after(self, suffix: str, happen: Callable[[], None], *, method: str = "") -> None:
        """Call `happen` once, before the API server answers a request in the namespace of the team."""
        add, waiting = self.api.requests.add, [happen]

        def noted(entry: LoggedRequest) -> None:
            add(entry)
            if waiting and method in {"", entry.method} and entry.path.endswith(f"{self.team}/{suffix}"):
                waiting.pop()()

        self.api.requests.add = noted  # type: ignore[method-assign]

    def write_kubeconfig(self, token: str | None = None) -> pathlib.Path:
        """Write the kubeconfig that commands use from now on."""
        path = self.directory / "kubeconfig"
        document = self.api.kubeconfig(token) if token else self.api.kubeconfig()
        path.write_text(yaml.safe_dump(document))
        return path

    def run(self, *arguments: str, policy: str | None = None) -> Run:
        """Run a command in this process with the Prometheus and kubeconfig of the world."""
        flags = ["--kubeconfig", str(self.directory / "kubeconfig")]
        if arguments[0] in {"plan", "apply", "doctor"}:
            flags += ["--prometheus-url", (self.relay or self.prometheus).url]
        if policy is not None:
            path = self.directory / "policy.yaml"
            path.write_text(policy)
            flags += ["--policy", str(path)]
        return run_command(*arguments, *flags)

    # --- then

    def pods_of(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """The existing pods of one workload, after the controllers have settled."""
        self.api.settle()
        pods = self.api.list("Pod", namespace)
        return [pod for pod in pods if pod["metadata"].get("labels", {}).get("app") == name]


def gpus_of(pod: Mapping[str, Any]) -> int:
    """The number of GPUs in the limits of a pod."""
    limits = (one.get("resources", {}).get("limits", {}) for one in pod["spec"]["containers"])
    return sum(int(amounts.get("nvidia.com/gpu", 0)) for amounts in limits)


def created(api: ApiServer, kind: str, namespace: str, name: str) -> dict[str, Any]:
    """An object that must exist."""
    obj = api.get(kind, namespace, name)
    assert obj is not None
    return obj


def stamp(at: datetime.datetime) -> str:
    """A timestamp in the format of Kubernetes."""
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
