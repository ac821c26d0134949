"""A row of the table of kinds: how all or some GPUs of a workload are freed, and what that destroys. Pure."""

import dataclasses
import enum
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rightsizer.kinds.edits import ANY, NAMED, Path, is_digest, matches, places, shown, value_at
from rightsizer.kube.object_names import api_path
from rightsizer.kube.owner_kinds import ENDED, OwnerKind, owner_kind
from rightsizer.model import Action, Edit, ObjectRef
from rightsizer.model.change_record import LONGEST_KEY

_LONGEST_TEXT = 256
_MOST = 1_000_000
_WHOLE = re.compile("0|[1-9][0-9]{0,8}[kMG]?")
"""Whole numbers as the API server stores them: 30000 as 30k."""
_NAME = re.compile("[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
"""Names of objects: https://kubernetes.io/docs/concepts/overview/working-with-objects/names/"""
PLAIN = re.compile(r'[^",\\\x00-\x1f]*')
"""Texts that JSON does not escape: admission guardrails compare them with the text of a record."""


class Value(enum.Enum):
    """Values that a field may hold; a record with another value was not written by gpu-rightsizer."""

    COUNT = "a number from 0"
    SWITCH = "true or false"
    TEXT = "a short text"
    QUANTITY = "a whole number"
    NAMES = "a list of names"
    TEMPLATE = "the name of a ResourceClaimTemplate"

    def allows(self, value: Any) -> bool:  # noqa: ANN401 - JSON
        """Whether a value is allowed; any field may be absent."""
        if value is None:
            return True
        match self:
            case Value.COUNT:
                return type(value) is int and 0 <= value <= _MOST
            case Value.SWITCH:
                return type(value) is bool
            case Value.TEXT | Value.TEMPLATE:
                pattern = PLAIN if self is Value.TEXT else _NAME
                is_short = isinstance(value, str) and len(value) <= _LONGEST_TEXT
                return is_short and pattern.fullmatch(value) is not None
            case Value.QUANTITY:
                return (type(value) is int and 0 <= value <= _MOST) or (
                    isinstance(value, str) and _WHOLE.fullmatch(value) is not None
                )
            case Value.NAMES:
                return isinstance(value, list) and all(Value.TEXT.allows(name) and name for name in value)


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """A field that gpu-rightsizer may change, and what it may hold.

    Attributes:
        absent: What an absent field means, if its controller heeds only a value: undo writes it.
    """

    path: Path
    value: Value
    absent: bool | None = None


def annotation(key: str) -> Field:
    """An annotation of the object itself."""
    return Field(("metadata", "annotations", key), Value.TEXT)


REPLICAS = Field(("spec", "replicas"), Value.COUNT)
SUSPEND = Field(("spec", "suspend"), Value.SWITCH)
CLAIM_TEMPLATE = "resourceClaimTemplateName"
"""The field of a pod's spec that names it."""
NOW = "now"
"""Placeholder for a value: the time of the change, RFC 3339 in UTC."""


SET = object()
"""Value of a BlockingField that stands for any that is not empty."""


@dataclasses.dataclass(frozen=True, slots=True)
class BlockingField:
    """A field value that forbids a change of the object.

    Attributes:
        path: Or a pattern: of all its places one suffices.
        value: Its blocking value; None for an absent field, SET for any.
        why: The consequence, for people.
    """

    path: Path
    value: Any
    why: str = "something else decides how many run"

    def holds(self, obj: Mapping[str, Any]) -> bool:
        """Whether an object has the value."""
        where = places(obj, self.path) if ANY in self.path else [self.path]
        found = [value_at(obj, place) for place in where]
        return any(map(bool, found)) if self.value is SET else self.value in found

    def __str__(self) -> str:
        """State the field, its value and the reason."""
        value = "set" if self.value is SET else "not set" if self.value is None else repr(self.value)
        return f"its {shown(self.path)} is {value}, so that {self.why}"


@dataclasses.dataclass(frozen=True, slots=True)
class WorkerGroups:
    """Groups of workers that are scaled separately.

    Attributes:
        pattern: Path of the groups in the object.
        label: A pod's label with the name of its group.
        hosts: The field of a group with the number of pods per replica, by default one.
        replica: A pod's label with the name of its replica.
        least: The field of a group with its minimum, if any.
        going: The field of a group with the names of the pods to delete; empty if the controller chooses them.
        newest: A label, with the hash of their template, of pods of which the newest go first; else it is unknown.
    """

    pattern: Path
    label: str
    hosts: Path
    replica: str
    least: Path = ()
    going: Path = ()
    newest: str = ""

    def fields(self) -> Iterator[Field]:
        """The fields that may change in a group."""
        yield Field((*self.pattern, "replicas"), Value.COUNT)
        if self.least:
            yield Field((*self.pattern, *self.least), Value.COUNT)
        if self.going:
            yield Field((*self.pattern, *self.going), Value.NAMES)


@dataclasses.dataclass(frozen=True, slots=True)
class CommandObject:
    """Objects that tell a controller what to do with a workload; the annotation on it only records the command.

    Attributes:
        api_version: Of the command objects, like `kind` and `plural`.
        undo_verb: The command that undoes the stop.
        state: The field of the workload's status with its state.
        stopped: The states after the command was executed, or the workload ended.
    """

    api_version: str
    kind: str
    plural: str
    undo_verb: str
    state: Path
    stopped: frozenset[str]

    def body(self, ref: ObjectRef, verb: str, *, run: str) -> tuple[str, dict[str, Any]]:
        """Collection path and object of a command such as AbortJob; one run always uses the same name, so never two.

        The object is deleted together with its workload.
        """
        suffix = hashlib.sha256(f"{run}/{ref.uid}".encode()).hexdigest()[:10]
        target = {
            "apiVersion": ref.api_version,
            "kind": ref.kind,
            "name": ref.name,
            "uid": ref.uid,
            "controller": True,
        }
        name = f"{ref.name[:200]}-{verb.lower()}-{suffix}"
        body = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": {"name": name, "namespace": ref.namespace, "ownerReferences": [target]},
            "action": verb,
            "target": target,
        }
        return api_path(self.api_version, ref.namespace, self.plural), body


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """The field or eviction that frees all GPUs of a workload.

    Attributes:
        reason: Of the Event, in Kubernetes's CamelCase.
        field: The field to set; None if the pod itself is evicted.
        to: Its value; NOW for the time of the change.
        is_final: Whether it cannot be undone.
        unless: Fields with which setting the field stops nothing.
        command: The object to create, if setting the field alone has no effect.
        owned: The kind of the object between the workload and its pods that is stopped in its place, if any.
    """

    action: Action
    reason: str
    field: Field | None = None
    to: int | bool | str | None = None
    is_final: bool = False
    unless: tuple[BlockingField, ...] = ()
    command: CommandObject | None = None
    owned: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class StopState:
    """States of a workload, and how it stops in them.

    Attributes:
        called: The states in one word or two, for people.
        names: Of `OwnerKind.states_in`; empty for all others.
        stop: How all GPUs are freed then; None if nothing that gpu-rightsizer may do frees them.
        lost: What that stop destroys, if not the same as in other states.
        why: Without a stop: what keeps the pods, for people.
    """

    called: str
    names: frozenset[str]
    stop: Stop | None = None
    lost: str = ""
    why: str = ""


def scaled(field: Field = REPLICAS, *, to: int | str = 0, unless: tuple[BlockingField, ...] = ()) -> Stop:
    """A stop by scaling to zero replicas."""
    return Stop(Action.SCALE_TO_ZERO, "ScaledToZero", field, to, unless=unless)


def suspended(
    field: Field = SUSPEND,
    to: bool | str = True,  # noqa: FBT001, FBT002 - a field's value
    *,
    unless: tuple[BlockingField, ...] = (),
) -> Stop:
    """A stop by a switch."""
    return Stop(Action.SUSPEND, "Suspended", field, to, unless=unless)


LEFT_OVER = StopState(
    "ended",
    frozenset({ENDED}),
    why="it has ended, so its controller heeds no switch; pods that still run have to be deleted",
)
"""State of a workload that has ended, where nothing but its controller deletes what still runs."""


START_S = 120
"""Seconds from the end of a stop to useful work, for an image and a process that start; `restartTime` replaces it."""
SERVER_START_S = 300
"""The same for inference servers, which load a model: 52 to 102 s for small ones, minutes for large ones."""
TRAINING_START_S = 600
"""The same where all members start, meet, and load data and a checkpoint."""
PERSON_START_S = 1800
"""The same where a person runs the cells again."""

WOKEN_BY_KNATIVE = "memory of its pods; a request starts it again, and waits for a new pod"


class Steering(enum.Enum):
    """Ways to select the victims of a scale-down."""

    NONE = "none"
    """The victims cannot be selected or predicted."""
    DELETION_COST = "deletion-cost"
    """controller.kubernetes.io/pod-deletion-cost, lowest first (KEP-2255)."""
    TAIL = "tail"
    """The highest ordinals are deleted first."""
    NAMED = "named"
    """The object itself names the pods to delete."""


@dataclasses.dataclass(frozen=True, slots=True)
class PauseSupport:
    """Containers that can only change while their workload is suspended.

    Attributes:
        containers: Their paths, as patterns.
        since: Minor version of Kubernetes that first allows the change.
    """

    containers: tuple[Path, ...]
    since: int


_PERCENT = re.compile(r"([0-9]{1,9})%")


@dataclasses.dataclass(frozen=True, slots=True)
class Rollout:
    """Numbers of replicas of a changed template that start before one of the former ones ends.

    https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#max-surge

    Attributes:
        settings: The mapping with maxSurge and maxUnavailable.
        surge: The default of maxSurge.
        unavailable: The default of maxUnavailable.
        recreates: Field values with which all former replicas end first.
        whole: Field values with which all replicas start first.
    """

    settings: Path = ()
    surge: int | str = 0
    unavailable: int | str = 1
    recreates: tuple[BlockingField, ...] = ()
    whole: tuple[BlockingField, ...] = ()

    def surge_of(self, obj: Mapping[str, Any], replicas: int) -> int:
        """Replicas that must find a place before any is given back; all of them if that cannot be read."""
        if any(field.holds(obj) for field in self.recreates):
            return 0
        if any(field.holds(obj) for field in self.whole):
            return replicas
        found = value_at(obj, self.settings) if self.settings else None
        limits = found if isinstance(found, Mapping) else {}
        surge = _scaled(limits.get("maxSurge", self.surge), replicas, up=True)
        unavailable = _scaled(limits.get("maxUnavailable", self.unavailable), replicas, up=False)
        # If both are 0, one may be unavailable.
        return 0 if unavailable else replicas if surge is None else surge


def _scaled(limit: object, replicas: int, *, up: bool) -> int | None:
    """A number or a percentage of replicas; None if it is neither."""
    if type(limit) is int:
        return limit
    percent = _PERCENT.fullmatch(limit) if isinstance(limit, str) else None
    if percent is None:
        return None
    product = replicas * int(percent[1])
    return -(-product // 100) if up else product // 100


QUARTER = "25%"
"""Default of maxSurge and maxUnavailable of Deployments, and of what works like them."""
WHOLE = Rollout(surge="100%", unavailable=0)
"""Rollout in which all replicas start before any former one ends, as Knative's revisions."""


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutPrecondition:
    """A condition for a changed template to reach all pods, and for a failed one to be rolled back.

    Attributes:
        allowed: The values of the field; None if it may be absent.
        why: What happens otherwise, for people.
        only_for_slices: Whether it matters only for a change to GPU slices.
    """

    path: Path
    allowed: tuple[Any, ...]
    why: str
    only_for_slices: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of one API group that gpu-rightsizer can change.

    Attributes:
        group: Its API group; its versions and plural are in `kube.owner_kinds`.
        lost: What a stop destroys, for people.
        has_checkpoints: Whether that is the work since its last checkpoint.
        restart_s: Seconds until it works again once it is restored, unless the policy says otherwise.
        stop: How all GPUs are freed; None if unknown.
        states: States in which it stops in another way; the first that it is in counts.
        state: The one of them that it is in.
        on_knative: The same where Knative scales its pods, so that a request starts it again; None if it is no other.
        replicas: The field with the number of replicas, if any.
        steering: How the victims of a scale-down are selected.
        first: The field with the ordinal of the first replica, if that is not always 0.
        containers: Patterns of its containers; changes there roll out to the pods.
        preconditions: Conditions for that rollout.
        rollout: How many new pods it starts before former ones end.
        pause: Containers that change only while it is suspended, instead.
        groups: Its groups of workers, instead of `replicas`.
        roles: Labels that name the role of a pod, the first one that it has; pods of other roles cannot replace it.
        unless_pod: A label of pods whose controller prevents a stop, and what it does, for people.
        unless: Fields with which something else controls `replicas` or `groups`.
        has_scale: Whether it has a scale subresource, for kubectl scale.
        classes: Patterns of the PriorityClasses of its pods, if its object names them.
        class_of_all: The field with the PriorityClass of pods without one in their template.
        wakes: Whether a request starts it again after a stop, as `lost` says; None if an autoscaler decides.
        no_pods_reason: Why an object with these annotations and this spec starts no pods of its workload, for people;
            None if it always does.
        where: Its versions and plural, if `kube.owner_kinds` has no row of it.
    """

    group: str
    kind: str
    lost: str
    stop: Stop | None = None
    states: tuple[StopState, ...] = ()
    state: StopState | None = None
    on_knative: Stop | None = None
    replicas: Field | None = None
    steering: Steering = Steering.NONE
    first: Path = ()
    containers: tuple[Path, ...] = ()
    preconditions: tuple[RolloutPrecondition, ...] = ()
    rollout: Rollout = Rollout()
    pause: PauseSupport | None = None
    groups: WorkerGroups | None = None
    roles: tuple[str, ...] = ()
    unless_pod: tuple[str, str] | None = None
    unless: tuple[BlockingField, ...] = ()
    has_scale: bool = False
    classes: tuple[Path, ...] = ()
    class_of_all: Path = ()
    wakes: bool | None = None
    has_checkpoints: bool = False
    restart_s: int = START_S
    no_pods_reason: Callable[[Mapping[str, str | None], Mapping[str, Any]], str] | None = None
    where: OwnerKind | None = None

    @property
    def of(self) -> OwnerKind:
        """The row of its API group and kind, with versions and plural."""
        row = self.where or owner_kind(self.group, self.kind)
        assert row is not None, f"{self.kind}.{self.group} has no row in kube.owner_kinds"  # noqa: S101
        return row

    @property
    def action(self) -> Action | None:
        """The action that frees all its GPUs."""
        return self.stop.action if self.stop else None

    def woken_by_knative(self) -> "Kind":
        """The row for objects whose pods Knative scales; what was changed by the other stop can still be undone."""
        if self.on_knative is None:
            return self
        return dataclasses.replace(
            self,
            lost=WOKEN_BY_KNATIVE,
            restart_s=START_S,
            wakes=True,
            stop=self.on_knative,
            on_knative=self.stop,
            rollout=WHOLE,
        )

    def in_state(self, status: bytes) -> "Kind":
        """The row for an object with this status; what was changed in another state can still be undone."""
        if not self.states:
            return self
        found = self.of.states_in(status)
        state = next((state for state in self.states if found & state.names or not state.names), None)
        if state is None:
            return self
        return dataclasses.replace(
            self,
            stop=state.stop,
            lost=state.lost or self.lost,
            has_checkpoints=self.has_checkpoints and not state.lost,
            states=(*self.states, StopState("", frozenset(), self.stop)),
            state=state,
        )

    @property
    def is_usual(self) -> bool:
        """Whether its controller heeds the usual switch in its state, and other changes; not once it has ended."""
        return self.state is None or self.stop == self.states[-1].stop

    @property
    def stops(self) -> tuple[Stop, ...]:
        """Return all ways in which it may be stopped, without those of objects that it owns."""
        every = (self.stop, self.on_knative, *(state.stop for state in self.states))
        return tuple(dict.fromkeys(stop for stop in every if stop is not None and not stop.owned))

    def is_final(self, edits: Sequence[Edit]) -> bool:
        """Whether these edits cannot be undone."""
        return any(stop.is_final for stop in self._stops_by(edits))

    def command_for(self, edits: Sequence[Edit]) -> CommandObject | None:
        """The command object to create, if these edits are a stop that needs one."""
        return next((stop.command for stop in self._stops_by(edits)), None)

    def _stops_by(self, edits: Sequence[Edit]) -> Iterator[Stop]:
        for stop in self.stops:
            field = stop.field
            if field is not None and any(matches(edit.path, field.path) for edit in edits):
                yield stop

    @property
    def claims(self) -> tuple[Path, ...]:
        """Patterns of the names of the ResourceClaimTemplates that its pods get claims from."""
        specs = dict.fromkeys(path[:-2] for path in self.containers if path[-2:] == ("containers", NAMED))
        return tuple((*spec, "resourceClaims", NAMED, CLAIM_TEMPLATE) for spec in specs)

    @property
    def changeable(self) -> tuple[Path, ...]:
        """Patterns of all containers that may change."""
        return (*self.containers, *(self.pause.containers if self.pause else ()))

    def fields(self) -> Iterator[Field]:
        """The fields that any action may change."""
        yield from dict.fromkeys(stop.field for stop in self.stops if stop.field is not None)
        if self.replicas:
            yield self.replicas
        if self.groups:
            yield from self.groups.fields()
        for containers in self.changeable:
            for amounts in ("limits", "requests"):
                yield Field((*containers, "resources", amounts, ANY), Value.QUANTITY)
        for claims in self.claims:
            yield Field(claims, Value.TEMPLATE)

    def objections(self, edits: Sequence[Edit]) -> Iterator[str]:
        """Why gpu-rightsizer cannot have made these edits: anybody who may annotate an object can write a record."""
        fields = tuple(self.fields())
        for edit in edits:
            of = [
                field
                for field in fields
                if matches(edit.path, field.path) and _is_extended(edit.path) and _is_plain(edit.path)
            ]
            if not of:
                yield f"no action on a {self.kind} changes {shown(edit.path)}"
            elif not any(field.value.allows(edit.before) and _allows_after(field, edit) for field in of):
                yield f"{shown(edit.path)} is {of[0].value.value}, not {edit.before!r} or {edit.after!r}"


def _allows_after(field: Field, edit: Edit) -> bool:
    return field.value.allows(edit.after) or (field.value is Value.NAMES and is_digest(edit.after))


def _is_extended(path: Path) -> bool:
    """Whether a resource may be changed: only one with a domain in its name, never CPU or memory."""
    return path[-2] not in {"limits", "requests"} or "/" in path[-1]


def _is_plain(path: Path) -> bool:
    return all(0 < len(step) <= LONGEST_KEY and PLAIN.fullmatch(step) for step in path)
