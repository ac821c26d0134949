"""Other controllers of a workload (GitOps, autoscalers, queues), and control objects. Pure.

Each manager has a setting that makes it accept a change; without a sign of that setting, it counts as reverting one.
Kueue reverts changes to jobs that it admitted, and KEDA to its scale targets. So gpu-rightsizer changes the control
object instead: Kueue's Workload or KEDA's ScaledObject.
"""

import dataclasses
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.changes.record_codec import RECORDS
from rightsizer.config import FIELD_MANAGER, PREFIX
from rightsizer.kube.api_objects import Condition, ManagedFieldsEntry, ObjectMeta, SpecObject
from rightsizer.kube.object_names import Output, is_possible, kubectl, shell_command
from rightsizer.kube.owner_kinds import (
    ENDED,
    KEDA,
    KUEUE,
    ObjectSummary,
    OwnerChain,
    OwnerKind,
    Queueing,
    owner_kind,
)
from rightsizer.model import Manager, ObjectRef

PAUSED = "autoscaling.keda.sh/paused"
PAUSED_REPLICAS = "autoscaling.keda.sh/paused-replicas"
PAUSED_SCALE_OUT = "autoscaling.keda.sh/paused-scale-out"
QUEUE = "kueue.x-k8s.io/queue-name"
QUEUED_PODS = "kueue.x-k8s.io/pod-suspending-parent"
"""Annotation of pods and templates of what Kueue queues by its pods, also without a queue of its own."""
JOB_UID = "kueue.x-k8s.io/job-uid"
_CONTROLLED_BY = {KUEUE.kind: "Kueue", KEDA.kind: "KEDA"}

TargetKey = tuple[str, str, str, str]
"""API group, kind, namespace and name of what an autoscaler scales."""

_ARGO_ID = "argocd.argoproj.io/tracking-id"
_ARGO_INSTANCE = "argocd.argoproj.io/instance"
_KUSTOMIZE = "kustomize.toolkit.fluxcd.io/"
_HELM_TOOLKIT = "helm.toolkit.fluxcd.io/"
_HELM_RELEASE = "meta.helm.sh/release-name"
_GITOPS: Mapping[str, str] = {
    "argocd-controller": "Argo CD",
    "argocd-application-controller": "Argo CD",
    "kustomize-controller": "Flux",
    "helm-controller": "Flux",
    "helm": "Helm",
}
"""Names of GitOps tools as field managers."""
_MANUAL = ("kubectl", "Terraform", "pulumi")
"""Prefixes of field managers that a person runs, and that do not revert drift."""


def field_writers(entries: Sequence[ManagedFieldsEntry], size: tuple[str, ...]) -> tuple[str, ...]:
    """Field managers that would revert a change at the path `size`: GitOps tools, and all that apply that field.

    https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
    """
    found = set()
    for entry in entries:
        name, spec = entry.manager, bytes(entry.fields_v1.spec) if entry.fields_v1 else b""
        if not spec or entry.subresource or name == FIELD_MANAGER:
            continue
        applies = entry.operation == "Apply" and not name.startswith(_MANUAL)
        if name in _GITOPS or (applies and _holds(spec, size)):
            found.add(name)
    return tuple(sorted(found))


def _holds(spec: bytes, size: tuple[str, ...]) -> bool:
    if not size:
        return False
    here: Any = msgspec.json.decode(spec)
    for step in size[1:]:
        if not isinstance(here, dict) or f"f:{step}" not in here:
            return False
        here = here[f"f:{step}"]
    return True


class _TargetReference(msgspec.Struct, rename="camel"):
    """autoscalingv2.CrossVersionObjectReference, and KEDA's and the VPA's equivalents."""

    name: str = ""
    kind: str = "Deployment"
    api_version: str = "apps/v1"


class _Metric(msgspec.Struct):
    """autoscalingv2.MetricSpec."""

    type: str = ""


class _AutoscalerSpec(msgspec.Struct, rename="camel"):
    scale_target_ref: _TargetReference | None = None
    target_ref: _TargetReference | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None
    min_replica_count: int | None = None
    idle_replica_count: int | None = None
    metrics: list[_Metric] | None = None


class _AutoscalerStatus(msgspec.Struct):
    conditions: list[Condition] | None = None


class AutoscalerObject(msgspec.Struct):
    """A HorizontalPodAutoscaler, a ScaledObject of KEDA or a VerticalPodAutoscaler."""

    metadata: ObjectMeta
    spec: _AutoscalerSpec = msgspec.field(default_factory=_AutoscalerSpec)
    status: _AutoscalerStatus = msgspec.field(default_factory=_AutoscalerStatus)

    @property
    def tells_own_zero(self) -> bool:
        """Whether its controller tells its own zero replicas from others' (Kubernetes 1.37, KEP-2021)."""
        told = {one.type: one.status for one in self.status.conditions or ()}
        return told.get("ScaledToZero") == "False"


@dataclasses.dataclass(frozen=True, slots=True)
class Autoscaler:
    """An autoscaler and its target.

    Attributes:
        made_by: UID of its controller, such as an InferenceService; empty if a user created it.
        control_object: The autoscaler itself, if its kind can hold a target at a number of replicas.
        can_stop: Whether it would hold its target at zero, and start it again once that is undone.
    """

    target: TargetKey
    manager: Manager
    made_by: str = ""
    control_object: ObjectSummary | None = None
    can_stop: bool = False


AUTOSCALERS = (
    OwnerKind("autoscaling", ("v2",), "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    KEDA,
    OwnerKind("autoscaling.k8s.io", ("v1",), "VerticalPodAutoscaler", "verticalpodautoscalers"),
)


def autoscaler_of(kind: str, item: AutoscalerObject) -> Autoscaler | None:
    """The autoscaler; None if it has no possible target, or is the HPA of a ScaledObject."""
    target = item.spec.scale_target_ref or item.spec.target_ref
    made_by = item.metadata.controller
    if target is None or (made_by is not None and made_by.kind == "ScaledObject"):
        return None
    # The default of an empty apiVersion differs by kind; of the built-in groups only apps/v1 has scalable kinds.
    group_version, namespace = target.api_version or "apps/v1", item.metadata.namespace
    scaled = ObjectRef(group_version, target.kind or "Deployment", namespace, target.name)
    if not is_possible(scaled):
        return None
    is_keda, manager = kind == KEDA.kind, _MANAGER_OF[kind](item)
    ref = item.metadata.ref(KEDA.api_version, kind)
    return Autoscaler(
        _key(scaled),
        manager,
        made_by=made_by.uid if made_by else "",
        control_object=ObjectSummary(ref, item.metadata, controls=scaled) if is_keda else None,
        can_stop=is_keda and not manager.wakes and _can_stop(item.metadata.annotations or {}),
    )


def _key(ref: ObjectRef) -> TargetKey:
    return ref.group, ref.kind, ref.namespace, ref.name


def controlled_workload(ref: ObjectRef, item: SpecObject) -> ObjectRef | None:
    """The workload that a control object stops; None if it is none, or does not name it."""
    if ref.kind == KUEUE.kind:
        return queued_job(item.metadata)
    try:
        spec = msgspec.json.decode(item.spec, type=_AutoscalerSpec)
    except msgspec.DecodeError:
        return None
    found = autoscaler_of(ref.kind, AutoscalerObject(item.metadata, spec))
    return found.control_object.controls if found is not None and found.control_object is not None else None


_FROM_OUTSIDE = frozenset({"External", "Object"})
_HTTP = ("http.keda.sh", "HTTPScaledObject")
"""KEDA's HTTP add-on: its interceptor holds a request until there is a replica, and makes a ScaledObject.

https://github.com/kedacore/http-add-on/blob/main/operator/controllers/http/scaled_object.go
"""


def _horizontal(item: AutoscalerObject) -> Manager:
    name, spec = item.metadata.name, item.spec
    least = 1 if spec.min_replicas is None else spec.min_replicas
    is_back_from_zero = least == 0 and not item.tells_own_zero
    patch = '{"spec":{"minReplicas":FEWEST,"maxReplicas":MOST}}'
    ref = item.metadata.ref("autoscaling/v2", "HorizontalPodAutoscaler")
    command = kubectl(ref, "patch", "--type=merge", "-p", patch, resource="horizontalpodautoscaler")
    return Manager(
        "HorizontalPodAutoscaler",
        name,
        # At zero replicas it is inactive, but before Kubernetes 1.37 not if minReplicas is 0.
        reverts=is_back_from_zero,
        exception=f"{command} (now {least} to {spec.max_replicas or least})" if command else "",
        scales=True,
        # Resource metrics come from pods, of which there are none.
        wakes=is_back_from_zero and any(one.type in _FROM_OUTSIDE for one in spec.metrics or ()),
    )


_FALSE = frozenset({"0", "f", "F", "false", "False", "FALSE"})
_HELD = re.compile(r"\+?[0-9]{1,9}")


def _is_on(annotations: Mapping[str, str | None], key: str) -> bool:
    """Whether KEDA reads an annotation as set: any text is true that Go's strconv.ParseBool does not read as false.

    getBoolAnnotation in https://github.com/kedacore/keda/blob/v2.21.0/apis/keda/v1alpha1/scaledobject_types.go
    """
    return annotations.get(key, "false") not in _FALSE


def _can_stop(annotations: Mapping[str, str]) -> bool:
    """Whether a number of replicas in its annotation stops its target, and the former annotations start it again."""
    held = annotations.get(PAUSED_REPLICAS)
    if held is not None:
        return _HELD.fullmatch(held) is not None
    return not (_is_on(annotations, PAUSED) or _is_on(annotations, PAUSED_SCALE_OUT))


def keda_hold_reason(annotations: Mapping[str, str | None], spec: Mapping[str, Any]) -> str:
    """Why KEDA starts no replicas of a target at zero; empty if it does."""
    held = annotations.get(PAUSED_REPLICAS)
    switches = [key for key in (PAUSED, PAUSED_SCALE_OUT) if _is_on(annotations, key)]
    if held is None and not switches:
        is_kept = spec.get("minReplicaCount") and spec.get("idleReplicaCount") is None
        return "" if is_kept else "KEDA starts replicas once a trigger is active"
    if held is not None and _HELD.fullmatch(held) and int(held):
        return ""
    key = switches[0] if held is None else PAUSED_REPLICAS
    return f"KEDA starts no replicas: its owner set {key}: {annotations[key]!r}"


def _keda(item: AutoscalerObject) -> Manager:
    name, marks = item.metadata.name, item.metadata.annotations or {}
    ref = item.metadata.ref(KEDA.api_version, KEDA.kind)
    words = kubectl(ref, "annotate", f"{PAUSED_REPLICAS}=0", resource="scaledobject")
    is_paused = _is_on(marks, PAUSED) or PAUSED_REPLICAS in marks
    # A pause of scaling out alone does not hold for minReplicaCount.
    is_kept = bool(item.spec.min_replica_count) and item.spec.idle_replica_count is None
    made_by = item.metadata.controller
    is_http = made_by is not None and (made_by.group, made_by.kind) == _HTTP
    return Manager(
        "KEDA",
        name,
        reverts=not is_paused and (is_kept or not _is_on(marks, PAUSED_SCALE_OUT)),
        exception=words,
        scales=not is_paused,
        wakes=is_http and not is_paused and not item.spec.min_replica_count,
    )


_MANAGER_OF: Mapping[str, Callable[[AutoscalerObject], Manager]] = {
    "HorizontalPodAutoscaler": _horizontal,
    "ScaledObject": _keda,
    "VerticalPodAutoscaler": lambda item: Manager("VerticalPodAutoscaler", item.metadata.name),
}


def _ends(chain: OwnerChain, autoscaler: Autoscaler) -> bool:
    """Whether a stop of the top removes an autoscaler: its operator made it, and removes it then."""
    row = owner_kind(chain.top.ref.group, chain.top.ref.kind)
    is_own = autoscaler.made_by in {item.ref.uid for item in chain.owners if item.ref.uid}
    return is_own and row is not None and row.ends_autoscalers


def _gitops(item: ObjectSummary) -> Iterator[Manager]:
    labels, annotations = item.metadata.labels or {}, item.metadata.annotations or {}
    application = annotations.get(_ARGO_ID, "").partition(":")[0] or labels.get(_ARGO_INSTANCE, "")
    application = application or annotations.get(_ARGO_INSTANCE, "")
    if application:
        yield Manager("Argo CD", application, reverts=True, exception=_argo_snippet(item.ref))
    if name := labels.get(_KUSTOMIZE + "name"):
        # These annotations make Flux ignore an object (kustomize-controller, "Controlling the apply behavior").
        is_ignored = annotations.get(_KUSTOMIZE + "reconcile") == "disabled" or annotations.get(
            _KUSTOMIZE + "ssa", ""
        ).lower() in {"ifnotpresent", "ignore"}
        row = owner_kind(item.ref.group, item.ref.kind)
        resource = row.resource if row else item.ref.kind
        words = kubectl(item.ref, "annotate", f"{_KUSTOMIZE}reconcile=disabled", resource=resource)
        yield Manager("Flux", name, reverts=not is_ignored, exception=words)
    if name := labels.get(_HELM_TOOLKIT + "name"):
        yield Manager("Flux", name, reverts=True, exception=_flux_helm_snippet(item.ref))
    elif name := annotations.get(_HELM_RELEASE):
        yield Manager("Helm", name)


def _writers(item: ObjectSummary, known: Container[str]) -> Iterator[Manager]:
    """Managers that only managedFields reveal."""
    for name in item.written_by:
        kind = _GITOPS.get(name, "Field manager")
        if kind in known:
            continue
        if kind == "Field manager":
            field = ".".join(_size(item.ref)) or "it"
            words = f"remove {field} from the manifest that {name} applies"
            yield Manager(kind, name, reverts=True, exception=words)
        else:
            snippet = _argo_snippet(item.ref) if kind == "Argo CD" else ""
            yield Manager(kind, reverts=kind != "Helm", exception=snippet)


def _argo_snippet(ref: ObjectRef) -> str:
    """The setting of the Application: https://argo-cd.readthedocs.io/en/stable/user-guide/diffing/."""
    path = _pointer(ref)
    what = f"jsonPointers: [{path}]" if path else f"managedFieldsManagers: [{FIELD_MANAGER}]"
    lines = (
        "spec:",
        "  ignoreDifferences:",
        f"  - group: {ref.group or chr(39) * 2}",
        f"    kind: {ref.kind}",
        f"    name: {ref.name}",
        f"    namespace: {ref.namespace}",
        f"    {what}",
        "  syncPolicy:",
        "    syncOptions: [RespectIgnoreDifferences=true]",
    )
    return "\n".join(lines)


def _flux_helm_snippet(ref: ObjectRef) -> str:
    """The setting of the HelmRelease: https://fluxcd.io/flux/components/helm/helmreleases/#drift-detection."""
    return (
        "spec:\n  driftDetection:\n    ignore:\n"
        f'    - paths: ["{_pointer(ref)}"]\n'
        f"      target: {{kind: {ref.kind}, name: {ref.name}, namespace: {ref.namespace}}}"
    )


def _size(ref: ObjectRef) -> tuple[str, ...]:
    """The path of the field that stops an object; empty if there is none."""
    row = owner_kind(ref.group, ref.kind)
    return row.size if row else ()


def _pointer(ref: ObjectRef) -> str:
    """The same path as a JSON pointer (RFC 6901)."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in _size(ref))


class Controllers:
    """The other controllers of workloads, and the control objects among them."""

    def __init__(self, kueue: Iterable[ObjectSummary], autoscalers: Iterable[Autoscaler]) -> None:
        self._by_job: dict[tuple[str, str], list[ObjectSummary]] = {}
        for item in kueue:
            owner, labels = item.metadata.controller, item.metadata.labels or {}
            uid = owner.uid if owner and owner.uid else labels.get(JOB_UID, "")
            self._by_job.setdefault((item.ref.namespace, uid), []).append(item)
        self._by_target: dict[TargetKey, list[Autoscaler]] = {}
        for one in autoscalers:
            self._by_target.setdefault(one.target, []).append(one)

    def managers_of(self, chain: OwnerChain) -> list[Manager]:
        """The other controllers of the top of an owner chain."""
        found = [*_gitops(chain.top), *self._queues(chain.top)]
        found += _writers(chain.top, {one.kind for one in found})
        for item in chain.owners:
            for one in self._by_target.get(_key(item.ref), ()):
                reverts = one.manager.reverts and not _ends(chain, one)
                wakes = one.manager.wakes and item is chain.top  # what is above ends its target, too
                found.append(dataclasses.replace(one.manager, reverts=reverts, wakes=wakes))
        if (starter := chain.starter) is not None:
            row = owner_kind(starter.group, starter.kind)
            ref, patch = starter.ref(chain.top.ref.namespace), '{"spec":{"suspend":true}}'
            resource = row.resource if row and row.size else ""
            words = kubectl(ref, "patch", "--type=merge", "-p", patch, resource=resource) if resource else ""
            found.append(Manager(starter.kind, starter.name, exception=words))
        return list(dict.fromkeys(found))

    def _queues(self, item: ObjectSummary) -> Iterator[Manager]:
        queue, ref = (item.metadata.labels or {}).get(QUEUE), item.ref
        row = owner_kind(ref.group, ref.kind)
        if not queue or (row is not None and ENDED in row.states_in(item.status)):
            return  # Kueue finishes the Workload of a job that has ended, and leaves the job alone.
        # A framework outside of Kueue may suspend other kinds. Then it has a Workload for the object.
        is_suspended = (
            (ref.namespace, ref.uid) in self._by_job or not self._by_job
            if row is None
            else row.queueing is Queueing.SUSPENDED
        )
        within = ("kubectl", "-n", ref.namespace)
        found = shell_command(*within, "get", KUEUE.resource, "-l", f"{JOB_UID}={ref.uid}", "-o", "name")
        patch = '{"spec":{"active":false}}'
        words = shell_command(*within, "patch", Output(found), "--type=merge", "-p", patch)
        yield Manager("Kueue", queue, reverts=is_suspended, exception=words if is_suspended else "")

    def control_object(self, chains: Iterable[OwnerChain]) -> ObjectSummary | None:
        """The control object of a workload with these owner chains; None if there is none, or more than one."""
        first, *others = map(self._control_objects, chains)
        is_of_all = len(first) == 1 and all(other == first for other in others)
        return next(iter(first.values())) if is_of_all else None

    def _control_objects(self, chain: OwnerChain) -> dict[ObjectRef, ObjectSummary]:
        """Objects that would revert a change of the top, and are changed instead."""
        top = chain.top.ref
        found = [
            one.control_object
            for item in chain.owners
            for one in self._by_target.get(_key(item.ref), ())
            if one.control_object is not None and one.can_stop and not _ends(chain, one)
        ]
        row = owner_kind(top.group, top.kind)
        if row is not None and row.queueing is Queueing.SUSPENDED and top.uid:
            found += self._by_job.get((top.namespace, top.uid), ())
        return {item.ref: item for item in found}


def queued_job(metadata: ObjectMeta) -> ObjectRef | None:
    """The job of one of Kueue's Workloads; None if only its UID is known."""
    owner = metadata.controller
    return owner.ref(metadata.namespace) if owner is not None else None


def with_control_object(manager: Manager, control: ObjectSummary | None) -> Manager:
    """A manager; it does not revert changes of its own control object."""
    if control is None or _CONTROLLED_BY[control.ref.kind] != manager.kind:
        return manager
    return dataclasses.replace(manager, reverts=False)


def with_control_annotations(annotations: Mapping[str, str], control: ObjectSummary | None) -> dict[str, str]:
    """A workload's annotations, with those of gpu-rightsizer on its control object."""
    ours = {} if control is None else (control.metadata.annotations or {})
    wishes = {key: text for key, text in ours.items() if key.startswith(PREFIX)}
    records = {key: text for key, text in wishes.items() if key in RECORDS}
    return {**wishes, **annotations, **records}
