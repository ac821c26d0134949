"""Groups of workers that are scaled each by itself, by naming those that go, whole replicas of them. Pure."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rightsizer.kinds.edits import Path, edit_of, places, shown, value_at
from rightsizer.kinds.fields import Field, Value
from rightsizer.model import Edit, Pod, Proposal


@dataclasses.dataclass(frozen=True, slots=True)
class Groups:
    """Groups of workers that are scaled each by itself, by naming those that go.

    Attributes:
        each: Pattern of the groups in the object.
        label: By which a pod says of which group it is.
        going: Where, below a group, those that go are named.
        hosts: Where it says how many pods make a replica, one where it does not; `replica` is the label by which they
            are told apart then.
    """

    each: Path
    label: str
    going: Path
    hosts: str
    replica: str

    def fields(self) -> Iterator[Field]:
        """What is changed of a group."""
        yield Field((*self.each, "replicas"), Value.COUNT)
        yield Field((*self.each, "minReplicas"), Value.COUNT)
        yield Field((*self.each, *self.going), Value.NAMES)


def group_edits(
    groups: Groups, obj: Mapping[str, Any], proposal: Proposal, pods: Sequence[Pod]
) -> list[Edit]:
    """Fewer workers of each group that has idle ones; these are named, so that no others go."""
    found: list[Edit] = []
    for place in places(obj, groups.each):
        name = place[-1].partition("=")[2]
        own = [pod for pod in pods if pod.labels.get(groups.label) == name]
        going = sorted(pod.ref.name for pod in own if pod.ref.name in proposal.pods)
        if not going:
            continue
        replicas = _replicas_of(groups, value_at(obj, place), own, going)
        count = value_at(obj, (*place, "replicas"))
        if type(count) is not int or count < replicas:
            message = f"{shown(place)} asks for {count!r} replicas, of which {replicas} are to go"
            raise ValueError(message)
        left = count - replicas
        found.append(edit_of(obj, (*place, "replicas"), left))
        least = value_at(obj, (*place, "minReplicas"))
        if type(least) is int and least > left:
            found.append(edit_of(obj, (*place, "minReplicas"), left))
        found.append(edit_of(obj, (*place, *groups.going), going))
    if not found:
        message = "none of its groups has the pods that are idle"
        raise ValueError(message)
    return found


def _replicas_of(groups: Groups, group: Mapping[str, Any], pods: Sequence[Pod], going: Sequence[str]) -> int:
    """How many replicas of a group the pods are that go.

    Raises:
        ValueError: They are not whole ones, or that is not known.
    """
    hosts = group.get(groups.hosts) or 1
    if hosts == 1:
        return len(going)
    of: dict[str, list[str]] = {}
    for pod in pods:
        of.setdefault(pod.labels.get(groups.replica, ""), []).append(pod.ref.name)
    leaving = [names for names in of.values() if set(names) & set(going)]
    if "" in of:
        message = (
            f"{hosts!r} pods make a replica, and which ones is unknown: they have no label {groups.replica}"
        )
        raise ValueError(message)
    if any(len(names) != hosts or not set(names) <= set(going) for names in leaving):
        message = f"{hosts!r} pods make a replica, and not all of one are idle"
        raise ValueError(message)
    return len(leaving)
