"""Pods of a resized workload that comes back with an old manifest: what the API server makes of them."""

import dataclasses
import datetime
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from rightsizer.guardrails.resize_admission import resize_admission
from rightsizer.planning.kept_sizes import NAME, KeptSize
from simulator.controlplane.plane import ControlPlane
from tests.controlplane.contract.server import Api, Object, Real

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("controlplane")]

GPU = "nvidia.com/gpu"
GROUP = "/apis/admissionregistration.k8s.io/v1"
SOON = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)
SIZE = KeptSize(GPU, 1, 2, SOON, "", "main", "registry:5000/serve", "run-1", "serve\n--\n--port=1\nx y")
TEXT = SIZE.written().replace("\n1\n", "\nall\n")
ANNOTATION = "gpu-rightsizer.io/kept-size"


@pytest.fixture(scope="module")
def api(plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A server with the policy, and a namespace whose records it reads and another for pods."""
    speaker = Api(Real(plane.kubeconfig, tmp_path_factory.mktemp("credentials")))
    own = f"own-{uuid.uuid4().hex[:8]}"
    speaker.create("/api/v1/namespaces", {"metadata": {"name": own}})
    sizes = {
        **dict.fromkeys(("Deployment.web", "StatefulSet.set", "Job.train", "CronJob.nightly"), SIZE),
        "Deployment.old": dataclasses.replace(SIZE, until=datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
        "Deployment.grow": dataclasses.replace(SIZE, kept=4),
        "Deployment.none": dataclasses.replace(SIZE, kept=0),
    }
    texts = {key: size.written() for key, size in sizes.items()} | {
        "Deployment.broken": "x",
        "Deployment.text": TEXT,
    }
    entries = {f"{speaker.namespace}.{key}": text for key, text in texts.items()}
    maps = f"/api/v1/namespaces/{own}/configmaps"
    speaker.create(maps, {"metadata": {"name": NAME}, "data": entries})
    documents = resize_admission(own)
    paths = [f"{GROUP}/{document['kind'].lower().replace('policy', 'policie')}s" for document in documents]
    paths = [path.replace("policiebindings", "policybindings") for path in paths]
    for path, document in zip(paths, documents, strict=True):
        speaker.create(path, document)
    speaker.eventually(lambda: _gpus(_made(speaker, _pod())) == "1")
    yield speaker
    for path, document in zip(paths, documents, strict=True):
        speaker("DELETE", f"{path}/{document['metadata']['name']}")
    for namespace in (own, speaker.namespace):
        speaker("DELETE", f"/api/v1/namespaces/{namespace}")
    speaker.session.close()


def _owner(kind: str = "ReplicaSet", name: str = "web-abc", version: str = "apps/v1") -> Object:
    return {"apiVersion": version, "kind": kind, "name": name, "uid": str(uuid.uuid4()), "controller": True}


def _container(**changes: Any) -> Object:
    amounts = {GPU: "2", "cpu": "4"}
    container = {
        "name": "main",
        "image": "registry:5000/serve:v2",
        "command": ["serve"],
        "args": ["--port=1", "x y"],
        "resources": {"limits": amounts, "requests": dict(amounts)},
    }
    return {**container, **changes}


def _pod(*containers: Object, metadata: Mapping[str, Any] | None = None, **spec: Any) -> Object:
    side = {"name": "side", "image": "proxy"}
    head = {
        "name": f"web-abc-{uuid.uuid4().hex[:5]}",
        "labels": {"pod-template-hash": "abc"},
        "ownerReferences": [_owner()],
        **(metadata or {}),
    }
    return {"metadata": head, "spec": {"containers": [side, *(containers or [_container()])], **spec}}


def _made(api: Api, body: Object) -> Object:
    made = api("POST", f"{api.core}/pods", body, params={"dryRun": "All"})
    assert made.status_code == 201, made.text
    found: Object = made.json()
    return found


def _gpus(pod: Object) -> str:
    (main,) = [one for one in pod["spec"]["containers"] if GPU in one.get("resources", {}).get("limits", {})][
        :1
    ]
    limits, requests = main["resources"]["limits"], main["resources"]["requests"]
    assert limits[GPU] == requests[GPU]
    assert limits.get("cpu") == requests.get("cpu") == "4"
    return str(limits[GPU])


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(_pod(), id="tag"),
        pytest.param(_pod(metadata={"annotations": {"theirs": "1"}}), id="annotated"),
        pytest.param(_pod(_container(image=f"registry:5000/serve@sha256:{'0' * 64}")), id="digest"),
        pytest.param(_pod(_container(image="registry:5000/serve")), id="no-tag"),
        pytest.param(_pod(_container(resources={"limits": {GPU: "2", "cpu": "4"}})), id="limits-only"),
        pytest.param(_pod(metadata={"ownerReferences": [_owner("StatefulSet", "set")]}), id="stateful-set"),
        pytest.param(_pod(metadata={"ownerReferences": [_owner("Job", "train", "batch/v1")]}), id="job"),
        pytest.param(
            _pod(metadata={"ownerReferences": [_owner("Job", "nightly-29", "batch/v1")]}),
            id="run-of-cron-job",
        ),
    ],
)
def test_admission_pod_of_resized_workload_gets_kept_size(api: Api, body: Object) -> None:
    """Limits and requests of the one container; the annotation says why, and how to prevent it."""
    made = _made(api, body)
    assert _gpus(made) == "1"
    assert made["metadata"]["annotations"][ANNOTATION] == (
        f"{GPU}: 2 -> 1, as run run-1 set it; gpu-rightsizer.io/mode: off in the pod template keeps the "
        "manifest's number"
    )
    theirs = body["metadata"].get("annotations", {})
    assert {**made["metadata"]["annotations"], **theirs} == made["metadata"]["annotations"]


UNCHANGED = {
    "unknown-workload": _pod(metadata={"ownerReferences": [_owner(name="other-abc")]}),
    "expired": _pod(metadata={"ownerReferences": [_owner(name="old-abc")]}),
    "grows": _pod(metadata={"ownerReferences": [_owner(name="grow-abc")]}),
    "to-none": _pod(metadata={"ownerReferences": [_owner(name="none-abc")]}),
    "unreadable": _pod(metadata={"ownerReferences": [_owner(name="broken-abc")]}),
    "no-number": _pod(metadata={"ownerReferences": [_owner(name="text-abc")]}),
    "no-controller": _pod(metadata={"ownerReferences": [{**_owner(), "controller": False}]}),
    "other-hash": _pod(metadata={"labels": {"pod-template-hash": "xyz"}}),
    "no-hash": _pod(metadata={"labels": {}}),
    "bare": _pod(metadata={"ownerReferences": []}),
    "foreign-kind": _pod(metadata={"ownerReferences": [_owner("Deployment", "web", "example.com/v1")]}),
    "stateful-set": _pod(metadata={"ownerReferences": [_owner("StatefulSet", "web")]}),
    "job": _pod(metadata={"ownerReferences": [_owner("Job", "web", "batch/v1")]}),
    "opted-out": _pod(metadata={"annotations": {"gpu-rightsizer.io/mode": "off"}}),
    "already-fewer": _pod(_container(resources={"limits": {GPU: "1", "cpu": "4"}})),
    "more": _pod(_container(resources={"limits": {GPU: "8", "cpu": "4"}})),
    "other-image": _pod(_container(image="registry:5000/serve-large:v2")),
    "other-registry": _pod(_container(image="elsewhere/serve:v2")),
    "other-command": _pod(_container(command=["serve-all"])),
    "other-arguments": _pod(_container(args=["--port=1", "x", "y"])),
    "no-arguments": _pod(_container(args=[])),
    "other-container": _pod(_container(name="other")),
    "two-ask": _pod(_container(), _container(name="second")),
    "other-class": _pod(priorityClassName="system-cluster-critical"),
}


@pytest.mark.parametrize("body", UNCHANGED.values(), ids=UNCHANGED)
def test_admission_pod_that_record_does_not_describe_is_unchanged(api: Api, body: Object) -> None:
    """Unknown, opted out, or another program, number or class than the record says."""
    asked = [one["resources"]["limits"] for one in body["spec"]["containers"] if "resources" in one]
    made = _made(api, body)
    assert [one["resources"]["limits"] for one in made["spec"]["containers"] if one["resources"]] == asked
    assert ANNOTATION not in made["metadata"].get("annotations", {})


def test_admission_pod_in_opted_out_namespace_is_unchanged(api: Api) -> None:
    """An owner of a whole namespace says it there."""
    path = f"/api/v1/namespaces/{api.namespace}"
    api.patch(path, {"metadata": {"annotations": {"gpu-rightsizer.io/mode": "off"}}})
    try:
        api.eventually(lambda: _gpus(_made(api, _pod())) == "2")
    finally:
        api.patch(path, {"metadata": {"annotations": {"gpu-rightsizer.io/mode": None}}})
        api.eventually(lambda: _gpus(_made(api, _pod())) == "1")
