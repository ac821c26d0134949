"""Objects that cannot be: refused with the code and the fields that a client is told, never with a 500."""

import pytest

from tests.controlplane.contract.server import Api, Object

ADMISSION = "/apis/admissionregistration.k8s.io/v1"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
PLACE = {"resourceRules": [RULE]}
TRUE = [{"expression": "true"}]


def _scope(**expression: object) -> Object:
    return {"hard": {"pods": "1"}, "scopeSelector": {"matchExpressions": [expression]}}


@pytest.mark.parametrize(
    "hard",
    [{"pods": "abc"}, {"pods": True}, {"pods": {}}, {"limits.cpu": "NaN"}, ["pods"]],
)
def test_invalid_quantity_is_400(api: Api, hard: object) -> None:
    """400, as for any field of the wrong type."""
    reply = api("POST", f"{api.core}/resourcequotas", {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")
    assert reply.json()["message"].startswith(
        'ResourceQuota in version "v1" cannot be handled as a ResourceQuota: '
    )


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"hard": {"requests.nvidia.com/gpu": -1}}, {"spec.hard[requests.nvidia.com/gpu]"}),
        ({"hard": {"pods": "1.5"}}, {"spec.hard[pods]"}),
        ({"hard": {"pods": "1"}, "scopes": ["Bogus"]}, {"spec.scopes"}),
        (
            _scope(scopeName="PriorityClass", operator="Bogus", values=["a"]),
            {"spec.scopeSelector.matchExpressions.operator"},
        ),
        (
            _scope(operator="In"),
            {
                "spec.scopeSelector.matchExpressions.scopeName",
                "spec.scopeSelector.matchExpressions.values",
            },
        ),
    ],
)
def test_invalid_quota_is_422(strict_api: Api, spec: Object, fields: set[str]) -> None:
    """422 with each field that is wrong."""
    reply = strict_api("POST", f"{strict_api.core}/resourcequotas", {"metadata": {"name": "q"}, "spec": spec})
    assert _refused(reply.json()) == fields


@pytest.mark.parametrize("more", [{}, {"spec": None}, {"spec": {}}, {"spec": {"hard": None}}])
def test_empty_quota_is_accepted(api: Api, more: Object) -> None:
    """It limits nothing."""
    api.create(f"{api.core}/resourcequotas", {"metadata": {"name": "q"}, **more})


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        (None, {"spec.matchConstraints", "spec.validations", "spec.auditAnnotations"}),
        ({"matchConstraints": PLACE, "validations": []}, {"spec.validations", "spec.auditAnnotations"}),
        ({"matchConstraints": {}, "validations": TRUE}, {"spec.matchConstraints.resourceRules"}),
        ({"matchConstraints": PLACE, "validations": [{}]}, {"spec.validations[0].expression"}),
        (
            {"matchConstraints": PLACE, "validations": TRUE, "failurePolicy": "X"},
            {"spec.failurePolicy"},
        ),
        (
            {"matchConstraints": {"resourceRules": [{}]}, "validations": TRUE},
            {
                f"spec.matchConstraints.resourceRules[0].{name}"
                for name in ("operations", "apiGroups", "apiVersions", "resources")
            },
        ),
        (
            {
                "matchConstraints": {"resourceRules": [{**RULE, "operations": ["NOPE"]}]},
                "validations": TRUE,
            },
            {"spec.matchConstraints.resourceRules[0].operations[0]"},
        ),
    ],
)
def test_invalid_policy_is_422(strict_api: Api, spec: Object | None, fields: set[str]) -> None:
    """422 with each field that is missing or wrong."""
    body = {"metadata": {"name": strict_api.namespace}, "spec": spec}
    assert _refused(strict_api("POST", f"{ADMISSION}/validatingadmissionpolicies", body).json()) == fields


def test_policy_with_invalid_expression_is_422(api: Api) -> None:
    """422 with the expression's field."""
    spec = {"matchConstraints": PLACE, "validations": [{"expression": "object.("}]}
    body = {"metadata": {"name": api.namespace}, "spec": spec}
    reply = api("POST", f"{ADMISSION}/validatingadmissionpolicies", body).json()
    assert _refused(reply) == {"spec.validations[0].expression"}


@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({}, {"spec.policyName", "spec.validationActions"}),
        ({"policyName": "a", "validationActions": ["Nope"]}, {"spec.validationActions[0]"}),
        ({"policyName": "a", "validationActions": ["Deny", "Deny"]}, {"spec.validationActions[1]"}),
        ({"policyName": "a", "validationActions": ["Deny", "Warn"]}, {"spec.validationActions"}),
    ],
)
def test_invalid_binding_is_422(strict_api: Api, spec: Object, fields: set[str]) -> None:
    """422 with each field that is missing or wrong."""
    body = {"metadata": {"name": strict_api.namespace}, "spec": spec}
    assert (
        _refused(strict_api("POST", f"{ADMISSION}/validatingadmissionpolicybindings", body).json()) == fields
    )


@pytest.mark.parametrize(
    ("collection", "spec", "fields"),
    [
        (
            "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers",
            {},
            {"spec.maxReplicas", "spec.scaleTargetRef.kind", "spec.scaleTargetRef.name"},
        ),
        ("/api/v1/nodes", {"taints": [{"key": "a", "effect": "Never"}]}, {"metadata.taints[0].effect"}),
        (
            "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
            {"selector": {"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}},
            {"spec.selector.matchExpressions[0].operator"},
        ),
        (
            "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
            {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
            {"spec.selector.matchExpressions[0].values"},
        ),
        (
            "/api/v1/namespaces/{}/pods",
            {"containers": [None]},
            {"spec.containers[0].name", "spec.containers[0].image"},
        ),
    ],
)
def test_invalid_object_is_422(api: Api, collection: str, spec: Object, fields: set[str]) -> None:
    """422 with the fields; a null in a list is an empty entry."""
    body = {"metadata": {"name": f"x-{api.namespace}"}, "spec": spec}
    assert _refused(api("POST", collection.format(api.namespace), body).json()) >= fields


def test_invalid_selector_is_reported_before_mismatch(api: Api) -> None:
    """Before it is compared with the template."""
    container = {"name": "a", "image": "b"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    spec = {"selector": {"matchExpressions": [{"key": "a", "operator": "Near"}]}, "template": template}
    reply = api("POST", f"{api.apps}/deployments", {"metadata": {"name": "d"}, "spec": spec})
    assert _refused(reply.json()) >= {"spec.selector.matchExpressions[0].operator"}


def _refused(status: Object) -> set[str]:
    assert (status["code"], status["reason"]) == (422, "Invalid"), status
    return {cause["field"] for cause in status["details"]["causes"]}


def test_namespace_of_cluster_scoped_object_is_dropped(api: Api) -> None:
    """It is no mistake: the object is made, without it."""
    body = {"metadata": {"name": api.namespace, "namespace": api.namespace}, "value": 1}
    path = "/apis/scheduling.k8s.io/v1/priorityclasses"
    assert "namespace" not in api.create(path, body)["metadata"]
    assert "namespace" not in api.get(f"{path}/{api.namespace}")["metadata"]
    assert api("DELETE", f"{path}/{api.namespace}").status_code == 200
