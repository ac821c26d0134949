"""A tenant with `edit` rights in its own namespace who forges at random what gpu-rightsizer reads.

Its workloads work, or cannot be changed, so nothing of its own is taken; it can only try to have others changed, or
left alone. Prometheus scrapes one of its pods, which exposes series of any name, labels and values.
"""

import contextlib
import dataclasses
import datetime
import functools
import json
import pathlib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rightsizer.changes.record_codec import HISTORY_ANNOTATION, UNDO_ANNOTATION, encode_record, write_history
from rightsizer.model import ChangeOutcome, ChangeRecord, Edit, ObjectRef
from simulator.kube import ApiServer
from simulator.kube.errors import ApiError
from tests.rightsizer.given import manifest
from tests.rightsizer.wire.cluster import World
from tests.rightsizer.wire.draws import TEAMS
from tests.rightsizer.wire.forged_series import draw_series
from tests.rightsizer.wire.law import OURS
from tests.rightsizer.wire.scraped import Scraped
from tests.rightsizer.wire.truth import Truth

HOME = "forger"
SUSPENDED = "suspended"
"""Its Job with records of changes in two steps."""
_BUSY = 99
_LARGE, _FULL = 250_000, 261_950
"""Characters of an annotation, a little below the API server's limit for all of an object: the latter leave no room."""
_STRANGE = ChangeRecord(
    datetime.datetime(2026, 3, 1, tzinfo=datetime.UTC),
    "run-x",
    "scale-to-zero",
    edits=(Edit(("spec", "paused"), before=True, after=False),),
)
_REFUSING: Sequence[tuple[str, Mapping[str, str]]] = (
    *[("Deployment", {"note": "9" * _FULL})] * 3,
    *[("Deployment", {UNDO_ANNOTATION: encode_record(_STRANGE)})] * 3,
    ("InferenceService.serving.kserve.io", {"serving.kserve.io/stop": 'a"b'}),
)
"""Workloads that cannot be changed, and their annotations: without room for a record, with one of a change that no
action makes, and with a value that no record can hold."""
_OF_ALL = 0.8
_SPAN = datetime.timedelta(minutes=30)


@dataclasses.dataclass(frozen=True, slots=True)
class Siege:
    """What became of a cluster.

    Attributes:
        taken: The step in which GPUs of a workload were first reclaimed, by namespace and name.
        how: Those, each with whether its pods became smaller.
        due: Likewise, and those that a budget or a lack of slices kept from it.
        short: Those for which no slice was free at some time.
    """

    taken: Mapping[tuple[str, str], int]
    how: frozenset[tuple[str, str, bool]]
    due: frozenset[tuple[str, str, bool]]
    short: frozenset[tuple[str, str]]
    violations: tuple[str, ...]


class Forger:
    """What the tenant has, and what it does in a step."""

    def __init__(
        self,
        api: ApiServer,
        clock: Callable[[], datetime.datetime],
        truth: Truth,
        scraped: Scraped,
        dice: random.Random,
    ) -> None:
        self._api, self._clock, self._truth, self._scraped, self._dice = api, clock, truth, scraped, dice
        self._count = 0

    def settle_in(self, *, forges: bool) -> None:
        """A few workloads with GPUs, and an object without; those that cannot be changed work unless it forges."""
        self._api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": HOME}})
        for name in ("first", "second"):
            self._add("Deployment", name, {"priorityClass": "low-priority"})
        for number, (kind, annotations) in enumerate(_REFUSING):
            given = {"priorityClass": "low-priority", "gpus": 4, "annotations": annotations}
            self._add(kind, f"refusing-{number}", given, works=not forges)
        self._add("Deployment", "plain", {"gpus": 0, "replicas": 0})
        self._add("Job", SUSPENDED, {"gpus": 0})

    def step(self) -> None:
        """One to three forgeries."""
        objects = (self._records, self._unfinished, self._garbage, self._owners, self._young_pods)
        ways = (*objects, self._foreign_workload, *[self._series] * 3)
        for way in self._dice.sample(ways, self._dice.choice([1, 2, 3])):
            way()

    def _records(self) -> None:
        """Changes that never were: of today, of tomorrow, of decades ahead; of more GPUs than there are."""
        ahead = self._dice.choice([0, 0, 1, 24, 24 * 365 * 30])
        at = self._clock() + datetime.timedelta(hours=ahead)
        gpus = self._dice.choice([1, 8, 1_000])
        edit = Edit(("spec", "replicas"), self._dice.choice([1, 5_000]), 0)
        past = [
            ChangeRecord(at - datetime.timedelta(minutes=number), f"run-{number}", "scale-to-zero", gpus)
            for number in range(8)
        ]
        record = ChangeRecord(at, "run-x", "scale-to-zero", gpus, edits=(edit,))
        annotations = {HISTORY_ANNOTATION: write_history(past), UNDO_ANNOTATION: encode_record(record)}
        self._annotate("plain", annotations)
        self._annotate(self._dice.choice(["first", "second"]), annotations)

    def _unfinished(self) -> None:
        """The second step of a change that never was: of a container that is there or not, to fewer GPUs or more."""
        path = ("spec", "template", "spec", "containers", f"name={self._dice.choice(['main', 'x'])}")
        limit = Edit((*path, "resources", "limits", "nvidia.com/gpu"), "2", self._dice.choice(["1", "64"]))
        stop = Edit(("spec", "suspend"), before=False, after=True)
        pending = self._dice.choice([True, False])
        record = ChangeRecord(
            self._clock() - datetime.timedelta(hours=self._dice.choice([0, 1, 1_000])),
            "run-x",
            "resize",
            edits=(stop,) if pending else (stop, limit),
            pending_edits=(limit,) if pending else (),
            pending_end=None if pending else ChangeOutcome.UNDONE,
        )
        annotations = {UNDO_ANNOTATION: encode_record(record)}
        self._patch("Job", SUSPENDED, {"spec": {"suspend": True}, "metadata": {"annotations": annotations}})

    def _garbage(self) -> None:
        """Annotations that are too long, of no form, or that do not exist."""
        key = OURS + self._dice.choice(["undo", "history", "notice", "snooze-until", "came-back-after", "x"])
        text = self._dice.choice(["9" * _LARGE, "[" * 10_000, '{"at": "', "9999-12-31T23:59:59Z", "\u0000"])
        self._annotate(self._dice.choice(["plain", "first"]), {key: text})

    def _owners(self) -> None:
        """A pod that says that it belongs to a workload of somebody else, by its UID, in any spelling of its name."""
        theirs = [one for team in TEAMS for one in self._api.list("Deployment", team)]
        if not theirs:
            return
        meta = self._dice.choice(theirs)["metadata"]
        name = self._dice.choice(
            [
                meta["name"],
                f"../../{meta['namespace']}/deployments/{meta['name']}",
                f"..%2F..%2F{meta['namespace']}%2Fdeployments%2F{meta['name']}",
                f"{meta['name']}; true #",
                f"{meta['name']}\n",
            ]
        )
        reference = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": meta["uid"]}
        self._pod({"ownerReferences": [{**reference, "controller": True}]})

    def _young_pods(self) -> None:
        """More pods of a class that is enforced."""
        for _ in range(self._dice.choice([1, 13])):
            self._pod({})

    def _foreign_workload(self) -> None:
        """A record that says to be of a workload of somebody else."""
        team = self._dice.choice(TEAMS)
        ref = ObjectRef("apps/v1", "Deployment", team, f"w{self._dice.randint(1, 20)}", "x")
        edit = Edit(("spec", "replicas"), 3, 0)
        record = ChangeRecord(self._clock(), "run-x", "scale-to-zero", 4, workload=ref, edits=(edit,))
        self._annotate("plain", {UNDO_ANNOTATION: encode_record(record)})

    def expose(self) -> None:
        """Something about each workload of the others, to begin with."""
        for key in self._victims():
            self._series_of(key)

    def _series(self) -> None:
        """Something about one of them."""
        if victims := self._victims():
            self._series_of(self._dice.choice(victims))

    def _victims(self) -> list[tuple[str, str]]:
        return sorted(key for key in self._scraped.devices() if key[0] in TEAMS)

    def _series_of(self, workload: tuple[str, str]) -> None:
        """What its scraped pod says of a workload: the same of all of its devices, or of one."""
        own = [pod for pod in self._api.list("Pod", HOME) if "podIP" in pod.get("status", {})]
        pod = min(own, key=lambda one: str(one["metadata"]["name"]))
        target = {
            "instance": f"{pod['status']['podIP']}:8080",
            "namespace": HOME,
            "pod": pod["metadata"]["name"],
        }
        devices, seed = self._scraped.devices()[workload], self._dice.random()
        for victim in devices if self._dice.random() < _OF_ALL else devices[:1]:
            self._scraped.forged += draw_series(
                random.Random(seed),
                victim,
                target,
                self._clock(),
                names_exporters=self._scraped.names_exporters,
            )

    # --- how

    def _add(self, kind: str, name: str, given: Mapping[str, Any], *, works: bool = True) -> None:
        self._api.create(manifest(kind, HOME, name, given))
        if works:
            self._truth.begin((HOME, name), _BUSY)

    def _pod(self, metadata: Mapping[str, Any]) -> None:
        self._count += 1
        pod = manifest("Pod", HOME, f"p{self._count}", {"priorityClass": "low-priority"})
        pod["metadata"].update(metadata)
        self._truth.begin((HOME, f"p{self._count}"), _BUSY)
        with contextlib.suppress(ApiError):
            self._api.create(pod)

    def _annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        self._patch("Deployment", name, {"metadata": {"annotations": annotations}})

    def _patch(self, kind: str, name: str, patch: Mapping[str, Any]) -> None:
        with contextlib.suppress(ApiError):
            self._api.patch(kind, HOME, name, json.loads(json.dumps(patch)))


def besieged(
    directory: pathlib.Path,
    seed: int,
    steps: int,
    *,
    forges: bool,
    amend: Callable[[dict[str, Any]], dict[str, Any]],
) -> Siege:
    """A cluster in which nothing else happens, with a cycle every half hour."""
    directory.mkdir(parents=True, exist_ok=True)
    taken: dict[tuple[str, str], int] = {}
    world = World(directory, seed, is_scraped=True, amend=amend)
    assert world.scraped is not None
    dice = random.Random(f"forger of {seed}")
    forger = Forger(world.api, world.clock, world.truth, world.scraped, dice)
    world.checker.forged = {(HOME, SUSPENDED)}
    world.newcomers = functools.partial(forger.settle_in, forges=forges)
    with world:
        # Nobody can know what these do, unless somebody is believed who says so.
        unseen = random.Random(f"unseen of {seed}").sample(world.people.workloads, 3)
        world.truth.lies = {one.key: "without activity" for one in unseen}
        world.api.settle()
        if forges:
            forger.expose()
        for step in range(steps):
            if forges:
                with world.api.batch():
                    forger.step()
            world.api.settle()
            world.clock.go(_SPAN)
            world.replicas[0].cycle()
            world.api.settle()
            for take in world.checker.takes:
                taken.setdefault((take.namespace, take.name), step)
        how = frozenset((one.namespace, one.name, one.what == "less") for one in world.checker.takes)
        return Siege(
            taken, how, frozenset(world.due), frozenset(world.short), tuple(world.checker.violations)
        )
