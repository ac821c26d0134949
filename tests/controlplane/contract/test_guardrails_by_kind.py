"""The admission guardrails, kind by kind: they allow what our rows do, and nothing else, and no protected class."""

import contextlib
import copy
import datetime
import functools
import json
from collections.abc import Iterator
from typing import Any

import pytest

from rightsizer.changes.record_codec import UNDO_ANNOTATION
from rightsizer.guardrails.admission import admission_policies, name_of
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS
from rightsizer.kinds.change_edits import stop_edits
from rightsizer.kinds.core import POD
from rightsizer.kinds.edits import ANY, edit_of, patch_of, places
from rightsizer.kinds.kind import Field, Kind, Value
from rightsizer.model import Edit
from rightsizer.policy.policy_file import parse
from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.thirdparty import third_party_kinds
from tests.controlplane.contract.server import Api, Object, Server, Simulated
from tests.controlplane.contract.test_guardrails import GROUP, OWN, PLURALS, USER, undo_record
from tests.rightsizer.given import manifest

POLICY = b"""
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
classAnnotations: off
rules:
  - {name: precious, match: {priorityClasses: ["lock-*"]}, mode: protect}
  - name: all
    match: {everything: true}
    mode: enforce
    actions: [scale-up, scale-down, resize, reslice, scale-to-zero, suspend, evict]
"""
ROWS = {
    f"{row.kind}.{row.group}".rstrip("."): row for row in (*KINDS, *CONTROL_OBJECT_KINDS) if row is not POD
}
AT = datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC)
CLASS = "lock-high"
NOTICE: Object = {"metadata": {"annotations": {"gpu-rightsizer.io/notice": "{}"}}}
_POD: Object = {"template": {"spec": {"containers": [{"name": "main", "image": "x"}]}}}
_PLAIN = ("spec", "template", "spec", "priorityClassName")
_MEMBER = ("Worker", *_PLAIN[1:])
CLASSES: dict[str, tuple[tuple[str | int, ...], ...]] = {
    **dict.fromkeys(
        (
            *("Deployment.apps", "StatefulSet.apps", "ReplicaSet.apps", "ReplicationController", "Job.batch"),
            *("Notebook.kubeflow.org", "Service.serving.knative.dev", "Rollout.argoproj.io"),
        ),
        (_PLAIN,),
    ),
    "CronJob.batch": (("spec", "jobTemplate", *_PLAIN),),
    "JobSet.jobset.x-k8s.io": (("spec", "replicatedJobs", 0, "template", *_PLAIN),),
    "LeaderWorkerSet.leaderworkerset.x-k8s.io": (
        ("spec", "leaderWorkerTemplate", "workerTemplate", "spec", "priorityClassName"),
        ("spec", "leaderWorkerTemplate", "leaderTemplate", "spec", "priorityClassName"),
    ),
    "PyTorchJob.kubeflow.org": (
        ("spec", "pytorchReplicaSpecs", *_MEMBER),
        ("spec", "pytorchReplicaSpecs", "Master", *_PLAIN[1:]),
    ),
    "TFJob.kubeflow.org": (("spec", "tfReplicaSpecs", *_MEMBER),),
    "MPIJob.kubeflow.org": (("spec", "mpiReplicaSpecs", *_MEMBER),),
    "XGBoostJob.kubeflow.org": (("spec", "xgbReplicaSpecs", *_MEMBER),),
    "PaddleJob.kubeflow.org": (("spec", "paddleReplicaSpecs", *_MEMBER),),
    "JAXJob.kubeflow.org": (("spec", "jaxReplicaSpecs", *_MEMBER),),
    "InferenceService.serving.kserve.io": (
        ("spec", "predictor", "priorityClassName"),
        ("spec", "predictor", "workerSpec", "priorityClassName"),
        ("spec", "transformer", "priorityClassName"),
    ),
    "LLMInferenceService.serving.kserve.io": (
        ("spec", "template", "priorityClassName"),
        ("spec", "prefill", "template", "priorityClassName"),
    ),
    "NIMService.apps.nvidia.com": (("spec", "priorityClassName"),),
    "DynamoGraphDeployment.nvidia.com": (
        ("spec", "services", "decode", "extraPodSpec", "priorityClassName"),
        ("spec", "priorityClassName"),
    ),
    "PodCliqueSet.grove.io": (
        ("spec", "template", "cliques", 0, "spec", "podSpec", "priorityClassName"),
        ("spec", "template", "priorityClassName"),
    ),
    "RayCluster.ray.io": (
        ("spec", "workerGroupSpecs", 0, *_PLAIN[1:]),
        ("spec", "headGroupSpec", *_PLAIN[1:]),
    ),
    "RayJob.ray.io": (("spec", "rayClusterSpec", "workerGroupSpecs", 0, *_PLAIN[1:]),),
    "RayService.ray.io": (("spec", "rayClusterConfig", "workerGroupSpecs", 0, *_PLAIN[1:]),),
    "Workflow.argoproj.io": (
        ("spec", "templates", 0, "priorityClassName"),
        ("spec", "podPriorityClassName"),
    ),
    "CronWorkflow.argoproj.io": (("spec", "workflowSpec", "podPriorityClassName"),),
    "Job.batch.volcano.sh": (
        ("spec", "tasks", 0, *_PLAIN[1:]),
        ("spec", "priorityClassName"),
    ),
    "AppWrapper.workload.codeflare.dev": (
        ("spec", "components", 0, "template", "spec", "priorityClassName"),
        ("spec", "components", 0, "template", *_PLAIN),
    ),
    "Workload.kueue.x-k8s.io": (("spec", "podSets", 0, *_PLAIN[1:]),),
}
"""Where their owners name the class of pods, by each kind's API; the others name none."""
OTHERS: dict[str, Object] = {
    "Deployment.apps": {"paused": True},
    "StatefulSet.apps": {"minReadySeconds": 5},
    "ReplicaSet.apps": {"minReadySeconds": 5},
    "ReplicationController": {"minReadySeconds": 5},
    "Job.batch": {"backoffLimit": 3},
    "CronJob.batch": {"successfulJobsHistoryLimit": 2},
    "JAXJob.kubeflow.org": {"runPolicy": {"backoffLimit": 3}},
    "XGBoostJob.kubeflow.org": {"runPolicy": {"backoffLimit": 3}},
    "Notebook.kubeflow.org": {"template": {"spec": {"hostname": "x"}}},
}
"""A field that is not ours; of others any that their definition has."""


@pytest.fixture(scope="module")
def installed(server: Server, request: pytest.FixtureRequest) -> Iterator[Api]:
    """A server with every kind and the rendered policies of all."""
    if not isinstance(server, Simulated):
        _: ControlPlane = request.getfixturevalue("third_parties")
    api = Api(server)
    plurals = [row.of.plural for row in ROWS.values()]
    api.server.grant(USER, api.namespace, verbs=["patch", "create"], resources=[*plurals, "commands"])
    api("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": CLASS}, "value": 1})
    with contextlib.ExitStack() as stack:
        for document in _documents():
            path = f"{GROUP}/{PLURALS[document['kind']]}"
            api.create(path, document)
            stack.callback(api, "DELETE", f"{path}/{document['metadata']['name']}")
        yield api
    api("DELETE", f"/api/v1/namespaces/{api.namespace}")
    api.session.close()


def _documents() -> list[Object]:
    return admission_policies(parse(POLICY, source="policy.yaml").policy, account="gpu-rightsizer", own=OWN)


def _body(kind: str, name: str) -> Object:
    """As its owner would write it; its pods find no node."""
    row = ROWS[kind]
    pod = {"nodeSelector": {"there": "is-none"}, "priorityClass": ""}
    specs: dict[str, Object] = {
        "CronJob.batch": {
            "schedule": "0 0 1 1 *",
            "jobTemplate": {"spec": manifest("Job", "n", "n", pod)["spec"]},
        },
        "CronWorkflow.argoproj.io": {"schedule": "0 0 1 1 *", "workflowSpec": {"entrypoint": "main"}},
        "Workload.kueue.x-k8s.io": {"queueName": "q", "podSets": [{"name": "main", "count": 1, **_POD}]},
        "ScaledObject.keda.sh": {"scaleTargetRef": {"name": "w"}},
    }
    if kind in specs:
        head = {"apiVersion": row.of.api_version, "kind": row.kind, "metadata": {"name": name}}
        return {**head, "spec": specs[kind]}
    called = row.kind if row.group in {"apps", "batch"} else kind
    return manifest(called, "", name, pod)


def made(
    api: Api, kind: str, name: str, metadata: Object | None = None, *, at: tuple[str | int, ...] = ()
) -> tuple[str, Object]:
    """Its path, and what the server made of it; with the class at a place where there is one.

    Its name has its kind's in it: a RayJob makes a RayCluster of its own name.
    """
    name = f"{name}-{ROWS[kind].kind.lower()}"
    body = copy.deepcopy(_body(kind, name))
    body["metadata"] = {"name": name, **(metadata or {})}
    if at:
        _put(body, at)
    root = f"/apis/{body['apiVersion']}" if "/" in body["apiVersion"] else f"/api/{body['apiVersion']}"
    path = f"{root}/namespaces/{api.namespace}/{ROWS[kind].of.plural}"
    return f"{path}/{name}", api.create(path, body)


def _put(body: Any, at: tuple[str | int, ...]) -> None:
    for step in at[:-1]:
        body = body[step] if isinstance(step, int) else body.setdefault(step, {})
    body[at[-1]] = CLASS


def _everything(row: Kind, obj: Object) -> list[Edit]:
    """An edit of each field that the row may change, wherever the object has a place for it."""
    given = {
        Value.COUNT: 1,
        Value.SWITCH: True,
        Value.TEXT: "1",
        Value.QUANTITY: "2",
        Value.NAMES: ["worker-1"],
        Value.TEMPLATE: "whole-1-01234567",
    }
    found: list[Edit] = []
    for field in row.fields():
        *above, last = field.path
        if row.pause and ANY in last:  # the server itself lets that change only while it is suspended
            continue
        key = "nvidia.com/gpu" if last == ANY else last
        where = places(obj, tuple(above)) if last == ANY else parents(obj, tuple(above))
        found += [edit_of(obj, (*place, key), given[field.value]) for place in where]
    return found


def fields_of(row: Kind) -> list[Field]:
    """The fields that a row may change, each once."""
    return list(dict.fromkeys(row.fields()))


def parents(obj: Object, above: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The items that a pattern means, with what leads on from them even where it is not there yet."""
    ends = [number for number, step in enumerate(above, 1) if step.endswith(ANY)]
    cut = ends[-1] if ends else 0
    return [(*place, *above[cut:]) for place in places(obj, above[:cut])]


def _try(api: Api, path: str, patch: Object, **options: Any) -> Any:
    return api.patch(path, patch, user=USER, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ROWS)
def test_guardrail_by_kind_allows_changes_of_its_row(installed: Api, kind: str) -> None:
    """A notice, the stop, every field that a row names, and all of it back; any other field is refused."""
    api, row = installed, ROWS[kind]
    path, obj = made(api, kind, "w")
    other = {"spec": OTHERS.get(kind) or {_foreign(kind, obj): "x"}}
    dry = {"params": {"dryRun": "All"}}
    refused = api.eventually(
        lambda: _try(api, path, other, **dry), lambda reply: bool(reply.status_code == 403)
    )
    assert "may change" in refused.json()["message"] or "may not change" in refused.json()["message"]
    assert api.patch(path, other, params={"dryRun": "All"}).status_code == 200
    noted = _try(api, path, NOTICE)
    assert noted.status_code == 200, noted.text
    stop = stop_edits(row, obj, AT)
    stopped = _try(api, path, patch_of(obj, stop) | {"metadata": _notes(obj, stop, undo_record(*stop))})
    assert stopped.status_code == 200, stopped.text
    back = [edit.reversed for edit in stop]
    restored = _try(api, path, _undoing(_after(obj, stop), back))
    assert restored.status_code == 200, restored.text
    edits = _everything(row, obj)
    assert api.patch(path, {"metadata": undo_record(*(edit.reversed for edit in edits))}).status_code == 200
    reply = _try(api, path, _undoing(obj, edits))
    assert reply.status_code == 200, (edits, reply.text)


def _foreign(kind: str, obj: Object) -> str:
    """A field of spec that the object does not have, nor the row names."""
    ours = {step for field in ROWS[kind].fields() for step in field.path}
    defined = next((one.spec for one in third_party_kinds() if f"{one.kind}.{one.group}" == kind), ())
    return next((name for name in defined if name not in {*ours, *obj["spec"]}), "somethingElse")


def _undoing(obj: Object, edits: list[Edit]) -> Object:
    """The patch that makes edits and removes the record."""
    return patch_of(obj, edits) | {"metadata": _notes(obj, edits, {"annotations": {UNDO_ANNOTATION: None}})}


def _notes(obj: Object, edits: list[Edit], metadata: Object) -> Object:
    """Metadata of a patch, with the annotations that the edits set."""
    edited = patch_of(obj, edits).get("metadata", {}).get("annotations", {})
    return {"annotations": {**edited, **metadata["annotations"]}}


def _number(value: Any) -> bool:
    return str(value).isdecimal() and not isinstance(value, bool)


@pytest.mark.parametrize(
    "kind",
    [name for name, row in ROWS.items() if row.replicas or row.groups or (row.stop and _number(row.stop.to))],
)
def test_guardrail_by_kind_denies_growth_without_record(installed: Api, kind: str) -> None:
    """Of replicas, of groups, and of annotations that say how many; somebody else may."""
    api, row = installed, ROWS[kind]
    path, obj = made(api, kind, "grown")
    dry: Object = {"params": {"dryRun": "All"}}
    stopped = row.stop.field if row.stop and _number(row.stop.to) else None
    fields = [one for one in row.fields() if one.value is Value.COUNT or one is stopped]
    assert fields
    for field in fields:
        *above, last = field.path
        for place in parents(obj, tuple(above)):
            more = patch_of(obj, [edit_of(obj, (*place, last), 500 if field.value is Value.COUNT else "500")])
            attempt = functools.partial(_try, api, path, more, **dry)
            reply = api.eventually(attempt, lambda reply: bool(reply.status_code == 403))
            assert "record does not allow this value" in reply.json()["message"], more
            assert api.patch(path, more, **dry).status_code == 200
    patch = patch_of(obj, stop_edits(row, obj, AT))
    patch["metadata"] = _notes(obj, stop_edits(row, obj, AT), undo_record(*stop_edits(row, obj, AT)))
    assert _try(api, path, patch, **dry).status_code == 200, patch


def _after(obj: Object, edits: list[Edit]) -> Object:
    """The object with edits made, as RFC 7386 has it."""

    def merged(one: Any, patch: Any) -> Any:
        if not isinstance(patch, dict):
            return patch
        found = dict(one) if isinstance(one, dict) else {}
        for key, value in patch.items():
            found[key] = merged(found.get(key), value)
        return {key: value for key, value in found.items() if value is not None}

    changed: Object = merged(copy.deepcopy(obj), patch_of(obj, edits))
    return changed


@pytest.mark.parametrize("kind", CLASSES)
def test_guardrail_by_kind_denies_protected_classes(installed: Api, kind: str) -> None:
    """Wherever the kind's owners name the class of some of its pods; 422, because they can do so at any time."""
    api, row = installed, ROWS[kind]
    for number, at in enumerate(CLASSES[kind]):
        path, obj = made(api, kind, f"p-{number}", at=at)
        patch = patch_of(obj, stop_edits(row, obj, AT))
        attempt = functools.partial(_try, api, path, patch, params={"dryRun": "All"})
        reply = api.eventually(attempt, lambda reply: bool(reply.status_code != 200))
        assert reply.status_code == 422, reply.text
        assert "rule precious protects pods of class lock-*" in reply.json()["message"], at


_VALUES: tuple[Any, ...] = ("text", None, 5)
STRANGE: dict[str, Object] = {
    "AppWrapper.workload.codeflare.dev": {
        "components": [
            *({"template": {"kind": "ConfigMap", "spec": value}} for value in _VALUES),
            *({"template": {"kind": "Custom", "spec": {"template": value}}} for value in _VALUES),
            *({"template": {"spec": {"containers": [], "priorityClassName": value}}} for value in (5, None)),
            *({"template": value} for value in _VALUES),
            *_VALUES,
        ]
    },
    "Workflow.argoproj.io": {"templates": "text", "podPriorityClassName": 5},
    "CronWorkflow.argoproj.io": {"workflowSpec": {"templates": ["text", None, {"priorityClassName": 5}]}},
    "DynamoGraphDeployment.nvidia.com": {"services": {"decode": {"extraPodSpec": "text"}}},
}
"""Specs that definitions without types allow, such as Argo's minimal one, and an AppWrapper's for its parts."""


@pytest.mark.parametrize("kind", STRANGE)
def test_guardrail_by_kind_ignores_classes_of_other_types(installed: Api, kind: str) -> None:
    """What stands in place of a pod template, or of a class, protects nothing and stops no other change."""
    api, row = installed, ROWS[kind]
    path, obj = made(api, kind, "strange")
    obj["spec"] |= STRANGE[kind]
    assert api("PUT", path, obj).status_code == 200
    patch = patch_of(obj, stop_edits(row, obj, AT))
    reply = _try(api, path, patch, params={"dryRun": "All"})
    assert reply.status_code == 200, reply.text


NAMELESS: dict[str, tuple[Object, int]] = {
    "job": ({"spec": {"template": {"spec": {"containers": []}}}}, 422),
    "pod": ({"spec": {"containers": []}}, 422),
    "job-of-a-class": ({"spec": {"template": {"spec": {"containers": [], "priorityClassName": "low"}}}}, 200),
    "service": ({"spec": {"ports": []}}, 200),
}
"""What an AppWrapper may contain, and the answer where pods without a class are protected."""


def test_guardrail_on_app_wrapper_misses_class_only_of_pods(installed: Api) -> None:
    """A Service has none, nor has the spec of a Job beside its template."""
    api, kind = installed, "AppWrapper.workload.codeflare.dev"
    path, obj = made(api, kind, "nameless")
    policy = parse(POLICY.replace(b"lock-*", b""), source="policy.yaml").policy
    name = f"gpu-rightsizer-{name_of(ROWS[kind].group, ROWS[kind].of.plural)}"
    documents = admission_policies(policy, account="gpu-rightsizer", own=OWN)
    spec = next(one["spec"] for one in documents if one["metadata"]["name"] == name)
    place = f"{GROUP}/{PLURALS['ValidatingAdmissionPolicy']}/{name}"
    before = api.get(place)["spec"]

    def answers(rules: Object, components: Object, code: int) -> None:
        given: Object = {"spec": {**obj["spec"], "components": [{"template": components}]}}
        assert api.patch(path, given).status_code == 200
        assert api.patch(place, {"spec": {"validations": rules["validations"]}}).status_code == 200
        patch = patch_of(obj, stop_edits(ROWS[kind], obj, AT))
        attempt = functools.partial(_try, api, path, patch, params={"dryRun": "All"})
        api.eventually(attempt, lambda reply: bool(reply.status_code == code))

    for template, code in NAMELESS.values():
        answers(spec, template, code)
    answers(before, NAMELESS["pod"][0], 200)


def test_guardrail_by_kind_knows_where_classes_are() -> None:
    """But for those whose objects do not name them, as is told where the policies are rendered."""
    assert {kind for kind, row in ROWS.items() if row.classes} == set(CLASSES)


def test_guardrail_on_volcano_allows_abort_and_resume_only(installed: Api) -> None:
    """Volcano's Commands: to abort and to resume the Job that owns them, never to terminate."""
    api = installed
    path, obj = made(api, "Job.batch.volcano.sh", "ordered")
    target = {
        "apiVersion": obj["apiVersion"],
        "kind": "Job",
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
    }
    commands = f"/apis/bus.volcano.sh/v1alpha1/namespaces/{api.namespace}/commands"

    def answer(action: str, *owners: object) -> int:
        body = {
            "apiVersion": "bus.volcano.sh/v1alpha1",
            "kind": "Command",
            "metadata": {"name": f"x-{action.lower()}", "ownerReferences": owners},
            "action": action,
            "target": target,
        }
        return int(api("POST", commands, body, user=USER, params={"dryRun": "All"}).status_code)

    assert path
    api.eventually(lambda: answer("TerminateJob", target), lambda code: code == 403)
    actions = ("AbortJob", "ResumeJob", "CompleteJob", "RestartJob")
    assert [answer(action, target) for action in actions] == [201, 201, 403, 403]
    assert answer("AbortJob") == answer("AbortJob", {**target, "uid": "another"}) == 403


def test_guardrails_are_below_8_kb_each() -> None:
    """The API server's time to compile a policy grows with the square of its length."""
    sizes = {one["metadata"]["name"]: len(json.dumps(one)) for one in _documents()}
    assert max(sizes.values()) < 8_192, sizes
