"""A plan in which everything stands that a report can show, and what it was made from."""

import dataclasses
import datetime
import math
from typing import Any

from rightsizer.model import (
    Action,
    Blocker,
    BlockerCode,
    ClusterName,
    Confidence,
    Decision,
    Finding,
    FindingName,
    Fleet,
    Manager,
    Measured,
    Mode,
    Node,
    NodeAutoscaler,
    ObjectRef,
    OtherPods,
    Plan,
    Pod,
    Proposal,
    Stranded,
    Usage,
    Verdict,
    Workload,
)
from rightsizer.planning.cost_summary import CostSummary, cost_summary_of
from rightsizer.prices import Prices
from tests.rightsizer.build import AT, DAY, idle_usage, pod, workload

WEEK = datetime.timedelta(days=7)
PRICES = Prices("USD", "a list", "2026-11-21", {"*H100*": 10.0, "*A100*80GB*": 4.0})

NODES = {
    "h100-a": Node(
        "h100-a",
        "NVIDIA-H100-80GB-HBM3",
        gpus=24,
        pool="training",
        instance_type="BM.GPU.H100.8",
        cloud="oci",
    ),
    "a100-b": Node("a100-b", "NVIDIA-A100-SXM4-80GB", gpus=8, pool="serving"),
    "h100-d": Node(
        "h100-d", "NVIDIA-H100-80GB-HBM3", gpus=8, pool="spot", autoscaler=NodeAutoscaler.KARPENTER
    ),
    "t4-c": Node("t4-c", "Tesla-T4", gpus=1, pool="notebooks"),
}


def holding(name: str, namespace: str, **changes: Any) -> Pod:
    """A pod whose GPUs are whole ones."""
    devices = changes.get("devices", 1)
    ref = ObjectRef("v1", "Pod", namespace, name, f"uid-{name}")
    values = {
        "ref": ref,
        "node": "h100-a",
        "resources": {"nvidia.com/gpu": devices},
        "created": AT - 10 * DAY,
    }
    return pod(name, **{**values, **changes})


def group(
    name: str, namespace: str = "research", *, pods: int = 1, kind: str = "Deployment", **changes: Any
) -> Workload:
    """A workload of some pods alike; changes are the pods'."""
    members = tuple(holding(f"{name}-{number}", namespace, **changes) for number in range(pods))
    made = workload(*members, kind=kind)
    return dataclasses.replace(
        made, ref=dataclasses.replace(made.ref, name=name, namespace=namespace, uid=f"uid-{name}")
    )


def found(name: FindingName, verdict: Verdict, *words: str, **changes: Any) -> Finding:
    """A finding with all numbers there are."""
    values: dict[str, Any] = {
        "coverage": 1.0,
        "activity_mean": 0.0,
        "activity_peak": 0.0,
        "memory_peak_bytes": 40e9,
        "power_mean_w": 118.0,
        "power_peak_w": 122.0,
        "window": WEEK,
    }
    return Finding(name, verdict, words, **{**values, **changes})


def decision(item: Workload, finding: Finding, **changes: Any) -> Decision:
    """A decision by the rule `research`, which only advises."""
    values: dict[str, Any] = {
        "verdict": finding.verdict,
        "rule": "research",
        "mode": Mode.ADVISE,
        "action": None,
    }
    return Decision(item, finding, **{**values, **changes})


def _idle() -> Decision:
    item = group("eval-server", pods=2, node="h100-d")
    words = (
        "all 2 GPUs stayed at or below 1% utilization for the last 7d",
        "idle for 3d 4h; longest idle period before activity: 3h 40m in the last 12d",
    )
    finding = found(
        FindingName.IDLE,
        Verdict.ACT,
        *words,
        idle_s=273_600.0,
        longest_return_s=13_200.0,
        confidence=Confidence.HIGH,
        memory_peak_bytes=0.5e9,
    )
    command = "kubectl -n research scale deployment.apps eval-server --replicas 0"
    return decision(item, finding, mode=Mode.ENFORCE, action=Action.SCALE_TO_ZERO, command=command, frees=2.0)


def _shrinking() -> Decision:
    item = group("chat", "serving", pods=6, node="a100-b", priority_class="medium-priority", priority=10_000)
    item = dataclasses.replace(
        item,
        managers=(Manager("HorizontalPodAutoscaler", "chat", reverts=True, exception="set maxReplicas"),),
    )
    proposal = Proposal(
        Action.SCALE_DOWN,
        3.0,
        "3 replicas needed, including 1 as headroom; frees 3 GPUs",
        3,
    )
    finding = found(
        FindingName.TOO_MANY_REPLICAS,
        Verdict.ACT,
        "at most 2 of 6 replicas worked in the same minute of the last 1h",
        activity_mean=0.183,
        activity_peak=0.97,
        power_mean_w=207.0,
        proposal=proposal,
    )
    other = found(
        FindingName.OVERSIZED_GPU,
        Verdict.ACT,
        "fits a slice",
        proposal=Proposal(
            Action.RESLICE,
            2.0,
            "nvidia.com/mig-2g.20gb holds its peak of 14 GiB",
            asks=(("nvidia.com/mig-2g.20gb", 1),),
        ),
    )
    blocks = (
        Blocker(BlockerCode.BUDGET, "serving allows 2 GPUs in an hour, 2 are used up"),
        Blocker(BlockerCode.DISRUPTION_BUDGET, "chat allows 1 disruption now"),
        Blocker(BlockerCode.CALENDAR, "nights (22:00 to 05:00 Europe/Berlin), opens in 9h"),
    )
    command = "kubectl -n serving scale deployment.apps chat --replicas 3"
    return decision(
        item,
        finding,
        mode=Mode.ENFORCE,
        action=Action.SCALE_DOWN,
        blockers=blocks,
        also=(other,),
        command=command,
        frees=3.0,
        rule="serving",
    )


def _stuck() -> Decision:
    item = dataclasses.replace(
        group("llm-pretrain", "training", pods=1, kind="Job", devices=8),
        gang="PodGroup training/llm-pretrain",
    )
    words = ("100% busy at 131 W, no memory traffic for 5h: a collective seems to hang",)
    finding = found(
        FindingName.STUCK,
        Verdict.UNKNOWN,
        *words,
        activity_mean=1.0,
        activity_peak=1.0,
        confidence=Confidence.LOW,
        power_mean_w=131.0,
    )
    return decision(item, finding)


def _unmeasured() -> Decision:
    item = group("scratch", "notebooks", kind="StatefulSet", node="t4-c", priority_class="", priority=None)
    numbers = ("activity_mean", "activity_peak", "memory_peak_bytes", "power_mean_w", "power_peak_w")
    changes: dict[str, Any] = dict.fromkeys(numbers)
    finding = found(
        FindingName.NO_DATA, Verdict.UNKNOWN, "no GPU series for pod scratch-0", coverage=0.0, **changes
    )
    return decision(item, finding, rule="(no rule)")


def _protected() -> Decision:
    item = group("assistant", "serving", node="a100-b", priority_class="high-priority", priority=100_000)
    finding = found(
        FindingName.IDLE, Verdict.ACT, "its GPU stayed at or below 1% utilization for the last 7d"
    )
    veto = Blocker(BlockerCode.PROTECTED, "protected by rule production", source="production")
    return decision(
        item, finding, verdict=Verdict.PROTECTED, mode=Mode.PROTECT, restrictions=(veto,), rule="production"
    )


def _busy(number: int) -> Decision:
    item = group(f"sweep-{number:02d}", f"team-{number:02d}", kind="Job")
    finding = found(
        FindingName.BUSY,
        Verdict.KEEP,
        "its GPU worked",
        activity_mean=0.83,
        activity_peak=1.0,
        power_mean_w=540.0,
    )
    return decision(item, finding)


def _profile(mean: float) -> list[float | None]:
    wave = [min(1.0, max(0.0, mean * (1 + math.sin(step / 4)))) for step in range(56)]
    return [None if 20 <= step < 24 else round(value, 4) for step, value in enumerate(wave)]


def full_plan() -> Plan:
    """Each verdict, each cause that differs in print, prices known and unknown, more namespaces than are shown."""
    decisions = (
        _idle(),
        _shrinking(),
        _stuck(),
        _unmeasured(),
        *(_busy(number) for number in range(12)),
        _protected(),
    )
    pods = [one for each in decisions for one in each.workload.pods]
    means = {one.ref.name: each.finding.activity_mean for each in decisions for one in each.workload.pods}
    usages: dict[tuple[str, str], tuple[Usage, ...]] = {
        (one.ref.namespace, one.ref.name): tuple(
            idle_usage(number, activity_mean=means[one.ref.name]) for number in range(one.devices)
        )
        for one in pods
        if means[one.ref.name] is not None
    }
    profiles = {key: _profile(used[0].activity_mean or 0.0) for key, used in usages.items()}
    waiting = ObjectRef("v1", "Pod", "research", "big-0")
    stranded = (
        Stranded("a100-b", "nvidia.com/gpu", 2, ("taint dedicated=serving:NoSchedule",), (waiting,)),
        Stranded("h100-a", "nvidia.com/gpu", 1, ()),
    )
    return Plan(
        AT,
        "20261121-120000-4f2a9c",
        "policy.yaml",
        "0" * 64,
        decisions,
        fleet=Fleet(
            tuple(each.workload for each in decisions),
            NODES,
            {},
            stranded=stranded,
            other_pods={"h100-d": OtherPods(2)},
        ),
        measured=Measured(AT, {WEEK: usages}, profiles=profiles),
        problems=(
            "PodDisruptionBudgets may not be listed; none is honoured: grant list on poddisruptionbudgets",
        ),
        cluster=ClusterName("prod-eu", "https://10.20.0.1:6443"),
    )


def named_plan(word: str) -> Plan:
    """One workload, to be acted upon, in which everything that comes from outside is this word."""
    item = group("w", pods=1, priority_class=word, node="n")
    item = dataclasses.replace(
        item,
        ref=dataclasses.replace(item.ref, namespace=word, kind=word, name=word, uid=word),
        gang=word,
        managers=(Manager(word, word, exception=word),),
    )
    proposal = Proposal(Action.SCALE_DOWN, 1.0, word, 1, asks=((word, 1),), pods=(word,))
    finding = found(FindingName.TOO_MANY_REPLICAS, Verdict.ACT, word, word, proposal=proposal)
    made = decision(
        item,
        finding,
        rule=word,
        action=Action.SCALE_DOWN,
        restrictions=(Blocker(BlockerCode.PROTECTED, word, source=word),),
        blockers=(Blocker(BlockerCode.NOTICE, word),),
        also=(finding,),
        command=word,
        frees=1.0,
    )
    key = (item.pods[0].ref.namespace, item.pods[0].ref.name)
    fleet = Fleet(
        (item,),
        {"n": Node("n", word, gpus=1, pool=word, instance_type=word)},
        {},
        stranded=(Stranded(word, word, 1, (word,), (ObjectRef(word, word, word, word),)),),
    )
    measured = Measured(AT, {WEEK: {key: (idle_usage(),)}}, profiles={key: (0.1, None, 0.2)})
    return Plan(
        AT, word, word, word, (made,), fleet, measured, word, (word,), cluster=ClusterName(word, word)
    )


def empty_plan() -> Plan:
    """A cluster without GPU workloads."""
    return Plan(AT, "run-1", "built-in", "", ())


def accounted(plan: Plan, prices: Prices = PRICES) -> tuple[Plan, CostSummary, Prices]:
    """The arguments of every form."""
    return plan, cost_summary_of(plan, prices), prices
