"""Who else decides about a workload: GitOps, autoscalers, queues. Pure.

Each comes with what to configure on its side so that a change of ours stands. Where that is not known to be configured
already, it is taken not to be.
"""

import dataclasses
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.config import FIELD_MANAGER
from rightsizer.inventory.scale_targets import PAUSED, PAUSED_REPLICAS, Target, queue_about
from rightsizer.kube.api_objects import ManagedFieldsEntry, ObjectMeta, SpecObject
from rightsizer.kube.owner_kinds import KEDA, KUEUE, ObjectSummary, OwnerChain, owner_kind
from rightsizer.model import Manager, ObjectRef

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
"""Prefixes of field managers that apply when a person runs them, and do not revert drift."""


def field_writers(entries: Sequence[ManagedFieldsEntry], size: tuple[str, ...]) -> tuple[str, ...]:
    """Field managers that would revert a change at the path `size`: GitOps tools, and whoever applies that field.

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


class _Target(msgspec.Struct, rename="camel"):
    """autoscalingv2.CrossVersionObjectReference, and KEDA's and the VPA's twins of it."""

    name: str = ""
    kind: str = "Deployment"
    api_version: str = "apps/v1"


class _ScalerSpec(msgspec.Struct, rename="camel"):
    scale_target_ref: _Target | None = None
    target_ref: _Target | None = None
    min_replicas: int | None = None
    max_replicas: int | None = None


class ScalerObject(msgspec.Struct):
    """A HorizontalPodAutoscaler, a ScaledObject of KEDA or a VerticalPodAutoscaler."""

    metadata: ObjectMeta
    spec: _ScalerSpec = msgspec.field(default_factory=_ScalerSpec)


@dataclasses.dataclass(frozen=True, slots=True)
class Scaler:
    """An autoscaler, and what it is for.

    Attributes:
        made_by: UID of what made it as a tool of its own, such as an InferenceService; empty where its user did.
        lever: The object itself, where it can be told to hold its target at a number.
    """

    target: Target
    manager: Manager
    made_by: str = ""
    lever: ObjectSummary | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class ScalerKind:
    """Where autoscalers of one kind are read."""

    group: str
    versions: tuple[str, ...]
    kind: str
    plural: str


SCALERS = (
    ScalerKind("autoscaling", ("v2",), "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    ScalerKind("keda.sh", ("v1alpha1",), "ScaledObject", "scaledobjects"),
    ScalerKind("autoscaling.k8s.io", ("v1",), "VerticalPodAutoscaler", "verticalpodautoscalers"),
)


def scaler_of(kind: str, item: ScalerObject) -> Scaler | None:
    """An autoscaler's record; None where it is for nothing, or another's tool."""
    target = item.spec.scale_target_ref or item.spec.target_ref
    made_by = item.metadata.controller
    if target is None or (made_by is not None and made_by.kind == "ScaledObject"):
        return None
    makers = {
        "HorizontalPodAutoscaler": _horizontal,
        "ScaledObject": _keda,
        "VerticalPodAutoscaler": _vertical,
    }
    # An empty apiVersion is the target's default, which differs by kind; only apps/v1 has scalable kinds of the core.
    about = ObjectRef(
        target.api_version or "apps/v1", target.kind or "Deployment", item.metadata.namespace, target.name
    )
    key = (about.api_version.rpartition("/")[0], about.kind, about.namespace, about.name)
    is_lever = kind == KEDA.kind and made_by is None
    ref = ObjectRef(KEDA.api_version, kind, item.metadata.namespace, item.metadata.name, item.metadata.uid)
    return Scaler(
        key,
        makers[kind](item),
        made_by=made_by.uid if made_by else "",
        lever=ObjectSummary(ref, item.metadata, controls=about) if is_lever else None,
    )


def stopped_through(ref: ObjectRef, item: SpecObject) -> ObjectRef | None:
    """The workload that is stopped by changing an object in its place; None where that is none, or does not name it."""
    if ref.kind == KUEUE.kind:
        return queue_about(item.metadata)
    try:
        spec = msgspec.json.decode(item.spec, type=_ScalerSpec)
    except msgspec.DecodeError:
        return None
    scaler = scaler_of(ref.kind, ScalerObject(item.metadata, spec))
    return scaler.lever.controls if scaler is not None and scaler.lever is not None else None


def _horizontal(item: ScalerObject) -> Manager:
    name, spec = item.metadata.name, item.spec
    least = 1 if spec.min_replicas is None else spec.min_replicas
    patch = '{"spec":{"minReplicas":FEWEST,"maxReplicas":MOST}}'
    return Manager(
        "HorizontalPodAutoscaler",
        name,
        # At zero replicas it rests until someone scales up, unless it may go to zero itself (KEP-2021).
        reverts=least == 0,
        exception=f"kubectl -n {item.metadata.namespace} patch horizontalpodautoscaler {name} --type=merge "
        f"-p '{patch}' (now {least} to {spec.max_replicas or least})",
        scales=True,
    )


def _keda(item: ScalerObject) -> Manager:
    name, namespace = item.metadata.name, item.metadata.namespace
    marks = item.metadata.annotations or {}
    words = f"kubectl -n {namespace} annotate scaledobject {name} {PAUSED_REPLICAS}=0"
    is_paused = PAUSED in marks or PAUSED_REPLICAS in marks
    return Manager("KEDA", name, reverts=not is_paused, exception=words, scales=not is_paused)


def _vertical(item: ScalerObject) -> Manager:
    return Manager("VerticalPodAutoscaler", item.metadata.name)


def managers_of(line: OwnerChain, scalers: Mapping[Target, Iterable[Scaler]]) -> list[Manager]:
    """Everything else that decides about the top of a lineage."""
    found = [*_gitops(line.top), *_queues(line.top)]
    found += _writers(line.top, {one.kind for one in found})
    within = {item.ref.uid for item in line.owners if item.ref.uid}
    for item in line.owners:
        ref = item.ref
        for scaler in scalers.get(
            (ref.api_version.rpartition("/")[0], ref.kind, ref.namespace, ref.name), ()
        ):
            # Who made it as its own tool takes it away, too, when it is stopped.
            is_tool = scaler.made_by in within
            found.append(dataclasses.replace(scaler.manager, reverts=False) if is_tool else scaler.manager)
    if (starter := line.starter) is not None:
        row = owner_kind(starter.group, starter.kind)
        plural = f"{row.plural}.{starter.group}" if row else starter.kind
        switch = '{"spec":{"suspend":true}}'
        words = (
            f"kubectl -n {line.top.ref.namespace} patch {plural} {starter.name} --type=merge -p '{switch}'"
        )
        found.append(Manager(starter.kind, starter.name, exception=words if row and row.size else ""))
    return list(dict.fromkeys(found))


def _gitops(item: ObjectSummary) -> Iterator[Manager]:
    labels, annotations = item.metadata.labels or {}, item.metadata.annotations or {}
    application = annotations.get(_ARGO_ID, "").partition(":")[0] or labels.get(_ARGO_INSTANCE, "")
    application = application or annotations.get(_ARGO_INSTANCE, "")
    if application:
        yield Manager("Argo CD", application, reverts=True, exception=_argo_snippet(item.ref))
    if name := labels.get(_KUSTOMIZE + "name"):
        # Set on an object, these make Flux leave it alone (kustomize-controller, "Controlling the apply behavior").
        is_left = annotations.get(_KUSTOMIZE + "reconcile") == "disabled" or annotations.get(
            _KUSTOMIZE + "ssa", ""
        ).lower() in {"ifnotpresent", "ignore"}
        words = f"{_annotate(item.ref)} {_KUSTOMIZE}reconcile=disabled"
        yield Manager("Flux", name, reverts=not is_left, exception=words)
    if name := labels.get(_HELM_TOOLKIT + "name"):
        yield Manager("Flux", name, reverts=True, exception=_flux_helm_snippet(item.ref))
    elif name := annotations.get(_HELM_RELEASE):
        yield Manager("Helm", name)


def _writers(item: ObjectSummary, known: Container[str]) -> Iterator[Manager]:
    """Those whom only managedFields tell of: GitOps without its marks, and who applies what we would change."""
    for name in item.written_by:
        kind = _GITOPS.get(name, "Field manager")
        if kind in known:
            continue
        if kind == "Field manager":
            row = owner_kind(item.ref.api_version.rpartition("/")[0], item.ref.kind)
            field = ".".join(row.size) if row else "it"
            yield Manager(kind, name, reverts=True, exception=f"leave {field} out of what {name} applies")
        else:
            snippet = _argo_snippet(item.ref) if kind == "Argo CD" else ""
            yield Manager(kind, reverts=kind != "Helm", exception=snippet)


def _queues(item: ObjectSummary) -> Iterator[Manager]:
    queue = (item.metadata.labels or {}).get(_QUEUE)
    if not queue:
        return
    ref = item.ref
    found = (
        f"kubectl -n {ref.namespace} get workloads.kueue.x-k8s.io -l kueue.x-k8s.io/job-uid={ref.uid} -o name"
    )
    words = f'kubectl -n {ref.namespace} patch $({found}) --type=merge -p \'{{"spec":{{"active":false}}}}\''
    # Who is admitted as a whole is also suspended and resumed by Kueue; of the others only the pods are queued.
    yield Manager(
        "Kueue", queue, reverts=not isinstance(item.size, int) or isinstance(item.size, bool), exception=words
    )


def _argo_snippet(ref: ObjectRef) -> str:
    """What the Application needs: https://argo-cd.readthedocs.io/en/stable/user-guide/diffing/."""
    row = owner_kind(ref.api_version.rpartition("/")[0], ref.kind)
    what = (
        f"jsonPointers: [{_pointer(row.size)}]"
        if row and row.size
        else f"managedFieldsManagers: [{FIELD_MANAGER}]"
    )
    lines = (
        "spec:",
        "  ignoreDifferences:",
        f"  - group: {ref.api_version.rpartition('/')[0] or chr(39) * 2}",
        f"    kind: {ref.kind}",
        f"    name: {ref.name}",
        f"    namespace: {ref.namespace}",
        f"    {what}",
        "  syncPolicy:",
        "    syncOptions: [RespectIgnoreDifferences=true]",
    )
    return "\n".join(lines)


def _flux_helm_snippet(ref: ObjectRef) -> str:
    """What the HelmRelease needs: https://fluxcd.io/flux/components/helm/helmreleases/#drift-detection."""
    row = owner_kind(ref.api_version.rpartition("/")[0], ref.kind)
    path = _pointer(row.size) if row else ""
    lines = (
        "spec:",
        "  driftDetection:",
        "    ignore:",
        f'    - paths: ["{path}"]',
        f"      target: {{kind: {ref.kind}, name: {ref.name}, namespace: {ref.namespace}}}",
    )
    return "\n".join(lines)


def _pointer(path: tuple[str, ...]) -> str:
    """RFC 6901."""
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in path)


def _annotate(ref: ObjectRef) -> str:
    row = owner_kind(ref.api_version.rpartition("/")[0], ref.kind)
    plural = f"{row.plural}.{row.group}".rstrip(".") if row else ref.kind
    return f"kubectl -n {ref.namespace} annotate {plural} {ref.name}"
