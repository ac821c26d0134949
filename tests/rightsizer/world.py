"""A small true world for the rightsizer: a simulated API server with controllers, and series in a real Prometheus.

Workloads are created under a clock that stands in the past, so that their pods are as old as a test needs; each pod's
devices get a day of series of a named profile.
"""

import dataclasses
import datetime
import io
import itertools
import json
import math
import pathlib
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, Self

import yaml

from rightsizer.cli import main
from simulator.cluster import MovingClock
from simulator.kube import ApiServer
from simulator.prometheus import Prometheus
from simulator.remote_write import Series

DAY_S = 86_400
STEP_S = 60
H100 = "NVIDIA H100 80GB HBM3"
CLASSES = {"high-priority": 100_000, "medium-priority": 10_000, "low-priority": 1_000}
_APIS = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "Pod": "v1",
}

Values = dict[str, Sequence[float]]


def _flat(util: float, copy: float, fb_mib: float, power_w: float) -> Callable[[int], Values]:
    def values(count: int) -> Values:
        return {
            "DCGM_FI_DEV_GPU_UTIL": [util] * count,
            "DCGM_FI_DEV_MEM_COPY_UTIL": [copy] * count,
            "DCGM_FI_DEV_FB_USED": [fb_mib] * count,
            "DCGM_FI_DEV_POWER_USAGE": [power_w] * count,
        }

    return values


def _spiked(metric: str, value: float) -> Callable[[int], Values]:
    """Parked, but for one sample in the middle."""

    def values(count: int) -> Values:
        found = {name: list(column) for name, column in _flat(0, 0, 40_000, 118)(count).items()}
        found[metric][count // 2] = value
        return {name: tuple(column) for name, column in found.items()}

    return values


def _only(*metrics: str) -> Callable[[int], Values]:
    return lambda count: {name: _flat(0, 0, 40_000, 118)(count)[name] for name in metrics}


@dataclasses.dataclass(frozen=True, slots=True)
class Profile:
    """How one device looks in Prometheus.

    Attributes:
        parts: Where in the day there are samples: from, to (0 to 1), and in every how many-th minute.
    """

    values: Callable[[int], Values]
    parts: tuple[tuple[float, float, int], ...] = ((0.0, 1.0, 1),)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)


PARKED = _flat(0, 0, 40_000, 118)
PROFILES: Mapping[str, Profile | None] = {
    "absent": None,
    "idle": Profile(_flat(0, 0, 500, 70)),
    "parked": Profile(PARKED),
    "busy": Profile(_flat(93, 40, 60_000, 640)),
    "burst": Profile(_spiked("DCGM_FI_DEV_GPU_UTIL", 60)),
    "spinning": Profile(_flat(100, 0, 40_000, 118)),
    "hot": Profile(_flat(0, 0, 40_000, 400)),
    "loading": Profile(_flat(0, 30, 40_000, 118)),
    "newest-half": Profile(PARKED, parts=((0.5, 1.0, 1),)),
    "stopped-an-hour-ago": Profile(PARKED, parts=((0.0, 1 - 1 / 24, 1),)),
    "four-hours-missing": Profile(PARKED, parts=((0.0, 0.4, 1), (0.4 + 4 / 24, 1.0, 1))),
    "thinned-out": Profile(PARKED, parts=((0.0, 0.5, 4), (0.5, 1.0, 1))),
    "garbage": Profile(_spiked("DCGM_FI_DEV_GPU_UTIL", 808_334_905)),
    "nan": Profile(_spiked("DCGM_FI_DEV_GPU_UTIL", math.nan)),
    "negative": Profile(_spiked("DCGM_FI_DEV_GPU_UTIL", -1)),
    "mig": Profile(_only("DCGM_FI_DEV_FB_USED"), labels={"GPU_I_ID": "3", "GPU_I_PROFILE": "1g.10gb"}),
    "no-second-signal": Profile(_only("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED")),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
    """What one command came to."""

    code: int
    out: str
    err: str

    @property
    def items(self) -> dict[str, dict[str, Any]]:
        """The items of the document that it printed, by name."""
        assert self.out, self.err
        return {item["name"]: item for item in json.loads(self.out)["items"]}


class World:
    """One API server, and series of its own in a Prometheus that others use too.

    Attributes:
        team: A namespace that no other world has, so that no other world's series name its pods.
        labels: What all series that are recorded from now on carry, too.
    """

    def __init__(self, directory: pathlib.Path, prometheus: Prometheus, *, exported: bool = True) -> None:
        self.clock = MovingClock()
        self.api = ApiServer(clock=self.clock, termination_delay_s=0.0)
        self.prometheus = prometheus
        self.directory = directory
        self.team = f"team-{uuid.uuid4().hex[:8]}"
        self.labels: dict[str, str] = {}
        self._exported = exported
        self._uuids = (f"GPU-{id(self):x}-{number:04d}" for number in itertools.count())

    def __enter__(self) -> Self:
        self.api.start()
        self.clock.stand(time.time() - 30 * DAY_S)
        for name, value in CLASSES.items():
            meta = {"name": name}
            self.api.create(
                {
                    "apiVersion": "scheduling.k8s.io/v1",
                    "kind": "PriorityClass",
                    "metadata": meta,
                    "value": value,
                }
            )
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

    def node(self, name: str, *, resources: Mapping[str, int] | None = None, **labels: str) -> None:
        """A node with plenty of GPUs."""
        amounts = {"cpu": "512", "memory": "4Ti", "pods": "500"}
        amounts |= {key: str(value) for key, value in (resources or {"nvidia.com/gpu": 64}).items()}
        self.api.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {
                    "name": name,
                    "labels": {key.replace("__", "/"): value for key, value in labels.items()},
                },
                "status": {"capacity": amounts, "allocatable": amounts},
            }
        )

    def add(self, kind: str, namespace: str, name: str, given: Mapping[str, Any]) -> None:
        """A workload of a certain age whose pods' devices look as their profiles say."""
        self.clock.stand(time.time() - given.get("age_h", 72) * 3600)
        self.namespace(namespace, given.get("namespaceAnnotations"))
        self.api.create(_manifest(kind, namespace, name, given))
        self.api.settle()
        self.clock.run()
        profiles = given.get("usage", "parked")
        pods = sorted(self.pods_of(namespace, name), key=lambda pod: str(pod["metadata"]["name"]))
        for number, pod in enumerate(pods):
            looks = profiles if isinstance(profiles, str) else profiles[number % len(profiles)]
            self.record(pod, looks, given.get("gpus", 1))

    def record(self, pod: Mapping[str, Any], looks: str | Sequence[str], gpus: int) -> None:
        """Write the day of a pod's devices into Prometheus."""
        names = [looks] * gpus if isinstance(looks, str) else list(looks)
        series = [
            one
            for name in names
            for one in self._series(pod["metadata"]["namespace"], pod["metadata"]["name"], PROFILES[name])
        ]
        self.prometheus.write(series)

    def _series(self, namespace: str, pod: str, profile: Profile | None) -> Iterator[Series]:
        if profile is None:
            return
        until = int(time.time())
        seconds = range(until - DAY_S - 3600, until + 1, STEP_S)
        owner = {"namespace": namespace, "pod": pod, "container": "main"}
        target = {
            "namespace": "monitoring",
            "pod": "gpu-exporter-x",
            "container": "exporter",
            "instance": "n1:9400",
        }
        labels = (
            {**target, **{f"exported_{key}": value for key, value in owner.items()}}
            if self._exported
            else owner
        )
        device = {
            "gpu": "0",
            "UUID": next(self._uuids),
            "modelName": H100,
            "job": "gpu",
            **profile.labels,
            **self.labels,
        }
        for begin, end, every in profile.parts:
            part = seconds[int(len(seconds) * begin) : int(len(seconds) * end) : every]
            for metric, values in profile.values(len(part)).items():
                yield Series({"__name__": metric, **device, **labels}, part, values)

    # --- when

    def write_kubeconfig(self, token: str | None = None) -> pathlib.Path:
        """The kubeconfig that commands use from now on."""
        path = self.directory / "kubeconfig"
        document = self.api.kubeconfig(token) if token else self.api.kubeconfig()
        path.write_text(yaml.safe_dump(document))
        return path

    def run(self, *arguments: str, policy: str | None = None) -> Run:
        """Run a command in this process with the world's Prometheus and kubeconfig."""
        flags = ["--kubeconfig", str(self.directory / "kubeconfig")]
        if arguments[0] in {"plan", "apply"}:
            flags += ["--prometheus-url", self.prometheus.url]
        if policy is not None:
            path = self.directory / "policy.yaml"
            path.write_text(policy)
            flags += ["--policy", str(path)]
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            try:
                code = main([*arguments, *flags])
            except SystemExit as exit_:
                code = int(exit_.code or 0)
        return Run(code, out.getvalue(), err.getvalue())

    # --- then

    def pods_of(self, namespace: str, name: str) -> list[dict[str, Any]]:
        """The pods of one workload that still exist, once the controllers have come to rest."""
        self.api.settle()
        pods = self.api.list("Pod", namespace)
        return [pod for pod in pods if pod["metadata"].get("labels", {}).get("app") == name]


def _manifest(kind: str, namespace: str, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    labels = {"app": name}
    resource = given.get("resource", "nvidia.com/gpu")
    spec: dict[str, Any] = {
        "priorityClassName": given.get("priorityClass", "low-priority"),
        "containers": [
            {"name": "main", "image": "x", "resources": {"limits": {resource: str(given.get("gpus", 1))}}}
        ],
        "nodeSelector": given.get("nodeSelector", {}),
    }
    if kind in {"Pod", "Job"}:
        spec["restartPolicy"] = "Never"
    metadata = {"name": name, "namespace": namespace, "annotations": given.get("annotations", {})}
    template = {"metadata": {"labels": labels, "annotations": given.get("podAnnotations", {})}, "spec": spec}
    top: dict[str, Any] = {"apiVersion": _APIS[kind], "kind": kind, "metadata": metadata}
    if kind == "Pod":
        return {**top, "metadata": {**metadata, "labels": labels}, "spec": spec}
    if kind == "Job":
        count = given.get("replicas", 1)
        return {**top, "spec": {"parallelism": count, "completions": count, "template": template}}
    body = {"replicas": given.get("replicas", 1), "selector": {"matchLabels": labels}, "template": template}
    return {**top, "spec": {**body, "serviceName": name} if kind == "StatefulSet" else body}


def created(api: ApiServer, kind: str, namespace: str, name: str) -> dict[str, Any]:
    """An object that must be there."""
    obj = api.get(kind, namespace, name)
    assert obj is not None
    return obj


def stamp(at: datetime.datetime) -> str:
    """An instant as Kubernetes writes it."""
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
