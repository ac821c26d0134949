"""Follow-up queries are few, and autoscalers get the measured bounds."""

import dataclasses
import datetime
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from rightsizer.findings.autoscaling import autoscalers_for, busy_replicas
from rightsizer.findings.evidence import Candidate
from rightsizer.findings.followup_queries import FollowupQueries, followup_queries
from rightsizer.findings.replicas import ReplicaNeed
from rightsizer.kube.pod_names import HASHED
from rightsizer.model import ActivitySeries, Concurrency, Fleet, Manager, Measured, Pod, Usage, Workload
from rightsizer.policy.effective import Criteria
from rightsizer.policy.thresholds import Thresholds, TooManyReplicas
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


def _ask(item: Workload, *used: Sequence[Usage], by: Sequence[Criteria] | None = None) -> FollowupQueries:
    found = usages(*zip(item.pods, map(tuple, used), strict=True))
    each = by or (criteria(),)
    windows = dict.fromkeys(frozenset().union(*(one.windows for one in each)), found)
    return followup_queries(fleet(item), Measured(AT, windows), lambda _: each)


HISTORIES: dict[str, tuple[Workload, tuple[list[Usage], ...], bool]] = {
    "idle": (workload(pod()), ([idle_usage()],), True),
    "busy": (workload(pod()), ([busy_usage()],), False),
    "idle-but-young": (workload(pod(started=AT - DAY)), ([idle_usage()],), True),
    "idle-but-very-young": (workload(pod(started=AT - DAY / 6)), ([idle_usage()],), False),
    "idle-but-half-known": (workload(pod()), ([idle_usage(coverage=0.5)],), False),
    "no-usage": (workload(pod()), ([],), False),
    "some-of-its-gpus": (workload(pod(devices=2), kind="Job"), ([busy_usage(0), idle_usage(1)],), True),
    "all-of-its-gpus": (workload(pod(devices=2), kind="Job"), ([busy_usage(0), busy_usage(1)],), False),
}


@pytest.mark.parametrize(("item", "used", "asked"), HISTORIES.values(), ids=HISTORIES.keys())
def test_history_is_queried_only_where_it_can_prevent_action(
    item: Workload, used: tuple[list[Usage], ...], asked: bool
) -> None:
    """Only for workloads that would be changed without earlier idle periods."""
    histories = _ask(item, *used).histories
    assert [set(request.pods) for request in histories] == ([{("research", "w-0")}] if asked else [])


def test_history_query_starts_with_the_pods() -> None:
    """As far back as the policy says, grouped by threshold."""
    pods = [
        pod("w-0", created=AT - 9 * DAY, started=AT - 8 * DAY),
        pod("w-1", created=AT - 9 * DAY, started=AT - 2 * DAY, restarts=3),
    ]
    (request,) = _ask(workload(*pods), [idle_usage(0)], [idle_usage(1)]).histories
    assert (request.span, request.percent) == (14 * DAY, 1.0)
    assert request.pods == {("research", "w-0"): AT - 8 * DAY, ("research", "w-1"): AT - 9 * DAY}


def test_history_query_of_several_criteria_uses_the_strictest() -> None:
    """The longest history, and the lowest utilization."""
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
def test_active_replicas_are_counted_where_replicas_may_alternate(
    item: Workload, used: tuple[list[Usage], ...], asked: bool
) -> None:
    """Not if all are always busy, unless scaled down; never for gangs."""
    requests = _ask(item, *used).concurrency
    assert [request.workloads for request in requests] == ([(item,)] if asked else [])
    assert all(request.criteria == TooManyReplicas() for request in requests)


@pytest.mark.parametrize(("mean", "asked"), [(0.4, True), (0.9, False)])
def test_waits_are_queried_only_for_low_activity(mean: float, asked: bool) -> None:
    """Waits do not matter for busy GPUs."""
    assert _ask(workload(pod()), [busy_usage(activity_mean=mean)]).waits is asked


def test_empty_fleet_needs_no_followup_queries() -> None:
    """Without workloads there are no queries."""
    assert followup_queries(Fleet((), {}, {}), Measured(AT, {}), lambda _: ()) == FollowupQueries(
        (), (), waits=False
    )


# Autoscalers.


def _case(counted: Concurrency | None, **changes: Any) -> Candidate:
    item = dataclasses.replace(workload(*(pod(f"w-{number}") for number in range(6))), created=AT - 30 * DAY)
    item = dataclasses.replace(item, **changes)
    found = usages(*((one, (busy_usage(number),)) for number, one in enumerate(item.pods)))
    known = {} if counted is None else {"uid-w": counted}
    return Candidate(
        item, measured(item, found, histories=ALWAYS, concurrency=known), criteria(), fleet(item)
    )


def _manifests(case: Candidate) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The ScaledObject and the HPA that are advised."""
    found = autoscalers_for(case, SOURCE)
    assert found is not None
    assert found.scaled_object is not None
    assert found.hpa is not None
    return found.scaled_object["spec"], found.hpa["spec"]


VARYING = Concurrency((*[1] * 100, *[2] * 50, *[3] * 60))


def test_autoscaler_bounds_are_headroom_and_all_replicas() -> None:
    """The query follows demand, so that the bounds need not; the maximum is at least the present number."""
    found = autoscalers_for(_case(VARYING), SOURCE)
    assert found is not None
    assert (found.lowest, found.highest) == (1, 6)
    scaled, hpa = _manifests(_case(VARYING))
    assert (scaled["minReplicaCount"], scaled["maxReplicaCount"]) == (1, 6)
    assert (hpa["minReplicas"], hpa["maxReplicas"]) == (1, 6)
    busier = autoscalers_for(_case(Concurrency((*[1] * 100, *[5] * 50, *[9] * 60))), SOURCE)
    assert busier is not None
    assert (busier.lowest, busier.highest) == (4, 13)


def test_autoscaler_maximum_is_the_original_number() -> None:
    """Replicas that gpu-rightsizer removed may come back."""
    found = autoscalers_for(_case(VARYING, size=2, annotations=SHRUNK), SOURCE)
    assert found is not None
    assert found.highest == 6


def test_autoscaler_manifests_target_the_workload() -> None:
    """Both manifests are complete."""
    found = autoscalers_for(_case(VARYING), SOURCE)
    assert found is not None
    for manifest in filter(None, (found.scaled_object, found.hpa)):
        assert manifest["metadata"] == {"name": "w", "namespace": "research"}
        assert manifest["spec"]["scaleTargetRef"] == {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "name": "w",
        }
    scaled, hpa = _manifests(_case(VARYING))
    (trigger,) = scaled["triggers"]
    assert (trigger["type"], trigger["metadata"]["serverAddress"]) == ("prometheus", SOURCE.server)
    assert hpa["metrics"][0]["pods"]["metric"] == {"name": "DCGM_FI_DEV_GPU_UTIL"}


def test_autoscaler_query_counts_active_replicas_plus_headroom() -> None:
    """Names are quoted."""
    need = ReplicaNeed(TooManyReplicas(), 3, 2)
    count = (
        'sum(max by (exported_pod) (max_over_time(DCGM_FI_DEV_GPU_UTIL{exported_namespace="research", '
        f'exported_pod=~"w-{HASHED}"}}[1m])) > bool 1)'
    )
    wanted = f"{count} + clamp_min(ceil({count} * 0.1), 2)"
    assert busy_replicas(_case(None), SOURCE, need, most=20) == wanted
    odd = _case(None, ref=dataclasses.replace(_case(None).workload.ref, name='a.b"c'))
    assert 'exported_pod=~"a\\\\.b\\"c-' in busy_replicas(odd, SOURCE, need, most=6)


def test_autoscaler_query_has_the_matchers_of_the_exporters() -> None:
    """Else any scraped pod could name replicas, and drive the autoscaler to its maximum."""
    source = dataclasses.replace(SOURCE, matchers=('cluster="a"', 'job="gpu"'))
    query = busy_replicas(_case(None), source, ReplicaNeed(TooManyReplicas(), 3, 2), most=6)
    assert query.count(', cluster="a", job="gpu"}[1m]') == query.count("DCGM_FI_DEV_GPU_UTIL") > 0


def test_autoscaler_query_of_many_replicas_rounds_up_to_a_twentieth() -> None:
    """Else KEDA changes a large service nearly every minute."""
    need = ReplicaNeed(TooManyReplicas(), 3, 2)
    one_by_one = busy_replicas(_case(None), SOURCE, need, most=20)
    assert busy_replicas(_case(None), SOURCE, need, most=101) == f"ceil(({one_by_one}) / 6) * 6"


@pytest.mark.parametrize(("interval_s", "span"), [(5.0, "1m"), (30.0, "1m"), (60.0, "2m"), (120.0, "4m")])
def test_autoscaler_query_looks_back_over_two_samples(interval_s: float, span: str) -> None:
    """A minute without a sample would be one without a busy replica."""
    source = dataclasses.replace(SOURCE, interval_s=interval_s)
    assert f"[{span}]" in busy_replicas(_case(None), source, ReplicaNeed(TooManyReplicas(), 3, 2), most=6)


@pytest.mark.parametrize(
    ("kind", "name", "pods", "others"),
    [
        pytest.param(
            "Deployment", "chat", "chat-6f7d9c5b4-x2x9z", "chat-large-6f7d9c5b4-x2x9z", id="deployment"
        ),
        pytest.param("StatefulSet", "chat", "chat-10", "chat-large-0", id="statefulset"),
        pytest.param("ReplicaSet", "chat", "chat-x2x9z", "chat-6f7d9c5b4-x2x9z", id="replicaset"),
        pytest.param("Deployment", "c" * 50, f"{'c' * 50}-6f7d9cx2x9z", "chat-6f7d9cx2x9z", id="long-name"),
    ],
)
def test_autoscaler_query_counts_no_pods_of_workloads_with_a_longer_name(
    kind: str, name: str, pods: str, others: str
) -> None:
    """Those of chat-large would keep chat large."""
    item = _case(None).workload
    case = _case(None, ref=dataclasses.replace(item.ref, kind=kind, name=name))
    (pattern,) = set(
        re.findall(
            'exported_pod=~"([^"]*)"',
            busy_replicas(case, SOURCE, ReplicaNeed(TooManyReplicas(), 3, 2), most=3),
        )
    )
    assert re.fullmatch(pattern, pods)
    assert not re.fullmatch(pattern, others)


NO_AUTOSCALER: dict[str, tuple[Concurrency | None, dict[str, Any]]] = {
    "steady": (concurrency(4), {}),
    "never-at-work": (concurrency(), {}),
    "not-counted": (None, {}),
    "unseen": (Concurrency((0,) * 215, (6,) * 215), {}),
    "unseen-in-part": (Concurrency((3,) * 215, (*[0] * 200, *[3] * 15)), {}),
    "training": (VARYING, {"gang": "PodGroup research/g"}),
    "scaler-is-paused": (VARYING, {"managers": (Manager("KEDA", "w"),)}),
    "two-scalers": (
        VARYING,
        {
            "managers": (
                Manager("KEDA", "w", scales=True),
                Manager("HorizontalPodAutoscaler", "w", scales=True),
            )
        },
    ),
}


@pytest.mark.parametrize(("counted", "changes"), NO_AUTOSCALER.values(), ids=NO_AUTOSCALER.keys())
def test_autoscaler_without_varying_demand_is_not_proposed(
    counted: Concurrency | None, changes: dict[str, Any]
) -> None:
    """Nor for gangs, nor where a person paused it or two autoscalers compete."""
    assert autoscalers_for(_case(counted, **changes), SOURCE) is None


@pytest.mark.parametrize(
    ("manager", "kind"), [("KEDA", "ScaledObject"), ("HorizontalPodAutoscaler", "HorizontalPodAutoscaler")]
)
def test_autoscaler_that_exists_is_replaced_by_one_of_its_name(manager: str, kind: str) -> None:
    """With other bounds and the query of active replicas; a second kind would fight it."""
    found = autoscalers_for(_case(VARYING, managers=(Manager(manager, "by-cpu", scales=True),)), SOURCE)
    assert found is not None
    (manifest,) = filter(None, (found.scaled_object, found.hpa))
    assert (manifest["kind"], manifest["metadata"]["name"]) == (kind, "by-cpu")
    assert found.replaces == f"{kind} by-cpu"


def test_autoscaler_for_a_kind_without_scale_is_not_proposed() -> None:
    """An InferenceService has its own; a replica of several pods is not counted."""
    for kind in ("InferenceService", "LeaderWorkerSet"):
        case = _case(VARYING)
        item = dataclasses.replace(
            case.workload, ref=dataclasses.replace(case.workload.ref, kind=kind), size=6
        )
        assert autoscalers_for(dataclasses.replace(case, workload=item), SOURCE) is None


def test_autoscaler_scales_up_at_once_and_down_slowly() -> None:
    """Replicas stay for the length of the window, at most an hour."""
    _, hpa = _manifests(_case(VARYING))
    assert hpa["behavior"] == {"scaleDown": {"stabilizationWindowSeconds": 600}}
    by = criteria(tooManyReplicas=TooManyReplicas(window=datetime.timedelta(minutes=30)))
    case = dataclasses.replace(_case(VARYING), criteria=by)
    _, quicker = _manifests(case)
    assert quicker["behavior"] == {"scaleDown": {"stabilizationWindowSeconds": 1800}}
