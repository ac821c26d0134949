"""A second implementation of what a policy means, written from docs/policy.md alone; it must not know the first.

It takes the policy as the plain mapping that stands in the file, walks every rule for every pod, and is as slow and as
literal as it likes to be.
"""

import dataclasses
import datetime
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rightsizer.model import Fleet, Pod, Workload

OURS = "gpu-rightsizer.io/"
NO_RULE = "(no rule)"
STRICT = ["protect", "advise", "enforce"]
ACTIONS = ("scale-up", "scale-down", "resize", "reslice", "scale-to-zero", "suspend")
FINDINGS = (
    *("idle", "idle", "finished", "underutilized", "too-many-gpus", "oversized-gpu", "too-many-replicas"),
    *("too-few-replicas", "stuck", "input-bound", "not-starting", "unusable-gpus"),
)
NAMESPACES = {"kube-system", "kube-public", "kube-node-lease", "gpu-operator", "nvidia-gpu-operator"}
IDLE: Mapping[str, Any] = {
    "window": "24h",
    "minIdleTime": "0s",
    "unusedWindow": "4h",
    "grace": "30m",
    "minCoverage": 0.9,
    "maxUtilizationPercent": 1.0,
    "maxMemoryTrafficPercent": 1.0,
    "history": "14d",
    "idleFactor": 2.0,
}
SERVING = ["InferenceService", "LLMInferenceService", "NIMService", "DynamoGraphDeployment", "Revision"]
JOBS = ["*Job", "Workflow", "CronWorkflow", "AppWrapper", "SparkApplication", "RayCluster", "PodGroup"]
_ASKED: Mapping[str, Any] = {
    "idle": {"minIdleTime": "96h", "unusedWindow": "72h"},
    "notifyBefore": "12h",
}
KINDS: Sequence[Mapping[str, Any]] = (
    {
        "kinds": ["Service.serving.knative.dev"],  # the only kind here that a request wakes
        "idle": {"window": "40m", "unusedWindow": "40m", "idleFactor": 0.0},
    },
    {"kinds": SERVING, "idle": {"window": "4h"}},
    {"kinds": ["Notebook", "Workspace", "Pod"], **_ASKED},
    {"kinds": ["StatefulSet", "Deployment"], "onlyNotebooks": True, **_ASKED},
    {
        "kinds": JOBS,
        "idle": {"window": "16h", "minCoverage": 0.95, "idleFactor": 3.0, "unusedWindow": "16h"},
    },
)
_NAMES = (
    "idle-window min-idle-time unused-window grace min-coverage max-utilization max-memory-traffic history"
)
OF_CLASSES = dict(zip([*_NAMES.split(), "idle-factor"], IDLE, strict=True))
MARKS = (
    ("cluster-autoscaler", "cluster-autoscaler.kubernetes.io/safe-to-evict", "not true"),
    ("karpenter", "karpenter.sh/do-not-disrupt", "not false, or since the start"),
    ("descheduler", "descheduler.alpha.kubernetes.io/prefer-no-eviction", "there"),
    ("volcano", "volcano.sh/preemptable", "not true"),
    ("downscaler", "downscaler/exclude", "not false"),
    ("downscaler", "downscaler/exclude-until", "until"),
    ("gpu-pruner", "gpu-pruner.io/ack-until", "until"),
    ("kubeflow", "notebooks.kubeflow.org/disable-culling", "not false"),
)


@dataclasses.dataclass(frozen=True)
class Said:
    """What a policy says; `rules` is None where something protects that no rule is, `modes` goes by finding."""

    mode: str
    rules: frozenset[str] | None = None
    modes: Mapping[str, str] = dataclasses.field(default_factory=dict)
    actions: tuple[str, ...] = ()
    keep: tuple[int, int] = (0, 0)
    notify_s: float = 0.0
    cooldown_s: float = 0.0
    idle: frozenset[tuple[tuple[str, float], ...]] = frozenset()


def seconds(text: str) -> float:
    """A duration such as 1d12h."""
    assert re.fullmatch(r"([\d.]+(ms|s|m|h|d|w))+", text), text
    units = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"([\d.]+)(ms|[smhdw])", text))


def instant(text: str) -> datetime.datetime | None:
    """2026-12-01T18:00:00Z, or the end of the day 2026-12-01; None where it is neither."""
    try:
        if re.fullmatch(r"\d{4}-\d\d-\d\d", text):
            day = datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
            return day + datetime.timedelta(days=1)
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo else None


def glob(patterns: Sequence[str], *names: str) -> bool:
    """Whether a pattern with * and ? is one of the names."""
    expressions = [re.escape(each).replace(r"\*", ".*").replace(r"\?", ".") for each in patterns]
    return any(re.fullmatch(each, name, re.DOTALL) for each in expressions for name in names)


@dataclasses.dataclass(frozen=True)
class Oracle:
    """A policy, as it stands in the file, beside a cluster."""

    policy: Mapping[str, Any]
    fleet: Fleet
    at: datetime.datetime
    own: str = "gpu-rightsizer"

    def on(self, workload: Workload) -> Said:
        """What holds for a workload."""
        rules = [rule for pod in workload.pods for rule in self._walk(workload, pod)]
        strictest = min((rule["mode"] for rule in rules), key=STRICT.index)
        holding = sorted((rule for rule in rules if rule["mode"] == strictest), key=self._place)
        if "protect" in {strictest, *self._reduced(workload)} or self._is_system(workload):
            is_by_rule = strictest == "protect" and not self._is_system(workload)
            return Said("protect", frozenset(rule["name"] for rule in holding) if is_by_rule else None)
        named = [rule.get("actions", ACTIONS) for rule in holding]
        return Said(
            mode=min([strictest, *self._reduced(workload)], key=STRICT.index),
            rules=frozenset(rule["name"] for rule in holding),
            modes={name: self._mode_for(name, holding, workload) for name in FINDINGS},
            actions=tuple(one for one in named[0] if all(one in each for each in named)),
            keep=self._keep(workload, holding),
            notify_s=max(self._notice(rule, workload) for rule in holding),
            cooldown_s=max(seconds(rule.get("cooldown", "24h")) for rule in holding),
            idle=frozenset(self._idle(rule, workload) for rule in holding),
        )

    def _walk(self, workload: Workload, pod: Pod) -> Iterator[Mapping[str, Any]]:
        """The rule that holds for a pod; several where it is not known which."""
        order = self.policy.get("classAnnotations", "file-first")
        by_class = [] if order in {"off", False} else list(self._of_class(pod, order))
        rules = [(rule, self._matches(rule["match"], workload, pod)) for rule in self.policy["rules"]]
        always = [(rule, True) for rule in by_class]
        for rule, is_so in [*always, *rules] if order == "class-first" else [*rules, *always]:
            if is_so is not False:
                yield rule
            if is_so:
                return
        yield {"name": NO_RULE, "mode": "advise", "actions": (*ACTIONS, "evict")}

    def _place(self, rule: Mapping[str, Any]) -> tuple[int, str]:
        """Where a rule stands in the order in which they are asked; of several classes the names decide."""
        names = [*(each["name"] for each in self.policy["rules"]), "of a class", NO_RULE]
        by_class = -1 if self.policy.get("classAnnotations") == "class-first" else len(names) - 2
        return names.index(rule["name"]) if rule["name"] in names else by_class, rule["name"]

    def _matches(self, match: Mapping[str, Any], workload: Workload, pod: Pod) -> bool | None:
        """All conditions must hold; None where that is not known."""
        answers = {self._holds(name, wanted, workload, pod) for name, wanted in match.items()}
        return False if False in answers else None if None in answers else True

    def _holds(self, name: str, wanted: Any, workload: Workload, pod: Pod) -> bool | None:
        if name == "priority":
            low, high = wanted.get("min", -(2**31)), wanted.get("max", 10**9)
            return None if pod.priority is None else low <= pod.priority <= high
        if name == "labels":
            return self._labelled(wanted, workload, pod)
        node = self.fleet.nodes.get(pod.node)
        names = {
            "priorityClasses": [pod.priority_class],
            "namespaces": [workload.ref.namespace],
            "kinds": [workload.ref.kind, workload.ref.full_kind],
            "models": [node.model] if node and node.model else [],
            "nodePools": [node.pool] if node and node.pool else [],
        }
        return name == "everything" or (glob(wanted, *names[name]) if names[name] else None)

    def _labelled(self, wanted: Mapping[str, str], workload: Workload, pod: Pod) -> bool | None:
        for key, value in wanted.items():
            found = [labels[key] for labels in (workload.labels, pod.labels) if key in labels]
            if not glob([value], *found):
                return False if workload.resource_version else None
        return True

    def _of_class(self, pod: Pod, order: str) -> Iterator[Mapping[str, Any]]:
        name = pod.priority_class
        shield = {"name": f"priorityclass:{name}", "mode": "protect"}
        if not name:
            return
        known = self.fleet.classes.get(name)
        if known is None:
            if order == "class-first":
                yield shield
        elif known.value != pod.priority:
            yield shield
        elif said := {key.removeprefix(OURS): text for key, text in known.annotations.items() if OURS in key}:
            try:
                yield {"name": f"priorityclass:{name}", **self._read(said)}
            except (AssertionError, KeyError, ValueError):
                yield shield

    def _read(self, said: Mapping[str, str]) -> Mapping[str, Any]:
        """A rule from a class's annotations; ValueError and the like where one cannot be read."""
        assert said["mode"] in STRICT
        found: dict[str, Any] = {"mode": said["mode"], "idle of class": {}}
        for key, text in said.items():
            match key:
                case "findings":
                    found[key] = dict(each.split("=") for each in text.split(","))
                    assert {*found[key], *found[key].values()} <= {*FINDINGS, "off", "advise", "enforce"}
                case "actions":
                    found[key] = text.split(",")
                    assert set(found[key]) <= {*ACTIONS, "evict"}
                case "mode":
                    pass
                case "notify-before" | "cooldown":
                    assert seconds(text)
                    found["notifyBefore" if key == "notify-before" else key] = text
                case "min-replicas" | "min-gpus":
                    found["minReplicas" if key == "min-replicas" else "minGPUs"] = int(text)
                case _:
                    is_number = isinstance(IDLE[OF_CLASSES[key]], float)
                    assert is_number or seconds(text)
                    found["idle of class"][OF_CLASSES[key]] = float(text) if is_number else text
        return found

    def _mode_for(self, name: str, rules: Sequence[Mapping[str, Any]], workload: Workload) -> str:
        wishes = [*self._reduced(workload)]
        for rule in rules:
            said = rule.get("findings", {})
            follows = "too-many-replicas" if name == "too-few-replicas" else name
            default = rule["mode"] if name in {"idle", "finished"} else "advise"
            wish = said.get(name, said.get(follows, default))
            wishes += [rule["mode"], "protect" if wish in {"off", False} else wish]
        return min(wishes, key=STRICT.index)

    def _keep(self, workload: Workload, rules: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        wished = [int(text) for key, text in self._wishes(workload) if key == "min-replicas"]
        gpus = max(rule.get("minGPUs", 0) for rule in rules)
        return max([rule.get("minReplicas", 0) for rule in rules] + wished), gpus

    def _kind(self, workload: Workload) -> Mapping[str, Any]:
        defaults = self.policy.get("defaults", {})
        idle = defaults.get("idle", {})
        for row in defaults.get("kinds", KINDS):
            keys = [*workload.labels, *(key for pod in workload.pods for key in pod.labels)]
            if row.get("onlyNotebooks") and not any(
                re.search("^notebooks.kubeflow|jupyter", key) for key in keys
            ):
                continue
            if glob(row["kinds"], workload.ref.kind, workload.ref.full_kind):
                is_overruled = "idle" in defaults and "kinds" not in defaults
                return {"idle": idle, **row, **({"idle": idle} if is_overruled else {})}
        return {"idle": idle}

    def _notice(self, rule: Mapping[str, Any], workload: Workload) -> float:
        wait = rule.get("notifyBefore") or self._kind(workload).get("notifyBefore")
        return seconds(wait) if wait else 0.0

    def _idle(self, rule: Mapping[str, Any], workload: Workload) -> tuple[tuple[str, float], ...]:
        own = rule.get("idle", self._kind(workload)["idle"])
        fields = {**IDLE, **own, **rule.get("idle of class", {})}
        return tuple(
            (name, seconds(fields[name]) if isinstance(IDLE[name], str) else fields[name]) for name in IDLE
        )

    def _is_system(self, workload: Workload) -> bool:
        ref, pods = workload.ref, workload.pods
        labels = [workload.labels, *(pod.labels for pod in pods)]
        return (
            ref.namespace in {*NAMESPACES, "gpu-rightsizer", self.own}
            or glob(self.policy.get("protectedNamespaces", ()), ref.namespace)
            or any(each.get("app.kubernetes.io/name") == "gpu-rightsizer" for each in labels)
            or any(pod.priority_class.startswith("system-") for pod in pods)
            or any(pod.priority is None or pod.priority > 10**9 or pod.is_static for pod in pods)
            or ref.kind == "DaemonSet"
        )

    def _wishes(self, workload: Workload) -> Iterator[tuple[str, str]]:
        if not self.policy.get("respectOptOut", True):
            return
        own = [workload.annotations, workload.namespace_annotations]
        for notes in [*own, *(pod.annotations for pod in workload.pods)]:
            yield from ((key.removeprefix(OURS), text) for key, text in notes.items())

    def _reduced(self, workload: Workload) -> Iterator[str]:
        """To which modes users and other tools reduce it."""
        for key, text in self._wishes(workload):
            match key, text:
                case ("mode", "enforce") | ("exclude", "false"):
                    pass
                case "mode", "advise":
                    yield "advise"
                case (("mode" | "exclude"), _):
                    yield "protect"
                case "exclude-until", _ if self._is_to_come(text):
                    yield "protect"
                case "min-replicas", _ if not re.fullmatch(r"[0-9]+", text):
                    yield "protect"
        if any(self._marked(workload)):
            yield "advise"

    def _is_to_come(self, text: str) -> bool:
        until = instant(text)
        return until is None or self.at < until

    def _marked(self, workload: Workload) -> Iterator[bool]:
        """Each mark that is there, and whether it is obeyed."""
        above = [workload.labels, workload.annotations, workload.namespace_annotations]
        notes: list[tuple[Mapping[str, str], datetime.datetime | None]] = [(each, None) for each in above]
        notes += [(each, pod.acknowledged) for pod in workload.pods for each in (pod.labels, pod.annotations)]
        for name, key, meaning in MARKS:
            if name in self.policy.get("respectDoNotDisrupt", [row[0] for row in MARKS]):
                yield from (self._obeyed(meaning, each[key], made) for each, made in notes if key in each)

    def _obeyed(self, meaning: str, text: str, started: datetime.datetime | None) -> bool:
        if meaning == "until":
            return self._is_to_come(text)
        if meaning == "not false, or since the start" and started and re.fullmatch(r"(\d+[smh])+", text):
            return self.at < started + datetime.timedelta(seconds=seconds(text))
        return text != {"not true": "true", "there": None}.get(meaning, "false")
