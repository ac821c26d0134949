"""The second lock: what the rendered admission policies let our service account do, and what they refuse."""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from rightsizer.guardrails.admission import admission_policies
from rightsizer.policy.policy_file import parse
from tests.controlplane.contract.objects import job, pod_spec, replicated
from tests.controlplane.contract.server import Api, Object

GROUP = "/apis/admissionregistration.k8s.io/v1"
PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
POLICY = b"""
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
classAnnotations: off
protectedNamespaces: [prod-*]
rules:
  - {name: precious, match: {priorityClasses: [lock-high, "lock-?", "*-two-*.stars"]}, mode: protect}
  - {name: valued, match: {priority: {min: 5000, max: 6000}}, mode: protect}
  - name: all
    match: {kinds: [Deployment, Job, Pod]}
    mode: enforce
    notifyBefore: 4h
    actions: [scale-up, scale-down, resize, reslice, scale-to-zero, suspend, evict]
"""
OWN = "gpu-rightsizer"
USER = f"system:serviceaccount:{OWN}:gpu-rightsizer"


@pytest.fixture
def locked(api: Api) -> Iterator[Api]:
    """A server with the rendered policies, and our service account with every right in the namespace."""
    rights = ["deployments", "jobs", "pods", "pods/eviction"]
    api.server.grant(USER, api.namespace, verbs=["get", "patch", "create"], resources=rights)
    for name in ("lock-high", "lock-x"):
        api("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": name}, "value": 1})
    with contextlib.ExitStack() as stack:
        policy = parse(POLICY, source="policy.yaml").policy
        for document in admission_policies(policy, account="gpu-rightsizer", own=OWN):
            path = f"{GROUP}/{PLURALS[document['kind']]}"
            api.create(path, document)
            stack.callback(api, "DELETE", f"{path}/{document['metadata']['name']}")
        deployment = f"{_made(api, 'probe')}"
        api.eventually(lambda: _try(api, deployment, {"spec": {"paused": True}}).status_code == 403)
        api.create(f"{api.batch}/jobs", job("probe", suspend=True))
        api.eventually(
            lambda: _try(api, f"{api.batch}/jobs/probe", {"spec": {"parallelism": 9}}).status_code == 403
        )
        api.create(f"{api.core}/pods", {"metadata": {"name": "probe"}, "spec": pod_spec()})
        eviction = {"metadata": {"name": "probe"}, "deleteOptions": {"dryRun": ["All"]}}
        path = f"{api.core}/pods/probe/eviction"
        api.eventually(
            lambda: api("POST", path, eviction, user=USER, params={"dryRun": "All"}).status_code == 403
        )
        yield api


def _made(api: Api, name: str, *, is_changed: bool = True, **pod: object) -> str:
    """A Deployment without pods: whether they run does not matter here."""
    spec: Object = pod_spec(4, **pod)
    body = replicated(name, 0, pod=spec)
    body["metadata"]["annotations"] = {
        "theirs": "1",
        **({"gpu-rightsizer.io/undo": "{}"} if is_changed else {}),
    }
    body["metadata"]["labels"] = {"theirs": "1"}
    api.create(f"{api.apps}/deployments", body)
    return f"{api.apps}/deployments/{name}"


def _try(api: Api, path: str, body: Object) -> Any:
    return api.patch(path, body, user=USER, params={"dryRun": "All"})


def _containers(**changes: Any) -> Object:
    (container,) = pod_spec(4)["containers"]
    return {"spec": {"template": {"spec": {"containers": [{**container, **changes}]}}}}


ALLOWED: dict[str, Object] = {
    "replicas": {"spec": {"replicas": 3}},
    "record-beside": {"spec": {"replicas": 3}, "metadata": {"annotations": {"gpu-rightsizer.io/undo": "{}"}}},
    "fewer-gpus": _containers(resources={"limits": {"nvidia.com/gpu": "2"}}),
    "another-slice": _containers(resources={"limits": {"nvidia.com/mig-1g.10gb": "1"}}),
    "amounts-of-a-gpu": _containers(
        resources={
            "limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3840", "nvidia.com/gpucores": "15"}
        }
    ),
    "nothing": {},
}
FORGED: dict[str, Object] = {
    "image": _containers(image="evil:1"),
    "command": _containers(command=["sh"]),
    "environment": _containers(env=[{"name": "A", "value": "b"}]),
    "cpu": _containers(resources={"limits": {"nvidia.com/gpu": "4", "cpu": "1"}}),
    "privileged": _containers(securityContext={"privileged": True}),
    "another-container": {
        "spec": {
            "template": {"spec": {"containers": [*pod_spec(4)["containers"], {"name": "b", "image": "i"}]}}
        }
    },
    "service-account": {"spec": {"template": {"spec": {"serviceAccountName": "admin"}}}},
    "host-network": {"spec": {"template": {"spec": {"hostNetwork": True}}}},
    "node": {"spec": {"template": {"spec": {"nodeSelector": {"x": "y"}}}}},
    "class": {"spec": {"template": {"spec": {"priorityClassName": "lock-y"}}}},
    "pod-label": {"spec": {"template": {"metadata": {"labels": {"x": "y"}}}}},
    "pod-annotation": {"spec": {"template": {"metadata": {"annotations": {"x": "y"}}}}},
    "strategy": {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}},
    "paused": {"spec": {"replicas": 1, "paused": True}},
    "label": {"metadata": {"labels": {"x": "y"}}},
    "label-taken": {"metadata": {"labels": {"theirs": None}}},
    "annotation": {"metadata": {"annotations": {"x": "y"}}},
    "annotation-changed": {"metadata": {"annotations": {"theirs": "2"}}},
    "annotation-taken": {"metadata": {"annotations": {"theirs": None}}},
    "finalizer": {"metadata": {"finalizers": ["example.com/x"]}},
    "owner": {
        "metadata": {
            "ownerReferences": [
                {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "name": "x",
                    "uid": "00000000-0000-4000-8000-000000000000",
                }
            ]
        }
    },
}


def test_guardrail_allows_changes_of_actions(locked: Api) -> None:
    """Replicas, our notes, and extended resources."""
    path = _made(locked, "w")
    for name, body in ALLOWED.items():
        reply = _try(locked, path, body)
        assert reply.status_code == 200, (name, reply.text)


def test_guardrail_denies_more_replicas_without_record(locked: Api) -> None:
    """What carries no record of ours gets no more of them, whoever is wrong about how many there were."""
    path = _made(locked, "w", is_changed=False)
    reply = _try(locked, path, {"spec": {"replicas": 50}})
    assert (reply.status_code, "only where our record says of fewer" in reply.text) == (403, True)
    own_record = {"metadata": {"annotations": {"gpu-rightsizer.io/undo": "{}"}}}
    assert _try(locked, path, {"spec": {"replicas": 50}, **own_record}).status_code == 403
    assert locked.patch(path, {"spec": {"replicas": 2}}).status_code == 200
    assert _try(locked, path, {"spec": {"replicas": 1}}).status_code == 200


GROWN: dict[str, tuple[Object, int]] = {
    "more-gpus": (_containers(resources={"limits": {"nvidia.com/gpu": "64"}}), 403),
    "more-gpus-beside-fewer": (
        _containers(resources={"limits": {"nvidia.com/gpu": "1", "smarter-devices/fuse": "1"}}),
        403,
    ),
    "another-device": (
        _containers(resources={"limits": {"nvidia.com/gpu": "4", "devices.kubevirt.io/kvm": "1"}}),
        403,
    ),
    "fewer-gpus": (_containers(resources={"limits": {"nvidia.com/gpu": "2"}}), 200),
    "a-slice-instead": (
        _containers(resources={"limits": {"nvidia.com/gpu": None, "nvidia.com/mig-1g.10gb": "1"}}),
        200,
    ),
}


def test_guardrail_denies_more_gpus_without_record(locked: Api) -> None:
    """Neither of the GPUs that it has, nor another device; a part of a GPU instead it may."""
    path = _made(locked, "w", is_changed=False)
    for name, (body, code) in GROWN.items():
        reply = _try(locked, path, body)
        assert reply.status_code == code, (name, reply.text)
        assert locked.patch(path, body, params={"dryRun": "All"}).status_code == 200, name


def test_guardrail_denies_every_other_field(locked: Api) -> None:
    """Field by field, by the API server itself; somebody else may do all of it."""
    path = _made(locked, "w")
    for name, body in FORGED.items():
        reply = _try(locked, path, body)
        assert reply.status_code == 403, (name, reply.text)
        assert "denied request" in reply.json()["message"], name
        allowed = locked.patch(path, body, params={"dryRun": "All"})
        assert allowed.status_code == 200, (name, allowed.text)


def test_guardrail_on_job_allows_suspend_and_resources_only(locked: Api) -> None:
    """Suspended and never run, so that the API server would let more change than our actions do."""
    locked.create(f"{locked.batch}/jobs", job("j", pod=pod_spec(4), suspend=True))
    path = f"{locked.batch}/jobs/j"
    fewer = _containers(resources={"limits": {"nvidia.com/gpu": "2"}})
    cpu = _containers(resources={"limits": {"nvidia.com/gpu": "4", "cpu": "1"}})
    for body, code in (
        ({"spec": {"suspend": False}}, 200),
        (fewer, 200),
        ({"spec": {**fewer["spec"], "suspend": False}}, 200),
        (cpu, 403),
        ({"spec": {"template": {"spec": {"nodeSelector": {"x": "y"}}}}}, 403),
        ({"spec": {"parallelism": 3}}, 403),
    ):
        reply = _try(locked, path, body)
        assert reply.status_code == code, (body, reply.text)
        assert locked.patch(path, body, params={"dryRun": "All"}).status_code == 200


@pytest.mark.parametrize("name", ["lock-high", "lock-x"])
def test_guardrail_denies_protected_classes(locked: Api, name: str) -> None:
    """Whatever is to be changed about them."""
    path = _made(locked, "w", priorityClassName=name)
    reply = _try(locked, path, {"spec": {"replicas": 1}})
    assert reply.status_code == 403
    assert f"rule precious protects pods of class {name[:5]}" in reply.json()["message"]


def test_guardrail_on_pod_checks_class_and_priority(locked: Api) -> None:
    """Its class, and what that came to: pods say both, whatever their class is called."""
    body: Object = {"metadata": {"annotations": {"gpu-rightsizer.io/notice": "{}"}}}
    for name, value, words in (
        ("lock-none", 1, ""),
        ("other-high", 5_000, "rule valued protects pods of priority 5000 to 6000"),
        ("lock-high", 1, "rule precious protects pods of class lock-high"),
    ):
        priority = {"metadata": {"name": name}, "value": value}
        locked("POST", "/apis/scheduling.k8s.io/v1/priorityclasses", priority)
        pod = {"metadata": {"name": name}, "spec": pod_spec(4, priorityClassName=name)}
        # The server's admission hears of a new class a little after it is there.
        create = functools.partial(locked, "POST", f"{locked.core}/pods", pod)
        locked.eventually(create, lambda made: made.status_code == 201)
        reply = _try(locked, f"{locked.core}/pods/{name}", body)
        assert reply.status_code == (403 if words else 200), reply.text
        assert words in reply.text


def test_guardrail_denies_eviction_without_uid_or_grace(locked: Api) -> None:
    """Without a UID, or with no grace, they are refused; as we send them they are not."""
    made = locked.create(f"{locked.core}/pods", {"metadata": {"name": "p"}, "spec": pod_spec()})
    path, uid = f"{locked.core}/pods/p/eviction", made["metadata"]["uid"]
    good: Object = {"dryRun": ["All"], "preconditions": {"uid": uid}}
    for options, code in (
        ({"dryRun": ["All"]}, 403),
        ({**good, "preconditions": {"resourceVersion": made["metadata"]["resourceVersion"]}}, 403),
        ({**good, "gracePeriodSeconds": 0}, 403),
        (good, 201),
    ):
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": "p"},
            "deleteOptions": options,
        }
        reply = locked("POST", path, body, user=USER, params={"dryRun": "All"})
        assert reply.status_code in {code, 200 if code == 201 else code}, (options, reply.text)


MANIFESTS: dict[str, tuple[Object, int]] = {
    "ours": ({}, 201),
    "account-token": (
        {
            "type": "kubernetes.io/service-account-token",
            "metadata": {"annotations": {"kubernetes.io/service-account.name": "default"}},
        },
        403,
    ),
    "helm-release": ({"type": "helm.sh/release.v1"}, 403),
    "no-type": ({"type": None}, 403),
    "no-label": ({"metadata": {"labels": None}}, 403),
    "other-name": ({"metadata": {"name": "db-password"}}, 403),
}


def test_guardrail_on_secrets_allows_manifests_only(api: Api) -> None:
    """Nobody's token is asked for, and Helm's releases, or a password, stay; somebody else may do all of it."""
    user = f"system:serviceaccount:{api.namespace}:gpu-rightsizer"
    api.server.grant(user, api.namespace, verbs=["get", "create", "delete"], resources=["secrets"])
    secrets = f"{api.core}/secrets"
    manifest: Object = {
        "type": "gpu-rightsizer.io/pod-manifest",
        "metadata": {"name": "w-0-0123abcd", "labels": {"gpu-rightsizer.io/manifest": "run"}},
    }
    api.create(secrets, {"metadata": {"name": "theirs"}})
    with contextlib.ExitStack() as stack:
        policy = parse(POLICY, source="policy.yaml").policy
        for document in admission_policies(policy, account="gpu-rightsizer", own=api.namespace):
            if document["metadata"]["name"] == "gpu-rightsizer-secrets":
                path = f"{GROUP}/{PLURALS[document['kind']]}"
                api.create(path, document)
                stack.callback(api, "DELETE", f"{path}/{document['metadata']['name']}")
        theirs = functools.partial(api, "DELETE", f"{secrets}/theirs", user=user)
        api.eventually(lambda: theirs(params={"dryRun": "All"}).status_code == 403)
        for name, (changes, code) in MANIFESTS.items():
            metadata = {**manifest["metadata"], **changes.get("metadata", {})}
            body = {**manifest, **changes, "metadata": metadata}
            reply = api("POST", secrets, body, user=user, params={"dryRun": "All"})
            assert reply.status_code == code, (name, reply.text)
        assert theirs().status_code == 403
        api.create(secrets, manifest)
        assert api("DELETE", f"{secrets}/w-0-0123abcd", user=user).status_code == 200
        assert api("DELETE", f"{secrets}/theirs").status_code == 200
