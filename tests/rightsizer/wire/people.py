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
from tests.rightsizer.wire.checker import Checker
from tests.rightsizer.wire.clock import Clock
from tests.rightsizer.wire.draws import CLASSES, KINDS, TEAMS, WISHES, drawn, short, wish
from tests.rightsizer.wire.edits import out_of_memory, redesigned, written
from tests.rightsizer.wire.form import CANARY, TEMPLATES, UNDO, value_at
from tests.rightsizer.wire.law import OURS, annotations_of
from tests.rightsizer.wire.nodes import nodes
from tests.rightsizer.wire.recorder import OWN
from tests.rightsizer.wire.truth import LIES, Habit, Truth
from tests.rightsizer.world import stamp

_NOTES = {"undo", "history", "came-back-after", "resumed-at", "notice"}
"""What we write on their objects, by the ends of its keys."""


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
        self._nodes: list[str] = []
        self.workloads: list[Workload] = []

    # --- to begin with

    def settle_in(self, workloads: int) -> None:
        """Classes, nodes, namespaces, and so many workloads that are days old; and what is never to be touched."""
        for name, value in CLASSES.items():
            self._api.create(priority_class(name, value))
        for node in nodes(self._dice):
            self._nodes.append(str(self._api.create(node)["metadata"]["name"]))
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

    def _make(self, kind: str, namespace: str, given: Mapping[str, Any], habit: Habit | None = None) -> None:
        self._count += 1
        one = Workload(kind, namespace, f"w{self._count}")
        made = manifest(kind, namespace, one.name, given)
        _hide(made)
        with contextlib.suppress(ApiError):
            self._api.create(made)
            self.workloads.append(one)
            if habit is not None:
                self._truth.habits[one.key] = habit
            if habit is not None or self._dice.random() < 0.2:
                self._truth.begin(one.key, 9 if habit else self._dice.choice([1, 2, 9]))

    # --- what they do

    def create(self) -> None:
        """A new workload."""
        self._make(*drawn(self._dice))

    def delete(self) -> None:
        """Somebody has done with it."""
        if one := self._any():
            self.workloads.remove(one)
            with contextlib.suppress(ApiError):
                self._api.delete(one.kind, one.namespace, one.name, policy="Background")

    def resume(self) -> None:
        """An owner, GitOps or an autoscaler restores what we stopped, by other means than undo."""
        stopped = [one for one in self.workloads if self._is_in_effect(one)]
        if not stopped:
            return
        one = self._dice.choice(stopped)
        uid, record = self._uid(one), self._record(one)
        self._set(one, {tuple(edit["path"]): edit.get("before") for edit in record["edits"]})
        if self._is_all_in_effect(one, record):
            return  # a Job's template, say, stays as it is while the Job runs
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

    def outgrow(self) -> None:
        """What never used all that it holds does from now on; where some was taken, it may run out of memory."""
        known = [one for one in self.workloads if one.key in self._truth.habits]
        changed = [one for one in known if self._record(one)]
        if not known:
            return
        one = self._dice.choice(changed or known)
        self._truth.outgrow(one.key)
        if self._dice.random() < 0.5:
            self._run_out_of_memory(one)

    def _run_out_of_memory(self, one: Workload) -> None:
        """Soon."""
        at = stamp(self._clock() + datetime.timedelta(minutes=5))
        for pod in self._api.list("Pod", one.namespace):
            if (pod["metadata"].get("labels") or {}).get("app") != one.name:
                continue
            with contextlib.suppress(ApiError):
                name, status = pod["metadata"]["name"], {"status": out_of_memory(pod, at)}
                self._api.patch("Pod", one.namespace, name, status, subresource="status")

    def redesign(self) -> None:
        """An owner writes the template anew: another image, or other GPUs."""
        one = self._any(*(kind for kind in KINDS if short(kind) in TEMPLATES and kind != "Job"))
        obj = self._api.get(one.kind, one.namespace, one.name) if one else None
        if one is None or obj is None:
            return
        record, uid = self._record(one), self._uid(one)
        self._patch(one, redesigned(obj, self._dice))
        if record and not self._is_all_in_effect(one, record):
            self._checker.reverted(uid, self._clock())

    def rest(self) -> None:
        """All work of a workload ends."""
        for one in self._dice.sample(self.workloads, min(4, len(self.workloads))):
            if one.key not in self._truth.habits or self._dice.random() < 0.2:
                self._truth.end(one.key)

    def relabel(self) -> None:
        """A label on the object, that a rule knows, comes or goes."""
        if one := self._any():
            tier = self._dice.choice(["gold", None, "iron"])
            self._patch(one, {"metadata": {"labels": {"tier": tier}}})

    def opt_out(self) -> None:
        """On the workload, or on its pods."""
        if one := self._any():
            self._patch(one, {"metadata": {"annotations": dict([wish(self._dice)])}})

    def opt_out_pod(self) -> None:
        """On one pod only."""
        pods = self._api.list("Pod", self._dice.choice(TEAMS))
        if pods:
            meta = self._dice.choice(pods)["metadata"]
            asked = {"metadata": {"annotations": dict([wish(self._dice)])}}
            with contextlib.suppress(ApiError):
                self._api.patch("Pod", meta["namespace"], meta["name"], asked)

    def opt_out_namespace(self) -> None:
        """All of a team."""
        team = self._dice.choice(TEAMS)
        self._api.patch("Namespace", None, team, {"metadata": {"annotations": dict([wish(self._dice)])}})

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
        name = self._dice.choice(self._nodes)
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

    def _is_all_in_effect(self, one: Workload, record: Any) -> bool:
        obj = self._api.get(one.kind, one.namespace, one.name)
        return all(value_at(obj, tuple(edit["path"])) == edit.get("after") for edit in record["edits"])

    def _patch(self, one: Workload, patch: Mapping[str, Any]) -> None:
        self._checker.changed_since.add(self._uid(one))
        with contextlib.suppress(ApiError):
            self._api.patch(one.kind, one.namespace, one.name, patch)

    def _set(self, one: Workload, values: Mapping[tuple[str, ...], object]) -> None:
        """Write fields of an object, as whoever replaces it does."""
        obj = self._api.get(one.kind, one.namespace, one.name)
        if obj is not None:
            self._patch(one, written(obj, values))


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
        people.outgrow: 2,
        people.redesign: 1,
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
