"""Who lives in a random cluster besides us: owners, administrators, autoscalers, GitOps; and what they do.

Each happening is a method that is drawn by name, in process, so that no recording shows it.
"""

import contextlib
import dataclasses
import datetime
import json
import random
from collections.abc import Callable, Mapping
from typing import Any

from simulator.kube import ApiServer
from simulator.kube.errors import ApiError
from tests.rightsizer.given import manifest, priority_class
from tests.rightsizer.kinds import value_at
from tests.rightsizer.wire.checker import Checker
from tests.rightsizer.wire.form import CANARY, UNDO
from tests.rightsizer.wire.law import OURS, annotations_of
from tests.rightsizer.wire.recorder import OWN
from tests.rightsizer.wire.truth import LIES, Truth

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

_NOTES = {"undo", "history", "came-back-after", "resumed-at", "notice"}
"""What we write on their objects, by the ends of its keys."""


class Clock:
    """The world's time, a machine's that may be wrong, and one that only goes on."""

    def __init__(self, now: datetime.datetime) -> None:
        self.now = now
        self.skew = datetime.timedelta()
        self.monotonic_s = 0.0

    def __call__(self) -> datetime.datetime:
        """What the API server and Prometheus show."""
        return self.now

    def machine(self) -> datetime.datetime:
        """What our own machine shows."""
        return self.now + self.skew

    def monotonic(self) -> float:
        """Seconds."""
        return self.monotonic_s

    def go(self, span: datetime.timedelta) -> None:
        """Let time pass."""
        self.now += span
        self.monotonic_s += span.total_seconds()


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """One of theirs."""

    kind: str
    namespace: str
    name: str

    @property
    def key(self) -> tuple[str, str]:
        """As the truth knows it."""
        return self.namespace, self.name


class People:
    """All of them, as dice have it."""

    def __init__(
        self, api: ApiServer, clock: Clock, truth: Truth, checker: Checker, dice: random.Random
    ) -> None:
        self._api, self._clock, self._truth, self._checker, self._dice = api, clock, truth, checker, dice
        self._count = 0
        self.workloads: list[Workload] = []

    # --- to begin with

    def settle_in(self, workloads: int) -> None:
        """Classes, nodes, namespaces, and so many workloads that are days old; and what is never to be touched."""
        for name, value in CLASSES.items():
            self._api.create(priority_class(name, value))
        for number in range(5):
            amounts = {"cpu": "512", "memory": "4Ti", "pods": "500", "nvidia.com/gpu": "64"}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}}
            self._api.create({**node, "status": {"capacity": amounts, "allocatable": amounts}})
        for name in (*TEAMS, OWN):
            self._api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for _ in range(workloads):
            self.create()
        self._make("Deployment", "kube-system", {"priorityClass": "system-cluster-critical"})
        self._make("Deployment", OWN, {})
        self._make("Deployment", "team-a", {"labels": {"app.kubernetes.io/name": "gpu-rightsizer"}})
        self._of_daemon_set()

    def _of_daemon_set(self) -> None:
        made = manifest("DaemonSet", "team-a", "agent", {})
        made["spec"].pop("replicas")
        owner = self._api.create(made)
        pod = manifest("Pod", "team-a", "agent-x", {})
        reference = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "controller": True}
        pod["metadata"]["ownerReferences"] = [{**reference, "uid": owner["metadata"]["uid"]}]
        self._api.create(pod)

    def _make(self, kind: str, namespace: str, given: Mapping[str, Any]) -> None:
        self._count += 1
        one = Workload(kind, namespace, f"w{self._count}")
        made = manifest(kind, namespace, one.name, given)
        _hide(made)
        with contextlib.suppress(ApiError):
            self._api.create(made)
            self.workloads.append(one)
            if self._dice.random() < 0.2:
                self._truth.begin(one.key, self._dice.choice([1, 2, 9]))

    # --- what they do

    def create(self) -> None:
        """A new workload."""
        dice = self._dice
        given: dict[str, Any] = {
            "replicas": dice.choice([1, 1, 2, 3, 6]),
            "gpus": dice.choice([1, 1, 2, 4]),
            "priorityClass": dice.choice([*CLASSES, "low-priority", "low-priority", "medium-priority"]),
        }
        if dice.random() < 0.15:
            given["labels"] = {"tier": "gold"}
        if dice.random() < 0.1:
            given["podAnnotations" if dice.random() < 0.5 else "annotations"] = dict([self._wish()])
        self._make(dice.choice(KINDS), dice.choice(TEAMS), given)

    def _wish(self) -> tuple[str, str]:
        key, value = self._dice.choice(WISHES)
        return OURS + key, value

    def delete(self) -> None:
        """Somebody has done with it."""
        if one := self._any():
            self.workloads.remove(one)
            with contextlib.suppress(ApiError):
                self._api.delete(one.kind, one.namespace, one.name, policy="Background")

    def resume(self) -> None:
        """An owner, GitOps or an autoscaler puts back what we stopped, by other means than undo."""
        stopped = [one for one in self.workloads if self._is_in_effect(one)]
        if not stopped:
            return
        one = self._dice.choice(stopped)
        uid = self._uid(one)
        for edit in self._record(one)["edits"]:
            self._set(one, tuple(edit["path"]), edit.get("before"))
        if self._dice.random() < 0.4:
            self._forget(one)
        self._checker.reverted(uid, self._clock())
        if self._dice.random() < 0.4:
            self._truth.begin(one.key, 1)

    def _forget(self, one: Workload) -> None:
        """Whoever replaces the whole object drops what we noted on it, too."""
        noted = annotations_of(self._api.get(one.kind, one.namespace, one.name))
        ours = {key: None for key in noted if key.startswith(OURS) and key[len(OURS) :] in _NOTES}
        self._patch(one, {"metadata": {"annotations": ours}})

    def work(self) -> None:
        """A workload is at work again, with one pod or with all."""
        if one := self._any():
            self._truth.begin(one.key, self._dice.choice([1, 2, 9]))

    def rest(self) -> None:
        """All work of a workload ends."""
        for one in self._dice.sample(self.workloads, min(4, len(self.workloads))):
            self._truth.end(one.key)

    def relabel(self) -> None:
        """A label on the object, that a rule knows, comes or goes."""
        if one := self._any():
            tier = self._dice.choice(["gold", None, "iron"])
            self._patch(one, {"metadata": {"labels": {"tier": tier}}})

    def opt_out(self) -> None:
        """On the workload, or on its pods."""
        if one := self._any():
            self._patch(one, {"metadata": {"annotations": dict([self._wish()])}})

    def opt_out_pod(self) -> None:
        """On one pod only."""
        pods = self._api.list("Pod", self._dice.choice(TEAMS))
        if pods:
            meta = self._dice.choice(pods)["metadata"]
            wish = {"metadata": {"annotations": dict([self._wish()])}}
            with contextlib.suppress(ApiError):
                self._api.patch("Pod", meta["namespace"], meta["name"], wish)

    def opt_out_namespace(self) -> None:
        """All of a team."""
        team = self._dice.choice(TEAMS)
        self._api.patch("Namespace", None, team, {"metadata": {"annotations": dict([self._wish()])}})

    def opt_in(self) -> None:
        """No wish of a team stands any more."""
        team = self._dice.choice(TEAMS)
        gone = {"metadata": {"annotations": {OURS + key: None for key, _ in WISHES}}}
        self._api.patch("Namespace", None, team, gone)
        for one in [one for one in self.workloads if one.namespace == team]:
            self._patch(one, gone)
        for pod in self._api.list("Pod", team):
            with contextlib.suppress(ApiError):
                self._api.patch("Pod", team, pod["metadata"]["name"], gone)

    def reprioritise(self) -> None:
        """A Deployment gets another class, which replaces its pods; or a class another value, which does not."""
        if self._dice.random() < 0.2:
            name = self._dice.choice(["medium-priority", "low-priority"])
            self._api.delete("PriorityClass", None, name)
            self._api.create(priority_class(name, self._dice.choice([CLASSES[name], CLASSES[name] + 1])))
        elif one := self._any("Deployment"):
            spec = {"priorityClassName": self._dice.choice(list(CLASSES))}
            self._patch(one, {"spec": {"template": {"spec": spec}}})

    def resize(self) -> None:
        """An owner wants another number of replicas."""
        if one := self._any("Deployment", "StatefulSet"):
            obj = self._api.get(one.kind, one.namespace, one.name)
            if obj and not self._record(one):
                self._patch(one, {"spec": {"replicas": self._dice.choice([1, 2, 4])}})

    def disrupt(self) -> None:
        """A PodDisruptionBudget that allows nothing comes, or all of a team's go."""
        one = self._any("Deployment", "StatefulSet", "Pod")
        if one is None or self._dice.random() < 0.5:
            team = self._dice.choice(TEAMS)
            for budget in self._api.list("PodDisruptionBudget", team):
                self._api.delete("PodDisruptionBudget", team, budget["metadata"]["name"])
            return
        self._count += 1
        spec = {"maxUnavailable": 0, "selector": {"matchLabels": {"app": one.name}}}
        meta = {"name": f"b{self._count}", "namespace": one.namespace}
        self._api.create(
            {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec}
        )

    def fail_node(self) -> None:
        """A node is not ready, or is again."""
        name = f"n{self._dice.randrange(5)}"
        status = self._dice.choice(["False", "True", "True"])
        condition = {"type": "Ready", "status": status, "reason": "KubeletNotReady", "message": ""}
        self._api.patch("Node", None, name, {"status": {"conditions": [condition]}}, subresource="status")

    def lie(self) -> None:
        """From now on the metrics of a few workloads are wrong; those of others are right again."""
        self._truth.lies = {
            one.key: self._dice.choice(LIES)
            for one in self._dice.sample(self.workloads, min(3, len(self.workloads)))
        }

    def tell_the_truth(self) -> None:
        """All metrics are right again."""
        self._truth.lies = {}

    def pause(self) -> None:
        """An administrator pauses all, or a team, for some hours."""
        where = self._dice.choice(["", *TEAMS])
        until = self._clock() + datetime.timedelta(hours=self._dice.choice([1, 6]))
        pause = {"at": f"{self._clock().isoformat()}", "reason": "incident", "until": until.isoformat()}
        self._state({"pauses.json": json.dumps([{**pause, "namespace": where}])})

    def look_at_the_breaker(self) -> None:
        """An administrator closes the breaker, accepts the scope, and lifts all pauses."""
        self._state({"breaker.json": None, "scope.json": None, "pauses.json": None})

    def _state(self, texts: Mapping[str, str | None]) -> None:
        name = "gpu-rightsizer-state"
        if self._api.get("ConfigMap", OWN, name) is None:
            meta = {"name": name, "namespace": OWN}
            self._api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta})
        self._api.patch("ConfigMap", OWN, name, {"data": texts})

    # --- how

    def _any(self, *kinds: str) -> Workload | None:
        found = [one for one in self.workloads if not kinds or one.kind in kinds]
        return self._dice.choice(found) if found else None

    def _uid(self, one: Workload) -> str:
        obj = self._api.get(one.kind, one.namespace, one.name)
        return str(obj["metadata"]["uid"]) if obj else ""

    def _record(self, one: Workload) -> Any:
        return json.loads(annotations_of(self._api.get(one.kind, one.namespace, one.name)).get(UNDO, "null"))

    def _is_in_effect(self, one: Workload) -> bool:
        """Whether anything that a record tells of still is as we left it."""
        edits = (self._record(one) or {"edits": ()})["edits"]
        obj = self._api.get(one.kind, one.namespace, one.name)
        return any(value_at(obj, tuple(edit["path"])) == edit.get("after") for edit in edits)

    def _patch(self, one: Workload, patch: Mapping[str, Any]) -> None:
        self._checker.changed_since.add(self._uid(one))
        with contextlib.suppress(ApiError):
            self._api.patch(one.kind, one.namespace, one.name, patch)

    def _set(self, one: Workload, path: tuple[str, ...], value: object) -> None:
        patch: Any = value
        for step in reversed(path):
            patch = {step: patch}
        self._patch(one, patch)


def _hide(node: Any) -> None:
    """Put the canary into every container."""
    if isinstance(node, dict):
        if "image" in node:
            node["env"] = [{"name": "PASSWORD", "value": CANARY}]
        for part in list(node.values()):
            _hide(part)
    elif isinstance(node, list):
        for part in node:
            _hide(part)


def happenings(people: People, dice: random.Random) -> list[Callable[[], None]]:
    """What happens in a step: one to three of all that can, some more often than others."""
    weights = {
        people.create: 3,
        people.delete: 2,
        people.resume: 6,
        people.work: 3,
        people.rest: 6,
        people.relabel: 1,
        people.opt_out: 1,
        people.opt_out_pod: 1,
        people.opt_out_namespace: 1,
        people.opt_in: 3,
        people.reprioritise: 1,
        people.resize: 1,
        people.disrupt: 2,
        people.fail_node: 2,
        people.lie: 2,
        people.tell_the_truth: 2,
        people.pause: 1,
        people.look_at_the_breaker: 3,
    }
    return dice.choices(list(weights), list(weights.values()), k=dice.choice([1, 2, 3]))
