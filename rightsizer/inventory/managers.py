"""Other controllers of a workload (GitOps, autoscalers, queues), and control objects. Pure.

Each manager has a setting that makes it accept a change; without a sign of that setting, it counts as reverting one.
Kueue reverts changes to jobs that it admitted, and KEDA to its scale targets. So gpu-rightsizer changes the control
object instead: Kueue's Workload or KEDA's ScaledObject.
"""

import collections
import dataclasses
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.changes.record_codec import RECORDS
from rightsizer.config import FIELD_MANAGER, PREFIX
from rightsizer.kube.api_objects import Condition, ManagedFieldsEntry, ObjectMeta, SpecObject
from rightsizer.kube.object_names import Output, is_possible, kubectl, shell_command
from rightsizer.kube.owner_kinds import KEDA, KUEUE, ObjectSummary, OwnerChain, OwnerKind, owner_kind
from rightsizer.model import Manager, ObjectRef

PAUSED = "autoscaling.keda.sh/paused"
PAUSED_REPLICAS = "autoscaling.keda.sh/paused-replicas"
_JOB_UID = "kueue.x-k8s.io/job-uid"
_CONTROLLED_BY = {KUEUE.kind: "Kueue", KEDA.kind: "KEDA"}

TargetKey = tuple[str, str, str, str]
"""API group, kind, namespace and name of what an autoscaler scales."""

_ARGO_ID = "argocd.argoproj.io/tracking-id"
_ARGO_INSTANCE = "argocd.argoproj.io/instance"
_KUSTOMIZE = "kustomize.toolkit.fluxcd.io/"
_HELM_TOOLKIT = "helm.toolkit.fluxcd.io/"
_HELM_RELEASE = "meta.helm.sh/release-name"
_QUEUE = "kueue.x-k8s.io/queue-name"
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
        control_object: The autoscaler itself, if it can hold its target at a number of replicas.
    """

    target: TargetKey
    manager: Manager
    made_by: str = ""
    control_object: ObjectSummary | None = None


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
    can_hold = kind == KEDA.kind and made_by is None
    ref = item.metadata.ref(KEDA.api_version, kind)
    return Autoscaler(
        _key(scaled),
        _MANAGER_OF[kind](item),
        made_by=made_by.uid if made_by else "",
        control_object=ObjectSummary(ref, item.metadata, controls=scaled) if can_hold else None,
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


def _keda(item: AutoscalerObject) -> Manager:
    name, marks = item.metadata.name, item.metadata.annotations or {}
    ref = item.metadata.ref(KEDA.api_version, KEDA.kind)
    words = kubectl(ref, "annotate", f"{PAUSED_REPLICAS}=0", resource="scaledobject")
    is_paused = PAUSED in marks or PAUSED_REPLICAS in marks
    made_by = item.metadata.controller
    is_http = made_by is not None and (made_by.group, made_by.kind) == _HTTP
    return Manager(
        "KEDA",
        name,
        reverts=not is_paused,
        exception=words,
        scales=not is_paused,
        wakes=is_http and not is_paused and not item.spec.min_replica_count,
    )


_MANAGER_OF: Mapping[str, Callable[[AutoscalerObject], Manager]] = {
    "HorizontalPodAutoscaler": _horizontal,
    "ScaledObject": _keda,
    "VerticalPodAutoscaler": lambda item: Manager("VerticalPodAutoscaler", item.metadata.name),
}


def managers_of(chain: OwnerChain, autoscalers: Mapping[TargetKey, Iterable[Autoscaler]]) -> list[Manager]:
    """The other controllers of the top of an owner chain."""
    found = [*_gitops(chain.top), *_queues(chain.top)]
    found += _writers(chain.top, {one.kind for one in found})
    within = {item.ref.uid for item in chain.owners if item.ref.uid}
    for item in chain.owners:
        for one in autoscalers.get(_key(item.ref), ()):
            # An autoscaler that the workload itself created disappears when the workload is stopped.
            reverts = one.manager.reverts and one.made_by not in within
            wakes = one.manager.wakes and item is chain.top  # what is above ends its target, too
            found.append(dataclasses.replace(one.manager, reverts=reverts, wakes=wakes))
    if (starter := chain.starter) is not None:
        row = owner_kind(starter.group, starter.kind)
        ref, patch = starter.ref(chain.top.ref.namespace), '{"spec":{"suspend":true}}'
        resource = row.resource if row and row.size else ""
        words = kubectl(ref, "patch", "--type=merge", "-p", patch, resource=resource) if resource else ""
        found.append(Manager(starter.kind, starter.name, exception=words))
    return list(dict.fromkeys(found))


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


def _queues(item: ObjectSummary) -> Iterator[Manager]:
    queue = (item.metadata.labels or {}).get(_QUEUE)
    if not queue:
        return
    ref = item.ref
    within = ("kubectl", "-n", ref.namespace)
    found = shell_command(*within, "get", KUEUE.resource, "-l", f"{_JOB_UID}={ref.uid}", "-o", "name")
    patch = '{"spec":{"active":false}}'
    words = shell_command(*within, "patch", Output(found), "--type=merge", "-p", patch)
    # Kueue suspends and resumes jobs that it admits as a whole; of other workloads it only queues the pods.
    yield Manager(
        "Kueue", queue, reverts=not isinstance(item.size, int) or isinstance(item.size, bool), exception=words
    )


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


# --- Control objects


class ControlObjects:
    """Control objects by the workload that they control."""

    def __init__(self, kueue: Iterable[ObjectSummary], autoscalers: Iterable[Autoscaler]) -> None:
        self._by_job: dict[tuple[str, str], list[ObjectSummary]] = collections.defaultdict(list)
        for item in kueue:
            owner = item.metadata.controller
            labels = item.metadata.labels or {}
            uid = owner.uid if owner and owner.uid else labels.get(_JOB_UID, "")
            self._by_job[item.ref.namespace, uid].append(item)
        self._by_target: dict[TargetKey, list[ObjectSummary]] = collections.defaultdict(list)
        for one in autoscalers:
            if one.control_object is not None:
                self._by_target[one.target].append(one.control_object)

    def of(self, chain: OwnerChain) -> ObjectSummary | None:
        """The control object of the top; None if there is none, or more than one."""
        key, uid = _key(chain.top.ref), chain.top.ref.uid
        found = list(self._by_target.get(key, ()))
        row = owner_kind(key[0], key[1])
        # Kueue only queues the pods of workloads that are scaled instead of suspended.
        if row is not None and row.size and row.size[-1] == "suspend" and uid:
            found += self._by_job.get((key[2], uid), ())
        return found[0] if len(found) == 1 else None


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
