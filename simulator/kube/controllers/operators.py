"""Simulates third-party operators, Kueue and KEDA.

Operators create and delete the pods of their objects by one table. The objects in between (Services, StatefulSets,
Jobs) are left out: the custom resource owns the pods. Pods that were not created here are left alone.
"""

import dataclasses
import functools
import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.kube.controllers.context import Context, Key, is_kind
from simulator.kube.errors import ApiError
from simulator.kube.objects import (
    Object,
    annotations_of,
    controller_of,
    controller_reference,
    is_terminating,
    labels_of,
    uid_of,
)
from simulator.kube.resources import by_kind
from simulator.kube.store import Event, Record

_COUNTS = ("replicas", "minReplicas", "parallelism", "numNodes", "size")
"""How many of what stands below there are; the first that is there counts."""
_HASH = "simulator/template"
_NIM_POD = ("nodeSelector", "priorityClassName", "runtimeClassName", "tolerations")
"""Fields of a pod in the spec of a NIMService."""
_GROUP = "ray.io/group"
_COMPONENT = "nvidia.com/dynamo-component"
_COST = "controller.kubernetes.io/pod-deletion-cost"
_MIN_SCALE = ("spec", "template", "metadata", "annotations", "autoscaling.knative.dev/min-scale")
_SUSPEND = (("spec", "suspend"), True)
_RUN_POLICY = (("spec", "runPolicy", "suspend"), True)
_CLEAN = ("spec", "runPolicy", "cleanPodPolicy")
_VOLCANO_ENDED = frozenset({"Completed", "Terminated", "Failed"})
_STOPPED = (("metadata", "annotations", "serving.kserve.io/stop"), "true")


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """What one operator reacts to.

    Attributes:
        stop: Path and value with which its object has no pods; None as value: any.
        rolls: Whether a changed template replaces the pods.
        ended: States in which it makes and deletes no pods, except by `clean`.
        clean: Path of the policy by which it deletes running pods once the object has ended.
        latch: Condition of a stopped object; only the opposite value of `stop` ends it, an absent one does not.
    """

    kind: str
    stop: tuple[tuple[str, ...], object] | None = None
    rolls: bool = False
    ended: frozenset[str] = frozenset()
    clean: tuple[str, ...] = ()
    latch: str = ""


_OPERATORS = (
    Operator("ReplicationController"),
    Operator("JobSet", _SUSPEND, ended=frozenset({"Completed", "Failed"})),
    Operator("LeaderWorkerSet", rolls=True),
    *(
        Operator(kind, _RUN_POLICY, ended=frozenset({"Succeeded", "Failed"}), clean=_CLEAN)
        for kind in ("PyTorchJob", "TFJob", "MPIJob", "XGBoostJob", "PaddleJob", "JAXJob")
    ),
    Operator("TrainJob", _SUSPEND, ended=frozenset({"Complete", "Failed"})),
    Operator("Notebook", (("metadata", "annotations", "kubeflow-resource-stopped"), None), rolls=True),
    Operator("Workspace", (("spec", "paused"), True)),
    Operator("InferenceService", _STOPPED, rolls=True),
    Operator("LLMInferenceService", _STOPPED),
    Operator("Service.serving.knative.dev", (_MIN_SCALE, "0"), rolls=True),
    Operator("NIMService", rolls=True),
    Operator("DynamoGraphDeployment"),
    Operator("PodCliqueSet", (("spec", "replicas"), 0)),
    Operator("RayCluster", _SUSPEND, latch="RayClusterSuspended"),
    Operator("RayJob"),
    Operator("RayService", _SUSPEND),
    Operator("Rollout", rolls=True),
    Operator("Workflow", (("spec", "shutdown"), None), ended=frozenset({"Succeeded", "Failed", "Error"})),
    Operator("Job.batch.volcano.sh", (("status", "state", "phase"), "Aborted"), ended=_VOLCANO_ENDED),
    Operator("AppWrapper", _SUSPEND, ended=frozenset({"Succeeded"})),
    Operator("CloneSet", rolls=True),
    Operator("TaskRun"),
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Part:
    """Pods of one template; `leaving` are deleted first."""

    count: int
    labels: Mapping[str, str]
    spec: Object
    leaving: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        return f"{zlib.crc32(json.dumps(self.spec, sort_keys=True).encode()):08x}"


class Operators:
    """All operators in one."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._by_resource = {by_kind(one.kind): one for one in _OPERATORS}
        self._kinds = {(row.api_version, row.kind) for row in self._by_resource}
        self._volcano = by_kind("Command")

    def keys(self, event: Event) -> Iterator[Key]:
        """Objects of the table, owners of changed pods, and Volcano's Commands."""
        record = event.record
        if record.resource in self._by_resource or record.resource is self._volcano:
            yield (record.namespace, record.name, uid_of(record.obj))
            return
        owner = controller_of(record.obj)
        if owner is not None and (owner["apiVersion"], owner["kind"]) in self._kinds:
            yield (record.namespace, owner["name"], owner["uid"])

    def reconcile(self, key: Key) -> None:
        """Make and delete pods."""
        record = self._context.registry.store.by_uid(key[2])
        if record is None or is_terminating(record.obj):
            return
        if record.resource is self._volcano:
            self._execute(record)
            return
        operator = self._by_resource[record.resource]
        if operator.kind == "RayJob":
            self._run_ray_job(record)
            return
        parts = [] if self._is_stopped(operator, record) else list(_parts(record.obj))
        if operator.ended & _states(record.obj):
            if not operator.clean or not any(
                _is_at(record.obj, operator.clean, to) for to in ("Running", "All")
            ):
                return
            parts = []
        pods = [
            row
            for row in self._context.registry.store.dependents(key[2])
            if row.resource is by_kind("Pod")
            and _HASH in annotations_of(row.obj)
            and not is_terminating(row.obj)
        ]
        for number, part in enumerate(parts):
            self._fill(record, number, part, pods, rolls=operator.rolls)
        for row in pods:
            number = int(row.name.rpartition("-")[0].rpartition("-")[2])
            if number >= len(parts):
                self._context.delete(row)

    def _is_stopped(self, operator: Operator, record: Record) -> bool:
        if operator.stop is None:
            return False
        (path, value), was = operator.stop, operator.latch in _states(record.obj)
        now = _is_at(record.obj, path, value) or (was and not _is_at(record.obj, path, not value))
        if operator.latch and now != was:
            status = record.obj.get("status", {})
            conditions = [one for one in status.get("conditions", ()) if one["type"] != operator.latch]
            conditions.append({"type": operator.latch, "status": str(now)})
            self._context.set_status(record, {**status, "conditions": conditions})
        return now

    def _fill(self, owner: Record, number: int, part: _Part, pods: list[Record], *, rolls: bool) -> None:
        """Scale the pods of one template; of too many, `leaving`, then the lowest deletion cost go first."""
        prefix = f"{owner.name}-{number}-"
        mine = sorted((row for row in pods if row.name.startswith(prefix)), key=_last_to_go)
        staying = [row for row in mine if row.name not in part.leaving]
        for row in [*(row for row in mine if row.name in part.leaving), *staying[part.count :]]:
            self._context.delete(row)
        for row in staying[: part.count]:
            if rolls and annotations_of(row.obj).get(_HASH) != part.hash:
                self._context.delete(row)
        taken = {row.name for row in mine} | set(part.leaving)
        names = (name for ordinal in range(1_000) if (name := f"{prefix}{ordinal}") not in taken)
        for _ in range(part.count - len(staying)):
            self._create(owner, next(names), part)

    def _create(self, owner: Record, name: str, part: _Part) -> None:
        if self._context.find("Pod", owner.namespace, name) is not None:
            return  # its predecessor still terminates; its deletion triggers a reconcile
        metadata = {
            "name": name,
            "labels": {**labels_of(owner.obj), **part.labels},
            "annotations": {_HASH: part.hash},
            "ownerReferences": [controller_reference(owner.resource, owner.obj)],
        }
        try:
            self._context.create("Pod", owner.namespace, {"metadata": metadata, "spec": part.spec})
        except ApiError as error:
            self._context.record_event(owner, "Warning", "FailedCreate", error.message, component="operator")

    def _run_ray_job(self, job: Record) -> None:
        """KubeRay: heeds suspend only while the job runs, and a job that is submitted only while it waits."""
        spec, status = job.obj["spec"], job.obj.get("status", {})
        before = status.get("jobDeploymentStatus", "")
        cluster = self._context.find("RayCluster", job.namespace, job.name)
        after = before
        if before == "" or (before == "Suspended" and not spec.get("suspend")):
            after = "Waiting" if spec.get("submissionMode") == "InteractiveMode" else "Running"
            reference = controller_reference(job.resource, job.obj)
            metadata = {"name": job.name, "labels": labels_of(job.obj), "ownerReferences": [reference]}
            body = {"metadata": metadata, "spec": spec.get("rayClusterSpec", {})}
            if cluster is None:
                self._context.create("RayCluster", job.namespace, body)
        elif before == "Waiting" and spec.get("jobId"):
            after = "Running"
        elif before in {"Initializing", "Running"} and spec.get("suspend"):
            after = "Suspended"
            if cluster is not None:
                self._context.delete(cluster)
        if after != before:
            self._context.set_status(job, {**status, "jobDeploymentStatus": after})

    def _execute(self, command: Record) -> None:
        """Volcano: what is ordered becomes the Job's state, and the order is gone."""
        target = command.obj["target"]
        job = self._context.registry.store.by_uid(target["uid"])
        self._context.delete(command)
        phase = {"AbortJob": "Aborted", "ResumeJob": "Running"}[command.obj["action"]]
        if job is not None and not _states(job.obj) & _VOLCANO_ENDED:
            status = {**job.obj.get("status", {}), "state": {"phase": phase}}
            self._context.change(job, functools.partial(_set_status, status), "status")


def _last_to_go(row: Record) -> tuple[int, str]:
    """By what a pod costs, as where a Deployment stands in between; then the lowest."""
    return -int(annotations_of(row.obj).get(_COST, "0")), row.name


def _set_status(status: Object, obj: Object) -> None:
    obj["status"] = status


def _states(obj: Mapping[str, Any]) -> frozenset[str]:
    """The phase of an object, and the types of its conditions that hold."""
    status = obj.get("status", {})
    phases = (status.get("phase"), status.get("state", {}).get("phase"))
    conditions = (one["type"] for one in status.get("conditions", ()) if one["status"] == "True")
    return frozenset(filter(None, (*phases, *conditions)))


def _is_at(obj: Mapping[str, Any], path: tuple[str, ...], value: object) -> bool:
    here: Any = obj
    for step in path:
        here = here.get(step) if isinstance(here, Mapping) else None
    return here is not None if value is None else here == value


def _parts(obj: Mapping[str, Any]) -> Iterator[_Part]:
    """Every pod template in an object."""
    spec = obj.get("spec", {})
    if "resources" in spec:  # NIM: the container's own fields stand in spec
        pod = {"containers": [{"name": "main", "image": "nim", "resources": spec["resources"]}]}
        spec = {
            "replicas": spec.get("replicas", 1),
            "template": {"spec": {**{key: spec[key] for key in _NIM_POD if key in spec}, **pod}},
        }
    for role, service in spec.get("services", {}).items():  # Dynamo: without a number, one replica
        yield from _below(service, 1, {_COMPONENT: role}, ())
    yield from _below({key: value for key, value in spec.items() if key != "services"}, 1, {}, ())


def _below(node: Any, count: int, labels: Mapping[str, str], leaving: tuple[str, ...]) -> Iterator[_Part]:  # noqa: ANN401
    if isinstance(node, list):
        for item in node:
            yield from _below(item, count, labels, leaving)
    elif isinstance(node, dict):
        count *= next((node[key] for key in _COUNTS if isinstance(node.get(key), int)), 1)
        if "groupName" in node:
            labels = {**labels, _GROUP: node["groupName"]}
        leaving = tuple(node.get("scaleStrategy", {}).get("workersToDelete", leaving))
        labels = {**labels, **node.get("metadata", {}).get("labels", {})}
        if "containers" in node:
            yield _Part(count, labels, {key: node[key] for key in node if key not in _COUNTS}, leaving)
        elif "container" in node:
            containers = [{"name": "main", **node["container"]}]
            yield _Part(count, labels, {**node.get("pod", {}), "containers": containers}, leaving)
        else:
            for key, child in node.items():
                if key != "metadata":
                    yield from _below(child, count, labels, leaving)


_HELD = "autoscaling.keda.sh/paused-replicas"
_PAUSED = "autoscaling.keda.sh/paused"
_FALSE = frozenset({"0", "f", "F", "false", "False", "FALSE"})
"""As Go's strconv.ParseBool reads it; KEDA takes anything else for true."""


class KueueAndKeda:
    """Kueue suspends and resumes the jobs of its Workloads; KEDA scales the targets of its ScaledObjects."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """Their objects, and what they hold whenever it changes."""
        record = event.record
        if is_kind(event, "Workload") or is_kind(event, "ScaledObject"):
            yield (record.namespace, record.name, uid_of(record.obj))
            return
        for row in self._context.registry.store.dependents(uid_of(record.obj)):
            if row.resource is by_kind("Workload"):
                yield (row.namespace, row.name, uid_of(row.obj))
        for row in self._context.rows("ScaledObject", record.namespace) if record.namespace else ():
            target = row.obj.get("spec", {}).get("scaleTargetRef", {})
            if (target.get("kind", "Deployment"), target.get("name")) == (record.resource.kind, record.name):
                yield (row.namespace, row.name, uid_of(row.obj))

    def reconcile(self, key: Key) -> None:
        """Put back what differs."""
        record = self._context.registry.store.by_uid(key[2])
        if record is None:
            return
        if record.resource is by_kind("Workload"):
            self._admit(record)
        else:
            self._scale(record)

    def _admit(self, workload: Record) -> None:
        owner = controller_of(workload.obj)
        job = self._context.registry.store.by_uid(owner["uid"]) if owner else None
        if job is None:
            return
        wanted = workload.obj.get("spec", {}).get("active") is False
        holder = "runPolicy" if "runPolicy" in job.obj["spec"] else ""
        spec: Mapping[str, Any] = job.obj["spec"][holder] if holder else job.obj["spec"]
        if bool(spec.get("suspend")) != wanted:
            self._context.change(job, functools.partial(_suspend, holder, suspend=wanted))

    def _scale(self, scaler: Record) -> None:
        spec = scaler.obj.get("spec", {})
        target = spec.get("scaleTargetRef", {})
        found = self._context.find(target.get("kind", "Deployment"), scaler.namespace, target.get("name", ""))
        if found is None or "replicas" not in found.obj.get("spec", {}):
            return
        now = found.obj["spec"]["replicas"]
        marks = annotations_of(scaler.obj)
        held, is_paused = marks.get(_HELD), marks.get(_PAUSED, "false") not in _FALSE
        if held is None:
            wanted = now if is_paused else max(now, spec.get("minReplicaCount", 0))
        else:
            wanted = int(held) if held.isdecimal() else now
        if wanted != now:
            self._context.change(found, functools.partial(_replicate, wanted))


def _suspend(holder: str, obj: Object, *, suspend: bool) -> None:
    spec = obj["spec"][holder] if holder else obj["spec"]
    spec["suspend"] = suspend


def _replicate(replicas: int, obj: Object) -> None:
    obj["spec"]["replicas"] = replicas
