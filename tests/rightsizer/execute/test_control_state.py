"""The gate before each write, on an API server: pauses, the breaker, and what opens it."""

import pathlib
from collections.abc import Iterator

import pytest
import yaml

from rightsizer.config import ClusterSettings
from rightsizer.execute.control_state import NAME, ActionGate, ControlStateStore
from rightsizer.kube.cluster import Cluster
from rightsizer.model import Blocker, BlockerCode, ObjectRef, Outcome, Result
from rightsizer.planning.breaker import BreakerTrip, Pause, with_pause
from rightsizer.policy.limits import Breaker
from simulator.kube import ApiServer
from tests.rightsizer.build import AT

STATE = "gpu-rightsizer"
REF = ObjectRef("apps/v1", "Deployment", "team", "web")


@pytest.fixture
def api() -> Iterator[ApiServer]:
    """An API server with the state namespace."""
    with ApiServer() as running:
        running.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": STATE}})
        yield running


@pytest.fixture
def store(api: ApiServer, tmp_path: pathlib.Path) -> ControlStateStore:
    """The state in that namespace."""
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(api.kubeconfig()))
    return ControlStateStore(Cluster(ClusterSettings(kubeconfig=path)), STATE)


@pytest.fixture
def gate(store: ControlStateStore) -> ActionGate:
    """A gate that bears one error."""
    return ActionGate(store, Breaker(maxErrors=2), "run-1", lambda: AT)


def _outcome(result: Result, *, is_out_of_policy: bool = False) -> Outcome:
    return Outcome(REF, "suspend", result, "why" * 999, 0, AT, is_out_of_policy=is_out_of_policy)


def test_gate_without_state_lets_all_pass(gate: ActionGate, store: ControlStateStore) -> None:
    """Nothing is written for that."""
    assert (gate.blocked_reason("team"), gate.trip()) == ("", "")
    assert store.place == f"ConfigMap {STATE}/{NAME}"


def test_gate_paused_namespace_is_blocked_while_others_are_not(
    gate: ActionGate, store: ControlStateStore
) -> None:
    """A person may pause during a run."""
    store.change(lambda state: with_pause(state, Pause(AT, "repair", "team")))
    assert "repair" in gate.blocked_reason("team")
    assert (gate.blocked_reason("other"), gate.trip()) == ("", "")


@pytest.mark.parametrize(
    ("results", "is_open"),
    [
        ([Result.REFUSED, Result.UNKNOWN], True),
        ([Result.REFUSED, Result.DONE, Result.REFUSED], False),
        ([Result.REFUSED, Result.BLOCKED, Result.CHANGED], False),
    ],
)
def test_gate_errors_in_a_row_open_the_breaker(
    gate: ActionGate, store: ControlStateStore, results: list[Result], *, is_open: bool
) -> None:
    """With the last of them, in few words; pauses stay."""
    pause = Pause(AT, "repair", "other")
    store.change(lambda state: with_pause(state, pause))
    for result in results:
        gate.note(_outcome(result))
    words = f"2 errors in a row, the last: {f'suspend of {REF}: ' + 'why' * 999:.500}"
    assert gate.trip() == (words if is_open else "")
    assert bool(gate.blocked_reason("team")) is is_open
    state = store.read()
    assert state.pauses == (pause,)
    assert state.latch.trip == (BreakerTrip(AT, BlockerCode.REFUSED, words, "run-1") if is_open else None)


def test_gate_errors_without_outcome_count_too(gate: ActionGate) -> None:
    """Such as of Prometheus."""
    gate.count_error("a")
    gate.count_error("b")
    assert gate.trip() == "2 errors in a row, the last: b"


def test_gate_write_out_of_policy_opens_the_breaker_at_once(gate: ActionGate) -> None:
    """Later reasons do not replace it."""
    gate.note(_outcome(Result.REFUSED, is_out_of_policy=True))
    assert gate.trip().startswith(f"the API server refused a write as out of policy: suspend of {REF}: why")
    gate.open(Blocker(BlockerCode.BUDGET, "later"))
    assert "out of policy" in gate.trip()


def test_gate_opened_by_a_plan_keeps_cause_and_run(gate: ActionGate, store: ControlStateStore) -> None:
    """The first reason stays."""
    gate.open(Blocker(BlockerCode.UNKNOWN, "too many nodes are not ready"))
    assert store.read().latch.trip == BreakerTrip(
        AT, BlockerCode.UNKNOWN, "too many nodes are not ready", "run-1"
    )
