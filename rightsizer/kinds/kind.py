"""What a row of the table of kinds says: how its GPUs are given back, wholly or in part, and what that costs. Pure."""

import dataclasses
import datetime
import enum
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rightsizer.kinds.edits import ANY, Path, edit_of, is_digest, matches, places, same, shown, value_at
from rightsizer.kinds.fields import NOW, PLAIN, REPLICAS, SUSPEND, BlockingField, Field, Value
from rightsizer.kinds.worker_groups import Groups, group_edits
from rightsizer.kube.owner_kinds import OwnerKind, owner_kind
from rightsizer.model import Action, Edit, Pod, Proposal


@dataclasses.dataclass(frozen=True, slots=True)
class CommandObject:
    """Objects that tell a controller what to do with another: our annotation only says what was ordered.

    Attributes:
        api_version: Of the objects; so are `kind` and `plural`.
        back: The order that takes the stop back.
        state: Where the workload's own status says how it stands.
        stopped: What stands there once the order was carried out, or it has come to its end.
    """

    api_version: str
    kind: str
    plural: str
    back: str
    state: Path
    stopped: frozenset[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """How all GPUs of a workload are given back.

    Attributes:
        action: What it is called.
        reason: Of the Event, in Kubernetes's CamelCase.
        field: What is set; None where the pod itself goes.
        to: The value; NOW for the time.
        is_final: Whether nothing undoes it.
        unless: Where one of these holds, setting the field stops nothing.
        orders: By what its controller is told, where the field alone says nothing to it.
    """

    action: Action
    reason: str
    field: Field | None = None
    to: int | bool | str | None = None
    is_final: bool = False
    unless: tuple[BlockingField, ...] = ()
    orders: CommandObject | None = None


def scaled(field: Field = REPLICAS, *, to: int | str = 0, unless: tuple[BlockingField, ...] = ()) -> Stop:
    """To no replicas."""
    return Stop(Action.SCALE_TO_ZERO, "ScaledToZero", field, to, unless=unless)


def suspended(
    field: Field = SUSPEND,
    to: bool | str = True,  # noqa: FBT001, FBT002 - a field's value
    *,
    unless: tuple[BlockingField, ...] = (),
) -> Stop:
    """By its switch."""
    return Stop(Action.SUSPEND, "Suspended", field, to, unless=unless)


class Steering(enum.Enum):
    """How it is made sure that the replicas which go are those that can."""

    NONE = "none"
    """It cannot be told, nor known, which go."""
    DELETION_COST = "deletion-cost"
    """controller.kubernetes.io/pod-deletion-cost, lowest first (KEP-2255)."""
    TAIL = "tail"
    """The highest ordinals go first, so these must be the ones."""
    NAMED = "named"
    """Its own object names the pods that go."""


@dataclasses.dataclass(frozen=True, slots=True)
class PauseSupport:
    """Containers that can only change while their workload is suspended.

    Attributes:
        containers: Their paths, as patterns.
        since: Minor version of Kubernetes that first allows the change.
    """

    containers: tuple[Path, ...]
    since: int


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutPrecondition:
    """What must hold for a changed template to reach all pods, and for one that fails to be put back.

    Attributes:
        path: A field of the object.
        when: The values that it may have; None where it may be absent.
        why: What happens otherwise, for people.
        is_for_parts: Whether it only matters where pods are to get parts of GPUs.
    """

    path: Path
    when: tuple[Any, ...]
    why: str
    is_for_parts: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of one API group that we know how to act upon.

    Attributes:
        group: Its API group; versions and plural are its row's in `observe.owners`.
        source: Where this was read: API version and reference.
        lost: What a stop destroys, for people; it is said before acting.
        stop: How all GPUs are given back; None where no way is known.
        replicas: How many are wanted; None where there is no such number.
        steering: Which replicas go when there are to be fewer.
        first: Where the ordinal of its first replica stands, if that is not always 0.
        containers: Where containers are declared, as patterns; changes there reach the pods by themselves.
        rolls: What must hold for that.
        pause: Instead, where they change only while it is stopped.
        needs: Must stand in the object for `replicas` to be changed, such as a policy of elastic training.
        groups: What has its replicas in groups; instead of `replicas`.
        unless: Where one of these holds, `replicas` or `groups` are somebody else's to change.
        has_scale: Whether it has a scale subresource, so that kubectl scale knows it.
        classes: Where the PriorityClasses of the pods that it makes stand, as patterns; none where its object does not
            say it.
        class_of_all: Where the class stands of all pods whose own template names none.
        where: Its versions and plural, where `observe.owners` has no row of it.
    """

    group: str
    kind: str
    source: str
    lost: str
    stop: Stop | None = None
    replicas: Field | None = None
    steering: Steering = Steering.NONE
    first: Path = ()
    containers: tuple[Path, ...] = ()
    rolls: tuple[RolloutPrecondition, ...] = ()
    pause: PauseSupport | None = None
    needs: Path = ()
    groups: Groups | None = None
    unless: tuple[BlockingField, ...] = ()
    has_scale: bool = False
    classes: tuple[Path, ...] = ()
    class_of_all: Path = ()
    where: OwnerKind | None = None

    @property
    def of(self) -> OwnerKind:
        """Its versions and its name in URLs."""
        row = self.where or owner_kind(self.group, self.kind)
        assert row is not None, f"{self.kind}.{self.group} has no row in observe.owners"  # noqa: S101
        return row

    @property
    def action(self) -> Action | None:
        """What giving all GPUs back is called."""
        return self.stop.action if self.stop else None

    def is_final(self, edits: Sequence[Edit]) -> bool:
        """Whether nothing takes these edits back."""
        return self.stop is not None and self.stop.is_final and self._is_stop(edits)

    def orders_for(self, edits: Sequence[Edit]) -> CommandObject | None:
        """By what its controller is told, where these edits are a stop that has to be ordered."""
        return self.stop.orders if self.stop is not None and self._is_stop(edits) else None

    def _is_stop(self, edits: Sequence[Edit]) -> bool:
        assert self.stop is not None  # noqa: S101 - asked before
        return self.stop.field is not None and any(edit.path == self.stop.field.path for edit in edits)

    @property
    def changeable(self) -> tuple[Path, ...]:
        """Where containers are declared that may change at all."""
        return (*self.containers, *(self.pause.containers if self.pause else ()))

    def fields(self) -> Iterator[Field]:
        """What our actions may change of it."""
        if self.stop and self.stop.field:
            yield self.stop.field
        if self.replicas:
            yield self.replicas
        if self.groups:
            yield from self.groups.fields()
        for containers in self.changeable:
            for amounts in ("limits", "requests"):
                yield Field((*containers, "resources", amounts, ANY), Value.QUANTITY)

    def objections(self, edits: Sequence[Edit]) -> Iterator[str]:
        """Why edits cannot be ours; nothing where they can: whoever may annotate an object can write a record."""
        fields = tuple(self.fields())
        for edit in edits:
            of = [
                field
                for field in fields
                if matches(edit.path, field.path) and _is_extended(edit.path) and _is_plain(edit.path)
            ]
            if not of:
                yield f"nothing that we do to a {self.kind} changes {shown(edit.path)}"
            elif not any(field.value.allows(edit.before) and _may_be_left(field, edit) for field in of):
                yield f"{shown(edit.path)} is {of[0].value.value}, not {edit.before!r} or {edit.after!r}"


def _may_be_left(field: Field, edit: Edit) -> bool:
    return field.value.allows(edit.after) or (field.value is Value.NAMES and is_digest(edit.after))


def _is_extended(path: Path) -> bool:
    """Of resources only extended ones are changed, whose names have a domain: never processors or memory."""
    return path[-2] not in {"limits", "requests"} or "/" in path[-1]


def _is_plain(path: Path) -> bool:
    return all(map(PLAIN.fullmatch, path))


def stop_edits(kind: Kind, obj: Mapping[str, Any], at: datetime.datetime) -> list[Edit]:
    """What gives all GPUs of an object back; nothing where its pod goes.

    Raises:
        ValueError: It would stop nothing; the message says why.
    """
    stop = kind.stop
    if stop is None or stop.field is None:
        return []
    _require_none(obj, stop.unless)
    to = at.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ") if stop.to == NOW else stop.to
    return [edit_of(obj, stop.field.path, to)]


def _require_none(obj: Mapping[str, Any], guards: Sequence[BlockingField]) -> None:
    for guard in guards:
        if guard.holds(obj):
            raise ValueError(str(guard))


def proposal_edits(
    kind: Kind,
    obj: Mapping[str, Any],
    proposal: Proposal,
    *,
    resources: Sequence[str],
    pods: Sequence[Pod] = (),
) -> list[Edit]:
    """What a proposal comes to in an object as it was read.

    Args:
        kind: The object's.
        obj: With all its fields.
        proposal: A scale-up, scale-down, resize or reslice.
        resources: The GPU resources that its pods ask for, by name.
        pods: Those that it has.

    Raises:
        ValueError: It cannot be done to this object; the message says why.
    """
    if proposal.replicas is not None:
        _require_none(obj, kind.unless)
        if kind.groups is not None:
            return group_edits(kind.groups, obj, proposal, pods)
        return [_replicas_edit(kind, obj, proposal.replicas)]
    if proposal.gpus_per_pod is not None:
        if len(resources) != 1:
            message = (
                f"its pods ask for {', '.join(resources) or 'no GPU resource'}, not for one GPU resource"
            )
            raise ValueError(message)
        _require_rolls(kind, obj, is_for_parts=False)
        return _amount_edits(kind, obj, resources, {resources[0]: proposal.gpus_per_pod})
    _require_rolls(kind, obj, is_for_parts=True)
    return _amount_edits(kind, obj, resources, dict(proposal.asks))


def _require_rolls(kind: Kind, obj: Mapping[str, Any], *, is_for_parts: bool) -> None:
    for one in kind.rolls:
        value = value_at(obj, one.path)
        if (is_for_parts or not one.is_for_parts) and not any(same(value, each) for each in one.when):
            message = f"its {shown(one.path)} is {json.dumps(value)}: {one.why}"
            raise ValueError(message)


def _replicas_edit(kind: Kind, obj: Mapping[str, Any], replicas: int) -> Edit:
    if kind.replicas is None:
        message = f"a {kind.kind} has no number of replicas"
        raise ValueError(message)
    if kind.needs and value_at(obj, kind.needs) is None:
        message = f"it has no {'.'.join(kind.needs)}, so its members are needed all"
        raise ValueError(message)
    return edit_of(obj, kind.replicas.path, replicas)


def _amount_edits(
    kind: Kind, obj: Mapping[str, Any], resources: Sequence[str], amounts: Mapping[str, int]
) -> list[Edit]:
    """Instead of these resources others, in the one container that asks for them; requests and limits stay equal.

    What pods ask for and their owner does not was put there when they were admitted, and will be again.
    """
    asking = [
        path
        for pattern in kind.changeable
        for path in places(obj, pattern)
        if set(resources) & set(value_at(obj, (*path, "resources", "limits")) or ())
    ]
    if len(asking) != 1:
        named = " or ".join(resources) or "a GPU resource"
        message = f"{len(asking)} of its containers declare {named} in their limits, not one"
        raise ValueError(message)
    _require_no_init(obj, asking[0], resources)
    found = []
    for part in ("limits", "requests"):
        place = (*asking[0], "resources", part)
        declared = value_at(obj, place) or {}
        if not set(resources) & set(declared):
            continue
        for name in dict.fromkeys((*resources, *amounts)):
            wanted = amounts.get(name)
            if str(declared.get(name)) != str(wanted):
                found.append(edit_of(obj, (*place, name), None if wanted is None else str(wanted)))
    return found


def _require_no_init(obj: Mapping[str, Any], container: Path, resources: Sequence[str]) -> None:
    """Beside it no init container asks for GPUs: a pod gets the most that any of them asks for, of each resource."""
    initial = value_at(obj, (*container[:-2], "initContainers"))
    for one in initial if isinstance(initial, list) else ():
        asked = (one.get("resources") or {}).get("limits") or {} if isinstance(one, Mapping) else {}
        if named := sorted(set(resources) & set(asked)):
            message = f"its init container {one.get('name')} asks for {named[0]}, too"
            raise ValueError(message)
