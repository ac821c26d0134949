"""`gpu-rightsizer run`, as a process: cycles, metrics over HTTP, the Lease, files that change, and its end."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from rightsizer.report.metrics import METRICS
from simulator.kube import Fault
from simulator.prometheus import Prometheus
from tests.rightsizer.commands import run_command
from tests.rightsizer.relay import Relay
from tests.rightsizer.world import DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

_PATIENCE_S = 100
FREED = "gpu_rightsizer_freed_gpus{priority_class=low-priority}"
FREED_FOR = "gpu_rightsizer_freed_gpu_seconds_total{priority_class=low-priority}"
STOPPED = "gpu_rightsizer_actions_total{action=scale-to-zero,priority_class=low-priority,result=done}"


class Running:
    """A process of `run`."""

    def __init__(self, process: "subprocess.Popen[str]", log: pathlib.Path) -> None:
        self.process = process
        self._log = log

    @property
    def said(self) -> str:
        """What it has written so far."""
        return self._log.read_text()

    @property
    def url(self) -> str:
        """Where it serves."""
        wait_for(lambda: "metrics on port " in self.said, self)
        return f"http://127.0.0.1:{self.said.split('metrics on port ')[1].split(';')[0]}"

    def metrics(self) -> dict[str, float]:
        """By name and labels, in the order of their names."""
        text = requests.get(f"{self.url}/metrics", timeout=60).text
        return {
            sample.name
            + (
                "{" + ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items())) + "}"
                if sample.labels
                else ""
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def cycles(self) -> float:
        """How many have ended."""
        found = self.metrics()
        return sum(
            found.get(f"gpu_rightsizer_runs_total{{result={one}}}", 0) for one in ("success", "failure")
        )

    def end(self) -> int:
        """Ask it to end, and wait for that."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(_PATIENCE_S)


def wait_for(holds: Callable[[], object], running: Running) -> None:
    """Until it holds."""
    end = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < end, running.said
        assert running.process.poll() is None, running.said
        time.sleep(0.05)


@contextlib.contextmanager
def running(
    world: World, *flags: str, policy: str = DEFAULT_POLICY, name: str = "run", command: str = "run"
) -> Iterator[Running]:
    """A process of it; killed at the end where it has not ended."""
    path = world.directory / "policy.yaml"
    path.write_text(policy)
    log = world.directory / f"{name}.log"
    words = [sys.executable, "-m", "rightsizer", command, "--listen", "127.0.0.1:0"]
    words += ["--prometheus-url", world.prometheus.url, "--policy", str(path)]
    words += ["--kubeconfig", str(world.directory / "kubeconfig"), *flags]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (
        log.open("w") as out,
        subprocess.Popen(words, stdout=out, stderr=out, text=True, env=environment) as process,
    ):
        try:
            yield Running(process, log)
        finally:
            process.kill()


def test_run_cycle_longer_than_its_schedule_skips_and_says_so_once(world: World) -> None:
    """A line of ours at its end, and a counter; nothing of the library for each tick."""
    world.api.inject(Fault("/pods$", "GET", 1, delay_s=3.5))
    with running(world, "--every", "1s") as run:
        wait_for(lambda: run.cycles() >= 1, run)
        assert run.metrics()["gpu_rightsizer_skipped_cycles_total"] >= 2
        lines = [line for line in run.said.splitlines() if "skipped" in line]
        assert re.search(r"the cycle took [0-9a-z ]+: \d+ cycles skipped meanwhile", lines[0])
        assert all("skipped meanwhile" in line for line in lines)
        assert run.end() == 0


LENDERS = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
rules:
  - {name: lenders, match: {everything: true}, mode: enforce, onlyForPendingPods: [suspend]}
"""
SMALL = {"gpus": 2, "nodeSelector": {"pool": "small"}}


def _is_suspended(world: World, name: str) -> bool:
    return bool(created(world.api, "Job", world.team, name)["spec"].get("suspend"))


def _suspended(world: World) -> int:
    return sum(_is_suspended(world, name) for name in ("one", "two"))


def test_run_pending_pod_begins_a_cycle_within_seconds(world: World) -> None:
    """Only as many go as it needs; a pod that waits for CPU begins none."""
    world.node("small", resources={"nvidia.com/gpu": 4}, pool="small")
    for name in ("one", "two"):
        world.add("Job", world.team, name, {**SMALL, "usage": "idle"})
    with running(world, "--every", "1h", "--yes", "--verify-for", "0", policy=LENDERS) as run:
        wait_for(lambda: run.cycles() == 1, run)
        assert not _is_suspended(world, "one")
        world.add("Pod", world.team, "cpu", {"gpus": 0, "cpu": "900", "usage": "absent"})
        urgent = {**SMALL, "usage": "absent", "priorityClass": "high-priority", "age_h": 0}
        world.add("Pod", world.team, "urgent", urgent)
        wait_for(lambda: _is_suspended(world, "one") or _is_suspended(world, "two"), run)
        wait_for(lambda: run.cycles() == 2, run)
        assert not (_is_suspended(world, "one") and _is_suspended(world, "two"))
        assert run.said.count("a pod waits for GPUs: a cycle begins") == 1
        assert run.end() == 0


def test_run_cycle_for_a_pending_pod_is_tried_again_after_a_failure(world: World) -> None:
    """The pod waits on, and no schedule is due for an hour."""
    world.node("small", resources={"nvidia.com/gpu": 2}, pool="small")
    world.add("Job", world.team, "one", {**SMALL, "usage": "idle"})
    with running(world, "--every", "1h", "--yes", "--verify-for", "0", policy=LENDERS) as run:
        wait_for(lambda: run.cycles() == 1, run)
        world.api.inject(Fault("/namespaces$", "GET", 1, status=500))
        urgent = {**SMALL, "usage": "absent", "priorityClass": "high-priority", "age_h": 0}
        world.add("Pod", world.team, "urgent", urgent)
        wait_for(lambda: _is_suspended(world, "one"), run)
        assert run.metrics()["gpu_rightsizer_runs_total{result=failure}"] == 1
        assert run.end() == 0


def test_run_victim_that_refuses_is_replaced_within_seconds(world: World) -> None:
    """The pod waits on, no schedule is due for an hour, and the next plan chooses another victim."""
    world.node("small", resources={"nvidia.com/gpu": 4}, pool="small")
    for name in ("a-first", "b-second"):
        world.add("Job", world.team, name, {**SMALL, "usage": "idle"})
    world.api.inject(Fault("/jobs/a-first", "PATCH", times=None, status=422))
    with running(world, "--every", "1h", "--yes", "--verify-for", "0", policy=LENDERS) as run:
        wait_for(lambda: run.cycles() == 1, run)
        urgent = {**SMALL, "usage": "absent", "priorityClass": "high-priority", "age_h": 0}
        world.add("Pod", world.team, "urgent", urgent)
        wait_for(lambda: _is_suspended(world, "b-second"), run)
        assert not _is_suspended(world, "a-first")
        assert run.end() == 0


@pytest.mark.parametrize(
    ("status", "cycles"),
    [
        pytest.param(422, 3, id="the-objects-refuse"),
        pytest.param(409, 5, id="somebody-changes-them"),
    ],
)
def test_run_many_victims_that_refuse_delay_no_pod_for_each_of_them(
    world: World, status: int, cycles: int
) -> None:
    """A dry run shows which others refuse; what it does not show lets others go after three."""
    world.node("small", resources={"nvidia.com/gpu": 16}, pool="small")
    other = f"{world.team}-other"
    for number in range(6):
        world.add("Job", world.team, f"a{number}", {**SMALL, "usage": "idle"})
    world.add("Job", other, "idle", {**SMALL, "usage": "idle"})
    world.add("Pod", other, "busy", {**SMALL, "usage": "busy"})
    world.api.inject(Fault(f"/namespaces/{world.team}/jobs/a", "PATCH", times=None, status=status))
    with running(world, "--every", "1h", "--yes", "--verify-for", "5m", policy=LENDERS) as run:
        wait_for(lambda: run.cycles() == 1, run)
        urgent = {**SMALL, "usage": "absent", "priorityClass": "high-priority", "age_h": 0}
        world.add("Pod", world.team, "urgent", urgent)
        wait_for(lambda: created(world.api, "Job", other, "idle")["spec"].get("suspend"), run)
        assert run.said.count("a pod waits for GPUs: a cycle begins") <= cycles - 1
        assert run.end() == 0


def test_run_refused_demand_waits_for_no_verification_of_another(world: World) -> None:
    """The pods of what was stopped for the first pod end slowly; the second gets another victim meanwhile."""
    world.node("small", resources={"nvidia.com/gpu": 8}, pool="small")
    for name in ("a-slow", "b-refuses", "c-last"):
        world.add("Job", world.team, name, {**SMALL, "usage": "idle"})
    world.add("Pod", world.team, "busy", {**SMALL, "usage": "busy"})
    for pod in world.api.list("Pod", world.team):
        slow = {"metadata": {"finalizers": ["example.com/slow"]}}
        world.api.patch("Pod", world.team, pod["metadata"]["name"], slow)
    world.api.inject(Fault("/jobs/b-refuses", "PATCH", times=None, status=422))
    with running(world, "--every", "1h", "--yes", "--verify-for", "5m", policy=LENDERS) as run:
        wait_for(lambda: run.cycles() == 1, run)
        urgent = {**SMALL, "usage": "absent", "priorityClass": "high-priority", "age_h": 0}
        for name in ("first", "second"):
            world.add("Pod", world.team, name, urgent)
        wait_for(lambda: _is_suspended(world, "a-slow") and _is_suspended(world, "c-last"), run)
        assert run.end() == 0


def test_run_stops_verifying_for_a_pod_that_begins_to_wait(world: World) -> None:
    """The pods of the first victim end slowly; the next pod does not wait for that."""
    world.node("small", resources={"nvidia.com/gpu": 4}, pool="small")
    for name in ("one", "two"):
        world.add("Job", world.team, name, {**SMALL, "usage": "idle"})
    for pod in world.api.list("Pod", world.team):
        slow = {"metadata": {"finalizers": ["example.com/slow"]}}
        world.api.patch("Pod", world.team, pod["metadata"]["name"], slow)
    with running(world, "--every", "1h", "--yes", "--verify-for", "5m", policy=LENDERS) as run:
        wait_for(lambda: run.cycles() == 1, run)
        urgent = {**SMALL, "usage": "absent", "priorityClass": "high-priority", "age_h": 0}
        world.add("Pod", world.team, "first", urgent)
        wait_for(lambda: _suspended(world) == 1, run)
        world.add("Pod", world.team, "second", urgent)
        wait_for(lambda: _suspended(world) == 2, run)
        assert run.end() == 0


def test_run_without_enforcing_policy_only_reads(world: World) -> None:
    """Every metric of the table is there; the API server was only read."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.add("Deployment", world.team, "works", {"usage": "busy"})
    with running(world, "--schedule", "0 9-17 * * *", "--jitter", "10m") as run:
        wait_for(lambda: run.cycles() == 1, run)
        found = run.metrics()
        assert found["gpu_rightsizer_schedule_longest_interval_seconds"] == 16 * 3600 + 600
        names = {name.partition("{")[0] for name in found}
        quiet = {
            "gpu_rightsizer_actions_total",
            "gpu_rightsizer_actions_freed_gpus_total",
            "gpu_rightsizer_blocked_workloads",
            *(
                row.full_name
                for row in METRICS
                if row.labels == ("policy",) or "_scheduler_" in row.full_name
            ),
        }
        assert {row.full_name for row in METRICS} - quiet <= names
        assert found["gpu_rightsizer_gpus{finding=idle,priority_class=low-priority,verdict=act}"] == 2
        assert found["gpu_rightsizer_enforced_gpus{priority_class=low-priority}"] == 2
        assert found["gpu_rightsizer_enforcing"] == found["gpu_rightsizer_leader"] == 0
        assert requests.get(f"{run.url}/readyz", timeout=60).text == "ok\n"
        assert requests.get(f"{run.url}/healthz", timeout=60).status_code == 200
        assert requests.get(f"{run.url}/else", timeout=60).status_code == 404
        assert requests.head(f"{run.url}/", timeout=60).headers["Content-Type"].startswith("text/html")
        assert run.end() == 0
    assert world.api.requests.mutating(include_dry_run=True) == []


def test_run_enforces_policy_once_and_releases_lease(world: World) -> None:
    """What the policy enforces is done in the first cycle, and not again in the next ones."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.add("Pod", world.team, "shell", {})
    with running(world, "--every", "1s", "--yes") as run:
        wait_for(lambda: run.cycles() >= 3, run)
        found = run.metrics()
        assert found[STOPPED] == 1
        assert (
            found["gpu_rightsizer_actions_freed_gpus_total{action=scale-to-zero,priority_class=low-priority}"]
            == 2
        )
        freed = "gpu_rightsizer_freed_gpus{priority_class=low-priority}"
        left = "gpu_rightsizer_budget_remaining{per=hour,scope=cluster,unit=workloads}"
        assert (found[freed], found["gpu_rightsizer_leader"]) == (3, 1)
        seconds = "gpu_rightsizer_freed_gpu_seconds_total{priority_class=low-priority}"
        wait_for(lambda: run.metrics()[seconds] > 0, run)
        assert found[left] == 98
        lease = world.api.get("Lease", "gpu-rightsizer", "gpu-rightsizer")
        assert lease is not None
        assert lease["spec"]["holderIdentity"]
        assert run.end() == 0
    lease = world.api.get("Lease", "gpu-rightsizer", "gpu-rightsizer")
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == ""
    writes = [one for one in world.api.requests.mutating() if one.path.endswith("deployments/idle")]
    assert len(writes) == 1


def test_run_change_that_its_object_refuses_leaves_its_budget_to_another_team(world: World) -> None:
    """No schedule is due for an hour; the run goes on within seconds."""
    world.add("Deployment", world.team, "full", {"gpus": 4, "annotations": {"note": "9" * 261_950}})
    world.add("Deployment", f"{world.team}-other", "idle", {})
    policy = DEFAULT_POLICY.replace("- {per: run, workloads: 100}", "- {per: run, workloads: 1}")
    with running(world, "--every", "1h", "--yes", policy=policy) as run:
        wait_for(lambda: run.metrics().get(STOPPED) == 1, run)
        assert run.end() == 0


@pytest.mark.slow
def test_run_without_keep_sizes_reads_them_once(world: World) -> None:
    """It ends what an earlier policy kept; later cycles have nothing to end, until a policy keeps sizes again."""
    world.add("Deployment", world.team, "works", {"usage": "busy"})
    sizes = "/configmaps/gpu-rightsizer-sizes"

    def reads() -> int:
        return sum(one.method == "GET" and one.path.endswith(sizes) for one in world.api.requests.all())

    with running(world, "--every", "1s", "--yes") as run:
        wait_for(lambda: run.cycles() >= 3, run)
        assert reads() == 1
        (world.directory / "policy.yaml").write_text(f"{DEFAULT_POLICY}\nkeepSizes: 30d\n")
        wait_for(lambda: reads() >= 3, run)
        assert run.end() == 0


def test_run_pod_held_by_finalizer_counts_no_freed_gpu(world: World) -> None:
    """The change was made, but its GPU is not free: only what verification saw counts."""
    world.add("Deployment", world.team, "idle", {})
    (pod,) = world.pods_of(world.team, "idle")
    held = {"metadata": {"finalizers": ["example.com/hold"]}}
    world.api.patch("Pod", world.team, pod["metadata"]["name"], held)
    with running(world, "--every", "1s", "--yes", "--verify-for", "300ms") as run:
        wait_for(lambda: run.cycles() >= 1, run)
        found = run.metrics()
        assert found[STOPPED] == 1
        assert not any(name.startswith("gpu_rightsizer_actions_freed_gpus_total") for name in found)


@pytest.mark.slow
def test_run_metrics_after_restart_keep_freed_class(world: World) -> None:
    """Also of a class of which nothing is held any more, after a restart: the record on the object knows it."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.add("Deployment", world.team, "works", {"usage": "busy", "priorityClass": "high-priority"})
    with running(world, "--every", "1s", "--yes") as run:
        wait_for(lambda: run.metrics().get(FREED) == 2, run)
        found = run.metrics()
        assert found["gpu_rightsizer_held_whole_gpus{priority_class=high-priority}"] == 1
        assert found["gpu_rightsizer_waiting_gpus{priority_class=high-priority}"] == 0
        assert found["gpu_rightsizer_freed_gpus{priority_class=high-priority}"] == 0
        assert run.end() == 0
    with running(world, "--every", "1s", name="again") as run:
        wait_for(lambda: run.cycles() >= 1, run)
        assert run.metrics()[FREED] == 2
        wait_for(lambda: run.metrics()[FREED_FOR] > 0, run)


@pytest.mark.slow
def test_run_two_replicas_only_leader_writes(world: World) -> None:
    """The other one plans, says who holds the Lease, and takes over when it is given back."""
    with running(world, "--every", "1s", "--yes") as first:
        wait_for(lambda: first.cycles() >= 1, first)
        world.add("Deployment", world.team, "idle", {})
        with running(world, "--every", "1s", "--yes", name="second") as second:
            wait_for(lambda: STOPPED in first.metrics() and second.cycles() >= 2, second)
            assert STOPPED not in second.metrics()
            assert "holds the Lease" in second.said
            assert first.end() == 0
            world.add("Deployment", world.team, "idle-too", {})
            wait_for(lambda: STOPPED in second.metrics(), second)


@pytest.mark.slow
def test_run_missed_cycle_is_made_up_once_lease_is_free(world: World) -> None:
    """The next moment of its schedule is an hour away; it begins when the Lease is free, and only once."""
    world.add("Deployment", world.team, "idle-before", {})
    with running(world, "--every", "1h", "--yes") as first:
        wait_for(
            lambda: "last-cycle" in str(world.api.get("Lease", "gpu-rightsizer", "gpu-rightsizer")), first
        )
        with running(world, "--every", "1h", "--yes", name="second") as second:
            wait_for(lambda: second.cycles() == 1, second)
            world.add("Deployment", world.team, "idle", {})
            assert "holds the Lease" in second.said
            assert first.end() == 0
            wait_for(lambda: STOPPED in second.metrics(), second)
            assert second.said.count("the missed cycle runs now") == 1
            wait_for(lambda: second.cycles() == 2, second)
            assert second.end() == 0


def test_run_invalid_policy_blocks_actions_until_fixed(world: World) -> None:
    """It is said why, on /readyz as in the log; put right, it goes on."""
    world.add("Deployment", world.team, "idle", {})
    protecting = DEFAULT_POLICY.replace("mode: enforce", "mode: advise")
    with running(world, "--every", "1s", "--yes", policy=protecting) as run:
        wait_for(lambda: run.cycles() >= 1, run)
        path = world.directory / "policy.yaml"
        path.write_text("rules: [{")
        wait_for(lambda: requests.get(f"{run.url}/readyz", timeout=60).status_code == 503, run)
        assert "policy.yaml" in requests.get(f"{run.url}/readyz", timeout=60).text
        assert run.metrics()["gpu_rightsizer_config_last_reload_successful"] == 0
        assert STOPPED not in run.metrics()
        path.write_text(DEFAULT_POLICY)
        wait_for(lambda: STOPPED in run.metrics(), run)
        assert run.metrics()["gpu_rightsizer_config_last_reload_successful"] == 1
        assert "Traceback" not in run.said


RECONCILED = "gpu_rightsizer_reconciliations_total{action=record-revert,result=done}"
OPEN = "gpu_rightsizer_breaker_open{cause=refused}"


def test_run_regretted_change_is_counted_as_reconciliation(world: World) -> None:
    """From 0, so that Prometheus sees it increase; it is a reconciliation, and no action of ours."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    with running(world, "--every", "1s", "--yes", "--verify-for", "0") as run:
        wait_for(lambda: STOPPED in run.metrics(), run)
        assert run.metrics()[RECONCILED] == 0
        world.api.patch("Deployment", world.team, "idle", {"spec": {"replicas": 2}})
        wait_for(lambda: run.metrics()[RECONCILED] == 1, run)
        assert not [name for name in run.metrics() if "actions_total" in name and "record-revert" in name]


@pytest.mark.slow
def test_run_open_breaker_is_published_as_metric(world: World) -> None:
    """With its cause, also by who only plans; closed it is 0, and not there where nobody may read it."""
    with running(world, "--every", "1s") as run:
        wait_for(lambda: run.cycles() >= 1, run)
        assert run.metrics()[OPEN] == 0
        _store_breaker(
            world, {"trip": {"at": "2026-11-20T18:00:00Z", "cause": "refused", "reason": "3 errors"}}
        )
        wait_for(lambda: run.metrics()[OPEN] == 1, run)
        assert run.metrics()["gpu_rightsizer_breaker_open{cause=nodes}"] == 0
        world.run("breaker", "reset", "--reason", "looked")
        wait_for(lambda: run.metrics()[OPEN] == 0, run)
        world.api.inject(Fault("configmaps/gpu-rightsizer-state", "GET", None, status=403))
        wait_for(lambda: OPEN not in run.metrics(), run)


def _store_breaker(world: World, latch: dict[str, object]) -> None:
    data = {"breaker.json": json.dumps(latch)}
    metadata = {"name": "gpu-rightsizer-state", "namespace": "gpu-rightsizer"}
    world.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})


@pytest.mark.slow
def test_run_without_prometheus_keeps_running_without_actions(world: World) -> None:
    """The process stays and says so."""
    world.prometheus.stop()
    with running(world, "--every", "1s", "--yes") as run:
        wait_for(lambda: run.cycles() >= 2, run)
        assert "gpu_rightsizer_last_success_timestamp_seconds" in run.metrics()
        assert run.metrics()["gpu_rightsizer_runs_total{result=failure}"] >= 2
        assert requests.get(f"{run.url}/readyz", timeout=60).status_code == 503
        assert (run.end(), "Traceback" in run.said) == (0, False)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--every", "soon"], '--every "soon": is not a duration'),
        (["--every", "1ms"], '--every "1ms": a cycle asks the whole cluster; write 1s or more'),
        (["--every", "5m", "--schedule", "@daily"], "--schedule or --every, not both"),
        (["--schedule", "0 0 * * 7"], "--schedule: '7' is no weekday"),
        (["--time-zone", "Berlin"], "--time-zone: no time zone is called 'Berlin'"),
        (["--jitter", "x"], '--jitter "x": is not a duration'),
        (["--listen", "9401"], '--listen "9401": write HOST:PORT'),
        (["--listen", "127.0.0.1:99999"], "write HOST:PORT"),
        (["--listen", "192.0.2.1:9401"], "cannot be used"),
    ],
)
def test_run_invalid_flags_exit_2(world: World, flags: list[str], words: str) -> None:
    """They are told at once, with exit code 2."""
    base = ["--kubeconfig", str(world.directory / "kubeconfig"), "--prometheus-url", world.prometheus.url]
    run = run_command("run", *base, *flags)
    assert (run.code, words in run.err) == (2, True), run.err


def test_run_open_breaker_is_logged_each_cycle_and_ready(world: World) -> None:
    """In the log, with its reason; /readyz stays ok, since the cycles go through."""
    trip = {"at": "2026-11-21T10:00:00Z", "cause": "refused", "reason": "3 errors in a row", "run": "r"}
    state = {"breaker.json": json.dumps({"trip": trip})}
    metadata = {"name": "gpu-rightsizer-state", "namespace": "gpu-rightsizer"}
    world.api.create({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": state})
    world.add("Deployment", world.team, "works", {"usage": "busy"})
    with running(world, "--every", "1h", "--yes") as run:
        wait_for(lambda: run.cycles() == 1, run)
        assert "the breaker is open (refused), nothing is changed: 3 errors in a row" in run.said
        assert requests.get(f"{run.url}/readyz", timeout=60).text == "ok\n"


def test_run_json_log_format_writes_only_json_lines(world: World) -> None:
    """With --log-format json each line, also of a changed workload, is one JSON entry."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    with running(world, "--yes", "--verify-for", "0", "--log-format", "json") as run:
        wait_for(lambda: run.cycles() == 1, run)
        assert run.end() == 0
    entries = [json.loads(line) for line in run.said.splitlines()]
    messages = [entry["message"] for entry in entries]
    assert messages[-1] == "ended"
    assert sum(message.startswith("done ") for message in messages) == 1
    changes = [entry for entry in entries if "step" in entry]
    assert [(one["step"], one["name"], one.get("result")) for one in changes] == [
        ("intent", "idle", None),
        ("outcome", "idle", "done"),
    ]
    assert {one["run"] for one in changes} == {messages[1].split()[1].rstrip(":")}


@pytest.mark.parametrize("flags", [(), ("--verify-state",), ("--no-watch",)], ids=" ".join)
def test_run_with_yes_lists_pods_once_and_watches_them(world: World, flags: tuple[str, ...]) -> None:
    """A cycle acts on what the watch told since; --verify-state and --no-watch list in each."""
    world.add("Deployment", world.team, "works", {"usage": "busy"})

    def lists() -> int:
        asked = world.api.requests.all()
        pages = (one for one in asked if one.path in {"/api/v1/pods", "/api/v1/nodes"})
        return sum("watch=" not in one.query and "fieldSelector=" not in one.query for one in pages)

    with running(world, "--every", "1s", "--yes", *flags) as run:
        wait_for(lambda: run.cycles() >= 1, run)
        seen = lists()
        world.add("Deployment", world.team, "idle", {"replicas": 2})
        wait_for(lambda: run.metrics().get(STOPPED), run)
        done = run.cycles()
        wait_for(lambda: run.cycles() >= done + 2, run)
        assert (lists() == seen) is (not flags), run.said
        assert run.metrics()["gpu_rightsizer_kept_state_differences_total"] == 0


@pytest.mark.parametrize("command", ["run", "extend"])
def test_sigterm_while_prometheus_hangs_ends_the_process(world: World, command: str) -> None:
    """A query may take 100 seconds; the end comes before, with the exit code and the last line of any other."""
    world.add("Deployment", world.team, "idle", {})
    asked, hangs = threading.Event(), threading.Event()

    def hang(_: str) -> None:
        asked.set()
        hangs.wait()

    with Relay(world.prometheus.url) as relay:
        relay.hook = hang
        flags = ["--yes"] if command == "run" else ["--extender-listen", "127.0.0.1:0"]
        with running(world, *flags, "--prometheus-url", relay.url, command=command) as run:
            wait_for(asked.is_set, run)
            run.process.send_signal(signal.SIGTERM)
            assert run.process.wait(timeout=60) == 0, run.said
            assert run.said.splitlines()[-1].endswith("ended")
        hangs.set()


def test_state_file_lets_next_process_ask_only_for_new_slots(world: World) -> None:
    """What cannot be used is replaced with a warning: damaged, or as an unset volume, a folder."""
    world.add("StatefulSet", world.team, "eval", {"usage": "busy", "age_h": 20})
    file = world.directory / "state" / "slots"
    file.parent.mkdir()

    def slots() -> int:
        """The slots of windows that one process asked for."""
        relay.steps.clear()
        with running(world, "--prometheus-url", relay.url, "--state-file", str(file)) as run:
            wait_for(lambda: run.cycles() >= 1, run)
            assert run.end() == 0
        said.append(run.said)
        return max(number for number, step_s in relay.steps if step_s == 300)

    said: list[str] = []
    with Relay(world.prometheus.url) as relay:
        least = slots()
        slots()  # shows what the first answer may have lacked
        assert slots() < least / 2
        file.write_bytes(file.read_bytes()[:-1])
        (file.parent / ".slots-left").write_bytes(b"of a process that was killed while it wrote")
        assert slots() == least
        assert "is damaged, or of another version; all is queried" in said[-1]
        file.unlink()
        file.mkdir()
        assert slots() == least
        assert "is not written" in said[-1]
    assert [one.name for one in file.parent.iterdir()] == [file.name]


def test_state_file_of_another_cluster_is_not_used(
    world: World, prometheus: Prometheus, tmp_path: pathlib.Path
) -> None:
    """Clusters may ask one Prometheus by one address: names of pods are no proof of which cluster they are in."""
    file = tmp_path / "kept"
    given = ("--state-file", str(file))
    with running(world, *given) as run:
        wait_for(lambda: run.cycles() >= 1, run)
        assert run.end() == 0
    (tmp_path / "other").mkdir()
    with World(tmp_path / "other", prometheus, seed=2) as other, running(other, *given) as run:
        wait_for(lambda: run.cycles() >= 1, run)
        assert "it is of another version, or of another cluster; all is queried" in run.said
        assert run.end() == 0
