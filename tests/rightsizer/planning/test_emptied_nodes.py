"""Nodes that a plan empties, from the objects of a cluster to what people and programs read."""

import datetime
import json
from typing import Any

import pytest

from rightsizer.model import Action, FindingName, Mode, Plan, Proposal, Verdict, Workload
from rightsizer.prices import Prices
from rightsizer.report import form
from tests.rightsizer.build import AT
from tests.rightsizer.kubectl import GPU, Object, fleet_of, node, obj, pod
from tests.rightsizer.reported import accounted, decision, found

KARPENTER = {"karpenter.sh/nodepool": "gpu"}
EKS = {"eks.amazonaws.com/nodegroup": "gpu"}
PRICES = Prices("USD", "a list", "2026-11-21", {"*": 2.0})


def _plan(*objects: Object, idle: tuple[str, ...] = ("idle",), **changes: dict[str, Any]) -> Plan:
    """Those that are idle are stopped; others are busy, or as `changes` say, by name."""
    fleet = fleet_of(*objects)

    def decided(item: Workload) -> Any:
        if item.ref.name in idle:
            finding = found(FindingName.IDLE, Verdict.ACT, "idle")
            return decision(item, finding, mode=Mode.ENFORCE, action=Action.EVICT, frees=item.gpus)
        values = {"finding": found(FindingName.BUSY, Verdict.KEEP, "busy"), **changes.get(item.ref.name, {})}
        return decision(item, values.pop("finding"), **values)

    return Plan(AT, "run-1", "built-in", "", tuple(map(decided, fleet.workloads)), fleet=fleet)


def _nodes(plan: Plan) -> Any:
    return json.loads(form("json")(*accounted(plan, PRICES)))["nodes"]


def _lines(plan: Plan) -> str:
    """The section in one line; empty where there is none."""
    _, _, after = form("table")(*accounted(plan, PRICES)).partition("\nNODES\n")
    return " ".join(after.partition("\n\n")[0].split()).replace("- ", "-")


def _on(name: str, *owners: Object, gpus: int = 1, at: str = "n1", **changes: Any) -> Object:
    spec = {"nodeName": at, **changes.pop("spec", {})}
    return pod(name, *owners, limits={GPU: str(gpus)} if gpus else {}, spec=spec, **changes)


def test_emptied_nodes_last_pod_stopped_is_emptied_with_its_price() -> None:
    """A node that keeps a pod costs what it cost, and so does one whose pods only come back smaller."""
    plan = _plan(
        node("n1"),
        node("n2"),
        _on("idle"),
        _on("idle-2", at="n2"),
        _on("busy", at="n2"),
        idle=("idle", "idle-2"),
    )
    assert [(one["node"], one["gpus"], one["costPerHour"]) for one in _nodes(plan)["emptied"]] == [
        ("n1", 8.0, 16.0)
    ]
    assert "takes the last GPU pod of 1 node (8 GPUs, 16 USD/h)" in _lines(plan)


def test_emptied_nodes_resized_pod_empties_nothing() -> None:
    """Its pods are replaced, perhaps on the same node; the freed GPUs cost money as before."""
    smaller = found(
        FindingName.TOO_MANY_GPUS,
        Verdict.ACT,
        "x",
        proposal=Proposal(Action.RESIZE, 4.0, "x", gpus_per_pod=4),
    )
    change = {"finding": smaller, "mode": Mode.ENFORCE, "action": Action.RESIZE, "frees": 4.0}
    plan = _plan(node(), _on("big", gpus=8), idle=(), big=change)
    assert _nodes(plan) == {"emptied": []}
    assert _lines(plan) == (
        "A freed GPU costs money until its node is removed. No node loses its last GPU pod by this plan."
    )


@pytest.mark.parametrize(
    ("named", "emptied"), [(("a", "b"), ["n1"]), (("a", "b", "c"), [])], ids=["known", "any-of-them"]
)
def test_emptied_nodes_scale_down_counts_only_known_victims(
    named: tuple[str, ...], emptied: list[str]
) -> None:
    """Where more replicas could go than will, no node is promised."""
    owner = obj("StatefulSet", "web", spec={"replicas": 3}, status={})
    pods = [_on("a", owner), _on("b", owner), _on("c", owner, at="n2")]
    proposal = Proposal(Action.SCALE_DOWN, 2.0, "x", replicas=1, pods=named)
    fewer = found(FindingName.TOO_MANY_REPLICAS, Verdict.ACT, "x", proposal=proposal)
    change = {"finding": fewer, "mode": Mode.ENFORCE, "action": Action.SCALE_DOWN, "frees": 2.0}
    plan = _plan(owner, node("n1"), node("n2"), *pods, idle=(), web=change)
    assert [one["node"] for one in _nodes(plan)["emptied"]] == emptied


@pytest.mark.parametrize("verdict", [Verdict.KEEP, Verdict.ACT, Verdict.UNKNOWN])
def test_emptied_nodes_plan_that_frees_nothing_says_nothing(verdict: Verdict) -> None:
    """Advice and notices free nothing by themselves."""
    finding = found(FindingName.IDLE, verdict, "x")
    plan = _plan(node(), _on("w"), idle=(), w={"finding": finding, "frees": 1.0})
    assert _nodes(plan) == {"emptied": []}
    assert _lines(plan) == ""


@pytest.mark.parametrize(
    ("labels", "annotations", "autoscaler", "words"),
    [
        (KARPENTER, {}, "karpenter", "n1: Karpenter can remove it if NodePool gpu allows it"),
        (
            KARPENTER,
            {"karpenter.sh/do-not-disrupt": "true"},
            "karpenter",
            "n1: Karpenter does not remove it: karpenter.sh/do-not-disrupt: 'true'",
        ),
        (
            EKS,
            {"karpenter.sh/do-not-disrupt": "true"},
            "cluster-autoscaler",
            "n1: cluster-autoscaler can remove it if it runs and scales node group gpu",
        ),
        (
            EKS,
            {"cluster-autoscaler.kubernetes.io/scale-down-disabled": "true"},
            "cluster-autoscaler",
            "does not remove it: cluster-autoscaler.kubernetes.io/scale-down-disabled: 'true'",
        ),
        ({}, {}, None, "n1: no node autoscaler is visible; without one, somebody must remove it"),
        (
            KARPENTER,
            {"karpenter.sh/do-not-disrupt": "4h"},
            "karpenter",
            "n1: Karpenter can remove it if NodePool",
        ),
    ],
    ids=["karpenter", "karpenter-kept", "node-group", "node-group-kept", "unknown", "duration-on-a-node"],
)
def test_emptied_nodes_label_and_annotation_tell_the_autoscaler(
    labels: dict[str, str], annotations: dict[str, str], autoscaler: str | None, words: str
) -> None:
    """An annotation counts only for the autoscaler that reads it, and without a label nothing is guessed."""
    plan = _plan(node(labels=labels, annotations=annotations), _on("idle"))
    assert [one["autoscaler"] for one in _nodes(plan)["emptied"]] == [autoscaler]
    assert words in _lines(plan)


def _other(name: str, *owners: Object, **annotations: str) -> Object:
    """A pod without GPUs that the kubelet saw two hours before the plan."""
    found = _on(
        name, *owners, gpus=0, annotations={key: value for key, value in annotations.items() if value}
    )
    found["status"]["startTime"] = (AT - datetime.timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def _with_volume(name: str, volume: Object, **annotations: str) -> Object:
    found = _other(name, WEB, **annotations)
    found["spec"]["volumes"] = [{"name": "v", **volume}]
    return found


def _system(name: str, *owners: Object, **annotations: str) -> Object:
    found = _other(name, *owners, **annotations)
    found["metadata"] |= {"namespace": "kube-system", "labels": {"app": name}}
    return found


def _budget(app: str, namespace: str = "kube-system") -> Object:
    spec = {"selector": {"matchLabels": {"app": app}}}
    found = obj(
        "PodDisruptionBudget", app, api_version="policy/v1", spec=spec, status={"disruptionsAllowed": 1}
    )
    found["metadata"]["namespace"] = namespace
    return found


DAEMONS = obj("DaemonSet", "agent", api_version="apps/v1")
WEB = obj("ReplicaSet", "web", spec={"replicas": 1}, status={})
UNSAFE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
SAFE = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}
KEPT = {"karpenter.sh/do-not-disrupt": "true"}
LOCAL = {"cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes": "w,v"}
ROLLOUT = obj("Widget", "w", api_version="example.org/v1")


def _for(value: str) -> dict[str, str]:
    return {"karpenter.sh/do-not-disrupt": value}


@pytest.mark.parametrize(
    ("labels", "others", "number", "kept_by"),
    [
        (KARPENTER, [_other("a", DAEMONS)], 0, None),
        (KARPENTER, [_other("a", WEB), _other("b")], 2, None),
        (KARPENTER, [_other("a", WEB, **KEPT)], 1, "pod team/a has karpenter.sh/do-not-disrupt: 'true'"),
        (KARPENTER, [_other("a", WEB, **UNSAFE)], 1, None),
        (EKS, [_other("a", WEB, **KEPT)], 1, None),
        (
            EKS,
            [_other("a", WEB), _other("b", WEB, **UNSAFE), _other("c", WEB, **UNSAFE)],
            3,
            "pod team/b has cluster-autoscaler.kubernetes.io/safe-to-evict: 'false'",
        ),
        (EKS, [_other("a")], 1, "pod team/a has no controller"),
        (EKS, [_other("a", **SAFE)], 1, None),
        (KARPENTER, [_other("a", DAEMONS, **KEPT)], 0, "pod team/a has karpenter.sh/do-not-disrupt: 'true'"),
        (
            KARPENTER,
            [
                _other("a", WEB, **_for("90m")),
                _other("b", WEB, **_for("3h")),
                _other("c", WEB, **_for("2.5h")),
            ],
            3,
            "pod team/b has karpenter.sh/do-not-disrupt: '3h', until 2026-11-21 13:00 UTC",
        ),
        (KARPENTER, [_other("a", WEB, **_for("1h30m"))], 1, None),
        *((KARPENTER, [_other("a", WEB, **_for(value))], 1, None) for value in ("True", "1d", "-5h", "")),
        (EKS, [_with_volume("a", {"emptyDir": {}})], 1, "pod team/a has local storage: volume v"),
        (EKS, [_with_volume("a", {"hostPath": {"path": "/x"}})], 1, "pod team/a has local storage: volume v"),
        (EKS, [_with_volume("a", {"emptyDir": {"medium": "Memory"}})], 1, None),
        (EKS, [_with_volume("a", {"emptyDir": {}}, **LOCAL)], 1, None),
        (EKS, [_with_volume("a", {"emptyDir": {}}, **SAFE)], 1, None),
        (KARPENTER, [_with_volume("a", {"emptyDir": {}})], 1, None),
        (EKS, [_other("a", ROLLOUT)], 1, "pod team/a has a Widget as its controller"),
        (
            EKS,
            [_system("dns", WEB)],
            1,
            "pod kube-system/dns is in kube-system and no PodDisruptionBudget covers it",
        ),
        (EKS, [_system("dns", WEB), _budget("dns")], 1, None),
        (EKS, [_system("dns", WEB, **SAFE)], 1, None),
        (
            EKS,
            [_system("dns", WEB), _budget("other"), _budget("dns", "team")],
            1,
            "pod kube-system/dns is in kube-system and no PodDisruptionBudget covers it",
        ),
    ],
    ids=[
        "daemonset",
        "karpenter-evicts",
        "do-not-disrupt",
        "not-karpenters",
        "not-cluster-autoscalers",
        "first-unsafe",
        "bare",
        "bare-but-safe",
        "do-not-disrupt-on-a-daemonset",
        "the-longest-duration",
        "a-duration-that-is-over",
        *("slip", "days", "negative", "empty"),
        *("empty-dir", "host-path", "memory", "released-volume", "safe-volume", "not-karpenters-volume"),
        "custom-controller",
        *("system", "system-with-budget", "system-but-safe", "system-with-others-budgets"),
    ],
)
def test_emptied_nodes_pods_without_gpus_may_keep_a_node(
    labels: dict[str, str], others: list[Object], number: int, kept_by: str | None
) -> None:
    """They hold no GPU, and still decide whether a node goes; those of DaemonSets go with it."""
    (one,) = _nodes(_plan(DAEMONS, WEB, node(labels=labels), _on("idle"), *others))["emptied"]
    assert (one["otherPods"], one["keptBy"]) == (number, kept_by)
