"""The chart's RBAC and admission policies equal the output of the program's commands."""

from collections.abc import Mapping, Sequence
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from rightsizer.errors import RequestRefused
from rightsizer.guardrails.admission import admission_policies
from rightsizer.guardrails.rbac import grants
from rightsizer.policy.rule import ACTIONS
from rightsizer.policy.schema import API_VERSION, Policy
from tests.deploy.chart import ACTING, CHART, Object, render

pytestmark = pytest.mark.helm


def _policy(*rules: Object, **fields: Any) -> Object:
    named = [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]
    return {"apiVersion": API_VERSION, "kind": "Policy", "rules": named, **fields}


def _enforce(match: Object, *actions: str, **fields: Any) -> Object:
    return {"match": match, "mode": "enforce", **({"actions": list(actions)} if actions else {}), **fields}


OFF = {"classAnnotations": "off"}
POLICIES: Mapping[str, Object] = {
    "classes": _policy({"match": {"kinds": ["Job"]}, "mode": "advise"}),
    "classes-first": _policy(
        {"match": {"everything": True}, "mode": "advise"}, classAnnotations="class-first"
    ),
    "classes-never-asked": _policy(
        _enforce({"kinds": ["Job"]}, "suspend"), {"match": {"everything": True}, "mode": "advise"}
    ),
    "advise-only": _policy({"match": {"everything": True}, "mode": "advise"}, **OFF),
    "yaml-off": _policy(_enforce({"kinds": ["Deployment"]}), classAnnotations=False),
    "safe-actions": _policy(_enforce({"priorityClasses": ["low-*"]}), **OFF),
    "one-namespace": _policy(_enforce({"namespaces": ["research"]}, "suspend", "evict"), **OFF),
    "two-and-a-pattern": _policy(
        _enforce({"namespaces": ["b", "a", "b"]}, "suspend"), _enforce({"namespaces": ["c-*"]}), **OFF
    ),
    "keeps-sizes": _policy(_enforce({"kinds": ["Deployment"]}, "resize"), keepSizes="30d", **OFF),
    "keeps-sizes-of-none": _policy({"match": {"everything": True}, "mode": "advise"}, keepSizes="30d", **OFF),
    "own-group": _policy(_enforce({"kinds": ["*.kubeflow.org", "Job"]}, "suspend", "scale-to-zero"), **OFF),
    "commands": _policy(_enforce({"kinds": ["Job.batch.volcano.sh"]}, "suspend"), **OFF),
    "by-priority": _policy(
        {"match": {"priority": {"min": 1_000_000}}, "mode": "protect"},
        {"match": {"priority": {"max": -5}}, "mode": "protect"},
        {"match": {"priority": {"min": 0, "max": 10}}, "mode": "protect"},
        {"match": {"priority": {"min": 7}, "kinds": ["Job"]}, "mode": "protect"},
        _enforce({"kinds": ["Pod"]}, "evict", notifyBefore="4h"),
        **OFF,
    ),
    "asked-pods": _policy(_enforce({"kinds": ["P?d"]}, "evict", notifyBefore="4h"), **OFF),
    "pods-asked-by-default": _policy(_enforce({"kinds": ["Pod"]}, "evict"), **OFF),
    "pods-not-asked": _policy(_enforce({"kinds": ["Pod"]}, "evict"), defaults={"kinds": []}, **OFF),
    "pods-asked-by-kind": _policy(
        _enforce({"kinds": ["Pod"]}, "evict"),
        defaults={"kinds": [{"kinds": ["Notebook"]}, {"kinds": ["P*"], "notifyBefore": "1h"}]},
        **OFF,
    ),
    "protected": _policy(
        {"match": {"priorityClasses": ["high-*", "a.b+?", ""]}, "mode": "protect"},
        {"match": {"priorityClasses": ["x"], "kinds": ["Job"]}, "mode": "protect"},
        _enforce({"kinds": ["Deployment"]}),
        {"match": {"priorityClasses": ["too-late"]}, "mode": "protect"},
        protectedNamespaces=["*-prod-*", "team.a"],
        **OFF,
    ),
}


@pytest.mark.parametrize("name", POLICIES)
def test_chart_roles_and_admission_equal_commands(name: str) -> None:
    """For each policy of a table: the same objects, names and texts."""
    _compare(POLICIES[name], namespace="gpu-rightsizer", release="gpu-rightsizer")


_PATTERNS = st.sampled_from(["high-*", "low", "*-a-*", "team.b", "l?w", "x+y"])
_KINDS = st.sampled_from(["Deployment", "*Job", "Pod", "Stateful*", "Notebook.kubeflow.org", "RayCluster"])


def _lists(what: st.SearchStrategy[str]) -> st.SearchStrategy[list[str]]:
    return st.lists(what, min_size=1, max_size=3, unique=True)


_MATCHES: st.SearchStrategy[Object] = st.fixed_dictionaries(
    {},
    optional={
        "priorityClasses": _lists(_PATTERNS),
        "namespaces": _lists(st.sampled_from(["a", "b", "c-*"])),
        "kinds": _lists(_KINDS),
    },
).map(lambda match: dict(match) or {"everything": True})
_RULES = st.one_of(
    st.builds(lambda match: {"match": match, "mode": "protect"}, _MATCHES),
    st.builds(lambda match: {"match": match, "mode": "advise"}, _MATCHES),
    st.builds(
        lambda match, actions, notice: _enforce(match, *actions, **notice),
        _MATCHES,
        st.lists(st.sampled_from([action.value for action in ACTIONS]), max_size=4, unique=True),
        st.sampled_from([{}, {"notifyBefore": "1h"}]),
    ),
)


@hypothesis.settings(max_examples=10)
@hypothesis.given(
    st.lists(_RULES, min_size=1, max_size=4),
    st.sampled_from([OFF, OFF, OFF, {"classAnnotations": "class-first"}]),
    st.lists(_PATTERNS, max_size=2, unique=True),
    st.sampled_from([("gpu-rightsizer", "gpu-rightsizer"), ("gpus", "blue"), ("kube-system", "x")]),
)
def test_chart_roles_and_admission_for_any_policy_equal_commands(
    rules: list[Object], fields: Object, protected: list[str], where: tuple[str, str]
) -> None:
    """For any rules, release and namespace."""
    policy = _policy(*rules, protectedNamespaces=protected, **fields)
    _compare(policy, namespace=where[0], release=where[1])


def test_chart_without_act_grants_no_writes() -> None:
    """Without act the account can only plan, whatever the policy enforces, and there is no admission policy."""
    enforcing = _policy(_enforce({"kinds": ["Deployment"]}), **OFF)
    harmless = _policy({"match": {"everything": True}, "mode": "advise"}, **OFF)
    objects = render({"rightsizer": {"policy": enforcing}}, only=["rbac"])
    assert _bare(objects) == _bare(
        grants(
            Policy.model_validate(harmless), account="gpu-rightsizer", own="gpu-rightsizer", is_finding=True
        )
    )
    known = {"policy": enforcing, "prometheus": {"url": "http://prometheus:9090"}}
    assert _bare(render({"rightsizer": known}, only=["rbac"])) == _bare(
        grants(Policy.model_validate(harmless), account="gpu-rightsizer", own="gpu-rightsizer")
    )
    assert {verb for one in objects for rule in one.get("rules", ()) for verb in rule["verbs"]} == {
        "get",
        "list",
    }
    kinds = {one["kind"] for one in render({"rightsizer": {"policy": enforcing}})}
    assert "ValidatingAdmissionPolicy" not in kinds


def test_chart_with_eviction_policy_may_read_manifests() -> None:
    """Planning counts earlier evictions against budgets, so it reads their manifests."""
    for policy, is_listing in (
        (_policy(_enforce({"kinds": ["Pod"]}, "evict"), **OFF), True),
        (_policy(_enforce({"kinds": ["Deployment"]}, "evict"), **OFF), False),
        (_policy(_enforce({"kinds": ["Deployment"]})), True),
        (_policy({"match": {"everything": True}, "mode": "advise"}), False),
        ({}, False),
    ):
        objects = render({"rightsizer": {"policy": policy}}, only=["rbac"])
        rules = [rule for one in objects for rule in one.get("rules", ())]
        verbs = [verb for rule in rules if "secrets" in rule["resources"] for verb in rule["verbs"]]
        assert verbs == (["list"] if is_listing else [])


@pytest.mark.parametrize("release", ["gpu-rightsizer", "blue", "gpus"])
@pytest.mark.parametrize("name", ["", "mine"])
def test_refusal_by_any_of_the_charts_admission_policies_is_out_of_policy(release: str, name: str) -> None:
    """Whatever the release is called: the breaker opens."""
    values = {"rightsizer": ACTING, "fullnameOverride": name}
    for one in render(values, release=release, only=["admission"]):
        called = one["metadata"]["name"]
        words = f"ValidatingAdmissionPolicy '{called}' with binding '{called}' denied request: no"
        refusal = RequestRefused("patching", code=403, reason="Forbidden", detail=words)
        assert refusal.is_out_of_policy, called


def test_rbac_namespaces_limit_write_roles() -> None:
    """rbac.namespaces only reduces write permissions."""
    wide = _written({"everything": True}, ["a", "b"])
    narrow = _written({"namespaces": ["b", "c"]}, ["a", "b"])
    none = _written({"namespaces": ["c"]}, ["a", "b"])
    assert (wide, narrow, none) == ({"a", "b"}, {"b"}, set())


def _written(match: Object, bound: Sequence[str]) -> set[str]:
    """Namespaces with write permissions, or "" for all."""
    policy = _policy(_enforce(match), **OFF)
    values = {"rightsizer": {**ACTING, "policy": policy}, "rbac": {"namespaces": list(bound)}}
    objects = render(values, only=["rbac"])
    return {
        one["metadata"].get("namespace", "")
        for one in objects
        if one["kind"].endswith("Role") and one["metadata"]["name"].endswith("-write")
    }


def test_service_account_name_applies_to_all_objects() -> None:
    """Bindings and conditions name the user's account, which is not created."""
    values = {
        "rightsizer": {**ACTING, "policy": _policy(_enforce({"kinds": ["Job"]}), **OFF)},
        "serviceAccount": {"create": False, "name": "mine"},
    }
    objects = render(values, only=["rbac", "admission"])
    assert all(
        one["subjects"][0]["name"] == "mine"
        for one in objects
        if one["kind"].endswith("Binding") and "subjects" in one
    )
    conditions = {
        one["spec"]["matchConditions"][0]["expression"]
        for one in objects
        if one["kind"] == "ValidatingAdmissionPolicy"
    }
    assert conditions == {'request.userInfo.username == "system:serviceaccount:gpu-rightsizer:mine"'}
    assert not any(one["kind"] == "ServiceAccount" for one in objects)


_OWN_CLASSES: Object = {
    "gpus": [
        {"name": "h100"},
        {
            "name": "t4",
            "levels": {"high": {"policy": {"mode": "advise"}}, "low": {"policy": {"mode": "protect"}}},
        },
    ]
}
_ADVICE: Object = {"match": {"priorityClasses": ["x"]}, "mode": "advise"}


@pytest.mark.parametrize(
    ("policy", "is_heeded"),
    [
        pytest.param({}, True, id="classes-are-the-policy"),
        pytest.param(_policy(_ADVICE), True, id="rules-that-only-advise"),
        pytest.param(
            _policy(_enforce({"namespaces": ["a"]}), classAnnotations="class-first"), True, id="first"
        ),
        pytest.param(_policy(_enforce({"namespaces": ["a"]})), False, id="a-rule-that-acts-is-asked-first"),
        pytest.param(_policy(_enforce({"namespaces": ["a"]}), **OFF), False, id="not-asked"),
    ],
)
def test_protecting_classes_of_chart_are_in_admission_policy(policy: Object, *, is_heeded: bool) -> None:
    """As with `policy admission --protected-class`, unless a rule of the file may override the class."""
    classes = ["high-priority-h100", "low-priority-t4"]
    parsed = policy or yaml.safe_load((CHART.parents[1] / "examples" / "policy-by-class.yaml").read_text())
    _compare(policy, parsed, classes=classes, values={"priorityClasses": _OWN_CLASSES})
    found = admission_policies(Policy.model_validate(parsed), account="a", own="o", classes=classes)
    assert ("rule priorityclass:low-priority-t4 protects" in str(found)) is is_heeded


def _compare(
    policy: Object,
    checked: Object | None = None,
    *,
    namespace: str = "gpu-rightsizer",
    release: str = "gpu-rightsizer",
    classes: Sequence[str] = (),
    values: Object | None = None,
) -> None:
    """The chart's objects for a policy, and the output of the commands for the same policy."""
    values = {**(values or {}), "rightsizer": {**ACTING, "policy": policy}}
    parsed = Policy.model_validate(checked or policy)
    only = ["rbac", "admission"] if admission_policies(parsed, account="a", own="o") else ["rbac"]
    done = render(values, namespace=namespace, release=release, only=only)
    name = release if "gpu-rightsizer" in release else f"{release}-gpu-rightsizer"
    expected = grants(parsed, account=name, own=namespace)
    expected += admission_policies(parsed, account=name, own=namespace, classes=classes)
    guardrail = name if name.startswith("gpu-rightsizer") else f"gpu-rightsizer-{name}"
    named = {}
    for (kind, where, called), body in _bare(expected).items():
        new = guardrail if "AdmissionPolicy" in kind else name
        own = called if called == name else called.replace("gpu-rightsizer", new, 1)
        named[kind, where, own] = _named(body, new)
    assert _bare(done) == named


def _named(body: Object, name: str) -> Object:
    """With the release's name in references to a role or policy."""
    for part, key in (("roleRef", "name"), ("spec", "policyName")):
        if key in body.get(part, {}):
            reference = {**body[part], key: body[part][key].replace("gpu-rightsizer", name, 1)}
            return {**body, part: reference}
    return body


def _bare(objects: Sequence[Object]) -> dict[tuple[str, str, str], Object]:
    """By kind, namespace and name, without Helm's labels."""
    return {
        (one["kind"], one["metadata"].get("namespace", ""), one["metadata"]["name"]): {
            key: part for key, part in one.items() if key != "metadata"
        }
        for one in objects
    }
