"""What the server fills in, resolves and refuses before it stores a workload."""

from typing import Any

import pytest

from simulator.kube import ApiError, ApiServer
from tests.simulator.kube.manifests import Object, budget, job, pod, pod_spec, workload
from tests.simulator.kube.wire import Http

PODS = "/api/v1/namespaces/default/pods"
CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def priority_class(name: str, value: int, **more: object) -> Object:
    """A PriorityClass."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": value,
        **more,
    }


def container(**resources: object) -> Object:
    """A container with resources."""
    return {"name": "main", "image": "app:1", "resources": resources}


def refusal(server: ApiServer, obj: Object) -> Object:
    """The Status with which an object is refused."""
    with pytest.raises(ApiError) as caught:
        server.create(obj)
    return caught.value.status


def causes(status: Object) -> list[tuple[str, str]]:
    """Which fields are wrong, and how."""
    return [(cause["field"], cause["reason"]) for cause in status["details"]["causes"]]


def test_pod_created_minimal_gets_defaults(http: Http) -> None:
    """Phase, restart policy, grace, priority and requests are there after a minimal POST."""
    made = http("POST", PODS, pod(gpus=2, schedulerName="nobody")).json()
    assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
    assert made["spec"]["restartPolicy"] == "Always"
    assert made["spec"]["terminationGracePeriodSeconds"] == 30
    assert (made["spec"]["priority"], made["spec"]["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "2"}
    assert made["spec"]["containers"][0]["imagePullPolicy"] == "IfNotPresent"


def test_workload_created_minimal_gets_defaults(server: ApiServer) -> None:
    """Replicas, strategies and a Job's counts and selector come from the server."""
    deployment = workload("Deployment")
    del deployment["spec"]["replicas"]
    spec = server.create(deployment)["spec"]
    assert spec["replicas"] == 1
    assert spec["strategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"},
    }
    assert server.create(workload("StatefulSet"))["spec"]["podManagementPolicy"] == "OrderedReady"
    made = server.create(job())
    expected = {"parallelism": 1, "completions": 1, "backoffLimit": 6, "suspend": False}
    assert expected.items() <= made["spec"].items()
    uid = made["metadata"]["uid"]
    assert made["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert made["spec"]["template"]["metadata"]["labels"]["batch.kubernetes.io/job-name"] == "j"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"priorityClassName": "none"}, "no PriorityClass with name none was found"),
        ({"priority": 5}, "the integer value of priority (5) must not be provided in pod spec"),
        ({"preemptionPolicy": "Never"}, "the string value of PreemptionPolicy (Never) must not be provided"),
    ],
)
def test_pod_with_unknown_class_or_own_priority_is_403(http: Http, spec: Object, words: str) -> None:
    """The message is the real server's."""
    status = http("POST", PODS, pod(**spec)).json()
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    assert status["message"].startswith('pods "p" is forbidden: ')
    assert words in status["message"]


def test_system_priority_classes_exist_and_are_reserved(server: ApiServer, http: Http) -> None:
    """The built-in classes have their values; names with their prefix and values above 1e9 are refused."""
    assert http("GET", f"{CLASSES}/system-cluster-critical").json()["value"] == 2_000_000_000
    assert http("GET", f"{CLASSES}/system-node-critical").json()["value"] == 2_000_001_000
    assert server.create(pod(priorityClassName="system-node-critical"))["spec"]["priority"] == 2_000_001_000
    assert causes(refusal(server, priority_class("system-mine", 1))) == [
        ("metadata.name", "FieldValueForbidden")
    ]
    assert causes(refusal(server, priority_class("top", 1_000_000_001))) == [("value", "FieldValueForbidden")]
    assert http("DELETE", f"{CLASSES}/system-node-critical").status_code == 403
    server.create(priority_class("top", 1_000_000_000))


@pytest.mark.parametrize(
    ("obj", "field", "reason"),
    [
        pytest.param(pod(containers=[container(limits={"nvidia.com/gpu": "0.5"})]),
                     "spec.containers[0].resources.limits[nvidia.com/gpu]", "FieldValueInvalid", id="half-a-gpu"),
        pytest.param(pod(containers=[container(limits={"nvidia.com/gpu": 2}, requests={"nvidia.com/gpu": 1})]),
                     "spec.containers[0].resources.requests", "FieldValueInvalid", id="gpu-request-below-limit"),
        pytest.param(pod(containers=[container(requests={"nvidia.com/gpu": 1})]),
                     "limits", "FieldValueRequired", id="gpu-request-without-limit"),
        pytest.param(pod(containers=[container(limits={"cpu": "1"}, requests={"cpu": "2"})]),
                     "spec.containers[0].resources.requests", "FieldValueInvalid", id="request-above-limit"),
        pytest.param(pod(containers=[container(limits={"memory": "1Q"})]),
                     "spec.containers[0].resources.limits[memory]", "FieldValueInvalid", id="no-quantity"),
        pytest.param(pod(containers=[container(limits={"gpus": "1"})]),
                     "spec.containers[0].resources.limits[gpus]", "FieldValueInvalid", id="unqualified-resource"),
        pytest.param(pod(containers=[]), "spec.containers", "FieldValueRequired", id="no-containers"),
        pytest.param(pod(containers=[{"name": "a"}]), "spec.containers[0].image", "FieldValueRequired", id="no-image"),
        pytest.param(pod(containers=[{"name": "a", "image": "i"}] * 2),
                     "spec.containers[1].name", "FieldValueDuplicate", id="same-name-twice"),
        pytest.param(pod(restartPolicy="Sometimes"), "spec.restartPolicy", "FieldValueNotSupported", id="restart"),
        pytest.param(workload("Deployment", replicas=-1), "spec.replicas", "FieldValueInvalid", id="replicas"),
        pytest.param(workload("Deployment", selector={"matchLabels": {"other": "x"}}),
                     "spec.template.metadata.labels", "FieldValueInvalid", id="selector-mismatch"),
        pytest.param(workload("StatefulSet", pod=pod_spec(restartPolicy="Never")),
                     "spec.template.spec.restartPolicy", "FieldValueNotSupported", id="template-restart"),
        pytest.param(job(template={"spec": pod_spec()}),
                     "spec.template.spec.restartPolicy", "FieldValueRequired", id="job-restart"),
        pytest.param(job(completionMode="Indexed", parallelism=2),
                     "spec.completions", "FieldValueRequired", id="indexed-without-completions"),
        pytest.param(budget(minAvailable=1, maxUnavailable=1), "spec", "FieldValueInvalid", id="budget-both"),
        pytest.param(budget(minAvailable="101%"), "spec.minAvailable", "FieldValueInvalid", id="budget-percent"),
    ],
)  # fmt: skip
def test_invalid_workload_is_422_with_field(server: ApiServer, obj: Object, field: str, reason: str) -> None:
    """What cannot be is 422 Invalid with the field and the kind of problem."""
    status = refusal(server, obj)
    assert (status["code"], status["reason"]) == (422, "Invalid")
    assert (field, reason) in causes(status)


@pytest.mark.parametrize(
    ("obj", "patch"),
    [
        pytest.param(pod(schedulerName="nobody"), {"spec": {"containers": [container(limits={"nvidia.com/gpu": 2})]}},
                     id="pod-resources"),
        pytest.param(pod(schedulerName="nobody"), {"spec": {"nodeName": "node-0"}}, id="pod-node"),
        pytest.param(workload("Deployment", replicas=0), {"spec": {"selector": {"matchLabels": {"x": "y"}}}},
                     id="selector"),
        pytest.param(workload("StatefulSet", replicas=0), {"spec": {"serviceName": "x"}}, id="stateful-set"),
        pytest.param(job(), {"spec": {"template": {"metadata": {"labels": {"x": "y"}}}}}, id="job-template"),
        pytest.param(job(), {"spec": {"completions": 5}}, id="job-completions"),
        pytest.param(priority_class("a", 1), {"value": 2}, id="priority-value"),
    ],
)  # fmt: skip
def test_immutable_field_change_is_422(server: ApiServer, obj: Object, patch: Object) -> None:
    """Changing what cannot change is 422 and changes nothing."""
    made = server.create(obj)
    server.settle()
    name, namespace = made["metadata"]["name"], made["metadata"].get("namespace")
    before = server.get(made["kind"], namespace, name)
    with pytest.raises(ApiError) as caught:
        server.patch(made["kind"], namespace, name, patch)
    assert caught.value.code == 422
    assert server.get(made["kind"], namespace, name) == before


def test_mutable_field_change_is_accepted(server: ApiServer) -> None:
    """A pod's image, a Job's parallelism and a waiting Job's node selector are open to updates."""
    server.create(pod(schedulerName="nobody"))
    server.patch("Pod", "default", "p", {"spec": {"containers": [{**container(), "image": "app:2",
                 "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}}]}},
                 content_type="application/strategic-merge-patch+json")  # fmt: skip
    server.create(job(suspend=True, parallelism=2))
    server.settle()
    server.patch("Job", "default", "j", {"spec": {"parallelism": 1}})
    changed = server.patch(
        "Job", "default", "j", {"spec": {"template": {"spec": {"nodeSelector": {"a": "b"}}}}}
    )
    assert changed["spec"]["parallelism"] == 1
    assert changed["spec"]["template"]["spec"]["nodeSelector"] == {"a": "b"}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (workload("Deployment", replicas="3"), "Deployment.spec.replicas of type int32"),  # type: ignore[arg-type]
        (
            {**workload("Deployment"), "spec": []},
            "cannot unmarshal array into Go struct field Deployment.spec",
        ),
    ],
)
def test_field_of_wrong_type_is_400(http: Http, body: Any, words: str) -> None:
    """A field of the wrong JSON type is 400, naming the field."""
    status = http("POST", "/apis/apps/v1/namespaces/default/deployments", body).json()
    assert (status["code"], status["reason"]) == (400, "BadRequest")
    assert words in status["message"]


def test_timestamps_in_any_zone_are_stored_as_utc(http: Http) -> None:
    """Zones and precision that clients write come back as UTC; micro times keep six digits."""
    lease = {"metadata": {"name": "l"}, "spec": {"renewTime": "2026-11-20T13:00:00.5+01:00"}}
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
    assert http("POST", path, lease).json()["spec"]["renewTime"] == "2026-11-20T12:00:00.500000Z"
    assert http("POST", path, {"metadata": {"name": "m"}, "spec": {"renewTime": "soon"}}).status_code == 400


def test_quantity_with_huge_exponent_is_capped(http: Http) -> None:
    """1e999999999 is capped, never written out; nothing can be that large."""
    made = http("POST", PODS, pod(containers=[container(limits={"nvidia.com/gpu": "1e999999999"})])).json()
    assert made["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1e999999999"}
