"""The second round of questions is narrow, and an autoscaler is proposed with bounds that were measured."""

import dataclasses
import datetime
from collections.abc import Sequence
from typing import Any

import pytest

from rightsizer.findings import Wanted, wanted
from rightsizer.findings.autoscaling import autoscalers_for, busy_replicas
from rightsizer.findings.evidence import Case
from rightsizer.model import ActivitySeries, Concurrency, Fleet, Manager, Measured, Pod, Usage, Workload
from rightsizer.policy.criteria import Criteria
from rightsizer.policy.schema import Thresholds, TooManyReplicas
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    DAY,
    SHRUNK,
    busy_usage,
    concurrency,
    criteria,
    fleet,
    idle_usage,
    measured,
    pod,
    usages,
    workload,
)

SOURCE = ActivitySeries("http://prometheus.monitoring:9090")


def _ask(item: Workload, *used: Sequence[Usage], by: Sequence[Criteria] | None = None) -> Wanted:
    found = usages(*zip(item.pods, map(tuple, used), strict=True))
    each = by or (criteria(),)
    windows = dict.fromkeys(frozenset().union(*(one.windows for one in each)), found)
    return wanted(fleet(item), Measured(AT, windows), lambda _: each)


HISTORIES: dict[str, tuple[Workload, tuple[list[Usage], ...], bool]] = {
    "idle": (workload(pod()), ([idle_usage()],), True),
    "busy": (workload(pod()), ([busy_usage()],), False),
    "idle-but-young": (workload(pod(started=AT - DAY)), ([idle_usage()],), False),
    "idle-but-half-known": (workload(pod()), ([idle_usage(coverage=0.5)],), False),
    "no-usage": (workload(pod()), ([],), False),
    "some-of-its-gpus": (workload(pod(devices=2), kind="Job"), ([busy_usage(0), idle_usage(1)],), True),
    "all-of-its-gpus": (workload(pod(devices=2), kind="Job"), ([busy_usage(0), busy_usage(1)],), False),
}


@pytest.mark.parametrize(("item", "used", "asked"), HISTORIES.values(), ids=HISTORIES.keys())
def test_histories_are_asked_where_they_decide(
    item: Workload, used: tuple[list[Usage], ...], asked: bool
) -> None:
    """Only for what would be acted upon if it never paused before."""
    histories = _ask(item, *used).histories
    assert [set(request.pods) for request in histories] == ([{("research", "w-0")}] if asked else [])


def test_histories_are_asked_from_where_pods_began() -> None:
    """As far back as the policy looks, by the utilization that counts as work, pods of one kind together."""
    pods = [
        pod("w-0", created=AT - 9 * DAY, started=AT - 8 * DAY),
        pod("w-1", created=AT - 9 * DAY, started=AT - 2 * DAY, restarts=3),
    ]
    (request,) = _ask(workload(*pods), [idle_usage(0)], [idle_usage(1)]).histories
    assert (request.span, request.percent) == (14 * DAY, 1.0)
    assert request.pods == {("research", "w-0"): AT - 8 * DAY, ("research", "w-1"): AT - 9 * DAY}


def test_of_several_criteria_the_most_careful_asks() -> None:
    """The longest look back, and the least utilization."""
    by = [
        criteria(idle=Thresholds(history=20 * DAY, maxUtilizationPercent=5.0)),
        criteria(idle=Thresholds(history=10 * DAY, maxUtilizationPercent=2.0)),
    ]
    (request,) = _ask(workload(pod()), [idle_usage()], by=by).histories
    assert (request.span, request.percent) == (20 * DAY, 2.0)


PAIR: tuple[Pod, ...] = (pod("w-0"), pod("w-1"))
COUNTED: dict[str, tuple[Workload, tuple[list[Usage], ...], bool]] = {
    "one-idle": (workload(*PAIR), ([busy_usage(0)], [idle_usage(1)]), True),
    "both-now-and-then": (
        workload(*PAIR),
        ([busy_usage(0, activity_mean=0.5)], [busy_usage(1, activity_mean=0.5)]),
        True,
    ),
    "always-busy": (
        workload(*PAIR),
        ([busy_usage(0, activity_mean=0.99)], [busy_usage(1, activity_mean=0.97)]),
        False,
    ),
    "not-measured": (workload(*PAIR), ([], []), True),
    "the-last-one": (workload(PAIR[0]), ([idle_usage()],), False),
    "the-last-one-that-we-left": (
        workload(PAIR[0], annotations=SHRUNK),
        ([busy_usage(activity_mean=1.0)],),
        True,
    ),
    "training": (workload(*PAIR, kind="PyTorchJob"), ([busy_usage(0)], [idle_usage(1)]), False),
    "gang": (workload(*PAIR, gang="PodGroup research/g"), ([busy_usage(0)], [idle_usage(1)]), False),
}


@pytest.mark.parametrize(("item", "used", "asked"), COUNTED.values(), ids=COUNTED.keys())
def test_replicas_are_counted_where_they_take_turns(
    item: Workload, used: tuple[list[Usage], ...], asked: bool
) -> None:
    """Not where all are busy all the time, unless we took some; never where pods work together."""
    requests = _ask(item, *used).concurrency
    assert [request.workloads for request in requests] == ([(item,)] if asked else [])
    assert all(request.criteria == TooManyReplicas() for request in requests)


@pytest.mark.parametrize(("mean", "asked"), [(0.4, True), (0.9, False)])
def test_waits_are_asked_where_gpus_are_used_little(mean: float, asked: bool) -> None:
    """What pods wait for says nothing about those that keep their GPUs busy."""
    assert _ask(workload(pod()), [busy_usage(activity_mean=mean)]).waits is asked


def test_nothing_is_asked_about_nothing() -> None:
    """No workloads, no questions."""
    assert wanted(Fleet((), {}, {}), Measured(AT, {}), lambda _: ()) == Wanted((), (), waits=False)


# Autoscalers.


def _case(counted: Concurrency | None, **changes: Any) -> Case:
    item = dataclasses.replace(workload(*(pod(f"w-{number}") for number in range(6))), created=AT - 30 * DAY)
    item = dataclasses.replace(item, **changes)
    found = usages(*((one, (busy_usage(number),)) for number, one in enumerate(item.pods)))
    known = {} if counted is None else {"uid-w": counted}
    return Case(item, measured(item, found, histories=ALWAYS, concurrency=known), criteria(), fleet(item))


def test_an_autoscaler_has_the_bounds_that_were_measured() -> None:
    """The quietest minute and the busiest, each with headroom; never fewer at most than there are."""
    found = autoscalers_for(_case(concurrency(3, earlier=4)), SOURCE)
    assert found is not None
    assert (found.lowest, found.highest) == (1, 6)
    assert found.scaled_object["spec"]["minReplicaCount"] == 1
    assert found.scaled_object["spec"]["maxReplicaCount"] == 6
    assert (found.hpa["spec"]["minReplicas"], found.hpa["spec"]["maxReplicas"]) == (1, 6)
    busier = autoscalers_for(_case(concurrency(6, earlier=9)), SOURCE)
    assert busier is not None
    assert busier.highest == 11


def test_an_autoscaler_points_at_its_workload() -> None:
    """Both manifests are whole, and name what they scale."""
    found = autoscalers_for(_case(concurrency(3)), SOURCE)
    assert found is not None
    for manifest in (found.scaled_object, found.hpa):
        assert manifest["metadata"] == {"name": "w", "namespace": "research"}
        assert manifest["spec"]["scaleTargetRef"] == {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "w",
        }
    (trigger,) = found.scaled_object["spec"]["triggers"]
    assert (trigger["type"], trigger["metadata"]["serverAddress"]) == ("prometheus", SOURCE.server)
    assert found.hpa["spec"]["metrics"][0]["pods"]["metric"] == {"name": "DCGM_FI_DEV_GPU_UTIL"}


def test_the_query_counts_replicas_at_work_with_headroom() -> None:
    """What Prometheus is asked is what we ask ourselves; names are quoted."""
    assert busy_replicas(_case(None), SOURCE) == (
        '(count(max by (exported_pod) (max_over_time(DCGM_FI_DEV_GPU_UTIL{exported_namespace="research", '
        'exported_pod=~"w-.+"}[5m])) > 1) or vector(0)) + clamp_min(ceil((count(max by (exported_pod) '
        '(max_over_time(DCGM_FI_DEV_GPU_UTIL{exported_namespace="research", exported_pod=~"w-.+"}[5m])) > 1) '
        "or vector(0)) * 0.2), 1)"
    )
    odd = _case(None, ref=dataclasses.replace(_case(None).workload.ref, name='a.b"c'))
    assert 'exported_pod=~"a\\\\.b\\"c-.+"' in busy_replicas(odd, SOURCE)


NO_AUTOSCALER: dict[str, tuple[Concurrency | None, dict[str, Any]]] = {
    "steady": (Concurrency((4,) * 60, (4,) * 7), {}),
    "never-at-work": (concurrency(), {}),
    "not-counted": (None, {}),
    "a-minute-unknown": (concurrency(3, None), {}),
    "training": (concurrency(3), {"gang": "PodGroup research/g"}),
    "scaled-already": (concurrency(3), {"managers": (Manager("KEDA", "w"),)}),
}


@pytest.mark.parametrize(("counted", "changes"), NO_AUTOSCALER.values(), ids=NO_AUTOSCALER.keys())
def test_no_autoscaler_where_none_would_do_better(
    counted: Concurrency | None, changes: dict[str, Any]
) -> None:
    """Where the need does not vary or is not known, for pods that work together, and beside another one."""
    assert autoscalers_for(_case(counted, **changes), SOURCE) is None


def test_kinds_without_a_scale_are_left_to_their_own() -> None:
    """An InferenceService brings its own autoscaler; groups of pods are not counted by pods."""
    for kind in ("InferenceService", "LeaderWorkerSet"):
        case = _case(concurrency(3))
        item = dataclasses.replace(
            case.workload, ref=dataclasses.replace(case.workload.ref, kind=kind), size=6
        )
        assert autoscalers_for(dataclasses.replace(case, workload=item), SOURCE) is None


def test_down_is_slow_and_up_is_not() -> None:
    """Replicas stay for as long as the busiest minute is looked for, an hour at most."""
    found = autoscalers_for(_case(concurrency(3)), SOURCE)
    assert found is not None
    assert found.hpa["spec"]["behavior"] == {"scaleDown": {"stabilizationWindowSeconds": 3600}}
    by = criteria(too_many_replicas=TooManyReplicas(window=datetime.timedelta(minutes=30)))
    case = dataclasses.replace(_case(Concurrency((0,) * 29 + (3,), (0,) * 7)), criteria=by)
    quicker = autoscalers_for(case, SOURCE)
    assert quicker is not None
    assert quicker.hpa["spec"]["behavior"] == {"scaleDown": {"stabilizationWindowSeconds": 1800}}
