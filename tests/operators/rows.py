"""Kinds of real operators in each state that pods on simulated nodes can reach, and what becomes of each."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tests.controlplane.contract.server import Object
from tests.controlplane.world import RealWorld
from tests.rightsizer.given import manifest

Template = Object
Spec = Callable[[Template], Object]
Path = tuple[str, ...]

ENDS = "simulator.gpu-rightsizer.io/ends-after"
EXIT = "simulator.gpu-rightsizer.io/exit-code"
SUSPENDED = ("spec", "suspend")
_RUN_POLICY = ("spec", "runPolicy", "suspend")
_CLEANED = ("spec", "runPolicy", "cleanPodPolicy")
NOWHERE = "nowhere"
_SUSPENDED = ("conditions", "Suspended")


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A kind in one state.

    Attributes:
        operator: Its program in OPERATORS.
        spec: As its owner writes it, from a template of pods with one container.
        container: The name of that container, where its operator insists on one.
        pods: Pods that run before anything is changed.
        waits: Whether others wait for a node meanwhile.
        status: What brings it into its state, if not its pods.
        reached: A field of its status and its value in that state, or one of its conditions.
        result: Of `apply`; empty if it plans nothing.
        stopped: The field that the stop sets, and its value.
        owned: The kind of the object that has this field, if another.
        back: Pods that undo brings back.
        runtime: The spec of a TrainingRuntime of the same name, which describes its pods.
        restored: Fields of its spec that undo leaves behind where there were none.
    """

    operator: str
    api_version: str
    kind: str
    state: str
    spec: Spec
    pods: int
    waits: bool = False
    container: str = "main"
    status: Object = dataclasses.field(default_factory=dict)
    reached: tuple[str, str] | None = None
    result: str = "done"
    action: str = "suspend"
    stopped: tuple[Path, object] = (SUSPENDED, True)
    owned: str = ""
    back: int = 0
    runtime: Spec | None = None
    restored: Object = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of its object."""
        return f"{self.kind}-{self.state}".lower()

    def __str__(self) -> str:
        """The name of its test."""
        return f"{self.kind}-{self.state}"


def body(world: RealWorld, row: Row, *, kind: str = "", spec: Spec | None = None) -> Object:
    """The object of a row, with pods for a team's nodes; or one of another kind with the same name."""
    given = {"nodeSelector": world.labels, "container": {"name": row.container}}
    pod = manifest("Pod", world.team, row.name, given)
    del pod["spec"]["restartPolicy"]
    template = {"metadata": {"labels": pod["metadata"]["labels"]}, "spec": pod["spec"]}
    labels = {"trainer.kubeflow.org/framework": "torch"}
    metadata = {"name": row.name, "labels": labels if spec else {}}
    head = {"apiVersion": row.api_version, "kind": kind or row.kind, "metadata": metadata}
    return {**head, "spec": (spec or row.spec)(template)}


def _ending(template: Template, code: str) -> Template:
    ending: Template = copy.deepcopy(template)
    ending["metadata"]["annotations"] = {ENDS: "4s", EXIT: code}
    return ending


def _unplaced(spec: Spec) -> Spec:
    """The same, with pods that fit on no node."""

    def make(template: Template) -> Object:
        elsewhere: Template = copy.deepcopy(template)
        elsewhere["spec"]["nodeSelector"] = {"team": NOWHERE}
        return spec(elsewhere)

    return make


def _training(specs: str, first: str, *, code: str = "", **policy: object) -> Spec:
    """A job of two members; with a code the first one ends with it, and is not started again."""

    def make(template: Template) -> Object:
        member = {"replicas": 1, "template": _ending(template, code) if code else template}
        others: Object = {"Worker": {"replicas": 1, "template": template}}
        if first == "Worker":
            others = {}
            member["replicas"] = 2
        return {"runPolicy": policy, specs: {first: {**member, "restartPolicy": "Never"}, **others}}

    return make


_KUBEFLOW = {
    "PyTorchJob": ("pytorchReplicaSpecs", "Master", "pytorch"),
    "TFJob": ("tfReplicaSpecs", "Chief", "tensorflow"),
    "XGBoostJob": ("xgbReplicaSpecs", "Master", "xgboost"),
    "PaddleJob": ("paddleReplicaSpecs", "Master", "paddle"),
    "JAXJob": ("jaxReplicaSpecs", "Worker", "jax"),
    "MPIJob": ("mpiReplicaSpecs", "Launcher", "mpi"),
}


def _kubeflow() -> Iterator[Row]:
    for kind, (specs, first, container) in _KUBEFLOW.items():

        def row(state: str, spec: Spec, pods: int, **expected: Any) -> Row:
            return Row(
                "training-operator",
                "kubeflow.org/v1",
                kind,  # noqa: B023 - called at once
                state,
                spec,
                pods,
                container=container,  # noqa: B023
                **expected,
            )

        running = _training(specs, first)
        yield row("running", running, 2, stopped=(_RUN_POLICY, True), back=2)
        yield row("waiting", _unplaced(running), 0, waits=True, result="")
        yield row("suspended", _training(specs, first, suspend=True), 0, reached=_SUSPENDED, result="")
        if first != "Worker":
            for state, code in (("Succeeded", "0"), ("Failed", "1")):
                ended = _training(specs, first, code=code)
                cleaned = (_CLEANED, "Running")
                yield row(state.lower(), ended, 1, reached=("conditions", state), stopped=cleaned)


def _mpi_jobs() -> Iterator[Row]:
    """By the operator of their newer version; the names differ from those of the older one."""
    older = [row for row in _kubeflow() if row.kind == "MPIJob"]
    for row in older:
        newer = dataclasses.replace(
            row, operator="mpi-operator", api_version="kubeflow.org/v2beta1", state=f"v2-{row.state}"
        )
        # Its launcher is a Job, which tries again for minutes.
        fails = _training("mpiReplicaSpecs", "Launcher", code="1", backoffLimit=0)
        yield dataclasses.replace(newer, spec=fails) if row.state == "failed" else newer


def _train_job(**fields: object) -> Spec:
    return lambda template: {
        "runtimeRef": {"kind": "TrainingRuntime", "name": template["metadata"]["labels"]["app"]},
        **fields,
    }


def _runtime(code: str = "") -> Spec:
    def make(template: Template) -> Object:
        pods = _ending(template, code) if code else template
        never = {**pods, "spec": {**pods["spec"], "restartPolicy": "Never"}}
        metadata = {"labels": {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}}
        job = {"metadata": metadata, "spec": {"backoffLimit": 0, "template": never}}
        jobs = {"replicatedJobs": [{"name": "node", "template": job}]}
        return {"mlPolicy": {"numNodes": 2, "torch": {}}, "template": {"spec": jobs}}

    return make


def _train_jobs() -> Iterator[Row]:
    def row(state: str, spec: Spec, runtime: Spec, pods: int, **expected: Any) -> Row:
        return Row(
            "trainer",
            "trainer.kubeflow.org/v1alpha1",
            "TrainJob",
            state,
            spec,
            pods,
            container="node",
            runtime=runtime,
            **expected,
        )

    yield row("running", _train_job(), _runtime(), 2, back=2)
    yield row("waiting", _train_job(), _unplaced(_runtime()), 0, waits=True, result="")
    yield row("suspended", _train_job(suspend=True), _runtime(), 0, reached=_SUSPENDED, result="")
    for state, code in (("Complete", "0"), ("Failed", "1")):
        reached = ("conditions", state)
        yield row(state.lower(), _train_job(), _runtime(code), 0, reached=reached, result="")


def _job_set(code: str = "", **fields: object) -> Spec:
    def make(template: Template) -> Object:
        def job(name: str, template: Template) -> Object:
            never = {**template, "spec": {**template["spec"], "restartPolicy": "Never"}}
            spec = {"parallelism": 1, "completions": 1, "backoffLimit": 0, "template": never}
            return {"name": name, "replicas": 1, "template": {"spec": spec}}

        first = _ending(template, code) if code else template
        return {"replicatedJobs": [job("driver", first), job("workers", template)], **fields}

    return make


def _job_sets() -> Iterator[Row]:
    def row(state: str, spec: Spec, pods: int, **expected: Any) -> Row:
        return Row("jobset", "jobset.x-k8s.io/v1alpha2", "JobSet", state, spec, pods, **expected)

    yield row("running", _job_set(), 2, back=2)
    yield row("waiting", _unplaced(_job_set()), 0, waits=True, result="")
    yield row("suspended", _job_set(suspend=True), 0, reached=_SUSPENDED, result="")
    any_of = {"operator": "Any", "targetReplicatedJobs": ["driver"]}
    # Its controller deletes what still runs.
    yield row(
        "completed", _job_set("0", successPolicy=any_of), 0, reached=("conditions", "Completed"), result=""
    )
    yield row("failed", _job_set("1"), 0, reached=("conditions", "Failed"), result="")


def ray_cluster(template: Template, *, workers: int = 2, least: int = 0) -> Object:
    """A head and its workers."""
    group = {
        "groupName": "gpu",
        "replicas": workers,
        "minReplicas": least,
        "maxReplicas": 4,
        "rayStartParams": {},
        "template": template,
    }
    return {
        "headGroupSpec": {"rayStartParams": {}, "template": template},
        "workerGroupSpecs": [group],
    }


def _suspended_cluster(template: Template) -> Object:
    return {"suspend": True, **ray_cluster(template)}


def _ray_job(**fields: object) -> Spec:
    return lambda template: {
        "entrypoint": "python train.py",
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": 100_000,
        "rayClusterSpec": ray_cluster(template),
        **fields,
    }


def _ray() -> Iterator[Row]:
    def row(kind: str, state: str, spec: Spec, pods: int, **expected: Any) -> Row:
        return Row("kuberay", "ray.io/v1", kind, state, spec, pods, **expected)

    yield row("RayCluster", "running", ray_cluster, 3, back=3, restored={"suspend": False})
    yield row("RayCluster", "waiting", _unplaced(ray_cluster), 0, waits=True, result="")
    yield row("RayCluster", "suspended", _suspended_cluster, 0, reached=("state", "suspended"), result="")
    reached = "jobDeploymentStatus"
    yield row("RayJob", "running", _ray_job(), 3, reached=(reached, "Running"), back=3)
    yield row(
        "RayJob",
        "initializing",
        _unplaced(_ray_job()),
        0,
        waits=True,
        reached=(reached, "Initializing"),
        result="",
    )
    yield row("RayJob", "suspended", _ray_job(suspend=True), 0, reached=(reached, "Suspended"), result="")
    interactive = _ray_job(submissionMode="InteractiveMode")
    yield row(
        "RayJob",
        "waiting",
        interactive,
        3,
        reached=(reached, "Waiting"),
        owned="RayCluster",
        back=3,
        restored={"suspend": False},
    )
    kept = _ray_job(shutdownAfterJobFinishes=False, ttlSecondsAfterFinished=0)
    yield row("RayJob", "kept", kept, 3, reached=(reached, "Running"), result="", back=3)
    for state, status in (("Complete", "SUCCEEDED"), ("Failed", "FAILED")):
        yield row(
            "RayJob",
            state.lower(),
            _ray_job(),
            3,
            status={reached: state, "jobStatus": status, "endTime": "2126-11-30T00:00:00Z"},
            reached=(reached, state),
            owned="RayCluster",
            back=3,
            restored={"suspend": False},
        )
    yield row("RayService", "running", _ray_service, 3, result="blocked", back=3)


def _ray_service(template: Template) -> Object:
    return {"serveConfigV2": "applications: []", "rayClusterConfig": ray_cluster(template)}


def groups(replicas: int) -> Spec:
    """Replicas of a leader and one worker."""
    return lambda template: {
        "replicas": replicas,
        "leaderWorkerTemplate": {"size": 2, "workerTemplate": template},
    }


def _leader_worker_sets() -> Iterator[Row]:
    def row(state: str, spec: Spec, pods: int, **expected: Any) -> Row:
        return Row("lws", "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", state, spec, pods, **expected)

    stopped = (("spec", "replicas"), 0)
    yield row("running", groups(2), 4, action="scale-to-zero", stopped=stopped, back=4)
    yield row("waiting", _unplaced(groups(1)), 0, waits=True, result="")
    yield row("scaled-to-zero", groups(0), 0, result="")


ROWS: Mapping[str, Row] = {
    str(row): row
    for row in (
        *_kubeflow(),
        *_job_sets(),
        *_ray(),
        *_leader_worker_sets(),
        *_mpi_jobs(),
        *_train_jobs(),
    )
}
