"""`policy check`, `explain` and `init` as a person meets them, against an API server."""

import pathlib
from collections.abc import Iterator
from typing import Any

import hypothesis
import pytest
import yaml
from hypothesis import strategies as st

from rightsizer.config import PREFIX
from rightsizer.model import Fleet, Mode, Node, PriorityClass
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.explain import explain
from rightsizer.policy.match import Match, Sharing
from rightsizer.policy.policy_file import parse, starting_policy
from simulator.kube import ApiServer
from tests.conftest import Golden
from tests.rightsizer.build import AT, pod, policy, rule, workload
from tests.rightsizer.commands import Run, run_command
from tests.rightsizer.given import CLASSES, manifest, priority_class

POLICY = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
rules:
  - {name: production, match: {priorityClasses: [high-priority]}, mode: protect}
  - {name: research, match: {namespaces: ["research"]}, mode: enforce}
"""


class Place:
    """An API server with three classes, a node and two workloads, and a policy file."""

    def __init__(self, api: ApiServer, directory: pathlib.Path) -> None:
        self.api = api
        self.directory = directory
        (directory / "kubeconfig").write_text(yaml.safe_dump(api.kubeconfig()))

    def run(self, *arguments: str, text: str = POLICY) -> Run:
        """Run a command; FILE stands for the policy file."""
        path = self.directory / "policy.yaml"
        path.write_text(text)
        given = [str(path) if word == "FILE" else word for word in arguments]
        return run_command("policy", *given, "--kubeconfig", str(self.directory / "kubeconfig"))


@pytest.mark.parametrize("way", ["argument", "flag", "variable"])
def test_policy_check_file_by_argument_flag_or_variable(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """As elsewhere by flag and variable, too; what stands as an argument comes first."""
    path, other = tmp_path / "policy.yaml", tmp_path / "other.yaml"
    path.write_text(POLICY)
    monkeypatch.setenv("GPU_RIGHTSIZER_POLICY", str(path if way == "variable" else other))
    arguments = {"argument": [str(path)], "flag": ["--policy", str(path)], "variable": []}[way]
    run = run_command("policy", "check", "--offline", *arguments)
    assert (run.code, run.out) == (0, f"{path}: good: 2 rules, not asked of a cluster\n")


def test_policy_check_without_file_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said how one is named."""
    monkeypatch.delenv("GPU_RIGHTSIZER_POLICY", raising=False)
    run = run_command("policy", "check", "--offline")
    assert (run.code, run.out) == (2, "")
    assert "which policy file? policy check FILE, or --policy, or GPU_RIGHTSIZER_POLICY" in run.err


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[Place]:
    """Torn down with the test."""
    api = ApiServer(termination_delay_s=0.0)
    api.start()
    try:
        for name, value in CLASSES.items():
            api.create(priority_class(name, value))
        amounts = {"cpu": "64", "memory": "1Ti", "pods": "100", "nvidia.com/gpu": "8"}
        labels = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "karpenter.sh/nodepool": "gpu-a"}
        api.create(
            {
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": "n1", "labels": labels},
                "status": {"capacity": amounts, "allocatable": amounts},
            }
        )
        for name in ("research", "other"):
            api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        api.create(manifest("Deployment", "research", "eval", {"gpus": 2, "priorityClass": "low-priority"}))
        api.create(manifest("Deployment", "other", "web", {"gpus": 1, "priorityClass": "low-priority"}))
        api.settle()
        yield Place(api, tmp_path)
    finally:
        api.stop()


def test_policy_check_lists_workloads_per_rule(place: Place) -> None:
    """Workloads and GPUs by rule, in the rules' order, and those that none matches."""
    run = place.run("check", "FILE")
    assert (run.code, run.err) == (0, "")
    first, *rows = run.out.splitlines()
    assert ": good: 2 rules, its PriorityClasses exist at " in first
    assert [row.split() for row in rows] == [
        ["production", "protect", "0", "workloads", "0", "GPUs"],
        ["research", "enforce", "1", "workload", "2", "GPUs"],
        ["(no", "rule)", "advise", "1", "workload", "1", "GPU"],
    ]


def test_policy_check_reports_invalid_classes(place: Place) -> None:
    """A class whose annotations cannot be read, and classes that are never asked."""
    place.api.patch(
        "PriorityClass", None, "low-priority", {"metadata": {"annotations": {PREFIX + "mode": "enforced"}}}
    )
    run = place.run("check", "FILE", text=POLICY.replace('{namespaces: ["research"]}', "{everything: true}"))
    assert run.code == 0
    warnings = [line for line in run.out.splitlines() if line.startswith("warning: ")]
    assert "PriorityClass low-priority protects its pods, because its annotations are invalid" in warnings[0]
    assert "have no effect: rule research matches everything before them" in warnings[1]


def test_policy_check_unknown_namespaces_are_warnings(place: Place) -> None:
    """Each with its line, wherever the policy names it; wildcards are about namespaces to come."""
    text = POLICY.replace('["research"]', '["research", "reserch", "team-*"]') + (
        "protectedNamespaces: [prod, other]\nsharing: {untrusted: [{namespaces: [guests]}]}\n"
        "notifications: [{type: slack, url: 'https://example.com', namespaces: [otter]}]\n"
    )
    run = place.run("check", "FILE", text=text)
    assert run.code == 0
    head = "warning: policy: line"
    assert [line for line in run.out.splitlines() if line.startswith("warning: ")] == [
        f"{head} 5: rules[1].match.namespaces[1]: the cluster has no namespace reserch; did you mean research?",
        f"{head} 7: sharing.untrusted[0].namespaces[0]: the cluster has no namespace guests",
        f"{head} 6: protectedNamespaces[0]: the cluster has no namespace prod",
        f"{head} 8: notifications[0].namespaces[0]: the cluster has no namespace otter; did you mean other?",
    ]


def test_policy_check_offline_sends_no_request(place: Place) -> None:
    """Not even whether the classes exist."""
    before = len(place.api.requests.all())
    run = place.run("check", "FILE", "--offline", text=POLICY.replace("high-priority", "no-such-class"))
    assert (run.code, len(place.api.requests.all())) == (0, before)
    assert run.out.endswith(": good: 2 rules, not asked of a cluster\n")


def test_policy_explain_live_workload_walks_the_rules(place: Place) -> None:
    """By namespace, kind in any case, and name; only reading."""
    run = place.run("explain", "research/deployment/eval", "--policy", str(place.directory / "policy.yaml"))
    assert (run.code, run.err) == (0, "")
    assert "  1 production (protect): does not match" in run.out
    assert "      priorityClasses high-priority: no, it is low-priority" in run.out
    assert "  so research: enforce" in run.out
    assert all(entry.method == "GET" for entry in place.api.requests.all())


def test_policy_explain_without_policy_advises(place: Place) -> None:
    """Everything is advised on."""
    run = place.run("explain", "research/Deployment/eval")
    assert "advise-only (advise): applies: it matches everything" in run.out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("eval", "eval: write NAMESPACE/KIND/NAME, such as research/Deployment/eval-server"),
        ("research//eval", "write NAMESPACE/KIND/NAME"),
        (
            "research/Deployment/evil",
            "holds or waits for GPUs in research; there are research/Deployment/eval",
        ),
        ("research/Job/eval", "no such workload"),
    ],
)
def test_policy_explain_unknown_workload_lists_known(place: Place, name: str, words: str) -> None:
    """Told with what there is."""
    run = place.run("explain", name)
    assert (run.code, run.out) == (2, "")
    assert words in run.err


def test_policy_init_output_passes_check(place: Place) -> None:
    """It protects the highest class, and lets nothing happen."""
    written = place.run("init").out
    run = place.run("check", "FILE", text=written)
    assert run.code == 0
    assert [row.split()[:2] for row in run.out.splitlines()[1:]] == [
        ["high-priority", "protect"],
        ["medium-priority", "advise"],
        ["low-priority", "advise"],
        ["without-class", "advise"],
    ]


def test_policy_init_output_matches_golden(golden: Golden) -> None:
    """The whole text, for classes with names that YAML would misread, and system ones."""
    classes = [
        PriorityClass("system-node-critical", 2_000_001_000),
        PriorityClass("research-prod", 500),
        PriorityClass("gold", 1000),
        PriorityClass("no", -10),
        PriorityClass("123", 500),
    ]
    golden("starting-policy.yaml", starting_policy(classes))


_classes = st.builds(
    PriorityClass,
    st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,80}[a-z0-9])?", fullmatch=True),
    st.integers(-(2**31), 2**31 - 1),
)


@hypothesis.given(st.lists(_classes, max_size=6, unique_by=lambda item: item.name))
def test_policy_init_any_classes_is_valid_and_harmless(classes: list[PriorityClass]) -> None:
    """Every class that is not the system's has its rule; none enforces."""
    made = parse(starting_policy(classes).encode(), source="p").policy
    rules = made.rules
    own = {item.name for item in classes if not item.name.startswith("system-") and item.value <= 10**9}
    assert {name for rule in rules for name in rule.match.priorityClasses or ()} == own | {""}
    assert Mode.ENFORCE not in {rule.mode for rule in rules}
    assert not made.asks_classes, "a class that is made later could open its pods everywhere"


def test_policy_explain_output_matches_golden(golden: Golden) -> None:
    """Two pods of different rules, a class that says something itself, wishes, marks, calendar and budgets."""
    rules = policy(
        rule("gold", Mode.PROTECT, match=Match(labels={"tier": "gold"}, models=("*T4*",))),
        rule(
            "research",
            match=Match(namespaces=("res*",), priorityClasses=("medium-*", "")),
            findings={"too-many-replicas": "enforce", "stuck": "off"},
            minReplicas=1,
        ),
    )
    document = rules.model_dump(mode="json", by_alias=True, exclude_unset=True)
    document["maintenanceWindows"] = [
        {"days": ["mon-fri"], "from": "22:00", "to": "06:00", "zone": "Europe/Berlin"}
    ]
    document["budgets"] = [{"scope": "nodePool", "per": "day", "gpus": 8, "share": "25%", "name": "pools"}]
    rules = type(rules).model_validate(document)
    says = {PREFIX + "mode": "enforce", PREFIX + "idle-window": "6h"}
    fleet = Fleet(
        (),
        {"n1": Node("n1", model="NVIDIA-H100", pool="gpu-a"), "n2": Node("n2")},
        {"low-priority": PriorityClass("low-priority", 1000, says)},
    )
    item = workload(
        pod("a", labels={"tier": "gold"}, node="n2"),
        pod("b"),
        pod(
            "c",
            priority_class="medium-priority",
            priority=10_000,
            annotations={"karpenter.sh/do-not-disrupt": "true"},
        ),
        annotations={PREFIX + "exclude-until": "2026-12-01"},
    )
    told = (
        explain(item, PolicyEvaluator(rules, fleet, at=AT))
        + "\n"
        + explain(workload(), PolicyEvaluator(rules, fleet, at=AT))
    )
    assert max(map(len, told.splitlines())) <= 80
    golden("explained.txt", told)


@pytest.mark.parametrize(
    ("sharing", "told"),
    [
        ({}, "only with pods of namespace research"),
        ({"within": "cluster"}, "only with pods of the cluster that are not untrusted"),
        ({"within": "label", "label": "team"}, "only with pods of namespaces with team=a"),
        ({"within": "label", "label": "unit"}, "never: namespace research has no label unit"),
        ({"untrusted": [{"namespaces": ["res*"]}]}, "never: it is untrusted"),
    ],
)
def test_policy_explain_tells_the_trust_domain(sharing: dict[str, Any], told: str) -> None:
    """With whom pods that have a GPU of their own may begin to share one."""
    item = workload(namespace_labels={"team": "a"})
    book = PolicyEvaluator(policy(sharing=Sharing.model_validate(sharing)), Fleet((item,), {}, {}), at=AT)
    assert f"begins to share a GPU: {told}" in " ".join(explain(item, book).split())
