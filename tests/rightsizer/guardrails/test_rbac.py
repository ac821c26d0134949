"""RBAC as it is rendered from a policy: it suffices for what that enables, and nothing of it is missed in silence."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rightsizer.guardrails.admission import admission_policies
from rightsizer.guardrails.rbac import grants
from rightsizer.policy.policy_file import parse
from simulator.kube import Fault, Rule
from tests.rightsizer.commands import Run, run_command
from tests.rightsizer.world import BUDGETS, World, created

pytestmark = pytest.mark.prometheus

OWN = "gpu-rightsizer"
USER = f"system:serviceaccount:{OWN}:gpu-rightsizer"
POLICY = (
    """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
classAnnotations: off
defaults: {kinds: []}
rules:
  - name: asked
    match: {kinds: [StatefulSet]}
    mode: enforce
    notifyBefore: 4h
    actions: [scale-to-zero]
  - name: all
    match: {kinds: [Deployment, Pod, Job]}
    mode: enforce
    findings: {too-many-replicas: enforce}
    actions: [scale-up, scale-down, resize, scale-to-zero, suspend, evict]
"""
    + BUDGETS
)
GIVEN: dict[str, tuple[str, dict[str, Any]]] = {
    "web": ("Deployment", {"replicas": 4, "usage": ["idle", "busy", "idle", "idle"]}),
    "idle": ("Deployment", {"replicas": 2}),
    "asked": ("StatefulSet", {}),
    "batch": ("Job", {}),
    "shell": ("Pod", {}),
}
NOTES = ("gpu-rightsizer.io/undo", "gpu-rightsizer.io/notice")


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Grant:
    """One verb on one resource, for the cluster or in a namespace; `name` is "*" where it may be any."""

    group: str
    resource: str
    verb: str
    namespace: str
    name: str = "*"

    def __str__(self) -> str:
        return f"{self.verb}-{self.resource}{'.' if self.group else ''}{self.group}"


def _granted(documents: list[Any]) -> Iterator[Grant]:
    for one in documents:
        where = one["metadata"].get("namespace", "*")
        for rule in one.get("rules", ()):
            for group in rule["apiGroups"]:
                for resource in rule["resources"]:
                    for name in rule.get("resourceNames", ["*"]):
                        yield from (Grant(group, resource, verb, where, name) for verb in rule["verbs"])


GRANTS = sorted(
    _granted(grants(parse(POLICY.encode(), source="policy").policy, account="gpu-rightsizer", own=OWN))
)
SAMPLE = {
    *(
        "patch-deployments.apps",
        "create-pods/eviction",
        "create-secrets",
        "update-leases.coordination.k8s.io",
    ),
    *(
        "get-customresourcedefinitions.apiextensions.k8s.io",
        "patch-configmaps",
        "list-poddisruptionbudgets.policy",
    ),
}
"""One for each way in which a write is prepared, made or kept from being made."""


def _rendered(world: World) -> list[Grant]:
    path = world.directory / "policy.yaml"
    path.write_text(POLICY)
    run = run_command("policy", "rbac", "--policy", str(path))
    assert run.code == 0, run.err
    return sorted(_granted(list(yaml.safe_load_all(run.out))))


def _become(world: World, rights: list[Grant]) -> None:
    """Be the service account that is rendered, with these rights and no others."""
    world.api.add_user("account", USER)
    for one in rights:
        world.api.allow(Rule(USER, (one.verb,), (one.resource,), (one.group,), (one.namespace,), (one.name,)))
    # No policy names kinds that nobody knows: rights on what merely has a scale are granted by hand.
    world.api.allow(Rule(USER, ("get", "list", "patch"), ("clonesets",), ("apps.kruise.io",)))
    world.write_kubeconfig("account")


def _given(world: World) -> dict[str, Any]:
    for name, (kind, given) in GIVEN.items():
        world.add(kind, world.team, name, given)
    return _specs(world)


def _specs(world: World) -> dict[str, Any]:
    found = {name: world.api.get(kind, world.team, name) for name, (kind, _) in GIVEN.items()}
    return {name: obj and obj["spec"] for name, obj in found.items()}


def _apply(world: World) -> Run:
    return world.run("apply", "--yes", "-o", "json", policy=POLICY)


def _again(world: World) -> Run:
    """A second run, in which one workload cannot be changed, so that errors are counted."""
    world.add("Deployment", world.team, "later", {})
    world.add("Deployment", world.team, "refused", {})
    world.api.inject(Fault("deployments/refused", "PATCH", None, status=405))
    return _apply(world)


def _denied(world: World) -> list[str]:
    return [one.path for one in world.api.requests.all() if one.code == 403]


@pytest.mark.slow
def test_rbac_rendered_role_covers_every_enabled_action(world: World) -> None:
    """Every action that the policy enables is done, told and kept, twice over, and no request is ever refused."""
    before = _given(world)
    _become(world, _rendered(world))
    run = _apply(world)
    assert {name: item["result"] for name, item in run.items.items()} == dict.fromkeys(GIVEN, "done"), (
        run.items
    )
    after = _specs(world)
    assert [name for name in GIVEN if after[name] == before[name]] == ["asked"]
    again = _again(world).items
    assert {name: again[name]["result"] for name in ("later", "refused")} == {
        "later": "done",
        "refused": "refused",
    }
    assert _denied(world) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "missing",
    [pytest.param(one, marks=() if str(one) in SAMPLE else pytest.mark.deep) for one in GRANTS],
    ids=str,
)
def test_rbac_missing_permission_is_refused_with_its_name(world: World, missing: Grant) -> None:
    """What is missing is named, there is no traceback, and each object is as before or changed with its record."""
    before = _given(world)
    _become(world, [one for one in _rendered(world) if one != missing])
    runs = [_apply(world), _again(world)]
    told = "".join(run.out + run.err for run in runs)
    assert "Traceback" not in told
    if _denied(world):
        assert missing.resource.partition("/")[0] in told, told
    else:
        assert [run.code for run in runs] == [0, 1], told
    _require_safe(world, before)


def _require_safe(world: World, before: dict[str, Any]) -> None:
    """Whatever was changed can be restored."""
    for name, spec in _specs(world).items():
        kind = GIVEN[name][0]
        if spec is None:
            saved = world.api.list("Secret", OWN)
            assert [one["metadata"]["name"].rpartition("-")[0] for one in saved] == [name]
        elif spec != before[name]:
            assert NOTES[0] in created(world.api, kind, world.team, name)["metadata"]["annotations"]


def test_rbac_policy_grants_only_enforced_kinds_and_evictions() -> None:
    """Only kinds that a rule enforces are changed, pods evicted only where one evicts; advice needs no write."""

    def writes(rules: str) -> set[str]:
        text = f"apiVersion: gpu-rightsizer.io/v1alpha1\nkind: Policy\nclassAnnotations: off\nrules:\n  - {rules}\n"
        documents = grants(parse(text.encode(), source="p").policy, account="a", own=OWN)
        return {
            str(one)
            for one in _granted(documents)
            if one.namespace != OWN and one.verb not in {"get", "list"}
        }

    assert writes("{name: r, match: {everything: true}, mode: advise}") == set()
    scaling = writes("{name: r, match: {kinds: [StatefulSet]}, mode: enforce, actions: [scale-to-zero]}")
    assert {"patch-statefulsets.apps", "create-events"} <= scaling
    assert not {"patch-deployments.apps", "create-pods/eviction", "patch-pods", "patch-jobs.batch"} & scaling
    assert "create-pods/eviction" in writes(
        "{name: r, match: {kinds: [Pod]}, mode: enforce, actions: [evict]}"
    )


def test_rbac_without_policy_grants_read_only() -> None:
    """Everything gets only advice then, and classes are not asked: no write, no Secret, nothing to be told of."""
    run = run_command("policy", "rbac")
    assert run.code == 0
    granted = list(_granted(list(yaml.safe_load_all(run.out))))
    assert {one.verb for one in granted} == {"get", "list"}
    assert "secrets" not in {one.resource for one in granted}
    assert run.err == ""
    assert run_command("policy", "admission").out.strip() in {"", "[]"}


def test_rbac_own_namespace_grants_only_own_objects() -> None:
    """Neither another's ConfigMap or Lease, nor the policy that we run by; what is created has no name for RBAC yet."""
    named = {str(one): one.name for one in GRANTS if one.resource in {"configmaps", "leases"}}
    assert named == {
        "create-configmaps": "*",
        "get-configmaps": "gpu-rightsizer-state",
        "patch-configmaps": "gpu-rightsizer-state",
        "create-leases.coordination.k8s.io": "*",
        "get-leases.coordination.k8s.io": "gpu-rightsizer",
        "update-leases.coordination.k8s.io": "gpu-rightsizer",
    }


def test_rbac_unreachable_class_grants_nothing(world: World) -> None:
    """Behind a rule that matches everything, unless they are asked first."""
    advice = "{name: r, match: {everything: true}, mode: advise}"
    for head, is_open in (("", False), ("classAnnotations: class-first\n", True)):
        granted = _granted(list(yaml.safe_load_all(_run(world, "rbac", rules=advice, head=head).out)))
        assert ("create-secrets" in map(str, granted)) is is_open


_HEAD = "apiVersion: gpu-rightsizer.io/v1alpha1\nkind: Policy\n"
_ENFORCING = (
    "{name: r, match: {kinds: [Deployment], namespaces: [a]}, mode: enforce, actions: [scale-to-zero]}"
)


def _run(world: World, command: str, *flags: str, rules: str = _ENFORCING, head: str = "") -> Run:
    path = world.directory / "policy.yaml"
    path.write_text(f"{_HEAD}{head}rules:\n  - {rules}\n")
    run = run_command("policy", command, *flags, "--policy", str(path))
    assert run.code == 0, run.err
    return run


def test_rbac_services_secrets_granted_only_where_needed(world: World) -> None:
    """Services where Prometheus is to be found, Secrets where pods are evicted, and never the API server's proxy."""

    def rights(*flags: str, rules: str = _ENFORCING) -> set[str]:
        run = _run(world, "rbac", *flags, rules=rules, head="classAnnotations: off\n")
        return {str(one) for one in _granted(list(yaml.safe_load_all(run.out)))}

    services = {"list-services", "get-services/proxy", "list-secrets"}
    assert not services & rights()
    assert services & rights("--discovery") == {"list-services"}
    evicting = "{name: all, match: {kinds: [Pod]}, mode: enforce, actions: [evict]}"
    assert services & rights(rules=evicting) == {"list-secrets"}


def test_rbac_policy_without_evict_needs_no_secrets(world: World) -> None:
    """With the rights that are rendered for it, no request is refused and nothing is warned of."""
    policy = POLICY.replace(", evict]", "]").replace(", Pod, Job]", ", Job]")
    world.add("Deployment", world.team, "idle", {})
    rendered = grants(parse(policy.encode(), source="policy").policy, account="gpu-rightsizer", own=OWN)
    _become(world, sorted(_granted(rendered)))
    run = world.run("apply", "--yes", "-o", "json", policy=policy)
    assert run.items["idle"]["result"] == "done"
    assert _denied(world) == []
    assert "ecret" not in run.err


def test_rbac_causes_of_extra_permissions_are_reported_on_stderr(world: World) -> None:
    """On stderr, apart from what kubectl reads: annotations of classes, and control objects that no rule names."""
    by_class = _run(world, "rbac").err
    assert "classAnnotations: file-first" in by_class
    by_rules = _run(world, "rbac", head="classAnnotations: off\n").err
    assert "ScaledObject.keda.sh: no rule names it" in by_rules
    assert "classAnnotations" not in by_rules


def test_admission_policy_gaps_are_reported(world: World) -> None:
    """Kinds without classes, evictions, orders, and what is protected by more than classes; nothing where none acts."""
    rules = (
        "{name: top, match: {priority: {min: 1000}}, mode: protect}\n"
        "  - {name: precious, match: {priorityClasses: [high]}, mode: protect}\n"
        "  - {name: all, match: {everything: true}, mode: enforce, actions: [scale-to-zero, suspend, evict]}"
    )
    told = _run(world, "admission", rules=rules, head="classAnnotations: off\n").err
    for words in (
        "TrainJob, Workspace, ScaledObject: not checked, because they do not name the PriorityClass",
        "evictions: the class is not checked",
        "Command: the class is not checked",
        "rule top: only checked on bare pods",
        "globalDefault",
    ):
        assert words in told
    assert "rule precious:" not in told
    harmless = "{name: r, match: {everything: true}, mode: advise}"
    assert _run(world, "admission", rules=harmless, head="classAnnotations: off\n").err == ""


def test_admission_policy_protecting_classes_are_guarded_or_reported(world: World) -> None:
    """Locked where they are asked before anything acts; where not, that is told, as where none is named."""
    flags = ("--protected-class", "gold")
    words = "rule priorityclass:gold protects pods of class gold"
    first = "classAnnotations: class-first\n"
    locked = _run(world, "admission", *flags, head=first)
    assert (words in locked.out, "gold" in locked.err) == (True, False)
    late = _run(world, "admission", *flags)
    assert (words in late.out, "gold: not checked, because the policy ignores" in late.err) == (
        False,
        True,
    )
    assert "with --protected-class" in _run(world, "admission", head=first).err


def test_admission_policy_includes_protected_classes_per_kind() -> None:
    """System classes and those that rules protect stand in the policy of each kind that may be changed."""
    text = """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
classAnnotations: off
protectedNamespaces: [prod-*]
rules:
  - {name: precious, match: {priorityClasses: ["high-*"]}, mode: protect}
  - {name: all, match: {kinds: [Deployment, StatefulSet]}, mode: enforce, actions: [scale-to-zero]}
"""
    documents = admission_policies(parse(text.encode(), source="p").policy, account="a", own=OWN)
    names = {"gpu-rightsizer-deployments.apps", "gpu-rightsizer-statefulsets.apps"}
    found = {
        one["metadata"]["name"]: [rule["message"] for rule in one["spec"]["validations"]]
        for one in documents
        if one["kind"] == "ValidatingAdmissionPolicy" and one["metadata"]["name"] in names
    }
    assert found.keys() == names
    for messages in found.values():
        assert "pods of a system class may not be changed" in messages
        assert "rule precious protects pods of class high-*" in messages
        assert "the policy protects namespaces prod-*" in messages
