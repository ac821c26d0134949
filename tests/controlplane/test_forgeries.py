"""Forged requests by gpu-rightsizer's own account: all are refused, except those that docs/security.md lists.

The tables below are data: what a thief of the account's token would try. Each kind gets at least 50 of them.
"""

import contextlib
import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rightsizer.changes.record_codec import UNDO_ANNOTATION
from rightsizer.doctor.rights import STATE_MAPS
from rightsizer.guardrails.admission import admission_policies
from rightsizer.kinds.edits import ANY, ITEM, edit_of, patch_of, places
from rightsizer.kinds.kind import Field, Kind, Value
from rightsizer.model import Edit
from rightsizer.policy.policy_file import parse
from simulator.controlplane.plane import ControlPlane
from tests.controlplane.contract.objects import pod
from tests.controlplane.contract.server import Api, Object, Real
from tests.controlplane.contract.test_guardrails import GROUP, PLURALS, undo_record
from tests.controlplane.contract.test_guardrails_by_kind import POLICY, ROWS, fields_of, made, parents

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("controlplane")]

LEAST = 50
GPU = "nvidia.com/gpu"
REFUSED = {403, 422}
"""The API server itself refuses some before any policy is asked."""
DRY: Mapping[str, str] = {"dryRun": "All"}
PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture(scope="module")
def guarded(third_parties: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with every kind, the policies of all, and the account with every right in its own namespace."""
    api = Api(Real(third_parties.kubeconfig, tmp_path_factory.mktemp("credentials")))
    plurals = [row.of.plural for row in ROWS.values()]
    others = ["commands", "configmaps", "events", "leases", "pods", "pods/eviction", "secrets"]
    others.append("resourceclaimtemplates")
    api.server.grant(
        _user(api), api.namespace, verbs=["patch", "create", "delete"], resources=[*plurals, *others]
    )
    with contextlib.ExitStack() as stack:
        policy = parse(POLICY, source="policy.yaml").policy
        # Workloads must be elsewhere than the state, which is in the only namespace of this test.
        for own in ("gpu-rightsizer", api.namespace):
            for document in admission_policies(policy, account="gpu-rightsizer", own=own):
                is_of_state = document["metadata"]["name"].removeprefix("gpu-rightsizer-") in _STATE
                if is_of_state is not (own == api.namespace):
                    continue
                text = copy.deepcopy(document)
                for condition in text["spec"].get("matchConditions", ()):
                    condition["expression"] = f'request.userInfo.username == "{_user(api)}"'
                path = f"{GROUP}/{PLURALS[document['kind']]}"
                api.create(path, text)
                stack.callback(api, "DELETE", f"{path}/{document['metadata']['name']}")
        yield api
    api("DELETE", f"/api/v1/namespaces/{api.namespace}")
    api.session.close()


_STATE = {"configmaps", "leases.coordination.k8s.io", "secrets"}


def _user(api: Api) -> str:
    return f"system:serviceaccount:{api.namespace}:gpu-rightsizer"


LABELS = (
    *("app", "theirs", "istio-injection", "kueue.x-k8s.io/queue-name", "app.kubernetes.io/managed-by"),
    *("grafana_dashboard", "pod-security.kubernetes.io/enforce", "gpu-rightsizer.io/manifest"),
)
ANNOTATIONS = (
    *("service.beta.kubernetes.io/aws-load-balancer-internal", "external-dns.alpha.kubernetes.io/hostname"),
    *("nginx.ingress.kubernetes.io/auth-url", "cert-manager.io/cluster-issuer", "reloader.stakater.com/auto"),
    *("backup.velero.io/backup-volumes", "policies.kyverno.io/scored", "kubernetes.io/ingress-bandwidth"),
    *("kubernetes.io/change-cause", "deployment.kubernetes.io/revision", "checksum/config"),
    *("theirs", "kubectl.kubernetes.io/restartedAt", "kubectl.kubernetes.io/last-applied-configuration"),
    *(
        "sidecar.istio.io/inject",
        "linkerd.io/inject",
        "vault.hashicorp.com/agent-inject",
        "iam.amazonaws.com/role",
    ),
    *("argocd.argoproj.io/sync-options", "helm.sh/resource-policy", "meta.helm.sh/release-name"),
    *(
        "cluster-autoscaler.kubernetes.io/safe-to-evict",
        "karpenter.sh/do-not-disrupt",
        "prometheus.io/scrape",
    ),
    *("autoscaling.keda.sh/paused", "autoscaling.knative.dev/max-scale", "serving.kserve.io/deploymentMode"),
    *("reflector.v1.k8s.emberstack.com/reflection-allowed", "replicator.v1.mittwald.de/replicate-to"),
    *(
        "kubernetes.io/change-cause",
        "deployment.kubernetes.io/revision",
        "scheduler.alpha.kubernetes.io/node-selector",
    ),
    *(
        "container.apparmor.security.beta.kubernetes.io/main",
        "k8s.v1.cni.cncf.io/networks",
        "checksum/config",
    ),
    *("notebooks.kubeflow.org/last-activity", "controller.kubernetes.io/pod-deletion-cost-of-others"),
)
OPT_OUTS = {
    f"gpu-rightsizer.io/{name}": text
    for name, text in {
        "mode": "off",
        "exclude": "true",
        "exclude-until": "2998-01-01",
        "min-replicas": "1",
        "snooze-until": "2998-01-01",
        "last-checkpoint": "2998-01-01T00:00:00Z",
    }.items()
}
"""What the owner of a workload writes."""
OWNER: Object = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "name": "x",
    "uid": "00000000-0000-4000-8000-000000000000",
}
METADATA: dict[str, Object] = {
    **{f"label {name}": {"labels": {name: "forged"}} for name in LABELS},
    **{f"annotation {name}": {"annotations": {name: "forged"}} for name in ANNOTATIONS},
    "label removed": {"labels": {"kept": None}},
    "annotation removed": {"annotations": {"kept": None}},
    **{f"opt-out {name} removed": {"annotations": {name: None}} for name in OPT_OUTS},
    **{f"opt-out {name} changed": {"annotations": {name: "2999-01-01"}} for name in OPT_OUTS},
    "release": {"annotations": {"gpu-rightsizer.io/release": "true"}},
    "no room for others": {"annotations": {"gpu-rightsizer.io/history": "x" * 20_000}},
    "finalizer": {"finalizers": ["example.com/forged"]},
    "owner": {"ownerReferences": [OWNER]},
    "controlling owner": {"ownerReferences": [{**OWNER, "controller": True}]},
}
IN_CONTAINER: dict[str, Object] = {
    "image": {"image": "evil:1"},
    "command": {"command": ["sh"]},
    "arguments": {"args": ["-c", "evil"]},
    "environment": {"env": [{"name": "A", "value": "b"}]},
    "secret as environment": {"envFrom": [{"secretRef": {"name": "db"}}]},
    "privileged": {"securityContext": {"privileged": True}},
    "mount": {"volumeMounts": [{"name": "v", "mountPath": "/"}]},
    "probe": {"livenessProbe": {"exec": {"command": ["evil"]}}},
    "hook": {"lifecycle": {"postStart": {"exec": {"command": ["evil"]}}}},
    "processors": {"resources": {"limits": {"cpu": "64"}}},
    "memory": {"resources": {"requests": {"memory": "64Gi"}}},
    "GPUs": {"resources": {"limits": {"nvidia.com/gpu": "64"}}},
    "requested GPUs": {"resources": {"requests": {"nvidia.com/gpu": "64"}}},
    "device": {"resources": {"limits": {"nvidia.com/gpu": "1", "example.com/device": "1"}}},
    "device in place of GPUs": {"resources": {"limits": {"example.com/device": "1"}}},
    "two slices": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "1", "nvidia.com/mig-2g.20gb": "1"}}},
    "many slices": {"resources": {"limits": {"nvidia.com/mig-1g.10gb": "7"}}},
    "slice beside GPUs": {"resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/mig-1g.10gb": "1"}}},
}
IN_POD: dict[str, Object] = {
    "host network": {"hostNetwork": True},
    "host processes": {"hostPID": True},
    "service account": {"serviceAccountName": "admin"},
    "class": {"priorityClassName": "forged"},
    "node": {"nodeName": "node-0"},
    "selector": {"nodeSelector": {"x": "y"}},
    "toleration": {"tolerations": [{"operator": "Exists"}]},
    "host path": {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
    "init container": {"initContainers": [{"name": "i", "image": "evil:1"}]},
    "scheduler": {"schedulerName": "forged"},
    "runtime": {"runtimeClassName": "forged"},
    "user": {"securityContext": {"runAsUser": 0}},
}
MUCH: dict[Value, tuple[Any, ...]] = {
    Value.COUNT: (9, 64, 5_000),
    Value.SWITCH: (),
    Value.TEXT: ("9", "5000", "forged"),
    Value.TEMPLATE: ("forged", "whole-2", "forged-2-01234567"),
}
TEXTS = (
    '{{"edits":[{{"path":{path},"before":{value},"after":0}}]}}',
    '{{"edits": [{{"path": {path}, "before": {value}, "after": 0}}]}}',
    '{{"edits":[{{"before":{value},"path":{path},"after":0}}]}}',
    '{{"reason":"{{\\"path\\":{path},\\"before\\":{value},","edits":[]}}',
    '{{"pendingEdits":[{{"path":{path},"before":{value},"after":0}}]}}',
    '{path},"before":{value},',
    '{{"path":[{{"path":{path},"before":{value},"after":0',
    '{{"edits":[{{"path":{path},"before":1,"after":0}},{{"path":{path},"before":{value},"after":0}}]}}',
    '{{"edits":[{{"path":{path},"before":{value}e0,"after":0}}]}}',
)
"""Undo records of a thief: any text."""


def _pods(spec: Any) -> Iterator[Object]:
    """The pod specs in an object."""
    if isinstance(spec, dict):
        if isinstance(spec.get("containers"), list):
            yield spec
        for value in spec.values():
            yield from _pods(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from _pods(value)


def _maps(spec: Any) -> Iterator[Object]:
    """All mappings in an object, below those that hold whatever their owner likes."""
    if isinstance(spec, dict):
        yield spec
        for value in spec.values():
            yield from _maps(value)
    elif isinstance(spec, list):
        for value in spec:
            yield from _maps(value)


def _forged_specs(obj: Object) -> Iterator[tuple[str, Object]]:
    """The spec with one forgery each."""

    def forged(
        name: str, find: Callable[[Any], Iterator[Object]], at: int, change: Object
    ) -> tuple[str, Object]:
        spec = copy.deepcopy(obj["spec"])
        next(itertools.islice(find(spec), at, None)).update(change)
        return name, {"spec": spec}

    def containers(spec: Any) -> Iterator[Object]:
        return (pod["containers"][0] for pod in _pods(spec))

    for at, _ in enumerate(_pods(obj["spec"])):
        for name, change in IN_CONTAINER.items():
            yield forged(f"{name} of pod {at}", containers, at, change)
        for name, change in IN_POD.items():
            yield forged(f"{name} of pod {at}", _pods, at, change)
    for at, one in enumerate(_maps(obj["spec"])):
        yield forged(f"new field {at}", _maps, at, {"forged": "x"})
        for key, value in one.items():
            if isinstance(value, str):
                yield forged(f"{key} {at}", _maps, at, {key: "forged"})


def _forged_numbers(row: Kind, obj: Object) -> Iterator[tuple[str, Object]]:
    """More than there is: without a record, and with one in the same patch."""
    for edit in _growing(row, obj):
        name = f"{'.'.join(edit.path)} {edit.after}"
        patch = patch_of(obj, [edit])
        yield name, patch
        yield f"{name} with a record", _noted(patch, undo_record(edit.reversed)["annotations"])
        yield f"{name} with any record", _noted(patch, {UNDO_ANNOTATION: "x"})
    yield "a record alone", {"metadata": {"annotations": {UNDO_ANNOTATION: "{}"}}}


def _growing(row: Kind, obj: Object) -> Iterator[Edit]:
    for field in _governed(row):
        for place in parents(obj, field.path[:-1]):
            for value in MUCH[field.value]:
                yield edit_of(obj, (*place, field.path[-1]), value)


def _governed(row: Kind) -> list[Field]:
    return [field for field in fields_of(row) if field.value in MUCH]


def _amounts(row: Kind) -> list[Field]:
    return [field for field in fields_of(row) if field.value is Value.QUANTITY]


def _ghosts(row: Kind) -> Iterator[tuple[str, ...]]:
    """Paths of its fields in containers, groups or roles that do not exist."""
    for field in fields_of(row):
        if any(step.endswith(ITEM) or step == ANY for step in field.path[:-1]):
            *above, last = (
                f"{step.removesuffix(ITEM)}=ghost" if step.endswith(ITEM) else step for step in field.path
            )
            yield (*("ghost" if step == ANY else step for step in above), GPU if last == ANY else last)


def _listed(path: Sequence[str]) -> str:
    """As JSON without spaces."""
    return str(list(path)).replace("'", '"').replace(", ", ",")


def _noted(patch: Object, annotations: Object) -> Object:
    metadata = patch.get("metadata", {})
    return {
        **patch,
        "metadata": {**metadata, "annotations": {**metadata.get("annotations", {}), **annotations}},
    }


@pytest.mark.parametrize("kind", ROWS)
def test_forged_patch_of_kind_is_refused(guarded: Api, kind: str) -> None:
    """Metadata, specs, numbers: by the API server itself, one field at a time."""
    kept = {"annotations": {"kept": "1", **OPT_OUTS}, "labels": {"kept": "1"}}
    path, _ = made(guarded, kind, "attacked", kept)
    body = {"metadata": {"labels": {"forged": "x"}}}
    guarded.eventually(lambda: _tried(guarded, path, body) in REFUSED)
    obj = guarded.get(path)
    attempts = [(name, {"metadata": metadata}) for name, metadata in METADATA.items()]
    attempts += [*_forged_specs(obj), *_forged_numbers(ROWS[kind], obj)]
    assert not _passed(guarded, path, obj, attempts)
    assert len(attempts) >= LEAST
    assert _tried(guarded, path, {"metadata": {"managedFields": [{}]}}) in REFUSED
    as_another = {**DRY, "fieldManager": "kubectl"}
    assert (
        guarded.patch(path, {"metadata": {}}, user=_user(guarded), params=as_another).status_code in REFUSED
    )
    whole = {key: obj[key] for key in ("apiVersion", "kind")} | {
        "metadata": {"name": obj["metadata"]["name"]}
    }
    as_another["force"] = "true"
    reply = guarded.patch(path, whole, kind="apply-patch", user=_user(guarded), params=as_another)
    assert reply.status_code in REFUSED | {415}


def _tried(api: Api, path: str, patch: Object) -> int:
    return int(api.patch(path, patch, user=_user(api), params=DRY).status_code)


def _passed(api: Api, path: str, obj: Object, attempts: Sequence[tuple[str, Object]]) -> list[str]:
    """The attempts that would change the object; the API server drops fields that it does not know."""
    found = []
    for name, patch in attempts:
        reply = api.patch(path, patch, user=_user(api), params=DRY)
        assert reply.status_code in {200, *REFUSED}, (name, reply.text)
        if reply.status_code in REFUSED:
            continue
        # Controllers annotate, too: what differs from before may be theirs.
        if _essence(reply.json()) not in (_essence(obj), _essence(api.get(path))):
            found.append(name)
    return found


def _essence(obj: Object) -> Object:
    own = ("labels", "annotations", "finalizers", "ownerReferences")
    return {"spec": obj["spec"], **{key: obj["metadata"].get(key) for key in own}}


@pytest.mark.parametrize("kind", [kind for kind, row in ROWS.items() if row.replicas or row.groups])
def test_forged_record_of_kind_raises_nothing(guarded: Api, kind: str) -> None:
    """First any text as record, with a change that is allowed; then the number that the text names: one is refused."""
    row = ROWS[kind]
    path, _ = made(guarded, kind, "probe")
    guarded.eventually(lambda: _tried(guarded, path, {"metadata": {"labels": {"forged": "x"}}}) in REFUSED)
    for number, (text, value) in enumerate(itertools.product(TEXTS, (9, 5_000))):
        path, obj = made(guarded, kind, f"lied-{number}")
        for field in _governed(row):
            if field.value is not Value.COUNT:
                continue
            for place in parents(obj, field.path[:-1]):
                target = (*place, field.path[-1])
                lie = text.format(path=_listed(target), value=value)
                lowered = patch_of(obj, [edit_of(obj, target, 0)])
                guarded.patch(path, _noted(lowered, {UNDO_ANNOTATION: lie}), user=_user(guarded))
                now = guarded.get(path)
                assert _tried(guarded, path, patch_of(now, [edit_of(now, target, value)])) in REFUSED, lie


AMOUNTS = ("64", "+64", "064", "6.4e1", "6400e-2", ".64e2", "64k", "\\u0036\\u0034")
"""How a thief may write an amount in a record, so that it is overlooked and can be restored."""


@pytest.mark.parametrize("kind", [kind for kind, row in ROWS.items() if _amounts(row)])
def test_forged_record_of_kind_raises_no_amount(guarded: Api, kind: str) -> None:
    """As with numbers: first the lie, with a change that is allowed; then the amount that it names."""
    path, obj = _with_gpus(guarded, kind, "probe-amount")
    guarded.eventually(lambda: _tried(guarded, path, {"metadata": {"labels": {"forged": "x"}}}) in REFUSED)
    place = _limits(ROWS[kind], obj)
    for number, (text, value) in enumerate(itertools.product(TEXTS, AMOUNTS)):
        path, obj = _with_gpus(guarded, kind, f"amount-{number}")
        lie = text.format(path=_listed((*place, GPU)), value=f'"{value}"')
        lowered = patch_of(obj, [edit_of(obj, (*place, GPU), "1")])
        guarded.patch(path, _noted(lowered, {UNDO_ANNOTATION: lie}), user=_user(guarded))
        now = guarded.get(path)
        raised = patch_of(now, [edit_of(now, (*place, GPU), value)])
        assert _tried(guarded, path, raised) in REFUSED, lie


def _with_gpus(api: Api, kind: str, name: str) -> tuple[str, Object]:
    """An object whose first container of each pod has two GPUs; skips the test where that cannot change."""
    path, obj = made(api, kind, name)
    spec = copy.deepcopy(obj["spec"])
    for one in _pods(spec):
        one["containers"][0].setdefault("resources", {})["limits"] = {GPU: "2"}
    if api.patch(path, {"spec": spec}).status_code != 200 or not list(_pods(spec)):
        pytest.skip("its template cannot change")
    return path, api.get(path)


def _limits(row: Kind, obj: Object) -> tuple[str, ...]:
    found = (place for field in _amounts(row) for place in places(obj, field.path[:-1]))
    return next(place for place in found if place[-1] == "limits")


@pytest.mark.parametrize("kind", [kind for kind, row in ROWS.items() if any(_ghosts(row))])
def test_record_about_what_does_not_exist_is_refused(guarded: Api, kind: str) -> None:
    """A container or group that its owner adds later could be raised by it."""
    path, obj = made(guarded, kind, "haunted")
    guarded.eventually(lambda: _tried(guarded, path, {"metadata": {"labels": {"forged": "x"}}}) in REFUSED)
    field = next((one for one in _governed(ROWS[kind]) if one.value is Value.COUNT), None)
    if field is None:
        path, obj = _with_gpus(guarded, kind, "haunted-by-gpus")
        true = edit_of(obj, (*_limits(ROWS[kind], obj), GPU), "1")
    else:
        true = edit_of(obj, (*parents(obj, field.path[:-1])[0], field.path[-1]), 0)
    for ghost in _ghosts(ROWS[kind]):
        record = undo_record(true, Edit(ghost, 5_000, 1))["annotations"]
        assert _tried(guarded, path, _noted(patch_of(obj, [true]), record)) in REFUSED, ghost
    record = undo_record(true)["annotations"]
    assert _tried(guarded, path, _noted(patch_of(obj, [true]), record)) == 200


STATE_NAMES = (
    *("gpu-rightsizer-policy", "kube-root-ca.crt", "gpu-rightsizer-state-2", "gpu-rightsizer-memory-8"),
    *("gpu-rightsizer-memory", "xgpu-rightsizer-state", "grafana-dashboard", "argocd-cm", "prometheus-rules"),
    *("gpu-rightsizer-", "w-0-0123abcd", "gpu-rightsizer-memory-00"),
)
NOTES: tuple[Object, ...] = (
    {},
    {"finalizers": ["example.com/forged"]},
    {"ownerReferences": [OWNER]},
    {"labels": {"grafana_dashboard": "1"}},
    {"labels": {"owner": "helm"}},
    {"annotations": {"reflector.v1.k8s.emberstack.com/reflection-allowed": "true"}},
)
GOOD: dict[str, tuple[str, Object]] = {
    "configmaps": ("api/v1", {"metadata": {"name": STATE_MAPS[0]}}),
    "leases": ("apis/coordination.k8s.io/v1", {"metadata": {"name": "gpu-rightsizer"}}),
    "secrets": (
        "api/v1",
        {
            "type": "gpu-rightsizer.io/pod-manifest",
            "metadata": {"name": "w-0-0123abcd", "labels": {"gpu-rightsizer.io/manifest": "run"}},
        },
    ),
    "events": (
        "api/v1",
        {
            "metadata": {"name": "w.0123456789abcdef"},
            "involvedObject": {"kind": "Pod", "name": "w"},
            "reason": "ScaledToZero",
            "type": "Normal",
            "source": {"component": "gpu-rightsizer"},
            "reportingComponent": "gpu-rightsizer",
        },
    ),
}
TYPES = (
    *(
        "Opaque",
        "kubernetes.io/service-account-token",
        "helm.sh/release.v1",
        "kubernetes.io/tls",
        "istio.io/ca-root",
    ),
    *("bootstrap.kubernetes.io/token", "kubernetes.io/dockerconfigjson", "kubernetes.io/ssh-auth"),
)
SECRET_NAMES = (
    "sh.helm.release.v1.app.v1",
    "db-password",
    "default-token",
    "w-0-0123abc",
    "W-0123ABCD",
    "x-0123abcz",
)
EVENT_REASONS = (
    *(
        "Killing",
        "Evicted",
        "FailedScheduling",
        "Pulled",
        "BackOff",
        "NodeNotReady",
        "Scheduled",
        "Preempted",
        "",
    ),
    *(
        "scaledtozero",
        "ScaledToZeroX",
        "SuccessfulDelete",
        "Unhealthy",
        "FailedMount",
        "OOMKilling",
        "Rebooted",
    ),
)
COMPONENTS = ("kubelet", "default-scheduler", "gpu-rightsizer2", "")


def _forged_objects(plural: str, good: Object) -> Iterator[Object]:
    meta = good["metadata"]
    for notes in NOTES[1:]:
        yield {
            **good,
            "metadata": {**meta, **notes, "labels": {**meta.get("labels", {}), **notes.get("labels", {})}},
        }
    if plural in {"configmaps", "secrets"}:
        yield {**good, "immutable": True}
    if plural in {"configmaps", "leases"}:
        for name, notes in itertools.product((meta["name"], *STATE_NAMES), NOTES):
            if name != meta["name"] or notes:
                yield {**good, "metadata": {"name": name, **notes}}
        yield {**good, "metadata": {"generateName": meta["name"]}}
        yield {**good, "metadata": {"generateName": "gpu-rightsizer-state"}}
        yield {**good, "metadata": {**meta, "annotations": {"a": "b"}}}
    elif plural == "secrets":
        for kind, notes in itertools.product(TYPES, NOTES):
            yield {**good, "type": kind, "metadata": {**meta, **notes}}
        for name, notes in itertools.product(SECRET_NAMES, NOTES):
            yield {**good, "metadata": {"name": name, **notes}}
    else:
        for reason, component in itertools.product(EVENT_REASONS, COMPONENTS):
            yield {**good, "reason": reason, "source": {"component": component}}
        about = good["involvedObject"]
        yield {**good, "involvedObject": {**about, "namespace": "kube-system"}}
        yield {**good, "involvedObject": {**about, "kind": "Node"}}
        yield {**good, "related": {**about, "namespace": "kube-system"}}


@pytest.mark.parametrize("plural", GOOD)
def test_forged_object_is_refused(guarded: Api, plural: str) -> None:
    """Of ConfigMaps, Leases, Secrets and Events only those that the program writes may be created."""
    root, good = copy.deepcopy(GOOD[plural])
    if plural == "events":
        good["involvedObject"]["namespace"] = guarded.namespace
    path = f"/{root}/namespaces/{guarded.namespace}/{plural}"
    attempts = list(_forged_objects(plural, good))
    guarded.eventually(lambda: _created(guarded, path, attempts[0]) in REFUSED)
    assert _created(guarded, path, good) == 201
    passed = [one for one in attempts if _created(guarded, path, one) not in REFUSED]
    assert not passed
    assert len(attempts) >= LEAST


def _created(api: Api, path: str, body: Object) -> int:
    return int(api("POST", path, body, user=_user(api), params=DRY).status_code)


def test_forged_eviction_is_refused(guarded: Api) -> None:
    """Only with the UID of the pod, and with the pod's own time to end."""
    made_pod = guarded.create(f"{guarded.core}/pods", pod("evicted"))
    path, uid = f"{guarded.core}/pods/evicted/eviction", made_pod["metadata"]["uid"]
    conditions: Sequence[Object] = ({}, {"preconditions": {}}, {"preconditions": {"uid": uid}})
    harsh: Sequence[Object] = (
        *({"gracePeriodSeconds": seconds} for seconds in range(12)),
        *({"propagationPolicy": policy} for policy in ("Orphan", "Background", "Foreground")),
        *({"gracePeriodSeconds": 0, "propagationPolicy": policy} for policy in ("Orphan", "Background")),
    )
    attempts = [{**one, **other} for one, other in itertools.product(conditions, ({}, *harsh))]
    attempts.remove({"preconditions": {"uid": uid}})

    def tried(options: Object) -> int:
        body = {"metadata": {"name": "evicted"}, "deleteOptions": {**options, "dryRun": ["All"]}}
        return _created(guarded, path, body)

    guarded.eventually(lambda: tried({}) in REFUSED)
    assert tried({"preconditions": {"uid": uid}}) in {200, 201}
    passed = [one for one in attempts if tried(one) not in REFUSED]
    assert not passed
    assert len(attempts) >= LEAST


def test_forged_patch_of_pod_is_refused(guarded: Api) -> None:
    """Of pods only notices, deletion costs and annotations of the program change."""
    body = pod("patched", 1, labels={"kept": "1"})
    body["metadata"]["annotations"] = {"kept": "1"}
    obj, path = guarded.create(f"{guarded.core}/pods", body), f"{guarded.core}/pods/patched"
    attempts = [(name, {"metadata": metadata}) for name, metadata in METADATA.items()]
    attempts += [*_forged_specs(obj), ("a record", {"metadata": {"annotations": {UNDO_ANNOTATION: "{}"}}})]
    guarded.eventually(lambda: _tried(guarded, path, attempts[0][1]) in REFUSED)
    assert not _passed(guarded, path, obj, attempts)
    assert len(attempts) >= LEAST


def test_forged_command_is_refused(guarded: Api) -> None:
    """Of Volcano's Commands only those that abort or resume a Job that owns them."""
    _, obj = made(guarded, "Job.batch.volcano.sh", "ordered")
    uid = obj["metadata"]["uid"]
    target = {
        "apiVersion": obj["apiVersion"],
        "kind": "Job",
        "name": obj["metadata"]["name"],
        "uid": uid,
        "controller": True,
    }
    path = f"/apis/bus.volcano.sh/v1alpha1/namespaces/{guarded.namespace}/commands"
    metadata: Object = {"name": "x", "ownerReferences": [target]}
    good = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": metadata,
        "action": "AbortJob",
        "target": target,
    }
    actions = (
        "TerminateJob",
        "CompleteJob",
        "RestartJob",
        "RestartTask",
        "SyncJob",
        "EnqueueJob",
        "abortjob",
        "",
    )
    lies: Sequence[Object] = (
        {},
        {"target": {**target, "kind": "Queue"}},
        {"target": {**target, "name": "another"}},
        {"target": {**target, "apiVersion": "batch/v1"}},
        {"target": {**target, "uid": OWNER["uid"]}},
        {"metadata": {"name": "x"}},
        {"metadata": {**metadata, "labels": {"a": "b"}}},
        {"metadata": {**metadata, "annotations": {"a": "b"}}},
        {"metadata": {**metadata, "finalizers": ["example.com/forged"]}},
        {"metadata": {**metadata, "ownerReferences": [target, {**OWNER, "controller": False}]}},
    )
    attempts = [
        {**good, **lie, "action": action}
        for action, lie in itertools.product((*actions, "AbortJob", "ResumeJob"), lies)
        if lie or action in actions
    ]
    guarded.eventually(lambda: _created(guarded, path, attempts[0]) in REFUSED)
    assert _created(guarded, path, good) == 201
    passed = [one for one in attempts if _created(guarded, path, one) not in REFUSED]
    assert not passed
    assert len(attempts) >= LEAST


ALLOWED: dict[str, Object] = {
    "fewer replicas, GPUs or slices, with or without a record": {"spec": {"replicas": 0}},
    "removing or replacing an undo record": {"metadata": {"annotations": {UNDO_ANNOTATION: None}}},
    "any history or notice": {"metadata": {"annotations": {"gpu-rightsizer.io/history": "forged"}}},
    "restoring up to what the record says": {"spec": {"replicas": 2}},
}
"""As docs/security.md lists them."""


@pytest.mark.parametrize("listed", ALLOWED)
def test_forgery_that_the_page_lists_is_allowed(guarded: Api, listed: str) -> None:
    """The page is complete only while its list is true."""
    record = undo_record(Edit(("spec", "replicas"), 2, 1))
    path, _ = made(guarded, "Deployment.apps", f"listed-{list(ALLOWED).index(listed)}", record)
    guarded.patch(path, {"spec": {"replicas": 1}})
    assert _tried(guarded, path, ALLOWED[listed]) == 200
    assert listed in PAGE.read_text()


def test_names_of_ray_workers_and_templates_of_missing_ones_are_allowed(guarded: Api) -> None:
    """Both stand on the page, too."""
    kind = "RayCluster.ray.io"
    path, obj = made(guarded, kind, "listed-ray")
    guarded.eventually(lambda: _tried(guarded, path, {"metadata": {"labels": {"forged": "x"}}}) in REFUSED)
    (names,) = (field for field in fields_of(ROWS[kind]) if field.value is Value.NAMES)
    place = (*parents(obj, names.path[:-1])[0], names.path[-1])
    assert _tried(guarded, path, patch_of(obj, [edit_of(obj, place, ["any-worker"])])) == 200
    path = f"/apis/resource.k8s.io/v1/namespaces/{guarded.namespace}/resourceclaimtemplates"
    made_of_none = _template("missing-64-01234567", {**BASE, "count": 64}, base="missing")
    guarded.create(path, _template("another", BASE))
    guarded.eventually(lambda: _created(guarded, path, made_of_none) == 201)
    for listed in ("choosing which Ray workers go", "templates named after missing ones"):
        assert listed in PAGE.read_text()


BASE: Object = {
    "deviceClassName": "gpu.nvidia.com",
    "count": 4,
    "selectors": [{"cel": {"expression": "true"}}],
}
OTHER_REQUESTS: Sequence[Object] = (
    *({**BASE, "count": count} for count in (5, 8, 16)),
    *({**BASE, "deviceClassName": name} for name in ("mig.nvidia.com", "nic.example.com")),
    {key: value for key, value in BASE.items() if key != "selectors"},
    {**BASE, "selectors": [{"cel": {"expression": "false"}}]},
    {**BASE, "selectors": [*BASE["selectors"], {"cel": {"expression": "false"}}]},
    {**BASE, "adminAccess": True},
    {"deviceClassName": "gpu.nvidia.com", "allocationMode": "All"},
    {**BASE, "tolerations": [{"operator": "Exists"}]},
)
NAMES = (
    "base",
    "base-2",
    "base-2-0123456",
    "base-2-012345678",
    "base-x-01234567",
    "other-2-01234567",
    "B-2-01234567",
)


def _template(name: str, exactly: Object, *, base: str = "base", **notes: Object) -> Object:
    metadata: Object = {"name": name, "annotations": {"gpu-rightsizer.io/smaller-than": base}, **notes}
    requests = [{"name": "gpus", "exactly": exactly}]
    return {"metadata": metadata, "spec": {"spec": {"devices": {"requests": requests}}}}


def _forged_templates() -> Iterator[Object]:
    good, name = {**BASE, "count": 2}, "base-2-01234567"
    yield from (_template(name, {**good, **one}) for one in OTHER_REQUESTS if one.get("count") != 4)
    yield from (
        _template(name, {**one, "count": 2}) for one in OTHER_REQUESTS if "count" in one and one["count"] == 4
    )
    yield from (_template(other, good) for other in NAMES)
    yield from (_template(name, good, base=base) for base in ("", "base-2", "none", "large"))
    yield _template(name, good, annotations={})
    for notes in NOTES[1:]:
        yield _template(
            name,
            good,
            **{
                "labels": {},
                **notes,
                **(
                    {"annotations": {**notes["annotations"], "gpu-rightsizer.io/smaller-than": "base"}}
                    if "annotations" in notes
                    else {}
                ),
            },
        )
    for part in (
        {"constraints": [{"requests": ["gpus"], "matchAttribute": "gpu.nvidia.com/uuid"}]},
        {"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"kind": "Forged"}}}]},
        {"requests": [{"name": name, "exactly": good} for name in ("gpus", "more")]},
        {"requests": [{"name": "more", "exactly": good}]},
        {"requests": [{"name": "gpus", "firstAvailable": [{"name": "a", **good}]}]},
    ):
        one = _template(name, good)
        one["spec"]["spec"]["devices"].update(part)
        yield one
    for noted in ({"labels": {"a": "b"}}, {"annotations": {"a": "b"}}):
        one = _template(name, good)
        one["spec"]["metadata"] = noted
        yield one


def _profile(profile: str, name: str = "mig.nvidia.com", **changes: Any) -> Object:
    expression = f'device.attributes["gpu.nvidia.com"].profile == "{profile}"'
    return {"deviceClassName": name, "selectors": [{"cel": {"expression": expression}}], **changes}


def _selected(*expressions: str) -> Object:
    return {"selectors": [{"cel": {"expression": one}} for one in expressions]}


SMALLER = {
    "half": (_profile("2g.20gb"), _profile("1g.10gb"), _profile("1g.20gb"), _profile("3g.40gb")),
    "whole": (_profile("1g.10gb"), _profile("7g.80gb", count=1)),
}
"""Requests that a template may have, by that which it is made from: for a 3g.40gb, or for a whole GPU."""
OTHER_PROFILES = {
    "half": (
        *(_profile(name) for name in ("4g.40gb", "3g.80gb", "7g.80gb", "1g.80gb", "10g.10gb")),
        _profile("1g.10gb", "gpu.nvidia.com"),
        _profile("1g.10gb", count=2),
        _profile("1g.10gb", adminAccess=True),
        _profile("1g.10gb", tolerations=[{"operator": "Exists"}]),
        {**_profile("1g.10gb"), **_selected()},
        {**_profile("1g.10gb"), **_selected("true")},
        {**_profile("1g.10gb"), **_selected('device.attributes["gpu.nvidia.com"].profile != "1g.10gb"')},
        {
            **_profile("1g.10gb"),
            **_selected('device.attributes["gpu.nvidia.com"].profile == "1g.10gb" || true'),
        },
        {
            **_profile("1g.10gb"),
            **_selected(*(f'device.attributes["gpu.nvidia.com"].profile == "{n}g.10gb"' for n in (1, 2))),
        },
    ),
    "whole": (
        _profile("1g.10gb", "nic.example.com"),
        _profile("1g.10gb", "gpu.nvidia.com"),
        _profile("1g.10gb", count=2),
        {"deviceClassName": "mig.nvidia.com"},
        {"deviceClassName": "mig.nvidia.com", **_selected("true")},
    ),
    "selected": (_profile("1g.10gb"),),
}


def _is_refused(api: Api, path: str, body: Object) -> bool:
    return _created(api, path, body) in REFUSED


def test_forged_claim_template_is_refused(guarded: Api) -> None:
    """Only what another template of the namespace requests may be requested, for no more or larger devices."""
    path = f"/apis/resource.k8s.io/v1/namespaces/{guarded.namespace}/resourceclaimtemplates"
    attempts = list(_forged_templates())
    for name, count in (("base", 4), ("large", 64)):
        guarded.create(path, _template(name, {**BASE, "count": count}))
    for one in attempts[0], _template("base", BASE):  # each of another of the two policies
        guarded.eventually(functools.partial(_is_refused, guarded, path, one))
    good = _template("base-2-01234567", {**BASE, "count": 2})
    guarded.eventually(lambda: _created(guarded, path, good) == 201)
    passed = [one for one in attempts if _created(guarded, path, one) not in REFUSED]
    assert not passed
    for base, request in {
        "half": _profile("3g.40gb"),
        "whole": {"deviceClassName": "gpu.nvidia.com"},
        "selected": {"deviceClassName": "gpu.nvidia.com", **_selected("true")},
    }.items():
        guarded.create(path, _template(base, request))
        allowed = [
            _template(f"{base}-1-{n:08}", one, base=base) for n, one in enumerate(SMALLER.get(base, ()))
        ]
        forged = [_template(f"{base}-1-aaaaaaaa", one, base=base) for one in OTHER_PROFILES[base]]
        # Admission sees the new base only when its own watch does.
        guarded.eventually(functools.partial(_is_refused, guarded, path, forged[0]))
        assert [_created(guarded, path, one) for one in allowed] == [201] * len(allowed)
        assert not [one for one in forged if _created(guarded, path, one) not in REFUSED]
    others = _template("large-2-01234567", {**BASE, "count": 2, "adminAccess": True}, base="large")
    assert _created(guarded, path, others) in REFUSED
    assert len(attempts) + sum(map(len, OTHER_PROFILES.values())) >= LEAST
