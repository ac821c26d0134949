"""Recordings of tests: what each device did, written as a line of characters, one for each step; and policies."""

import array
import dataclasses
import datetime
from collections.abc import Iterable, Sequence
from random import Random

from hypothesis import strategies as st

from rightsizer.model import Device, ObjectRef
from rightsizer.policy.schema import Policy
from rightsizer.usage.step_usage import MISSING, PER_SHARE, PER_WATT, Column
from rightsizer_history.backtest.recording import Grid, Group, Member, Recording, Track
from rightsizer_history.backtest.replay import Terms

BEGIN = datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC)
STEP_S = 1800
SAMPLES = 30
H100 = "NVIDIA H100 80GB HBM3"

COLUMNS = frozenset(
    ("peak", "mean", "traffic", "memory", "power_peak", "power_mean", "samples", "busy", "moving", "unknown")
)
BUSY, IDLE, UNKNOWN = "#", ".", "?"
HOUR = datetime.timedelta(hours=1)
SPINS, DARK = "~", "!"
"""At full activity without memory traffic; idle, at a power that is not known."""
PER_H = 3600 // STEP_S


TERMS = Terms(every=HOUR, first=0, restart=HOUR / 4)
PLENTY = [{"per": per, "workloads": 1000, "gpus": 1000} for per in ("run", "hour", "day")]


def policy(*, window: str = "4h", budgets: Sequence[object] = PLENTY, **more: object) -> Policy:
    """Everything is enforced, without notices or memory of earlier pauses."""
    rule = {
        "name": "all",
        "match": {"everything": True},
        "mode": "enforce",
        "findings": {"too-many-gpus": "enforce"},
        "idle": {"window": window, "unusedWindow": window, "idleFactor": 0},
        **more,
    }
    head = {"apiVersion": "gpu-rightsizer.io/v1alpha1", "kind": "Policy"}
    return Policy.model_validate({**head, "rules": [rule], "budgets": budgets})


def hours(line: str) -> str:
    """A line of hours as one of steps."""
    return "".join(one * PER_H for one in line)


def recording(*groups: Group) -> Recording:
    """With as many steps as the longest needs."""
    steps = max((group.end for group in groups), default=1)
    return Recording(Grid(BEGIN, STEP_S, steps), groups, "dcgm")


def workload(
    name: str, *pods: Iterable[str], kind: str = "Deployment", first: int = 0, priority_class: str = ""
) -> Group:
    """Each pod with the lines of its devices."""
    api = {"Pod": "v1", "Job": "batch/v1"}.get(kind, "apps/v1")
    members = []
    for number, lines in enumerate(pods):
        tracks = tuple(track(line, f"GPU-{name}-{number}-{place}", first) for place, line in enumerate(lines))
        members.append(Member(("team", f"{name}-{number}"), "n1", len(tracks), tracks, priority_class))
    return Group(ObjectRef(api, kind, "team", name, f"uid-{name}"), tuple(members))


def track(line: str, uuid: str, first: int = 0) -> Track:
    """Busy steps at 80 %, idle ones at 0 % with a model in memory, unknown ones without samples."""

    def column(
        busy: int, idle: int, unknown: int = MISSING, spins: int | None = None, dark: int | None = None
    ) -> Column:
        values = {
            BUSY: busy,
            IDLE: idle,
            UNKNOWN: unknown,
            SPINS: busy if spins is None else spins,
            DARK: idle if dark is None else dark,
        }
        return array.array("H", (values[one] for one in line))

    share = PER_SHARE * 8 // 10
    return Track(
        Device(uuid, model=H100),
        first,
        expected=SAMPLES,
        peak=column(share, 0, spins=PER_SHARE),
        mean=column(share, 0, spins=PER_SHARE),
        traffic=column(share, 0, spins=0),
        memory=column(5_000, 5_000),
        power_peak=column(600 * PER_WATT, 130 * PER_WATT, spins=165 * PER_WATT, dark=MISSING),
        power_mean=column(500 * PER_WATT, 130 * PER_WATT, spins=165 * PER_WATT, dark=MISSING),
        samples=column(SAMPLES, SAMPLES, 0),
        busy=column(MISSING, MISSING),
        moving=column(MISSING, MISSING),
        unknown=column(MISSING, MISSING),
    )


EAGER = policy(
    window="2h", findings={"too-many-gpus": "enforce", "stuck": "enforce", "too-many-replicas": "enforce"}
)
CAREFUL = policy(budgets=[{"per": "run", "share": "50%"}], findings={"stuck": "enforce"})

stretches = st.tuples(st.sampled_from(BUSY * 3 + IDLE * 3 + UNKNOWN + SPINS * 2 + DARK), st.integers(1, 8))
lines = st.lists(stretches, min_size=1, max_size=4).map(
    lambda parts: hours("".join(state * length for state, length in parts))
)


@st.composite
def fleets(draw: st.DrawFn) -> Recording:
    """Up to five workloads of up to three pods with up to two GPUs, which work, pause, spin and are not seen."""
    groups: list[Group] = []
    for number in range(draw(st.integers(1, 5))):
        kind = draw(st.sampled_from(["Deployment", "StatefulSet", "Job", "Pod"]))
        pods = draw(
            st.lists(st.lists(lines, min_size=1, max_size=2), min_size=1, max_size=1 if kind == "Pod" else 3)
        )
        groups.append(workload(f"w{number}", *pods, kind=kind, first=draw(st.integers(0, 8))))
    return recording(*groups)


PATIENT = policy(
    window="6h",
    idle={"window": "6h", "unusedWindow": "2h", "noticeAfter": "3h", "history": "1d", "idleFactor": 2},
    notifyBefore="3h",
    cooldown="6h",
    maxChanges=2,
)
"""Waits for pauses of its kind, for the end of notices and of cooldowns."""
WIDE = policy(
    window="54h",
    idle={"window": "54h", "unusedWindow": "6h", "history": "3d", "idleFactor": 1, "minCoverage": 0.8},
    findings={"too-many-gpus": "enforce"},
    tooManyGpus={"window": "8h", "maxUtilizationPercent": 85},
    notifyBefore="2h",
)
"""A window of more slots than one by one are looked at for gaps."""


ODDITIES = ("gaps", "lost", "empty", "uneven", "still", "mixed", "models", "counted", "shared", "own")


@st.composite
def odd_fleets(draw: st.DrawFn) -> Recording:
    """Fleets with some oddities: see `_odd`."""
    random = draw(st.randoms(use_true_random=False))
    oddities = draw(st.sets(st.sampled_from(ODDITIES), max_size=2))
    times = draw(st.sampled_from([1, 1, 3]))  # so often each step is repeated
    groups = []
    for group in draw(fleets()).groups:
        members = []
        for member in group.members:
            odd = frozenset(one for one in oddities if random.random() < 0.4)
            node = random.choice(["n1", "n2"])
            tracks = tuple(_odd(_repeated(one, times), odd, random, node) for one in member.tracks)
            members.append(dataclasses.replace(member, node=node, tracks=tracks))
        groups.append(dataclasses.replace(group, members=tuple(members)))
    return recording(*groups)


def _repeated(track: Track, times: int) -> Track:
    found = dataclasses.replace(track, first=track.first * times, known={})
    for name in COLUMNS:
        column = getattr(track, name)
        setattr(found, name, array.array("H", (value for value in column for _ in range(times))))
    return found


def _odd(track: Track, odd: frozenset[str], random: Random, node: str) -> Track:
    """With missing samples, GPUs that are empty, shared or other models, and gauges that move or stand still."""
    steps = range(len(track.samples))

    def write(oddity: str, share: float, values: Iterable[int], *names: str) -> None:
        for step in steps if oddity in odd else ():
            if random.random() < share:
                for name in names:
                    getattr(track, name)[step] = random.choice([*values])

    write("gaps", 0.1, (1, SAMPLES // 2, SAMPLES - 1), "samples")
    write("empty", 0.8, (0,), "memory")
    write("uneven", 0.7, range(1200, 1800), "power_peak", "power_mean")
    write("still", 1, (0,), "traffic")
    write("mixed", 0.3, (MISSING,), "power_peak", "traffic")
    write("counted", 1, (0, 0, 0, 3, 40), "busy")
    write("own", 1, (0, 0, 0, 3), "busy", "moving", "unknown")
    write("lost", 0.03, (MISSING,), *(COLUMNS - {"samples", "busy", "moving", "unknown"}))
    for step in steps:
        track.samples[step] = 0 if track.peak[step] == MISSING else track.samples[step]
    if "models" in odd:
        other = random.choice(["NVIDIA GB10", ""])
        track.device = dataclasses.replace(track.device, model=other, instance=random.choice(["", "1"]))
    if "shared" in odd:
        track.holders, track.device = (
            2,
            dataclasses.replace(track.device, uuid=f"GPU-{node}-{track.device.uuid[-1]}"),
        )
    if "own" in odd:
        track.is_own, track.holders = True, random.choice([0, 1, 2])
    return track
