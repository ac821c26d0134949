"""The admission guardrails: what the rendered admission policies let our service account do, and what they refuse."""

import contextlib
import datetime
import functools
from collections.abc import Iterator
from typing import Any

import pytest

from rightsizer.changes.record_codec import UNDO_ANNOTATION, encode_record
from rightsizer.guardrails.admission import admission_policies
from rightsizer.model import ChangeRecord, Edit
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


def undo_record(*edits: Edit) -> Object:
    """Metadata with an undo record, as the program writes it."""
    record = ChangeRecord(
        datetime.datetime(2026, 11, 1, tzinfo=datetime.UTC), "run", "scale-down", edits=edits
    )
    return {"annotations": {UNDO_ANNOTATION: encode_record(record)}}


OPT_OUT = "gpu-rightsizer.io/mode"
REPLICAS = ("spec", "replicas")
LIMITS = ("spec", "template", "spec", "containers", "name=main", "resources", "limits")


def _made(api: Api, name: str, *edits: Edit, **pod: object) -> str:
    """A Deployment without pods, with a record of edits if there are any."""
    body = replicated(name, 0, pod=pod_spec(4, **pod))
    annotations = undo_record(*edits)["annotations"] if edits else {}
    body["metadata"]["annotations"] = {"theirs": "1", OPT_OUT: "off", **annotations}
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
    "some-replicas": {
        "spec": {"replicas": 2},
        "metadata": undo_record(Edit(REPLICAS, 3, 2)),
    },
    "undone": {
        **_containers(resources={"limits": {"nvidia.com/gpu": "8"}}),
        "metadata": {"annotations": {UNDO_ANNOTATION: None}},
    },
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
    "opt-out-taken": {"metadata": {"annotations": {OPT_OUT: None}}},
    "release": {"metadata": {"annotations": {"gpu-rightsizer.io/release": "true"}}},
    "long-annotation": {"metadata": {"annotations": {"gpu-rightsizer.io/history": "x" * 20_000}}},
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
    """Replicas, notes, and extended resources: fewer, or as many as the record says."""
    path = _made(locked, "w", Edit(REPLICAS, 3, 0), Edit((*LIMITS, "nvidia.com/gpu"), "8", "4"))
    for name, body in ALLOWED.items():
        reply = _try(locked, path, body)
        assert reply.status_code == 200, (name, reply.text)


def test_guardrail_denies_more_replicas_without_record(locked: Api) -> None:
    """Without an earlier record no number rises, also if the same patch brings one."""
    path = _made(locked, "w")
    reply = _try(locked, path, {"spec": {"replicas": 50}})
    assert (reply.status_code, "record does not allow this value" in reply.text) == (403, True)
    own_record = {"metadata": undo_record(Edit(REPLICAS, 50, 0))}
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
    "more-slices-than-gpus": (
        _containers(resources={"limits": {"nvidia.com/gpu": None, "nvidia.com/mig-1g.10gb": "5"}}),
        403,
    ),
    "two-slices-instead": (
        _containers(
            resources={
                "limits": {
                    "nvidia.com/gpu": None,
                    "nvidia.com/mig-1g.10gb": "1",
                    "nvidia.com/mig-2g.20gb": "1",
                }
            }
        ),
        403,
    ),
    "parts-of-no-gpu": (
        _containers(resources={"limits": {"nvidia.com/gpu": None, "nvidia.com/gpucores": "15"}}),
        403,
    ),
}


def test_guardrail_denies_more_gpus_without_record(locked: Api) -> None:
    """Neither of the GPUs that it has, nor another device; a part of a GPU instead it may."""
    path = _made(locked, "w")
    for name, (body, code) in GROWN.items():
        reply = _try(locked, path, body)
        assert reply.status_code == code, (name, reply.text)
        assert locked.patch(path, body, params={"dryRun": "All"}).status_code == 200, name


GPU = "nvidia.com/gpu"
SIZES: dict[str, tuple[dict[str, str], dict[str, str], int]] = {
    "larger-profile": ({"nvidia.com/mig-1g.10gb": "4"}, {"nvidia.com/mig-7g.80gb": "4"}, 403),
    "profile-with-more-memory": ({"nvidia.com/mig-1g.10gb": "1"}, {"nvidia.com/mig-1g.20gb": "1"}, 403),
    "profile-for-shares": ({"nvidia.com/gpu.shared": "8"}, {"nvidia.com/mig-7g.80gb": "7"}, 403),
    "profile-for-a-network-card": (
        {GPU: "1", "rdma/hca": "2"},
        {GPU: "1", "nvidia.com/mig-7g.80gb": "2"},
        403,
    ),
    "profile-for-another-device": ({"example.com/fuse": "20"}, {"nvidia.com/mig-1g.10gb": "20"}, 403),
    "profile-for-a-gpu": ({GPU: "1"}, {"nvidia.com/mig-7g.80gb": "1"}, 200),
    "smaller-profile": ({"nvidia.com/mig-3g.40gb": "2"}, {"nvidia.com/mig-2g.20gb": "2"}, 200),
    "share-for-a-profile": ({"nvidia.com/mig-3g.40gb": "1"}, {"nvidia.com/gpu.shared": "1"}, 200),
    "memory-for-a-gpu": ({GPU: "1"}, {"aliyun.com/gpu-mem": "20"}, 200),
}


def test_guardrail_allows_slices_only_for_what_is_no_smaller(locked: Api) -> None:
    """For whole GPUs and larger profiles; not for shares, nor for other devices."""
    path = _made(locked, "w")
    has = {GPU: "4"}
    for name, (before, after, code) in SIZES.items():
        given = _containers(resources={"limits": {**dict.fromkeys(has), **before}})
        assert locked.patch(path, given).status_code == 200, name
        reply = _try(locked, path, _containers(resources={"limits": {**dict.fromkeys(before), **after}}))
        assert reply.status_code == code, (name, reply.text)
        has = before


def test_guardrail_denies_another_order_of_containers(locked: Api) -> None:
    """The first one is the default of kubectl; the server itself would take them in any order."""
    path = _made(locked, "w")
    both = [*pod_spec(4)["containers"], {"name": "second", "image": "app:1"}]
    same, turned = (
        {"spec": {"template": {"spec": {"containers": containers}}}} for containers in (both, both[::-1])
    )
    assert locked.patch(path, same).status_code == 200
    assert _try(locked, path, same).status_code == 200
    assert _try(locked, path, turned).status_code == 403
    assert locked.patch(path, turned, params={"dryRun": "All"}).status_code == 200


def _with_memory(amount: str, *edits: Edit) -> Object:
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": amount}
    return {**_containers(resources={"limits": limits}), "metadata": undo_record(*edits) if edits else {}}


def test_guardrail_compares_amounts_as_quantities(locked: Api) -> None:
    """The API server stores 30000 as 30k, which is more than 7424 and less than 30001."""
    path = _made(locked, "w")
    assert locked.patch(path, _with_memory("30k")).status_code == 200
    for amount, code in (("7424", 200), ("29k", 200), ("30001", 403), ("31k", 403)):
        assert _try(locked, path, _with_memory(amount)).status_code == code, amount
    record = Edit((*LIMITS, "nvidia.com/gpumem"), "30k", "7424")
    assert locked.patch(path, _with_memory("7424", record), user=USER).status_code == 200
    for amount, code in (("30k", 200), ("31k", 403)):
        assert _try(locked, path, _with_memory(amount)).status_code == code, amount


RECORDS: dict[str, tuple[Edit, ...]] = {
    "more-replicas": (Edit(REPLICAS, 5000, 1),),
    "fewer-replicas": (Edit(REPLICAS, 1, 1),),
    "more-gpus": (Edit((*LIMITS, "nvidia.com/gpu"), "64", "4"),),
    "more-gpus-written-oddly": (Edit((*LIMITS, "nvidia.com/gpu"), "+64", "4"),),
    "a-container-that-comes-later": (
        Edit((*LIMITS[:4], "name=later", *LIMITS[5:], "nvidia.com/gpu"), "64", "1"),
    ),
    "gpus-that-are-numbers": (Edit((*LIMITS, "nvidia.com/gpu"), 64, "4"),),
    "another-resource": (Edit((*LIMITS, "example.com/device"), "1", None),),
    "gpus-of-requests": (Edit((*LIMITS[:-1], "requests", "nvidia.com/gpu"), "8", "4"),),
    "the-second-edit": (Edit(REPLICAS, 2, 1), Edit((*LIMITS, "nvidia.com/gpu"), "8", "4")),
}


def test_guardrail_denies_record_that_is_not_true(locked: Api) -> None:
    """A record of what the object did not have is refused; so nothing can rise by it later."""
    path = _made(locked, "w")
    assert locked.patch(path, {"spec": {"replicas": 2}}).status_code == 200
    lowered: Object = {"spec": {"replicas": 1}}
    for name, edits in RECORDS.items():
        reply = _try(locked, path, {**lowered, "metadata": undo_record(*edits)})
        assert reply.status_code == 403, (name, reply.text)
    assert _try(locked, path, {"metadata": undo_record(Edit(REPLICAS, 2, 1))}).status_code == 403
    assert _try(locked, path, {**lowered, "metadata": undo_record(Edit(REPLICAS, 2, 1))}).status_code == 200


def test_guardrail_restores_what_the_record_says(locked: Api) -> None:
    """A number rises to the value of the record at most, and a rewritten record names no other."""
    path = _made(locked, "w", Edit(REPLICAS, 3, 0), Edit((*LIMITS, "nvidia.com/mig-1g.10gb"), "1", None))
    for replicas, code in ((1, 200), (3, 200), (4, 403), (5000, 403)):
        assert _try(locked, path, {"spec": {"replicas": replicas}}).status_code == code, replicas
    for before, code in ((3, 200), (0, 200), (4, 403), (30, 403)):
        body = {"metadata": undo_record(Edit(REPLICAS, before, 0))}
        assert _try(locked, path, body).status_code == code, before
    for gpus, code in (("4", 200), ("5", 403)):
        resources = {"limits": {"nvidia.com/gpu": gpus, "nvidia.com/mig-1g.10gb": "1"}}
        assert _try(locked, path, _containers(resources=resources)).status_code == code, gpus


def test_guardrail_denies_every_other_field(locked: Api) -> None:
    """Field by field, by the API server itself; somebody else may do all of it."""
    path = _made(locked, "w", Edit(REPLICAS, 3, 0))
    for name, body in FORGED.items():
        reply = _try(locked, path, body)
        assert reply.status_code == 403, (name, reply.text)
        assert "denied request" in reply.json()["message"], name
        allowed = locked.patch(path, body, params={"dryRun": "All"})
        assert allowed.status_code == 200, (name, allowed.text)


def test_guardrail_on_job_allows_suspend_and_resources_only(locked: Api) -> None:
    """Suspended and never run, so that the API server would let more change than our actions do."""
    body = job("j", pod=pod_spec(4), suspend=True)
    body["metadata"].update(undo_record(Edit(("spec", "suspend"), before=False, after=True)))
    locked.create(f"{locked.batch}/jobs", body)
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
    path = _made(locked, "w", Edit(REPLICAS, 3, 0), priorityClassName=name)
    reply = _try(locked, path, {"spec": {"replicas": 1}})
    assert reply.status_code == 422
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


def test_guardrail_on_state_allows_own_objects_only(api: Api) -> None:
    """ConfigMaps and Leases by exact names, Events with the program's own reasons; labels of others may stay."""
    user = f"system:serviceaccount:{api.namespace}:gpu-rightsizer"
    kinds = ["configmaps", "leases", "events"]
    api.server.grant(user, api.namespace, verbs=["create", "patch"], resources=kinds)
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{api.namespace}/leases"
    event: Object = {
        "metadata": {"name": "w.0123456789abcdef"},
        "involvedObject": {"kind": "Pod", "name": "w", "namespace": api.namespace},
        "reason": "ScaledToZero",
        "type": "Normal",
        "source": {"component": "gpu-rightsizer"},
        "reportingComponent": "gpu-rightsizer",
    }
    api.create(f"{api.core}/configmaps", {"metadata": {"name": "gpu-rightsizer-state", "labels": {"a": "b"}}})
    with contextlib.ExitStack() as stack:
        policy = parse(POLICY, source="policy.yaml").policy
        # Events are allowed outside of the state namespace alone.
        for own, names in (
            (api.namespace, ("configmaps", "leases.coordination.k8s.io")),
            ("other", ("events",)),
        ):
            for document in admission_policies(policy, account="gpu-rightsizer", own=own):
                if document["metadata"]["name"].removeprefix("gpu-rightsizer-") in names:
                    for condition in document["spec"].get("matchConditions", ()):
                        condition["expression"] = f'request.userInfo.username == "{user}"'
                    path = f"{GROUP}/{PLURALS[document['kind']]}"
                    api.create(path, document)
                    stack.callback(api, "DELETE", f"{path}/{document['metadata']['name']}")

        def created(path: str, body: Object) -> int:
            return int(api("POST", path, body, user=user, params={"dryRun": "All"}).status_code)

        for path, good, bad in (
            (
                f"{api.core}/configmaps",
                {"metadata": {"name": "gpu-rightsizer-memory-0"}},
                {"metadata": {"name": "x"}},
            ),
            (leases, {"metadata": {"name": "gpu-rightsizer"}}, {"metadata": {"name": "x"}}),
            (f"{api.core}/events", event, {**event, "reason": "Killing"}),
        ):
            api.eventually(functools.partial(created, path, bad), lambda code: code == 403)
            assert created(path, good) == 201, path
        path = f"{api.core}/configmaps/gpu-rightsizer-state"
        for body, code in (
            ({"data": {"breaker": "x"}}, 200),
            ({"metadata": {"labels": {"grafana_dashboard": "1"}}}, 403),
            ({"metadata": {"annotations": {"reflector/allowed": "true"}}}, 403),
        ):
            assert api.patch(path, body, user=user, params={"dryRun": "All"}).status_code == code, body
