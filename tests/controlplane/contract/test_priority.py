"""Priority admission: from a PriorityClass's name to a pod's number."""

from collections.abc import Iterator

import pytest

from tests.controlplane.contract.objects import pod
from tests.controlplane.contract.server import Api, Object

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"


def _class(name: str, value: int, **fields: object) -> Object:
    return {"metadata": {"name": name}, "value": value, **fields}


@pytest.fixture
def important(api: Api) -> Iterator[str]:
    """The name of a PriorityClass of 1000 that does not preempt."""
    name = f"important-{api.namespace}"
    api.create(CLASSES, _class(name, 1000, preemptionPolicy="Never"))
    yield name
    api("DELETE", f"{CLASSES}/{name}")


def _refused(api: Api, body: Object) -> Object:
    reply = api("POST", f"{api.core}/pods", body)
    assert (reply.status_code, reply.json()["reason"]) == (403, "Forbidden")
    answer: Object = reply.json()
    return answer


def test_pod_with_class_gets_its_priority(api: Api, important: str) -> None:
    """Value and preemption policy are written into the pod."""
    spec = api.create(f"{api.core}/pods", pod(priorityClassName=important))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"], spec["priorityClassName"]) == (
        1000,
        "Never",
        important,
    )


def test_pod_without_class_has_priority_zero(api: Api) -> None:
    """And the pod may preempt."""
    spec = api.create(f"{api.core}/pods", pod())["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert "priorityClassName" not in spec


def test_pod_with_unknown_class_is_403(api: Api) -> None:
    """403 that names it."""
    answer = _refused(api, pod(priorityClassName="none"))
    assert answer["message"] == 'pods "p" is forbidden: no PriorityClass with name none was found'


def test_pod_with_other_priority_is_403(api: Api, important: str) -> None:
    """A pod does not choose its own number."""
    assert "must not be provided in pod spec" in _refused(api, pod(priority=5))["message"]
    message = _refused(api, pod(priorityClassName=important, priority=5))["message"]
    assert "the integer value of priority (5) must not be provided in pod spec" in message
    same = pod(priorityClassName=important, priority=1000)
    assert api("POST", f"{api.core}/pods", same).status_code == 201


def test_pod_keeps_priority_of_deleted_class(api: Api, important: str) -> None:
    """Classes are resolved once, at admission."""
    api.create(f"{api.core}/pods", pod(priorityClassName=important))
    assert api("DELETE", f"{CLASSES}/{important}").status_code == 200
    assert api.get(f"{api.core}/pods/p")["spec"]["priority"] == 1000
    assert "no PriorityClass" in _refused(api, pod("q", priorityClassName=important))["message"]


def test_class_value_change_is_refused(api: Api, important: str) -> None:
    """Neither value nor preemption policy; the description can."""
    for patch, words in (
        ({"value": 5}, "value: Forbidden: may not be changed in an update."),
        ({"preemptionPolicy": "PreemptLowerPriority"}, "preemptionPolicy: Invalid value"),
    ):
        reply = api.patch(f"{CLASSES}/{important}", patch)
        assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
        assert words in reply.json()["message"]
    assert api.patch(f"{CLASSES}/{important}", {"description": "x"}).status_code == 200


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("huge", 1_000_000_001, "maximum allowed value of a user defined priority is 1000000000"),
        ("system-mine", 5, "priority class names with 'system-' prefix are reserved for system use only"),
        ("Bad", 5, "a lowercase RFC 1123 subdomain must consist of"),
    ],
)
def test_invalid_class_is_refused(api: Api, name: str, value: int, words: str) -> None:
    """Values above a thousand million and names of the system's own are refused."""
    reply = api("POST", CLASSES, _class(name, value))
    assert reply.status_code in {403, 422}
    assert words in reply.json()["message"]


def test_second_default_class_is_refused(api: Api) -> None:
    """The second class with globalDefault is refused; without a class a pod gets the default's number."""
    name = f"default-{api.namespace}"
    api.create(CLASSES, _class(name, 7, globalDefault=True))
    try:
        second = _class(f"second-{api.namespace}", 8, globalDefault=True)
        # The server learns of the first one by a watch.
        reply = api.eventually(
            lambda: api("POST", CLASSES, second, params={"dryRun": "All"}),
            lambda found: found.status_code != 201,
        )
        assert (reply.status_code, reply.json()["reason"]) == (403, "Forbidden")
        assert "is already marked as default" in reply.json()["message"]
        found = api.eventually(
            lambda: api("POST", f"{api.core}/pods", pod(), params={"dryRun": "All"}).json()["spec"],
            lambda spec: spec["priority"] == 7,
        )
        assert found["priorityClassName"] == name
    finally:
        api("DELETE", f"{CLASSES}/{name}")
        api.eventually(
            lambda: api("POST", f"{api.core}/pods", pod(), params={"dryRun": "All"}).json()["spec"],
            lambda spec: spec["priority"] == 0,
        )


@pytest.mark.parametrize(
    ("name", "value"), [("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000)]
)
def test_system_classes_exist(api: Api, name: str, value: int) -> None:
    """In every cluster, beyond what a user may define."""
    assert api.get(f"{CLASSES}/{name}")["value"] == value
