"""ValidatingAdmissionPolicy: what the API server itself refuses, by an expression."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.controlplane.contract.objects import replicated
from tests.controlplane.contract.server import Api, Object

GROUP = "/apis/admissionregistration.k8s.io/v1"
UPDATE = {
    "apiGroups": ["apps"],
    "apiVersions": ["v1"],
    "operations": ["UPDATE"],
    "resources": ["deployments"],
}
SCALE = {**UPDATE, "resources": ["deployments/scale"]}
KEEP = "!('keep' in object.metadata.labels) || object.spec.replicas > 0"
ZERO: Object = {"spec": {"replicas": 0}}

Lock = Callable[..., None]


@pytest.fixture
def lock(api: Api) -> Iterator[Lock]:
    """Installs a policy for the namespace, and removes it in the end."""
    with contextlib.ExitStack() as stack:

        def install(
            expression: str,
            *,
            rule: Object | None = None,
            action: str = "Deny",
            says: Object | None = None,
            **more: object,
        ) -> None:
            rules = {"resourceRules": [rule or UPDATE]}
            validations = [{"expression": expression, **(says or {})}]
            here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": api.namespace}}}
            specs: dict[str, Object] = {
                "validatingadmissionpolicies": {
                    "matchConstraints": rules,
                    "validations": validations,
                    **more,
                },
                "validatingadmissionpolicybindings": {
                    "policyName": api.namespace,
                    "validationActions": [action],
                    "matchResources": here,
                },
            }
            for plural, spec in specs.items():
                path = f"{GROUP}/{plural}"
                api.create(path, {"metadata": {"name": api.namespace}, "spec": spec})
                stack.callback(api, "DELETE", f"{path}/{api.namespace}")

        yield install


@pytest.fixture
def deployment(api: Api) -> str:
    """The path of a Deployment with the label keep."""
    body = replicated(replicas=2)
    body["metadata"]["labels"] = {"keep": "yes"}
    api.create(f"{api.apps}/deployments", body)
    api.create(f"{api.apps}/deployments", replicated("free"))
    return f"{api.apps}/deployments/w"


def _until_refused(api: Api, path: str, body: Object = ZERO) -> Object:
    """The refusal, once the policy is in force: the server learns of it by a watch."""
    reply = api.eventually(
        lambda: api.patch(path, body, params={"dryRun": "All"}), lambda found: found.status_code != 200
    )
    answer: Object = reply.json()
    assert reply.status_code == answer["code"]
    return answer


def test_policy_expression_false_denies_request(api: Api, deployment: str, lock: Lock) -> None:
    """422 Invalid with policy, binding and message, also in a dry run; what it allows passes."""
    lock(KEEP, says={"message": "it is to be kept"})
    answer = _until_refused(api, deployment)
    assert (answer["code"], answer["reason"]) == (422, "Invalid")
    assert answer["message"] == (
        f"deployments.apps \"w\" is forbidden: ValidatingAdmissionPolicy '{api.namespace}' with binding "
        f"'{api.namespace}' denied request: it is to be kept"
    )
    assert api.patch(deployment, ZERO).status_code == 422
    assert api.get(deployment)["spec"]["replicas"] == 2
    assert api.patch(deployment, {"spec": {"replicas": 1}}).status_code == 200


def test_policy_rule_on_deployment_ignores_scale(api: Api, deployment: str, lock: Lock) -> None:
    """A rule on the Deployment does not see the scale subresource."""
    lock(KEEP)
    _until_refused(api, deployment)
    assert api.patch(f"{deployment}/scale", ZERO).status_code == 200


def test_policy_rule_on_scale_sees_scale_object(api: Api, deployment: str, lock: Lock) -> None:
    """The object is the Scale: it has replicas and no labels of the Deployment."""
    lock("has(object.spec.replicas) && object.spec.replicas > 0", rule=SCALE, says={"message": "not to zero"})
    answer = _until_refused(api, f"{deployment}/scale")
    assert "denied request: not to zero" in answer["message"]
    assert api.patch(deployment, {"spec": {"replicas": 0}}).status_code == 200


def test_policy_sees_user_and_old_object(api: Api, deployment: str, lock: Lock) -> None:
    """request.userInfo and oldObject: one account may only ever lower."""
    lock("request.userInfo.username != 'limited' || object.spec.replicas <= oldObject.spec.replicas")
    api.server.grant("limited", api.namespace, verbs=["patch"], resources=["deployments"])
    more = {"spec": {"replicas": 5}}
    reply = api.eventually(
        lambda: api.patch(deployment, more, user="limited", params={"dryRun": "All"}),
        lambda found: found.status_code == 422,
    )
    assert "failed expression" in reply.json()["message"]
    assert api.patch(deployment, ZERO, user="limited").status_code == 200
    assert api.patch(deployment, more).status_code == 200


def test_policy_message_expression_and_reason_are_used(api: Api, deployment: str, lock: Lock) -> None:
    """A messageExpression stands before message; the reason decides the code."""
    computed = "'never below ' + string(oldObject.spec.replicas)"
    says = {"messageExpression": computed, "message": "unused", "reason": "Forbidden"}
    lock("object.spec.replicas > 0", says=says)
    answer = _until_refused(api, deployment)
    assert (answer["code"], answer["reason"]) == (403, "Forbidden")
    assert "denied request: never below 2" in answer["message"]


def test_policy_variables_and_match_conditions_are_evaluated(api: Api, deployment: str, lock: Lock) -> None:
    """A variable is computed once; a match condition that is false leaves the request alone."""
    lock(
        "variables.wanted > 0",
        variables=[{"name": "wanted", "expression": "object.spec.replicas"}],
        matchConditions=[
            {"name": "kept", "expression": "has(object.metadata.labels) && 'keep' in object.metadata.labels"}
        ],
    )
    _until_refused(api, deployment)
    assert api.patch(f"{api.apps}/deployments/free", ZERO).status_code == 200


@pytest.mark.parametrize(("policy", "code"), [("Fail", 422), ("Ignore", 200)])
def test_policy_expression_error_follows_failure_policy(
    api: Api, deployment: str, lock: Lock, policy: str, code: int
) -> None:
    """The failurePolicy says whether an error refuses the request or lets it pass."""
    lock("object.metadata.labels['none'] == 'x'", failurePolicy=policy)
    if code == 200:
        # Nothing shows that it is in force; that it does not refuse is all there is to see.
        assert api.patch(deployment, ZERO, params={"dryRun": "All"}).status_code == 200
    else:
        assert "no such key: none" in _until_refused(api, deployment)["message"]


def test_policy_with_warn_action_warns_only(api: Api, deployment: str, lock: Lock) -> None:
    """The request passes, with a Warning header."""
    lock("object.spec.replicas > 0", says={"message": "careful"}, action="Warn")
    reply = api.eventually(
        lambda: api.patch(deployment, ZERO, params={"dryRun": "All"}),
        lambda found: "Warning" in found.headers,
    )
    assert reply.status_code == 200
    assert "Validation failed for ValidatingAdmissionPolicy" in reply.headers["Warning"]
    assert "careful" in reply.headers["Warning"]


def test_policy_with_invalid_expression_is_422(api: Api) -> None:
    """422 that names the place."""
    spec = {"matchConstraints": {"resourceRules": [UPDATE]}, "validations": [{"expression": "object.spec.("}]}
    reply = api(
        "POST", f"{GROUP}/validatingadmissionpolicies", {"metadata": {"name": api.namespace}, "spec": spec}
    )
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert reply.json()["details"]["causes"][0]["field"] == "spec.validations[0].expression"
