"""What may be done to a workload, read from the policy's plain mapping and the API server's plain objects alone.

An independent reading of docs/policy.md as far as random policies here go; it must know nothing of the rightsizer.
"""

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tests.rightsizer.wire.recorder import OWN, Object, Scene

OURS = "gpu-rightsizer.io/"
WISHES = {OURS + "mode", OURS + "exclude", OURS + "exclude-until", OURS + "min-replicas"}
NOTES = {
    OURS + name
    for name in (
        *(
            "undo",
            "history",
            "notice",
            "resumed-at",
            "came-back-after",
            "snooze-until",
            "release",
            "deletion-cost-by",
        ),
        *("order", "manifest", "pod", "gpus"),
    )
}
UNTOUCHABLE = {"kube-system", "kube-public", "kube-node-lease", "gpu-operator", "nvidia-gpu-operator", OWN}
_UNITS = {"m": 60, "h": 3600, "d": 86400}


def seconds(text: str) -> float:
    """A duration of one unit, such as 90m."""
    return int(text[:-1]) * _UNITS[text[-1]]


def annotations_of(obj: Object | None) -> Mapping[str, str]:
    """Of an object; none where there is none."""
    return (obj["metadata"].get("annotations") or {}) if obj else {}


def instant(text: str) -> datetime.datetime:
    """As Kubernetes and we write it."""
    return datetime.datetime.fromisoformat(text)


def pods_of(scene: Scene) -> list[Object]:
    """The pods of the workload that a request is about: by how clusters are made here, those with its label."""
    assert scene.obj is not None
    if scene.obj["kind"] == "Pod":
        return [scene.obj]
    name = scene.obj["metadata"]["name"]
    return [pod for pod in scene.pods if pod["metadata"].get("labels", {}).get("app") == name]


def starts_of(pods: Iterable[Object]) -> list[datetime.datetime]:
    """When those that have started did."""
    return [instant(pod["status"]["startTime"]) for pod in pods if "startTime" in pod["status"]]


def rule_on(pod: Object, workload: Object, policy: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The first rule that matches; None where only advice is given."""
    return next((rule for rule in policy["rules"] if _matches(rule["match"], pod, workload)), None)


def _matches(match: Mapping[str, Any], pod: Object, workload: Object) -> bool:
    labels = [one["metadata"].get("labels") or {} for one in (pod, workload)]
    found = {
        "priorityClasses": lambda wanted: pod["spec"].get("priorityClassName", "") in wanted,
        "namespaces": lambda wanted: pod["metadata"]["namespace"] in wanted,
        "kinds": lambda wanted: workload["kind"] in wanted,
        "labels": lambda wanted: all(
            any(one.get(key) == value for one in labels) for key, value in wanted.items()
        ),
    }
    return all(found[name](wanted) for name, wanted in match.items())


def against(
    scene: Scene, policy: Mapping[str, Any], at: datetime.datetime, *, part: str = "idle", left: float = 0
) -> Iterator[str]:
    """All that forbids taking anything from the workload of a scene, by that part of its rules.

    By replicas, those that are new or do not run count as at work: no more of them than are left.
    """
    workload, pods = scene.obj, pods_of(scene)
    assert workload is not None
    yield from _place(workload, pods, policy)
    rules = [rule_on(pod, workload, policy) for pod in pods]
    if any(rule is None or rule["mode"] != "enforce" for rule in rules):
        yield "no rule enforces anything about it"
    for owner in (workload, scene.namespace, *pods):
        yield from _wishes(owner, at)
    if workload["metadata"].get("deletionTimestamp"):
        yield "it is being deleted"
    parts = [rule[part] for rule in rules if rule]
    by_replicas = part == "tooManyReplicas"
    needed = max(
        (seconds(one["grace"]) + (0 if by_replicas else seconds(one["window"])) for one in parts), default=0
    )
    unsure = {pod["metadata"]["name"]: list(_unsure(pod, at, needed)) for pod in pods}
    if not by_replicas or sum(map(bool, unsure.values())) > left:
        for words in unsure.values():
            yield from words
    for pod in pods:
        yield from _of_pod(pod)
    yield from _resumed(scene, at, parts)
    yield from _budgets(scene, pods)
    yield from _shut(policy, at)


def _place(workload: Object, pods: Sequence[Object], policy: Mapping[str, Any]) -> Iterator[str]:
    namespace = workload["metadata"]["namespace"]
    if namespace in UNTOUCHABLE | set(policy.get("protectedNamespaces", ())):
        yield f"namespace {namespace} is protected"
    for one in (workload, *pods):
        if (one["metadata"].get("labels") or {}).get("app.kubernetes.io/name") == "gpu-rightsizer":
            yield "it is ours"
        owners = one["metadata"].get("ownerReferences", ())
        if one["kind"] == "DaemonSet" or any(owner["kind"] in {"DaemonSet", "Node"} for owner in owners):
            yield "it is a DaemonSet's, or a node's"


def _wishes(owner: Object | None, at: datetime.datetime) -> Iterator[str]:
    for key, text in annotations_of(owner).items():
        if not key.lower().startswith(OURS) or key in NOTES:
            continue
        harmless = {
            OURS + "mode": text == "enforce",
            OURS + "exclude": text == "false",
            OURS + "exclude-until": bool(re.match(r"\d{4}-", text)) and instant(text) <= at,
            OURS + "min-replicas": text == "0",
        }
        if not harmless.get(key):
            yield f"it is opted out by {key}={text}"


def _of_pod(pod: Object) -> Iterator[str]:
    name, spec, meta = pod["metadata"]["name"], pod["spec"], pod["metadata"]
    class_name = spec.get("priorityClassName", "")
    if class_name.startswith("system-") or spec.get("priority", 0) > 10**9:
        yield f"pod {name} has a system priority"
    if meta.get("deletionTimestamp"):
        yield f"pod {name} is being deleted"
    if "kubernetes.io/config.mirror" in (meta.get("annotations") or {}):
        yield f"pod {name} is static"


def _unsure(pod: Object, at: datetime.datetime, needed_s: float) -> Iterator[str]:
    """Why nothing is known of what it does."""
    name, status = pod["metadata"]["name"], pod["status"]
    ready = {one["type"]: one["status"] for one in status.get("conditions", ())}.get("Ready")
    if status.get("phase") != "Running" or ready != "True":
        yield f"pod {name} does not run, or is not ready"
    elif (at - instant(status["startTime"])).total_seconds() < needed_s:
        yield f"pod {name} is too young: since {status['startTime']}"


def _resumed(scene: Scene, at: datetime.datetime, parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    assert scene.obj is not None
    resumed = annotations_of(scene.obj).get(OURS + "resumed-at")
    needed_s = max((seconds(one["window"]) + seconds(one["grace"]) for one in parts), default=0)
    if resumed and (at - instant(resumed)).total_seconds() < needed_s:
        yield f"it was resumed at {resumed}"


def _budgets(scene: Scene, pods: Sequence[Object]) -> Iterator[str]:
    for one in scene.disruptions:
        wanted = one["spec"]["selector"]["matchLabels"].items()
        if not any(wanted <= (pod["metadata"].get("labels") or {}).items() for pod in pods):
            continue
        if one["status"].get("disruptionsAllowed", 0) < len(pods):
            yield f"PodDisruptionBudget {one['metadata']['name']} does not allow it"


def _shut(policy: Mapping[str, Any], at: datetime.datetime) -> Iterator[str]:
    windows = policy.get("maintenanceWindows")
    clock = f"{at:%H:%M}"
    if windows and not any(one["from"] <= clock < one["to"] for one in windows):
        yield "no maintenance window is open"
    if any(one["from"] <= f"{at:%Y-%m-%d}" <= one["to"] for one in policy.get("freezes", ())):
        yield "changes are frozen"
