"""What dice say of a random cluster: its policy, and each workload with what it uses of what it holds."""

import random
from collections.abc import Mapping
from typing import Any

from tests.rightsizer.wire.amounts import CORES, MEMORY
from tests.rightsizer.wire.form import TEMPLATES
from tests.rightsizer.wire.law import OURS
from tests.rightsizer.wire.truth import LARGE, LIGHT, Habit

KINDS = (
    *("Deployment",) * 6,
    *("StatefulSet", "Job", "Pod") * 2,
    *(
        "ReplicaSet",
        "Notebook.kubeflow.org",
        "PyTorchJob.kubeflow.org",
        "LeaderWorkerSet.leaderworkerset.x-k8s.io",
    ),
    *("InferenceService.serving.kserve.io", "JobSet.jobset.x-k8s.io"),
)
TEAMS = ("team-a", "team-b", "team-c")
CLASSES = {"high-priority": 100_000, "medium-priority": 10_000, "low-priority": 1_000, "other": 500}
WISHES = (("mode", "off"), ("mode", "advise"), ("exclude", "true"), ("exclude", "perhaps"), ("modus", "off"))

_LIGHT: tuple[Mapping[str, Any], ...] = (
    *({},) * 4,
    {"resource": "nvidia.com/mig-3g.40gb"},
    {"limits": {MEMORY: 30_000, CORES: 40}},
)
"""What those ask for that need little."""
_OF_PODS = 0.85
"""Share of the clusters in which pods may be left with fewer GPUs; and of those in which with parts of one."""


def draw_policy(dice: random.Random) -> dict[str, Any]:
    """Rules, budgets and times, as they would stand in a file."""
    idle: dict[str, Any] = {"window": dice.choice(["1h", "2h", "4h"]), "grace": dice.choice(["10m", "30m"])}
    idle |= {"idleFactor": dice.choice([0, 0, 1]), "history": "1d"}
    enforce: dict[str, Any] = {
        "mode": "enforce",
        "actions": ["scale-down", "resize", "scale-up", "reslice", "scale-to-zero", "suspend", "evict"],
        "idle": idle,
        "findings": {
            "too-many-replicas": "enforce",
            **{name: "enforce" for name in ("too-many-gpus", "oversized-gpu") if dice.random() < _OF_PODS},
        },
        "tooManyReplicas": {"window": "1h", "grace": "10m", "jumpHistory": "1m", "leadTime": "1m"},
        "tooManyGpus": {"window": "1h", "grace": "10m"},
        "oversizedGpu": {"window": "1h", "grace": "10m"},
        "cooldown": dice.choice(["2h", "6h", "24h"]),
        "healthyWithin": dice.choice(["15m", "4h"]),
    }
    if dice.random() < 0.3:
        enforce["notifyBefore"] = dice.choice(["1h", "4h"])
    rules = [
        {"name": "production", "match": {"priorityClasses": ["high-priority"]}, "mode": "protect"},
        {"name": "gold", "match": {"labels": {"tier": "gold"}}, "mode": dice.choice(["protect", "advise"])},
        {"name": "research", "match": {"priorityClasses": ["medium-priority"]}, **enforce},
        {"name": "lowest", "match": {"priorityClasses": ["low-priority"]}, **enforce, "cooldown": "6h"},
    ]
    if dice.random() < 0.3:
        rules[-1]["minReplicas"] = 1
    policy: dict[str, Any] = {
        "apiVersion": "gpu-rightsizer.io/v1alpha1",
        "kind": "Policy",
        "rules": rules,
        "budgets": [
            {"per": "run", "workloads": dice.choice([3, 6, 20])},
            {"scope": "namespace", "per": "run", "workloads": dice.choice([1, 3, 20])},
            {"per": "hour", "workloads": dice.choice([2, 6, 20]), "gpus": dice.choice([4, 16, 200])},
            {"scope": "owner", "per": "day", "workloads": dice.choice([1, 2])},
        ],
        "breaker": {"maxErrors": dice.choice([2, 5])},
    }
    if dice.random() < 0.2:
        policy["protectedNamespaces"] = [dice.choice(TEAMS)]
    if dice.random() < 0.2:
        policy["maintenanceWindows"] = [{"from": "06:00", "to": "20:00"}]
    if dice.random() < 0.1:
        policy["freezes"] = [{"from": "2026-03-05", "to": "2026-03-06"}]
    return policy


def drawn(dice: random.Random) -> tuple[str, str, dict[str, Any], Habit | None]:
    """Kind, namespace and what is given of a workload; and what it never uses of that, where it has such a habit."""
    given: dict[str, Any] = {
        "replicas": dice.choice([1, 1, 2, 3, 6]),
        "gpus": dice.choice([1, 1, 2, 4]),
        "priorityClass": dice.choice([*CLASSES, "low-priority", "low-priority", "medium-priority"]),
    }
    if dice.random() < 0.15:
        given["labels"] = {"tier": "gold"}
    if dice.random() < 0.1:
        given["podAnnotations" if dice.random() < 0.5 else "annotations"] = dict([wish(dice)])
    habit, kind = _habit(given, dice), dice.choice(KINDS)
    if habit is not None and short(kind) not in TEMPLATES:
        kind = "Deployment"
    return kind, dice.choice(TEAMS), given, habit


def _habit(given: dict[str, Any], dice: random.Random) -> Habit | None:
    """Two of five never use all that they hold; what that is goes into what is given."""
    match dice.choice(["", "", "", "devices", "light"]):
        case "devices":
            given["gpus"] = dice.choice([2, 4, 8])
            return Habit(devices=dice.choice([1, given["gpus"] // 2]))
        case "light":
            given |= {"gpus": 1, **dice.choice(_LIGHT)}
            return Habit(load=dice.choice([LIGHT, LIGHT, LARGE]))
        case _:
            return None


def wish(dice: random.Random) -> tuple[str, str]:
    """An annotation by which people have us leave something alone, rightly written or not."""
    key, value = dice.choice(WISHES)
    return OURS + key, value


def short(kind: str) -> str:
    """A kind without its group."""
    return kind.partition(".")[0]
