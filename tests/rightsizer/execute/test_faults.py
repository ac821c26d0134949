"""Faults of the API server, and others at work, in every phase of a cycle: rows A1 to A25 of what can go wrong.

Whatever happens, each object is as before or changed with its record, what is told is true, and the next run finishes
what this one could not, once.
"""

import datetime
import json
import pathlib
import time
import types
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from simulator.kube import Fault, LoggedRequest
from tests.rightsizer.commands import Run
from tests.rightsizer.world import DEFAULT_POLICY, World, created, stamp

pytestmark = pytest.mark.prometheus

UNDO, HISTORY = "gpu-rightsizer.io/undo", "gpu-rightsizer.io/history"
_Phase = tuple[str, str, int]
_IN_TEAM = "/namespaces/team-[0-9a-f]+"

PHASES: Mapping[str, _Phase] = {
    # One request of a cycle each: its method, its path, and how many such requests come before it.
    "config": ("GET", "configmaps/gpu-rightsizer-state$", 0),
    "lease": ("GET", "leases/gpu-rightsizer$", 0),
    "reconciliation": ("GET", "^/apis/apps/v1/deployments$", 0),
    "list": ("GET", "^/api/v1/pods$", 0),
    "join": ("GET", "/deployments/idle$", 0),
    "classes": ("GET", "/priorityclasses$", 0),
    "scope": ("POST", "/configmaps$", 0),
    "gate": ("GET", "configmaps/gpu-rightsizer-state$", 3),
    "look": ("GET", f"{_IN_TEAM}/pods$", 0),
    "read": ("GET", "/deployments/idle$", 2),
    "dry-run": ("PATCH", "/deployments/idle$", 0),
    "write": ("PATCH", "/deployments/idle$", 1),
    "event": ("POST", "/events$", 0),
    "verify": ("GET", f"{_IN_TEAM}/pods$", 1),
}
_GONE = {"kind": "Status", "status": "Failure", "code": 404, "message": 'deployments.apps "idle" not found'}
FAULTS: Mapping[str, dict[str, Any]] = {
    "401": {"status": 401},
    "403": {"status": 403},
    "404": {"status": 404, "body": _GONE},
    "409-once": {"status": 409, "times": 1},
    "409": {"status": 409},
    "410-once": {"status": 410, "times": 1},
    "410": {"status": 410},
    "400": {"status": 400},
    "422": {"status": 422},
    "429": {"status": 429, "headers": {"Retry-After": "1"}},
    "500": {"status": 500, "times": 1},
    "503": {"status": 503, "times": 1},
    "504-after": {"status": 504, "times": 1, "after_effect": True},
    "dropped": {"drop": True, "times": 1},
    "dropped-after": {"drop": True, "times": 1, "after_effect": True},
}
TABLE = """
A1  401           config:/2 list:/2 look:refused/1 dry-run:refused/1 write:refused/1 event:done/0
A2  403           list:/1 classes:/1 scope:/2 look:refused/1 read:refused/1 dry-run:refused/1 write:refused/1
A3  404           read:changed/0 dry-run:changed/0 write:changed/0
A4  409-once      scope:done/0 dry-run:done/0 write:done/0
A4  409           read:changed/0 dry-run:changed/0 write:changed/0
A5  410-once      reconciliation:done/0 list:done/0 classes:done/0 look:done/0
A5  410           list:/1 look:refused/1 verify:done/0
A6  422           scope:/1 dry-run:blocked/0 write:blocked/0
A6  400           dry-run:refused/1 write:refused/1
A7  429           list:/1 gate:skipped/1 look:refused/1 dry-run:refused/1 write:refused/1 event:done/0
A9  500           list:/1 write:refused/1
A9  503           list:/1 dry-run:refused/1 write:refused/1
A9  504-after     scope:/1 write:done/0
A9  dropped       config:/1 lease:/1 list:/1 join:/1 scope:/1 look:skipped/1 read:skipped/1 dry-run:skipped/1
A9  dropped       write:refused/1 event:done/0 verify:done/0
A9  dropped-after scope:/1 dry-run:skipped/1 write:done/0 event:done/0
"""
"""What is told of the workload, nothing where the run ended before, and the exit code."""
QUICK = {
    *("A1-401-list", "A1-401-look", "A1-401-write", "A2-403-classes", "A2-403-write", "A3-404-dry-run"),
    *(
        "A4-409-once-dry-run",
        "A4-409-write",
        "A5-410-look",
        "A6-422-dry-run",
        "A7-429-look",
        "A9-dropped-lease",
    ),
    *("A9-dropped-look", "A9-dropped-after-scope", "A9-504-after-write"),
}
"""In every `make test`; the others by `make check-deep`."""


def _cases() -> list[Any]:
    cases = []
    for line in TABLE.split("\n")[1:-1]:
        row, fault, *places = line.split()
        for phase, ended in (place.split(":") for place in places):
            name, (result, code) = f"{row}-{fault}-{phase}", ended.split("/")
            marks = () if name in QUICK else pytest.mark.deep
            cases.append(pytest.param(fault, phase, result, int(code), id=name, marks=marks))
    return cases


def _inject(world: World, phase: _Phase, fault: str) -> None:
    method, path, before = phase
    if before:
        world.api.inject(Fault(path, method, before, delay_s=0.001))  # these go through
    world.api.inject(Fault(path, method, **{"times": None, **FAULTS[fault]}))


def _apply(world: World) -> Run:
    return world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY)


def _replicas(world: World, name: str = "idle") -> int:
    replicas: int = created(world.api, "Deployment", world.team, name)["spec"]["replicas"]
    return replicas


def _annotations(world: World) -> dict[str, str]:
    metadata = created(world.api, "Deployment", world.team, "idle")["metadata"]
    found: dict[str, str] = metadata.get("annotations", {})
    return found


def _told(world: World, run: Run) -> str:
    """What was told of the workload, which must be true; empty where the run ended before."""
    assert "Traceback" not in run.err
    assert (_replicas(world), UNDO in _annotations(world)) in {(2, False), (0, True)}
    result = str(run.items["idle"]["result"]) if run.out else ""
    assert _replicas(world) == (0 if result == "done" else 2)
    assert result or run.err.strip().splitlines()[-1].startswith("error: ")
    return result


@pytest.mark.slow
@pytest.mark.parametrize(("fault", "phase", "result", "code"), _cases())
def test_apply_fault_in_phase_is_completed_once_by_next_run(
    world: World, fault: str, phase: str, result: str, code: int
) -> None:
    """The outcome is the right one and true, and the next run, without the fault, has it done exactly once.

    An object that allows no write is left alone for its cooldown instead.
    """
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    _inject(world, PHASES[phase], fault)
    run = _apply(world)
    assert (_told(world, run), run.code) == (result, code), run.err
    world.api.clear_faults()
    again = _apply(world)
    if result == "blocked":
        assert (again.code, _replicas(world), again.items) == (0, 2, {})
        return
    assert (again.code, _replicas(world), UNDO in _annotations(world)) == (0, 0, True), again.err
    assert ("idle" in again.items) == (result != "done")
    assert len(json.loads(_annotations(world)[HISTORY])) == 1


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["look", "dry-run", "write"])
@pytest.mark.parametrize("fault", ["401", "429"])
def test_apply_unauthorized_or_throttled_stops_all_requests(world: World, fault: str, phase: str) -> None:
    """A1, A7: with a token that is no good, or one request too many, the others are not even looked at."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.add("Deployment", world.team, "next", {})
    _inject(world, PHASES[phase], fault)
    items = _apply(world).items
    assert (items["idle"]["result"], items["next"]["result"]) == ("refused", "skipped")
    assert "after an earlier failure" in items["next"]["detail"]
    assert not [one for one in world.api.requests.all() if one.method == "PATCH" and "next" in one.path]


def test_notice_object_edited_since_read_is_not_written(world: World) -> None:
    """A20: it is tried, then given to that version of that object; who edits it in between gets none."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    before = created(world.api, "Deployment", world.team, "idle")["metadata"]
    policy = DEFAULT_POLICY.replace("mode: enforce", "mode: enforce\n    notifyBefore: 4h")
    run = world.run("apply", "--yes", "-o", "json", policy=policy)
    assert (run.items["idle"]["result"], run.items["idle"]["action"]) == ("done", "notice"), run.items
    tried, given = (one for one in world.api.requests.mutating(include_dry_run=True) if one.method == "PATCH")
    assert (tried.dry_run, given.dry_run, tried.json) == (True, False, given.json)
    named = {key: given.json["metadata"][key] for key in ("uid", "resourceVersion")}
    assert named == {key: before[key] for key in named}
    assert (_replicas(world), UNDO in _annotations(world)) == (2, False)


def test_release_counts_for_the_notice_that_it_follows_and_once(world: World) -> None:
    """An answer from before the notice goes with it; one after it frees at once, and goes with the change."""
    release = {"metadata": {"annotations": {"gpu-rightsizer.io/release": "true"}}}
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    policy = DEFAULT_POLICY.replace("mode: enforce", "mode: enforce\n    notifyBefore: 4h")

    def apply() -> tuple[str, str]:
        item = world.run("apply", "--yes", "-o", "json", policy=policy).items["idle"]
        return item["result"], item["action"]

    world.api.patch("Deployment", world.team, "idle", release)
    assert apply() == ("done", "notice")
    assert "gpu-rightsizer.io/release" not in _annotations(world)
    plan = world.run("plan", "-o", "json", policy=policy).items["idle"]
    assert [block["code"] for block in plan["blockers"]] == ["notice"]
    world.api.patch("Deployment", world.team, "idle", release)
    assert apply() == ("done", "scale-to-zero")
    assert (_replicas(world), UNDO in _annotations(world)) == (0, True)
    assert {"gpu-rightsizer.io/release", "gpu-rightsizer.io/notice"}.isdisjoint(_annotations(world))


def test_notice_tells_both_answers_as_commands(world: World) -> None:
    """In the Event and in the outcome, from which messages are made."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    policy = DEFAULT_POLICY.replace("mode: enforce", "mode: enforce\n    notifyBefore: 4h")
    detail = world.run("apply", "--yes", "-o", "json", policy=policy).items["idle"]["detail"]
    (event,) = world.api.list("Event", world.team)
    command = f"kubectl -n {world.team} annotate deployment.apps idle gpu-rightsizer.io/"
    for told in (detail, event["message"]):
        assert f"free it now: {command}release=true; keep it longer: {command}snooze-until=20" in told


# --- pods


_BLOCKED = {
    "A7-pdb": (429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget."),
    "A8-two-pdbs": (
        500,
        "InternalError",
        "This pod has more than one PodDisruptionBudget, which is not supported.",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["dry-run", "write"])
@pytest.mark.parametrize("row", _BLOCKED)
def test_evict_blocked_by_pdb_is_not_retried_in_same_run(world: World, row: str, phase: str) -> None:
    """It is blocked and not tried again in this run; nothing is left of it, and the next run may do it."""
    code, reason, message = _BLOCKED[row]
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
    body["details"] = {"causes": [{"reason": "DisruptionBudget", "message": "needs 1"}]}
    world.add("Pod", world.team, "shell", {})
    if phase == "write":
        world.api.inject(Fault("/shell/eviction$", "POST", 1, delay_s=0.001))
    world.api.inject(Fault("/shell/eviction$", "POST", None, status=code, body=body))
    run = _apply(world)
    assert (run.code, run.items["shell"]["result"]) == (0, "blocked")
    assert len([one for one in world.api.requests.all() if one.code == code]) == 1
    assert (world.api.list("Secret", "gpu-rightsizer"), len(world.pods_of(world.team, "shell"))) == ([], 1)
    world.api.clear_faults()
    assert _apply(world).items["shell"]["result"] == "done"


def test_evict_dry_run_precedes_saved_credentials(world: World) -> None:
    """A6: the trial says so in its query and in its body, and comes before credentials are saved for it."""
    world.add("Pod", world.team, "shell", {})
    world.api.inject(Fault("/shell/eviction$", "POST", 1, status=400))
    run = _apply(world)
    assert (run.code, run.items["shell"]["result"]) == (1, "refused")
    sent = [one for one in world.api.requests.all() if one.method == "POST" and "/shell/eviction" in one.path]
    assert [(one.dry_run, one.json["deleteOptions"]["dryRun"]) for one in sent] == [(True, ["All"])]
    assert not [
        one for one in world.api.requests.all() if one.path.endswith("/secrets") and one.method == "POST"
    ]


# --- others at work


class _At:
    """Someone who does something right after the answer to one request of a cycle."""

    def __init__(self, world: World, phase: str, happen: Callable[[World], None]) -> None:
        self._add, self._world, self._happen = world.api.requests.add, world, happen
        self._phase, self._left = PHASES[phase], PHASES[phase][2]
        self.happened = False
        world.api.requests.add = self.add  # type: ignore[method-assign]

    def add(self, entry: LoggedRequest) -> None:
        """Log the request, as before, and act once."""
        self._add(entry)
        if self.happened or Fault(self._phase[1], self._phase[0]).matches(entry.method, entry.path) is False:
            return
        self.happened = self._left == 0
        self._left -= 1
        if self.happened:
            self._happen(self._world)


def _annotate(world: World, **annotations: str) -> None:
    body = {
        "metadata": {"annotations": {f"gpu-rightsizer.io/{key}": text for key, text in annotations.items()}}
    }
    world.api.patch("Deployment", world.team, "idle", body)


def _opt_out(world: World) -> None:
    _annotate(world, mode="off")


def _scale(world: World) -> None:
    world.api.patch("Deployment", world.team, "idle", {"spec": {"replicas": 5}})


def _act_as_another(world: World) -> None:
    entry = {
        "at": stamp(datetime.datetime.now(datetime.UTC)),
        "run": "r9",
        "action": "scale-down",
        "gpus": 1,
        "by": "another",
    }
    _annotate(world, history=json.dumps([entry]))


def _fill(world: World) -> None:
    """With what leaves no room for a record: annotations share 256 KiB."""
    note = {"metadata": {"annotations": {"example.com/notes": "x" * (262_144 - 100)}}}
    world.api.patch("Deployment", world.team, "idle", note)


def _track(world: World) -> None:
    mark = {"argocd.argoproj.io/tracking-id": f"app:apps/Deployment:{world.team}/idle"}
    world.api.patch("Deployment", world.team, "idle", {"metadata": {"annotations": mark}})


def _resume(world: World) -> None:
    _annotate(world, **{"resumed-at": stamp(datetime.datetime.now(datetime.UTC))})


def _replace_class(world: World) -> None:
    spec = {"template": {"spec": {"priorityClassName": "high-priority"}}}
    world.api.patch("Deployment", world.team, "idle", {"spec": spec})


def _hang(world: World) -> None:
    for pod in world.pods_of(world.team, "idle"):
        held = {"metadata": {"finalizers": ["example.com/held"]}}
        world.api.patch("Pod", world.team, pod["metadata"]["name"], held)
        world.api.delete("Pod", world.team, pod["metadata"]["name"])
    world.api.settle()  # only the status that its controller writes tells of it


OTHERS = {
    "A12-fills-it": _fill,
    "A13-applies-it": _track,
    "A14-resumed-it": _resume,
    "A15-opts-out": _opt_out,
    "A18-replaces-the-class": _replace_class,
    "A20-scales": _scale,
    "A24-pods-do-not-go": _hang,
    "A25-another-rightsizer": _act_as_another,
}


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["classes", "look", "read", "dry-run"])
@pytest.mark.parametrize("who", OTHERS)
def test_apply_concurrent_edit_wins_over_rightsizer(world: World, who: str, phase: str) -> None:
    """After the plan's reading, the look, the second reading or the trial: their word holds, ours is not on it."""
    if (phase, who) == ("look", "A24-pods-do-not-go"):
        pytest.skip("its pods were read a moment before, and its own object does not tell of it")
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.clock.run()
    at = _At(world, phase, OTHERS[who])
    run = _apply(world)
    assert (at.happened, run.code, run.items["idle"]["result"]) == (True, 0, "changed"), run.items
    assert (_replicas(world), UNDO in _annotations(world)) == (5 if who.endswith("scales") else 2, False)


def _write_status(world: World) -> None:
    status = {"status": {"observedGeneration": 1, "conditions": []}}
    world.api.patch("Deployment", world.team, "idle", status, subresource="status")


def test_apply_status_write_conflict_is_rechecked_and_retried(world: World) -> None:
    """A4: after a conflict everything is looked at anew, and what still holds is done."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    at = _At(world, "dry-run", _write_status)
    run = _apply(world)
    assert (at.happened, run.items["idle"]["result"], _replicas(world)) == (True, "done", 0)
    assert (
        len([one for one in world.api.requests.all() if one.path.endswith("/poddisruptionbudgets")]) == 1 + 2
    )


@pytest.mark.slow
@pytest.mark.parametrize("phase", ["list", "look", "dry-run"])
def test_lease_lost_while_frozen_blocks_next_write(
    world: World, phase: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A10: frozen for a minute while another one took the Lease, it finds so before its next write."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    slept = [0.0]
    clock = types.SimpleNamespace(monotonic=lambda: time.monotonic() + slept[0], sleep=time.sleep)
    monkeypatch.setattr("rightsizer.cli.cycle.time", clock)

    def freeze(world: World) -> None:
        taken = {"spec": {"holderIdentity": "another", "renewTime": "2026-01-01T00:00:00.000000Z"}}
        world.api.patch("Lease", "gpu-rightsizer", "gpu-rightsizer", taken)
        slept[0] = 60.0

    at = _At(world, phase, freeze)
    run = _apply(world)
    assert (at.happened, run.code, _replicas(world)) == (True, 1, 2), run.err
    assert "this instance does not hold the Lease gpu-rightsizer" in run.err + run.out
    assert (UNDO in _annotations(world), "Traceback" in run.err) == (False, False)


ELSEWHERE = {
    "A11": ("execute/test_reconcile.py", "test_history_entry_is_written_in_same_patch_as_change"),
    "A12": ("kinds/test_patches.py", "test_patch_record_is_compact_plain_json"),
    "A13": ("execute/test_reconcile.py", "test_change_reverted_by_owner_is_reported_and_not_repeated"),
    "A14": ("changes/test_record_codec.py", "test_hold_off_doubles_with_each_revert"),
    "A16": ("planning/test_pauses.py", "test_apply_growth_by_policy_opens_breaker"),
    "A17": ("policy/test_policy_file.py", "test_policy_file_invalid_names_its_line"),
    "A18": ("policy/test_effective.py", "test_class_missing_protects_if_class_first"),
    "A19": ("policy/test_calendar.py", "test_window_over_zones_agrees_with_wall_clock"),
    "A21": ("planning/test_pauses.py", "test_apply_too_many_unready_nodes_opens_breaker"),
    "A22": ("planning/test_budget.py", "test_budget_workload_of_two_pools_counts_in_both"),
    "A23": ("inventory/test_workload_builder.py", "test_bare_pods_of_a_gang_are_one_workload"),
    "A24": ("execute/test_reconcile.py", "test_verify_pod_held_by_finalizer_is_reported"),
}
"""Rows that are no fault of one request, and what shows them."""


def test_fault_table_every_row_has_a_test() -> None:
    """Each of A1 to A25 here, or by the test that is named."""
    here = pathlib.Path(__file__)
    folder = here.parents[1]
    shown = {f"A{number}" for number in range(1, 26) if f"A{number}-" in here.read_text()} | {"A10"}
    shown |= {line.split()[0] for line in TABLE.split("\n")[1:-1]}
    for file, test in ELSEWHERE.values():
        assert f"def {test}(" in (folder / file).read_text()
    assert shown | ELSEWHERE.keys() == {f"A{number}" for number in range(1, 26)}
