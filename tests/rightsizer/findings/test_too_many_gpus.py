"""GPUs of a pod that are never used."""

import dataclasses
import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rightsizer.findings.too_many_gpus import gpus_to_keep
from rightsizer.model import (
    Action,
    FindingName,
    Proposal,
    Usage,
    Usages,
    Verdict,
    Workload,
)
from rightsizer.text import span
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    DAY,
    MANY,
    SHRUNK,
    busy_usage,
    concurrency,
    device,
    findings,
    history,
    idle_usage,
    judged,
    pod,
    policy,
    usages,
    workload,
)

HOUR = datetime.timedelta(hours=1)


def _eight(*used: Usage, devices: int = 8, **changes: Any) -> tuple[Workload, Usages]:
    """One pod whose first GPUs are those given, and whose others are idle."""
    one = pod(devices=devices, **changes)
    rest = tuple(idle_usage(number) for number in range(len(used), devices))
    return workload(one, kind="Job"), usages((one, (*used, *rest)))


@pytest.mark.parametrize(
    ("used", "held", "kept"),
    [(1, 8, 1), (2, 8, 2), (3, 8, 4), (5, 8, 8), (4, 6, 4), (2, 6, 2), (3, 7, 3), (1, 2, 1), (3, 16, 4)],
)
def test_gpus_to_keep_divide_the_held_gpus(used: int, held: int, kept: int) -> None:
    """Parallel groups stay even; without a divisor the used number is kept."""
    assert gpus_to_keep(used, held) == kept


@pytest.mark.parametrize(
    ("used", "held", "group", "kept"),
    [
        (3, 6, 2, 4),
        (3, 6, 1, 3),
        (3, 6, 8, 3),
        (1, 6, 2, 1),
        (5, 12, 4, 8),
        (5, 12, 6, 6),
        (3, 8, 4, 4),
        (5, 6, 2, 6),
    ],
)
def test_gpus_to_keep_are_whole_groups_of_nvlink(used: int, held: int, group: int, kept: int) -> None:
    """Within one group any number has NVLink; more are whole groups, of GPUs without NVLink any number."""
    assert gpus_to_keep(used, held, group) == kept


@MANY
@given(st.integers(1, 16), st.integers(1, 16), st.integers(1, 16))
def test_gpus_to_keep_with_nvlink_are_no_fewer(used: int, more: int, group: int) -> None:
    """What is known of NVLink only keeps more."""
    held = used + more
    assert used <= gpus_to_keep(used, held) <= gpus_to_keep(used, held, group) <= held


def _all_to_all(*indexes: int) -> dict[str, frozenset[str]]:
    uuids = {device(index).uuid for index in indexes}
    return {uuid: frozenset(uuids - {uuid}) for uuid in uuids}


PREFERS = "NVIDIA's device plugin prefers connected GPUs, but does not guarantee it"
NVLINKS: dict[str, tuple[dict[str, frozenset[str]], str]] = {
    "unknown": ({}, ""),
    "all-to-all": (_all_to_all(0, 1, 2, 3), f"; NVLink connects them; {PREFERS}"),
    "pairs": ({**_all_to_all(0, 1), **_all_to_all(2, 3)}, f"; NVLink connects them; {PREFERS}"),
    "other-pairs": ({**_all_to_all(0, 2), **_all_to_all(1, 3)}, "; NVLink does not connect them"),
    "none": (dict.fromkeys(_all_to_all(0, 1, 2, 3), frozenset[str]()), ""),
    "half-known": (_all_to_all(0, 2), ""),
}


@pytest.mark.parametrize(("nvlink", "words"), NVLINKS.values(), ids=NVLINKS.keys())
def test_resize_says_whether_nvlink_connects_used_gpus(nvlink: dict[str, frozenset[str]], words: str) -> None:
    """Where it is unknown, or there is none, nothing."""
    item, found = _eight(busy_usage(0), busy_usage(1), devices=4)
    finding = findings(item, found, histories=ALWAYS, nvlink=nvlink)[0]
    assert finding.verdict is Verdict.ACT
    assert finding.words[0] == f"2 of 4 GPUs were used in the last 1d{words}"


def test_resize_keeps_groups_of_nvlink_whole() -> None:
    """Three of six GPUs in pairs would leave one without its neighbour."""
    item, found = _eight(busy_usage(0), busy_usage(1), busy_usage(2), devices=6)
    pairs = {**_all_to_all(0, 1), **_all_to_all(2, 3), **_all_to_all(4, 5)}
    proposals = [findings(item, found, histories=ALWAYS, nvlink=nvlink)[0].proposal for nvlink in ({}, pairs)]
    assert [one.gpus_per_pod for one in proposals if one] == [3, 4]
    assert proposals[1] is not None
    assert "(3 were used; 4 keeps groups of GPUs with NVLink whole)" in proposals[1].words


def test_resize_keeps_what_the_busiest_pod_needs() -> None:
    """Pods of a workload are alike: 3 of 8 GPUs in one pod means 4 in each."""
    pods = [pod(devices=8), pod("w-1", devices=8)]
    rest = tuple(idle_usage(number) for number in range(3, 8))
    found = usages(
        (pods[0], (busy_usage(0), busy_usage(1), busy_usage(2), *rest)),
        (pods[1], (busy_usage(0), idle_usage(1), idle_usage(2), *rest)),
    )
    finding = findings(workload(*pods, kind="PyTorchJob"), found, histories=ALWAYS)[0]
    assert (finding.name, finding.verdict) == (FindingName.TOO_MANY_GPUS, Verdict.ACT)
    assert finding.proposal == Proposal(
        Action.RESIZE,
        8.0,
        "each pod needs 4 of its 8 GPUs (3 were used; 4 divides 8 evenly); resize frees 8 GPUs",
        gpus_per_pod=4,
        pods=("w-0", "w-1"),
    )
    assert finding.words[0] == "4 of 16 GPUs were used in the last 1d"


TWO_OF_EIGHT = _eight(busy_usage(0), busy_usage(1))
UNPROVEN: dict[str, tuple[Workload, Usages, dict[str, Any], str]] = {
    "one-gpu-not-measured": (*_eight(busy_usage(0), idle_usage(1, coverage=0.5)), {}, "samples cover 50%"),
    "one-gpu-without-series": (
        TWO_OF_EIGHT[0],
        {key: used[:7] for key, used in TWO_OF_EIGHT[1].items()},
        {},
        "its series cover only 7",
    ),
    "one-gpu-without-second-signal": (
        *_eight(busy_usage(0), idle_usage(1, power_peak_w=None, traffic_peak=None)),
        {},
        "no power or memory-traffic data",
    ),
    "young": (*_eight(busy_usage(0), started=AT - DAY / 6), {}, "a verdict needs pods of at least 4h 30m"),
    "longer-pauses-than-the-window": (
        *TWO_OF_EIGHT,
        {"histories": {("research", "w-0"): history("#" + "." * 30 + "#")}},
        "it is idle for up to 1d 6h between runs: a window of 4h is too short",
    ),
    "no-history": (*TWO_OF_EIGHT, {"histories": {}}, "it is idle for an unknown time between runs"),
    "shrunk-in-another-way": (
        dataclasses.replace(TWO_OF_EIGHT[0], annotations=SHRUNK),
        TWO_OF_EIGHT[1],
        {},
        "gpu-rightsizer scaled it down",
    ),
}


@pytest.mark.parametrize(("item", "found", "given", "words"), UNPROVEN.values(), ids=UNPROVEN.keys())
def test_resize_without_proof_is_advice(
    item: Workload, found: Usages, given: dict[str, Any], words: str
) -> None:
    """Incomplete data keeps all GPUs; the finding stays and says why."""
    finding = findings(item, found, **{"histories": ALWAYS, **given})[0]
    assert (finding.name, finding.verdict, finding.proposal) == (
        FindingName.TOO_MANY_GPUS,
        Verdict.KEEP,
        None,
    )
    assert words in " | ".join(finding.words)


@pytest.mark.parametrize(
    "usage",
    [idle_usage(1, power_peak_w=400.0), idle_usage(1, traffic_peak=0.4), idle_usage(1, busy_s=600.0)],
    ids=["power", "traffic", "counters"],
)
def test_gpu_with_any_signal_of_use_is_kept(usage: Usage) -> None:
    """Activity alone does not make a GPU unused."""
    proposal = findings(*_eight(busy_usage(0), usage), histories=ALWAYS)[0].proposal
    assert proposal is not None
    assert proposal.gpus_per_pod == 2


def _resized_to(day: tuple[Usage, ...], known: str, started: datetime.timedelta) -> int | None:
    """GPUs to keep of a pod of eight that used one in the last four hours; these were used in the last day."""
    one = pod(devices=8, started=AT - started, created=AT - started)
    item, rest = workload(one, kind="Job"), tuple(idle_usage(number) for number in range(1, 8))
    windows = dict.fromkeys((DAY, 16 * HOUR, 2 * HOUR, HOUR), usages((one, (*day, *rest[len(day) - 1 :]))))
    windows[4 * HOUR] = usages((one, (busy_usage(0), *rest)))
    hours = int(started / HOUR)
    decision = judged(item, windows, policy(), histories={("research", "w-0"): history(known, hours=hours)})
    found = [one for one in (decision.finding, *decision.also) if one.name is FindingName.TOO_MANY_GPUS]
    assert found[0].words[0].endswith(f"were used in the last {span(min(started, 16 * HOUR))}")
    return found[0].proposal.gpus_per_pod if found[0].proposal else None


@pytest.mark.parametrize(
    ("day", "known", "hours", "kept"),
    [
        ((busy_usage(0),), "#", 5, 1),
        ((busy_usage(0, coverage=0.3), busy_usage(1, coverage=0.3)), "#", 5, 2),
        ((busy_usage(0), busy_usage(1)), "#", 30, 2),
        ((busy_usage(0, coverage=0.83),), "#", 30, None),
        ((busy_usage(0, coverage=0.96),), "#", 30, 1),
        ((busy_usage(0),), "#.....#", 30, 1),
        ((busy_usage(0),), "#.......#", 9, None),
    ],
    ids=[
        "young",
        "used-before",
        "used-in-the-day",
        "four-hours-unseen",
        "some-scrapes-lost",
        "pauses-within-the-day",
        "young-with-pauses",
    ],
)
def test_resize_needs_only_its_own_window_but_any_use_counts(
    day: tuple[Usage, ...], known: str, hours: int, kept: int | None
) -> None:
    """Four hours of work prove it, unless the workload rests for longer; what was used before is kept."""
    assert _resized_to(day, known, hours * HOUR) == kept


@pytest.mark.parametrize(
    "known", [(), (busy_usage(0),), (dataclasses.replace(busy_usage(0), activity_peak=None),)]
)
def test_gpus_without_data_of_the_day_are_kept(known: tuple[Usage, ...]) -> None:
    """They may have been used before the last four hours."""
    one = pod(devices=8)
    rest = tuple(idle_usage(number) for number in range(1, 8))
    windows = dict.fromkeys((4 * HOUR, 2 * HOUR, HOUR), usages((one, (busy_usage(0), *rest))))
    windows[16 * HOUR] = usages((one, known))
    decision = judged(workload(one, kind="Job"), windows, policy(), histories=ALWAYS)
    assert all(each.proposal is None for each in (decision.finding, *decision.also))


SMALL, LARGE = pod("w-0", devices=2), pod("w-1", devices=8)
EIGHT = tuple(idle_usage(number) for number in range(2, 8))
NOT_TOO_MANY = {
    "pods-that-differ": (
        workload(SMALL, LARGE, kind="RayCluster"),
        usages((SMALL, (busy_usage(0), busy_usage(1))), (LARGE, (busy_usage(0), busy_usage(1), *EIGHT))),
    ),
    "all-used": _eight(*(busy_usage(number) for number in range(8))),
    "five-of-eight-leave-no-even-part": _eight(*(busy_usage(number) for number in range(5))),
    "shares": _eight(busy_usage(0), devices=2, is_shared=True),
}


@pytest.mark.parametrize(("item", "found"), NOT_TOO_MANY.values(), ids=NOT_TOO_MANY.keys())
def test_resize_of_fully_used_uneven_or_shared_gpus_is_not_proposed(item: Workload, found: Usages) -> None:
    """All GPUs are used, no even number is left, or the GPUs are shared."""
    found_names = [finding.name for finding in findings(item, found, histories=ALWAYS)]
    assert found_names == [FindingName.BUSY]


def test_power_without_activity_keeps_a_gpu_but_is_not_busy() -> None:
    """Power without activity keeps a GPU, but does not count as work."""
    found = findings(*_eight(idle_usage(0, power_peak_w=400.0)), histories={})
    assert [finding.name for finding in found] == [FindingName.CONFLICTING_SIGNALS]


def test_finding_that_frees_most_comes_first() -> None:
    """The order of the findings does not matter."""
    pods = [pod(f"w-{number}", devices=8) for number in range(4)]
    idle = tuple(idle_usage(number) for number in range(1, 8))
    found = usages(*((one, (busy_usage(0), *idle)) for one in pods))
    item = workload(*pods, created=AT - 30 * DAY)
    both = findings(item, found, histories=ALWAYS, concurrency={"uid-w": concurrency(2)})
    assert [finding.name for finding in both] == [
        FindingName.TOO_MANY_GPUS,
        FindingName.TOO_MANY_REPLICAS,
    ]
    assert [finding.proposal.frees for finding in both if finding.proposal] == [28.0, 8.0]
