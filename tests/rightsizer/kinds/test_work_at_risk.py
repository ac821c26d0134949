"""GPU-hours that a stop destroys: since the last checkpoint that the owner or Volcano tells, or since the start."""

import dataclasses
import datetime
from collections.abc import Mapping

import hypothesis
import hypothesis.strategies as st
import msgspec
import pytest

from rightsizer.kinds.advice import stopping
from rightsizer.kinds.work_at_risk import CHECKPOINT_ANNOTATIONS, WorkAtRisk, progress_words, work_at_risk
from rightsizer.model import ObjectRef, Workload
from tests.rightsizer.build import AT, all_idle, fleet, judged, pod, policy, rule, workload

OURS, VOLCANO = CHECKPOINT_ANNOTATIONS
HOUR = datetime.timedelta(hours=1)


def _job(own: Mapping[str, str] | None = None, *of_pods: Mapping[str, str]) -> Workload:
    """A Job of pods with two GPUs that have run for ten hours."""
    pods = [
        pod(f"w-{number}", devices=2, started=AT - 10 * HOUR, annotations=each)
        for number, each in enumerate(of_pods or [{}])
    ]
    return workload(*pods, kind="Job", annotations=own or {})


def _ago(hours: float) -> str:
    return (AT - hours * HOUR).isoformat()


@pytest.mark.parametrize(
    ("item", "hours", "is_checkpointed"),
    [
        pytest.param(_job(), 20, False, id="never"),
        pytest.param(_job({OURS: _ago(2)}), 4, True, id="on-the-workload"),
        pytest.param(_job({VOLCANO: _ago(2)}), 4, True, id="volcano"),
        pytest.param(_job({OURS: _ago(5), VOLCANO: _ago(2)}), 4, True, id="the-later-one"),
        pytest.param(_job({}, {OURS: _ago(1)}, {OURS: _ago(3)}), 8, True, id="each-pod-its-own"),
        pytest.param(_job({}, {OURS: _ago(1)}, {}), 22, False, id="one-pod-has-none"),
        pytest.param(_job({OURS: _ago(12)}), 20, False, id="before-the-pods-started"),
        pytest.param(_job({OURS: _ago(-1)}), 20, False, id="in-the-future"),
        pytest.param(_job({OURS: "a while ago"}), 20, False, id="unreadable"),
    ],
)
def test_work_since_the_last_checkpoint_is_at_risk(
    item: Workload, hours: float, *, is_checkpointed: bool
) -> None:
    """What cannot be read, or cannot be, counts as no checkpoint."""
    found = work_at_risk(item, AT)
    assert found is not None
    assert found.gpu_hours == pytest.approx(hours)
    assert found.is_checkpointed is is_checkpointed


@pytest.mark.parametrize(
    ("item", "idle_h", "hours", "words"),
    [
        pytest.param(_job(), 4, 12, "at most 6h of work on 2 GPUs (12 GPU-hours)", id="since-it-started"),
        pytest.param(_job({OURS: _ago(6)}), 4, 4, "2h of work on 2 GPUs (4 GPU-hours) since", id="saved"),
        pytest.param(_job({OURS: _ago(2)}), 4, 0, "no work since its last checkpoint", id="saved-later"),
        pytest.param(_job(), 12, 0, "no work of its pods is known", id="never-worked"),
    ],
)
def test_idle_time_is_no_work_at_risk(item: Workload, idle_h: float, hours: float, words: str) -> None:
    """Otherwise what idles for longest would lose most, and go last."""
    found = work_at_risk(item, AT, idle_s=idle_h * 3600)
    assert found is not None
    assert found.gpu_hours == pytest.approx(hours)
    assert found.message.startswith(words)


def test_work_of_pods_that_hold_no_gpus_is_unknown() -> None:
    """Nothing is claimed about it."""
    assert work_at_risk(workload(pod(node=""), kind="Job"), AT) is None
    assert work_at_risk(workload(pod(started=None, created=None), kind="Job"), AT) is None


@pytest.mark.parametrize(
    ("risk", "message"),
    [
        (
            WorkAtRisk(1.87, 8, 14 * HOUR / 60, is_checkpointed=True),
            "14m of work on 8 GPUs (1.9 GPU-hours) since its last checkpoint",
        ),
        (
            WorkAtRisk(336, 2, 168 * HOUR, is_checkpointed=False),
            "at most 7d of work on 2 GPUs (336 GPU-hours); no checkpoint is known",
        ),
    ],
)
def test_work_at_risk_is_told_in_one_line(risk: WorkAtRisk, message: str) -> None:
    """With its age, and whether it is only a bound."""
    assert risk.message == message


def test_losses_of_a_job_count_its_work_and_those_of_a_server_do_not() -> None:
    """A Deployment loses memory, whatever its annotations say."""
    job = _job({OURS: _ago(2)})
    decision = stopping(judged(job, all_idle(job), policy()), fleet(job), AT)
    assert decision.lost.endswith("(2h of work on 2 GPUs (4 GPU-hours) since its last checkpoint)")
    assert decision.gpu_hours_at_risk == 4
    assert decision.gpu_hours_lost == pytest.approx(4 + 2 / 30, abs=1e-3)
    server = workload(annotations={OURS: _ago(2)})
    decision = stopping(judged(server, all_idle(server), policy()), fleet(server), AT)
    assert (decision.lost, decision.gpu_hours_at_risk) == ("memory of its pods", 0)
    assert decision.gpu_hours_lost == pytest.approx(server.gpus / 30, abs=1e-3)


def test_losses_count_the_restart_time_of_the_policy() -> None:
    """In place of what its kind takes; of several rules the longest."""
    server = workload()
    decision = judged(server, all_idle(server), policy(rule("all", restartTime="30m")))
    assert decision.gpu_hours_lost == pytest.approx(server.gpus / 2)
    assert judged(server, all_idle(server), policy()).gpu_hours_lost == pytest.approx(
        server.gpus / 30, abs=1e-3
    )


def test_losses_of_pods_that_started_at_an_unknown_time_are_unknown() -> None:
    """Unknown is not nothing."""
    job = workload(pod("w", started=None, created=None), kind="Job")
    assert stopping(judged(job, all_idle(job), policy()), fleet(job), AT).gpu_hours_lost is None


def test_restart_costs_more_where_members_meet_models_load_or_people_return() -> None:
    """A Job's process starts within minutes; a person comes back later."""
    costs = {
        kind: stopping(judged(item, all_idle(item), policy()), fleet(item), AT).gpu_hours_lost or 0.0
        for kind, api in (
            ("Deployment", "apps/v1"),
            ("NIMService", "apps.nvidia.com/v1alpha1"),
            ("RayService", "ray.io/v1"),
            ("Notebook", "kubeflow.org/v1"),
        )
        for item in [workload(ref=ObjectRef(api, kind, "research", "x", "uid-x"))]
    }
    assert sorted(costs, key=costs.__getitem__) == ["Deployment", "NIMService", "RayService", "Notebook"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        pytest.param(
            {"trainerStatus": {"progressPercentage": 95, "estimatedRemainingSeconds": 1200}},
            "95 % done, 20m left",
            id="TrainJob",
        ),
        pytest.param({"trainerStatus": {"lastUpdatedTime": "2026-11-01T00:00:00Z"}}, "", id="no-estimate"),
        pytest.param({"active": 2, "succeeded": 40}, "40 succeeded", id="Job"),
        pytest.param(
            {"replicatedJobsStatus": [{"name": "a", "succeeded": 3}, {"name": "b", "succeeded": 1}]},
            "4 succeeded",
            id="JobSet",
        ),
        pytest.param({"replicaStatuses": {"Worker": {"succeeded": 2}}}, "2 succeeded", id="PyTorchJob"),
        pytest.param({"trainerStatus": {"progressPercentage": "most"}}, "", id="unreadable"),
        pytest.param(None, "", id="none"),
    ],
)
def test_progress_is_shown_and_decides_nothing(status: object, words: str) -> None:
    """What a trainer reports is its own word: what is nearly done is as much at risk as before."""
    plain = _job({OURS: _ago(2)})
    item = dataclasses.replace(plain, status=msgspec.json.encode(status))
    before, decision = (
        stopping(judged(one, all_idle(one), policy()), fleet(one), AT) for one in (plain, item)
    )
    assert decision.gpu_hours_lost == before.gpu_hours_lost
    assert progress_words(item.status) == words
    assert decision.lost.endswith(f"; its status: {words})") is bool(words)


@hypothesis.given(st.floats(0, 30), st.floats(0, 30))
def test_later_checkpoint_never_puts_more_at_risk(one: float, other: float) -> None:
    """Nor is it ever more than since the start."""
    early, late = sorted((one, other), reverse=True)
    before, after = work_at_risk(_job({OURS: _ago(early)}), AT), work_at_risk(_job({OURS: _ago(late)}), AT)
    assert before is not None
    assert after is not None
    assert 0 <= after.gpu_hours <= before.gpu_hours + 1e-9 <= 20 + 1e-6
