"""A made-up fleet of any size: who holds which GPUs on which node, and how they use them. Nothing in it is random.

Half of the GPUs train, a third serve in replicas that take turns, the rest are people's; a tenth does nothing. Beside
them stand half as many pods as there are GPUs that hold none, as a cluster has.
"""

import dataclasses
import enum
import itertools
from collections.abc import Iterator

NODE_GPUS = 8
_CHARACTERS = "bcdfghjklmnpqrstvwxz2456789"
_TEAM_GPUS = 200


class Habit(enum.StrEnum):
    """How the GPUs of a pod are used."""

    TRAINING = "training"
    SERVING = "serving"
    SELDOM = "seldom"
    IDLE = "idle"


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One sort of workload.

    Attributes:
        kind: What is judged: a Job, a Deployment, a Notebook or a Pod.
        share: Of the GPUs.
        gpus: Of each pod.
        pods: Of each workload; the sizes come in turns.
    """

    name: str
    kind: str
    share: float
    gpus: int
    pods: tuple[int, ...]
    habit: Habit
    priority_class: str


ROWS = (
    # Those with many GPUs a pod come first: so no pod is spread over two nodes.
    Row("train", "Job", 0.44, 8, (1, 2, 4, 8, 16), Habit.TRAINING, "training"),
    Row("done", "Job", 0.03, 8, (1, 2), Habit.IDLE, "training"),
    Row("llm", "Deployment", 0.10, 4, (2, 4, 6), Habit.SERVING, "serving"),
    Row("tune", "Job", 0.03, 4, (1,), Habit.TRAINING, "training"),
    Row("serve", "Deployment", 0.14, 1, (2, 3, 5, 12), Habit.SERVING, "serving"),
    Row("embed", "StatefulSet", 0.06, 1, (2, 6), Habit.SERVING, "serving"),
    Row("lab", "Notebook", 0.08, 1, (1,), Habit.SELDOM, "interactive"),
    Row("forgotten", "Notebook", 0.04, 1, (1,), Habit.IDLE, "interactive"),
    Row("dev", "Deployment", 0.03, 1, (1,), Habit.SELDOM, "interactive"),
    Row("old", "Deployment", 0.02, 1, (1,), Habit.IDLE, "interactive"),
    Row("alone", "Pod", 0.03, 1, (1,), Habit.SELDOM, "batch-low"),
)

PRIORITIES = {"training": 1000, "serving": 5000, "interactive": 3000, "batch-low": 10}


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """A pod; `variant` tells habits of one kind apart."""

    name: str
    uid: str
    node: str
    devices: tuple[str, ...]
    variant: int


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A workload with its pods."""

    row: Row
    namespace: str
    name: str
    uid: str
    pods: tuple[Pod, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Fleet:
    """Everything that there is.

    Attributes:
        nodes: Names of those with GPUs.
        others: Pods without GPUs.
    """

    gpus: int
    workloads: tuple[Workload, ...]
    nodes: tuple[str, ...]
    others: int

    @property
    def pods(self) -> int:
        """All pods."""
        return self.others + sum(len(one.pods) for one in self.workloads)

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Names of those that hold GPUs."""
        return tuple(sorted({one.namespace for one in self.workloads}))


def fleet_of(gpus: int) -> Fleet:
    """A fleet of so many GPUs, and one and a half as many pods."""
    places = itertools.count()
    teams = max(1, gpus // _TEAM_GPUS)
    workloads: list[Workload] = []
    for row in ROWS:
        left = round(row.share * gpus)
        for number, size in zip(itertools.count(), itertools.cycle(row.pods)):
            count = min(size, left // row.gpus)
            if not count:
                break
            left -= count * row.gpus
            workloads.append(_workload(row, number, count, places, teams))
    nodes = -(-next(places) // NODE_GPUS)
    held = sum(len(one.pods) for one in workloads)
    return Fleet(gpus, tuple(workloads), tuple(map(node_name, range(nodes))), max(0, gpus * 3 // 2 - held))


def _workload(row: Row, number: int, count: int, places: Iterator[int], teams: int) -> Workload:
    name = f"{row.name}-{number:05}"
    uid = uid_of(f"{row.name}", number)
    pods = []
    for ordinal in range(count):
        devices = tuple(next(places) for _ in range(row.gpus))
        pods.append(
            Pod(
                name=f"{name}{_suffix(row.kind, number, ordinal)}",
                uid=uid_of("pod", devices[0]),
                node=node_name(devices[0] // NODE_GPUS),
                devices=tuple(f"GPU-{uid_of('gpu', place)}" for place in devices),
                variant=number + ordinal,
            )
        )
    return Workload(row, f"team-{number * 7 % teams:04}", name, uid, tuple(pods))


def _suffix(kind: str, number: int, ordinal: int) -> str:
    match kind:
        case "Pod":
            return ""
        case "Notebook" | "StatefulSet":
            return f"-{ordinal}"
        case "Deployment":
            return f"-{template_hash(number)}-{_letters(number * 31 + ordinal, 5)}"
        case _:
            return f"-{_letters(number * 31 + ordinal, 5)}"


def template_hash(number: int) -> str:
    """What a Deployment's ReplicaSet is called behind the Deployment's name."""
    return _letters(number * 7919 + 13, 9)


def node_name(number: int) -> str:
    """Of the nodes with GPUs."""
    return f"gpu-{number:05}"


def uid_of(what: str, number: int) -> str:
    """A UUID, by what it is of."""
    head = sum(ord(letter) << 8 * (place % 4) for place, letter in enumerate(what)) & 0xFFFFFFFF
    return f"{head:08x}-1b2c-4d3e-8f4a-{number:012x}"


def _letters(number: int, count: int) -> str:
    found = ""
    value = number * 2_654_435_761 % len(_CHARACTERS) ** count
    for _ in range(count):
        value, place = divmod(value, len(_CHARACTERS))
        found += _CHARACTERS[place]
    return found
