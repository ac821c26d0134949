"""No requests: inference servers that nobody uses."""

import dataclasses
import datetime
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.model import FindingName, ObjectRef, ServingLoad, Verdict, Workload
from tests.rightsizer.build import (
    ALWAYS,
    AT,
    busy_usage,
    criteria,
    findings,
    history,
    idle_usage,
    pod,
    usages,
    workload,
)

UNUSED = ServingLoad("vLLM", 0, 0, 0, 0)
WINDOW = criteria().noRequests.window
KEPT = ServingLoad("vLLM", 12, 0, 0, 0)
NEVER = {("research", "w-0"): history("." * 240)}


def _found(
    item: Workload, *loads: ServingLoad | None, mean: float = 0.02, **changes: Any
) -> dict[str, Verdict]:
    """The findings about it, where each pod in turn has such a load."""
    usage = busy_usage(activity_mean=mean)
    pairs = zip(item.pods, loads, strict=True)
    serving = {WINDOW: {(one.ref.namespace, one.ref.name): load for one, load in pairs if load is not None}}
    measured = usages(*((one, (usage,)) for one in item.pods))
    found = findings(item, measured, **{"serving": serving, "histories": ALWAYS, **changes})
    return {finding.name: finding.verdict for finding in found}


def _service(*pods: Any, **changes: Any) -> Workload:
    return workload(*(pods or (pod("w-0"), pod("w-1"))), **changes)


def test_server_without_requests_is_unused() -> None:
    """Health checks keep its GPUs from being idle."""
    assert _found(_service(), UNUSED, UNUSED)[FindingName.NO_REQUESTS] is Verdict.ACT


@pytest.mark.parametrize(
    "load",
    [
        pytest.param(None, id="unknown-server"),
        pytest.param(KEPT, id="served"),
        pytest.param(dataclasses.replace(UNUSED, requests=None), id="counter-unknown"),
        pytest.param(dataclasses.replace(UNUSED, running=1), id="running"),
        pytest.param(dataclasses.replace(UNUSED, queued=1), id="queued"),
    ],
)
def test_one_replica_that_may_be_used_keeps_all(load: ServingLoad | None) -> None:
    """A load that is not known is not zero."""
    assert FindingName.NO_REQUESTS not in _found(_service(), UNUSED, load)


@pytest.mark.parametrize(
    ("load", "is_kept"),
    [
        (UNUSED, False),
        (None, False),
        (dataclasses.replace(UNUSED, requests=None), False),
        (KEPT, True),
        (dataclasses.replace(UNUSED, running=1), True),
        (dataclasses.replace(UNUSED, requests=None, queued=7), True),
    ],
    ids=["none", "no-server", "unknown", "served", "running", "queued"],
)
def test_server_with_requests_is_never_idle(load: ServingLoad | None, *, is_kept: bool) -> None:
    """A small model works between two samples, so its GPU gauges show nothing."""
    item, idle = _service(pod("w-0")), criteria().idle
    serving = {idle.window: {} if load is None else {("research", "w-0"): load}}
    found = findings(item, usages((item.pods[0], (idle_usage(),))), serving=serving, histories=NEVER)
    assert (FindingName.IDLE not in {one.name for one in found}) is is_kept
    assert (found[0].verdict is Verdict.KEEP) is is_kept


@pytest.mark.parametrize("longer", [True, False])
def test_requests_before_the_idle_window_do_not_count(*, longer: bool) -> None:
    """What was asked days ago does not keep a server that was idle since."""
    item, idle = _service(pod("w-0")), criteria().idle
    window = idle.window * 2 if longer else idle.window / 2
    serving = {window: {("research", "w-0"): KEPT}}
    found = findings(item, usages((item.pods[0], (idle_usage(),))), serving=serving, histories=NEVER)
    assert (found[0].name is FindingName.IDLE) is longer


def test_gpus_that_work_without_requests_are_kept() -> None:
    """Whatever they do, it is not for requests."""
    assert FindingName.NO_REQUESTS not in _found(_service(), UNUSED, UNUSED, mean=0.06)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"ref": ObjectRef("batch/v1", "Job", "research", "w", "uid-w")}, id="job"),
        pytest.param(
            {"ref": ObjectRef("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "research", "w", "uid-w")},
            id="grouped",
        ),
        pytest.param({"gang": "PodGroup research/ring"}, id="gang"),
    ],
)
def test_workloads_of_which_not_every_pod_serves_are_left_alone(changes: dict[str, Any]) -> None:
    """A job may begin to serve later; of a group only one pod does."""
    assert FindingName.NO_REQUESTS not in _found(_service(**changes), UNUSED, UNUSED)


def test_young_pod_is_not_judged() -> None:
    """Its counters began with it."""
    young = dataclasses.replace(pod("w-1"), started=AT - WINDOW + datetime.timedelta(minutes=1))
    assert FindingName.NO_REQUESTS not in _found(_service(pod("w-0"), young), UNUSED, UNUSED)


_LOADS = st.builds(
    ServingLoad,
    st.just("vLLM"),
    *(st.none() | st.sampled_from((0.0, 0.5, 3.0)) for _ in range(4)),
)


@hypothesis.given(loads=st.lists(_LOADS | st.none(), min_size=2, max_size=2), mean=st.floats(0, 1))
def test_more_load_or_less_knowledge_never_frees(loads: list[ServingLoad | None], mean: float) -> None:
    """Only if every counter is known to stand still, and nothing ran or waited, is anything freed."""
    is_unused = all(
        one is not None and one.requests == 0 and not one.running and not one.queued for one in loads
    )
    if FindingName.NO_REQUESTS in _found(_service(), *loads, mean=mean):
        assert is_unused
        assert mean <= 0.05
