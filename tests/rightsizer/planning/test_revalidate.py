"""The last look before a write, purely: every way in which what was planned no longer holds."""

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any

import pytest

from rightsizer.model import (
    Action,
    Decision,
    FindingName,
    Mode,
    Node,
    ObjectRef,
    ServingLoad,
    Usages,
    WaitingPod,
    Workload,
)
from rightsizer.planning.revalidate import Use, objections
from rightsizer.planning.victims import COST_ANNOTATION, victims_of, with_replicas
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    all_idle,
    busy_usage,
    concurrency,
    evaluator,
    fleet,
    idle_usage,
    judged,
    measured,
    pod,
    policy,
    rule,
    usages,
    workload,
)

PLANNED = workload(pod("w-0"), pod("w-1"))


def _decision() -> Decision:
    return judged(PLANNED, all_idle(PLANNED), policy())


def _told(fresh: Workload = PLANNED, **changes: Any) -> list[str]:
    """The reasons against what was planned, given what the workload and its use are now."""
    idle = all_idle(PLANNED)
    values: dict[str, Any] = {
        "at": AT,
        "measured": measured(PLANNED, idle),
        "since": AT - datetime.timedelta(minutes=10),
        "activity": idle,
        "recent": idle,
        "latest": idle,
    }
    use = Use(**{**values, **changes})
    return [blocker.code for blocker in objections(_decision(), fresh, use, evaluator(policy(), fresh))]


def test_revalidate_unchanged_workload_has_no_blocker() -> None:
    """Nothing stands against it where nothing changed."""
    assert _decision().is_enforced
    assert _told() == []


_SUSPENDER = ObjectRef("keda.sh/v1alpha1", "ScaledObject", "default", "w", "uid-so")


CHANGED: dict[str, Callable[[Workload], Workload]] = {
    "another-object": lambda item: _replaced(item, ref=dataclasses.replace(item.ref, uid="uid-other")),
    "generation": lambda item: _replaced(item, generation=2),
    "size": lambda item: _replaced(item, size=3),
    "control-object": lambda item: _replaced(item, control_object=_SUSPENDER),
    "pod-replaced": lambda item: _replaced(item, pods=(item.pods[0], _renamed(item.pods[1]))),
    "pod-more": lambda item: _replaced(item, pods=(*item.pods, _renamed(item.pods[1]))),
    "pod-less": lambda item: _replaced(item, pods=item.pods[:1]),
}


def _replaced(item: Workload, **changes: Any) -> Workload:
    return dataclasses.replace(item, **changes)


def _renamed(one: Any) -> Any:
    return dataclasses.replace(one, ref=dataclasses.replace(one.ref, uid="uid-new"))


@pytest.mark.parametrize("change", CHANGED.values(), ids=CHANGED.keys())
def test_revalidate_changed_workload_is_blocked(change: Callable[[Workload], Workload]) -> None:
    """Each part of what a person may have approved is compared by itself."""
    assert "changed" in _told(change(PLANNED))


def test_revalidate_unreadable_owner_is_blocked() -> None:
    """Without its version no write could be tied to what was looked at."""
    fresh = _replaced(PLANNED, resource_version="", gang="PodGroup team/ring")
    assert "changed" in _told(fresh)


@pytest.mark.parametrize("lost", ["none", "empty"])
def test_revalidate_pod_without_recent_samples_is_blocked(lost: str) -> None:
    """A pod without samples since then may be at work, however idle it was before."""
    recent = dict(all_idle(PLANNED))
    if lost == "none":
        del recent["research", "w-1"]
    else:
        recent["research", "w-1"] = ()
    assert "no-data" in _told(recent=recent)


GAPS = {
    "no-sample-in-one-half": {"holes": 1},
    "none-at-the-end": {"is_fresh": False},
}


@pytest.mark.parametrize("gap", GAPS.values(), ids=GAPS.keys())
def test_revalidate_stopped_samples_are_blocked(gap: dict[str, Any]) -> None:
    """There are some of the last minutes, but not of all of them."""
    recent = {**all_idle(PLANNED), **usages((PLANNED.pods[1], (idle_usage(**gap),)))}
    assert "no-data" in _told(recent=recent)


def test_revalidate_work_that_may_be_the_pods_is_blocked() -> None:
    """Unattributed work on a shared GPU since the plan: whether the pod worked is unknown."""
    used = idle_usage(is_own=True, activity_peak=None, busy_s=9.0, unattributed_s=9.0)
    recent = {**all_idle(PLANNED), **usages((PLANNED.pods[1], (used,)))}
    assert "busy" in _told(recent=recent)


def test_revalidate_one_silent_gpu_is_blocked() -> None:
    """The plan saw two GPUs of a pod, the last look sees one."""
    both = {**all_idle(PLANNED), **usages((PLANNED.pods[1], (idle_usage(0), idle_usage(1))))}
    assert "no-data" in _told(measured=measured(PLANNED, both))
    assert "no-data" not in _told(measured=measured(PLANNED, both), recent=both)


WORK = {
    "activity": (busy_usage(),),
    "nan": (idle_usage(invalid=("DCGM_FI_DEV_GPU_UTIL",)),),
    "one-of-two-devices": (idle_usage(0), busy_usage(1)),
    "by-counters-only": (idle_usage(busy_s=500.0),),
}


@pytest.mark.parametrize("used", WORK.values(), ids=WORK.keys())
def test_revalidate_activity_since_plan_is_blocked(used: tuple[Any, ...]) -> None:
    """Activity, an impossible value and what only counters saw: each of one device of one pod suffices."""
    found = {**all_idle(PLANNED), **usages((PLANNED.pods[1], used))}
    assert "busy" in _told(activity=found)
    assert "busy" in _told(recent=found)


HAMI = Node("h1", "NVIDIA H100 80GB HBM3", 8, 80 << 30, {"nvidia.com/gpu": 80}, sharing="hami", pooled=8)
RESLICED = workload(pod(resources={"nvidia.com/gpu": 1}))


@pytest.mark.parametrize(
    ("memory_gib", "node", "reasons"),
    [
        (4, HAMI, []),
        (3, HAMI, []),
        (5, HAMI, ["changed"]),
        (4, dataclasses.replace(HAMI, is_open=False), ["changed"]),
        (
            4,
            Node("m1", HAMI.model, 1, HAMI.memory_bytes, {"nvidia.com/mig-1g.10gb": 7}),
            ["changed"],
        ),
    ],
    ids=["the-same", "less-would-do", "more-is-needed", "nobody-offers-it", "only-something-else-is-offered"],
)
def test_revalidate_changed_recommendation_is_blocked(
    memory_gib: int, node: Node, reasons: list[str]
) -> None:
    """Amounts are those of the plan: more than these, or something else, wants another plan."""
    rules = policy(rule("all", findings={FindingName.OVERSIZED_GPU: Mode.ENFORCE}))

    def used(gib: int) -> Any:
        light: dict[str, Any] = {"activity_peak": 0.1, "activity_mean": 0.05, "traffic_peak": 0.05}
        return usages((RESLICED.pods[0], (busy_usage(memory_peak_bytes=gib << 30, **light),)))

    decision = judged(RESLICED, used(4), rules, around=fleet(RESLICED, nodes=(HAMI,)), histories=ALWAYS)
    assert decision.action is Action.RESLICE
    found = used(memory_gib)
    use = Use(
        AT,
        measured(RESLICED, found, histories=ALWAYS),
        AT - datetime.timedelta(minutes=10),
        found,
        found,
        found,
    )
    book = evaluator(rules, around=fleet(RESLICED, nodes=(node,)))
    assert [blocker.code for blocker in objections(decision, RESLICED, use, book)] == reasons


HALVED = workload(pod(devices=2, resources={"nvidia.com/gpu": 2}))


def _two(second: Any) -> Any:
    return usages((HALVED.pods[0], (busy_usage(), second)))


@pytest.mark.parametrize(
    ("second", "reasons"),
    [(idle_usage(1), []), (busy_usage(1), ["busy"]), (idle_usage(1, invalid=("activity",)), ["no-data"])],
    ids=["as-planned", "it-works-by-now", "impossible-by-now"],
)
def test_revalidate_resize_of_newly_used_gpu_is_blocked(second: Any, reasons: list[str]) -> None:
    """Of pods that go on with fewer GPUs, what these did since the plan counts, though the plan is young."""
    rules = policy(rule("all", findings={FindingName.TOO_MANY_GPUS: Mode.ENFORCE}))
    planned, lately = _two(idle_usage(1)), _two(second)
    decision = judged(HALVED, planned, rules, histories=ALWAYS)
    assert decision.action is Action.RESIZE
    use = Use(
        AT,
        measured(HALVED, planned, histories=ALWAYS),
        AT - datetime.timedelta(minutes=10),
        lately,
        planned,
        planned,
    )
    assert [
        blocker.code for blocker in objections(decision, HALVED, use, evaluator(rules, HALVED))
    ] == reasons


SERVICE = workload(*(pod(f"w-{number}") for number in range(6)), kind="Deployment")
AT_WORK = usages(*((one, (busy_usage(place),)) for place, one in enumerate(SERVICE.pods)))
TWO_AT_WORK = {**all_idle(SERVICE), **usages(*((one, (busy_usage(),)) for one in SERVICE.pods[:2]))}
FOUR_AT_WORK = {**all_idle(SERVICE), **usages(*((one, (busy_usage(),)) for one in SERVICE.pods[:4]))}


def _without(found: Usages, *pods: int) -> Usages:
    return {key: used for key, used in found.items() if key[1] not in {f"w-{number}" for number in pods}}


def test_revalidate_more_replicas_needed_since_plan_is_blocked() -> None:
    """Three were planned to be left; by the series of now, four are needed."""
    rules = policy(rule("all", findings={FindingName.TOO_MANY_REPLICAS: Mode.ENFORCE}))
    decision = judged(SERVICE, AT_WORK, rules, concurrency={"uid-w": concurrency(2)})
    seen = measured(SERVICE, AT_WORK, concurrency={"uid-w": concurrency(3)})
    use = Use(AT, seen, AT - datetime.timedelta(minutes=10), AT_WORK, AT_WORK, all_idle(SERVICE))
    found = list(objections(decision, SERVICE, use, evaluator(rules, SERVICE)))
    assert [one.code for one in found] == ["changed"]
    assert "requirements increased since the plan" in found[0].message


IMPOSSIBLE = usages(*((SERVICE.pods[place], (idle_usage(invalid=("activity",)),)) for place in (4, 5)))
SIZED: dict[str, tuple[Usages, Usages, list[str]]] = {
    "worked-minutes-ago": (AT_WORK, TWO_AT_WORK, []),
    "too-many-work": (AT_WORK, FOUR_AT_WORK, ["busy"]),
    "one-that-may-stay-is-silent": (_without(AT_WORK, 5), TWO_AT_WORK, []),
    "silent-ones-may-work": (_without(AT_WORK, 4, 5), TWO_AT_WORK, ["busy"]),
    "no-sample-lately": (AT_WORK, _without(TWO_AT_WORK, 4, 5), ["busy"]),
    "impossible-values-lately": (AT_WORK, {**TWO_AT_WORK, **IMPOSSIBLE}, ["busy"]),
}


@pytest.mark.parametrize(("recent", "latest", "reasons"), SIZED.values(), ids=SIZED.keys())
def test_revalidate_scale_down_removes_replicas_that_are_idle_now(
    recent: Usages, latest: Usages, reasons: list[str]
) -> None:
    """Three of six: those that worked or may have worked in the last two minutes stay."""
    rules = policy(rule("all", findings={FindingName.TOO_MANY_REPLICAS: Mode.ENFORCE}))
    counted = {"uid-w": concurrency(2)}
    decision = judged(SERVICE, AT_WORK, rules, concurrency=counted)
    assert decision.finding.proposal is not None
    assert decision.finding.proposal.replicas == 3
    seen = measured(SERVICE, AT_WORK, concurrency=counted)
    use = Use(AT, seen, AT - datetime.timedelta(minutes=10), AT_WORK, recent, latest)
    book = evaluator(rules, SERVICE)
    assert [blocker.code for blocker in objections(decision, SERVICE, use, book)] == reasons


HUNG = workload(pod(devices=1), kind="Job")
SPINNING = busy_usage(activity_mean=1.0, power_mean_w=100.0, power_peak_w=105.0, traffic_peak=0.0)


@pytest.mark.parametrize(
    ("traffic", "reasons"),
    [(0.0, []), (0.2, ["busy"]), (None, ["busy"]), ("unseen", ["busy"]), ("impossible", ["busy"])],
)
def test_revalidate_stop_of_stuck_workload_asks_for_memory_traffic(traffic: Any, reasons: list[str]) -> None:
    """It is active, which is why it is stopped; only traffic since the plan tells that it goes on, or may."""
    rules = policy(rule("all", findings={FindingName.STUCK: Mode.ENFORCE}))
    spins = usages((HUNG.pods[0], (SPINNING,)))
    decision = judged(HUNG, spins, rules)
    assert (decision.finding.name, decision.is_enforced) == (FindingName.STUCK, True)
    lately = dataclasses.replace(SPINNING, traffic_peak=traffic if isinstance(traffic, float) else None)
    now = dataclasses.replace(SPINNING, invalid=("activity",)) if traffic == "impossible" else SPINNING
    use = Use(
        AT,
        measured(HUNG, spins),
        AT - datetime.timedelta(minutes=10),
        activity=usages((HUNG.pods[0], (now,))),
        recent=spins,
        latest=spins,
        traffic={} if traffic == "unseen" else usages((HUNG.pods[0], (lately,))),
    )
    found = list(objections(decision, HUNG, use, evaluator(rules, HUNG)))
    assert [one.code for one in found] == reasons


ASKED = workload(pod(created=AT - datetime.timedelta(days=9)), kind="Deployment")
CHECKED = busy_usage(activity_mean=0.001, activity_peak=0.3)
UNASKED = ServingLoad("vLLM", 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("load", "reasons"),
    [
        (UNASKED, []),
        (dataclasses.replace(UNASKED, requests=1.0), ["busy"]),
        (dataclasses.replace(UNASKED, running=1.0), ["busy"]),
        (dataclasses.replace(UNASKED, queued=1.0), ["busy"]),
        (dataclasses.replace(UNASKED, requests=None), ["busy"]),
        (None, ["busy"]),
    ],
    ids=["none", "served", "running", "queued", "unknown", "no-metrics"],
)
def test_revalidate_stop_without_requests_asks_for_requests(
    load: ServingLoad | None, reasons: list[str]
) -> None:
    """Checks of its health keep it active; a request since the plan, or none that is known, keeps the server."""
    rules = policy(rule("all", findings={FindingName.NO_REQUESTS: Mode.ENFORCE}))
    checked, key = usages((ASKED.pods[0], (CHECKED,))), ("research", "w-0")
    (window,) = {each.noRequests.window for each in evaluator(rules, ASKED).all_criteria()}
    decision = judged(ASKED, checked, rules, serving={window: {key: UNASKED}})
    assert (decision.finding.name, decision.is_enforced) == (FindingName.NO_REQUESTS, True)
    use = Use(
        AT,
        measured(ASKED, checked, serving={window: {key: UNASKED}}),
        AT - datetime.timedelta(minutes=10),
        checked,
        checked,
        checked,
        requests={} if load is None else {key: load},
    )
    found = list(objections(decision, ASKED, use, evaluator(rules, ASKED)))
    assert [one.code for one in found] == reasons


# --- Some replicas of an unused workload


REPLICATED = workload(pod("w-0"), pod("w-1"), pod("w-2"), spec=b'{"replicas": 3}')


def _against_part(fresh: Workload = REPLICATED, **changes: Any) -> list[str]:
    """The reasons against removing w-1 alone, as a pending pod needs it."""
    idle = all_idle(REPLICATED)
    values: dict[str, Any] = {
        "at": AT,
        "measured": measured(REPLICATED, idle),
        "since": AT - datetime.timedelta(minutes=10),
        "activity": idle,
        "recent": idle,
        "latest": {},
    }
    use = Use(**{**values, **changes})
    whole = judged(REPLICATED, idle, policy())
    victims = victims_of(whole, evaluator(policy(), REPLICATED))
    urgent = ObjectRef("v1", "Pod", "research", "urgent", "uid-urgent")
    demand = WaitingPod(urgent, {}, 5_000, "high", frozenset())
    part = with_replicas(
        whole, [(demand, one.pods, one.frees) for one in victims if one.pods[0].ref.name == "w-1"]
    )
    return [blocker.code for blocker in objections(part, fresh, use, evaluator(policy(), fresh))]


def _with_first(**changes: Any) -> Workload:
    first, *others = REPLICATED.pods
    return dataclasses.replace(REPLICATED, pods=(dataclasses.replace(first, **changes), *others))


def test_part_of_an_unused_workload_holds_while_all_of_it_is_unused() -> None:
    """Its whole was found unused, so any replica at work is one against it."""
    assert _against_part() == []
    busy = {**all_idle(REPLICATED), ("research", "w-0"): (busy_usage(),)}
    assert _against_part(recent=busy) == ["busy"]
    assert "no-data" in _against_part(recent={})


def test_part_of_which_other_replicas_would_go_is_refused() -> None:
    """Its owner gave a pod a deletion cost since the plan: a GPU on another node would become free."""
    assert _against_part(_with_first(annotations={COST_ANNOTATION: "-5"})) == ["changed"]
