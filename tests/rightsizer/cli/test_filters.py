"""Filters of plan and apply, as flags: what is shown and changed, and what is counted all the same."""

import io
import json
import logging

import pytest

from rightsizer.cli.messages import progress
from tests.rightsizer.world import DEFAULT_POLICY, World

TWO_A_RUN = DEFAULT_POLICY.replace("{per: run, workloads: 100}", "{per: run, workloads: 2}", 1)


@pytest.mark.prometheus
def test_plan_filter_shows_only_what_matches(world: World) -> None:
    """In the table, and in the document with its own totals; the named workload with its evidence."""
    for name in ("a", "b"):
        world.add("Deployment", world.team, name, {})
    world.add("Deployment", f"{world.team}-2", "c", {})
    run = world.run("plan", "-n", f"{world.team}-2", policy=DEFAULT_POLICY)
    assert f"Filter: namespace {world.team}-2: 1 of 3 workloads\n" in run.out
    assert [line.split()[0] for line in run.out.splitlines() if "/Deployment/" in line] == [
        f"{world.team}-2/Deployment/c"
    ]
    document = json.loads(world.run("plan", "--owner", "b", "-o", "json", policy=DEFAULT_POLICY).out)
    assert [item["name"] for item in document["items"]] == ["b"]
    assert (document["metadata"]["filter"], document["totals"]["workloads"]) == ("owner b", 1)
    named = world.run("plan", f"{world.team}/Deployment/a", policy=DEFAULT_POLICY)
    assert "sample coverage" in named.out
    assert "/Deployment/b" not in named.out


@pytest.mark.prometheus
def test_plan_filter_unknown_workload_names_others(world: World) -> None:
    """Exit code 2, and the workloads that there are."""
    world.add("Deployment", world.team, "idle", {})
    run = world.run("plan", f"{world.team}/Deployment/idel")
    assert run.code == 2
    assert f"holds or waits for GPUs in {world.team}; there are {world.team}/Deployment/idle\n" in run.err


@pytest.mark.prometheus
def test_plan_of_a_workload_that_was_changed_says_by_which_run(world: World) -> None:
    """And how to undo it; not that there is no such workload."""
    world.add("Deployment", world.team, "idle", {})
    name = f"{world.team}/Deployment/idle"
    assert world.run("apply", "--yes", policy=DEFAULT_POLICY).code == 0
    run = world.run("plan", name, policy=DEFAULT_POLICY)
    assert (run.code, f"error: {name}: holds no GPUs since 2" in run.err) == (2, True), run.err
    assert ": scale-to-zero by run 2" in run.err
    assert f"; to undo it: gpu-rightsizer undo {name}\n" in run.err


@pytest.mark.prometheus
def test_apply_filter_changes_a_part_of_what_it_would_without(world: World) -> None:
    """The budget counts all workloads: what comes after two others stays blocked, although they are left out."""
    for name in ("a", "b", "c"):
        world.add("Deployment", world.team, name, {})
    plan = world.run("plan", "-o", "json", policy=TWO_A_RUN).items
    assert [name for name, item in plan.items() if not item["blockers"]] == ["a", "b"]
    flags = ("apply", "--yes", "--verify-for", "0", "-o", "json")
    blocked = world.run(*flags, f"{world.team}/Deployment/c", policy=TWO_A_RUN)
    assert (blocked.code, blocked.items) == (0, {})
    run = world.run(*flags, f"{world.team}/Deployment/b", policy=TWO_A_RUN)
    assert {name: item["result"] for name, item in run.items.items()} == {"b": "done"}
    there = {name: world.api.get("Deployment", world.team, name) for name in "abc"}
    assert {name: one and one["spec"]["replicas"] for name, one in there.items()} == {"a": 1, "b": 0, "c": 1}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--selector", "a b"], '--selector "a b": write a label selector as for kubectl'),
        (["--finding", "idel"], '--finding "idel": must be one of '),
        (["--verdict", "kep"], "did you mean keep?"),
        (["research/eval"], "research/eval: write NAMESPACE/KIND/NAME"),
    ],
)
def test_plan_filter_malformed_is_refused(world: World, flags: list[str], words: str) -> None:
    """Before anything is asked; exit code 2."""
    run = world.run("plan", *flags)
    assert (run.code, run.out) == (2, "")
    assert words in run.err


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [_Terminal(), io.StringIO()], ids=["terminal", "file"])
def test_progress_is_shown_only_on_a_terminal(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second, on one line that is removed at the end; a warning comes through."""
    monkeypatch.setattr("rightsizer.cli.messages._PATIENCE_S", 0.0)
    monkeypatch.setattr("rightsizer.cli.messages._REFRESH_S", 0.0)
    before = logging.getLogger("rightsizer").level
    logging.getLogger("rightsizer").setLevel(logging.WARNING)
    try:
        with progress(stream):
            logging.getLogger("rightsizer.kube.cluster").info("GET /api/v1/pods")
            logging.getLogger("rightsizer.prometheus.query_api").info("query")
        assert logging.getLogger("rightsizer").level == logging.WARNING
    finally:
        logging.getLogger("rightsizer").setLevel(before)
    text = stream.getvalue()
    if stream.isatty():
        assert "reading the API server: 1 requests, 0 s" in text
        assert "asking Prometheus: 2 requests, 0 s" in text
        assert text.endswith("\r\x1b[K")
    else:
        assert text == ""
