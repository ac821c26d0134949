"""`gpu-rightsizer doctor` on a true world: a real Prometheus, an API server with RBAC, and what is left of them."""

import datetime
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
import yaml

from rightsizer.config import PrometheusSettings
from rightsizer.doctor.diagnosis import Facts, Failure, Naming, Recorded, Status
from rightsizer.doctor.examination import FactSources, collect_facts, diagnose
from rightsizer.doctor.rights import RIGHTS, Purpose, Right, needed
from rightsizer.errors import ConfigurationError
from rightsizer.kube.cluster import Cluster
from rightsizer.policy.policy_file import BUILT_IN
from rightsizer.prometheus.query_api import Prometheus as Client
from rightsizer.usage.sources import SourceSettings
from simulator.kube import LoggedRequest, Rule
from simulator.kube.api import ApiServer
from simulator.kube.proxying import parse_proxy_path
from simulator.kube.requests import parse_path
from simulator.prometheus import Prometheus
from tests.rightsizer.commands import Run, run_command
from tests.rightsizer.metrics import MEMORY, UTIL, Metrics, idle
from tests.rightsizer.world import World

pytestmark = pytest.mark.prometheus

AHEAD = -datetime.timedelta(minutes=10)
"""Series end a little after now, however long it takes to ask about them."""

ENFORCING = """
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
budgets: [{scope: cluster, per: hour, workloads: 20}]
rules:
  - {name: all, match: {everything: true}, mode: enforce, actions: [scale-to-zero, suspend, evict]}
"""


@pytest.fixture
def good(world: World) -> World:
    """A cluster with one node of two GPUs that a Deployment holds, all of them measured."""
    world.api.delete("Node", None, "n1")
    world.node("n1", resources={"nvidia.com/gpu": 2})
    world.labels = {"cluster": world.team, "Hostname": "n1"}
    world.add("Deployment", world.team, "web", {"gpus": 2})
    return world


def diagnosed(run: Run) -> dict[str, dict[str, Any]]:
    """What it says, by check; the worst where it says several things."""
    order = ["ok", "unknown", "warning", "error"]
    checks = sorted(json.loads(run.out)["checks"], key=lambda one: order.index(one["status"]))
    return {one["check"]: one for one in checks}


def doctor(world: World, *flags: str, policy: str | None = None) -> tuple[Run, dict[str, dict[str, Any]]]:
    """Ask it for JSON."""
    run = world.run(
        "doctor", "-o", "json", "--prometheus-label", f"cluster={world.team}", *flags, policy=policy
    )
    return run, diagnosed(run)


def grant(api: ApiServer, rights: Iterable[Right], namespace: str) -> str:
    """An account that has these rights and no others; its token."""
    name = f"user-{len(api.requests.all())}"
    api.add_user(f"{name}-token", name)
    for right in rights:
        namespaces = (namespace,) if right.is_own else ("*",)
        api.allow(
            Rule(name, (right.verb,), (right.resource,), (right.group,), namespaces, right.names or ("*",))
        )
    return f"{name}-token"


# --- where all is well


def test_doctor_command_healthy_cluster_exits_0_without_writes(good: World) -> None:
    """Nothing but that there is no more than a day on record; exit code 0, and nothing is written."""
    run, found = doctor(good)
    assert {name: one["message"] for name, one in found.items() if one["status"] != "ok"} == {
        "retention": found["retention"]["message"]
    }
    assert run.code == 0
    assert "(Prometheus " in found["reachable"]["message"]
    assert found["scrape-interval"]["message"] == "a sample every 1m"
    assert good.api.requests.mutating(include_dry_run=True) == []


def test_doctor_command_table_lists_families_and_summary(good: World) -> None:
    """Every family; the last line says what it comes to."""
    run = good.run("doctor", "--prometheus-label", f"cluster={good.team}")
    assert run.code == 0
    for family in ("INVENTORY", "PERMISSIONS", "PROMETHEUS", "SIGNALS", "COVERAGE", "POLICY"):
        assert f"\n{family}\n" in f"\n{run.out}"
    assert run.out.splitlines()[-1] == "No errors; 1 warning."


@pytest.mark.slow
def test_doctor_command_yaml_output_equals_json(good: World) -> None:
    """But for what is measured anew each time."""
    label = f"cluster={good.team}"
    as_yaml = yaml.safe_load(good.run("doctor", "-o", "yaml", "--prometheus-label", label).out)
    assert [one["check"] for one in as_yaml["checks"]] == [
        one["check"] for one in json.loads(doctor(good)[0].out)["checks"]
    ]


def test_doctor_command_unscraped_or_short_nodes_are_reported(good: World) -> None:
    """A node without series is an error; one with missing devices and a foreign one are warnings."""
    good.node("n2", resources={"nvidia.com/gpu": 4})
    good.node("n3", resources={"nvidia.com/gpu": 4})
    good.labels = {"cluster": good.team, "Hostname": "n3"}
    good.add("Deployment", good.team, "more", {"gpus": 1, "nodeSelector": {}})
    run, found = doctor(good)
    assert run.code == 1
    assert found["nodes"]["message"] == "1 of 3 GPU nodes have no GPU series: n2"
    assert found["nodes"]["command"].endswith("spec.nodeName=n2")
    assert "n3 (1 of 4)" in found["devices"]["message"]


def test_doctor_command_gpu_pods_missing_in_series_are_reported(good: World) -> None:
    """Held by a pod, and the device's series say nothing of it."""
    good.labels = {"cluster": good.team, "Hostname": "n1"}
    good.node("n2", resources={"nvidia.com/gpu": 4})
    good.add("Deployment", good.team, "dark", {"gpus": 4, "usage": "absent"})
    _, found = doctor(good)
    assert found["owners"]["status"] == "ok"  # of n2 nothing is seen at all
    assert found["nodes"]["status"] == "error"


# --- where half of the world is away


def test_doctor_command_without_api_server_checks_metrics(good: World) -> None:
    """Everything that takes Prometheus alone is; exit code 1."""
    good.api.stop()
    run, found = doctor(good)
    assert run.code == 1
    assert found["cluster"]["status"] == "error"
    told = {
        name: found[name]["status"] for name in ("reachable", "clock", "source", "scrape-interval", "file")
    }
    assert set(told.values()) == {"ok"}
    assert {found[name]["status"] for name in ("labels", "plan", "nodes", "classes")} == {"unknown"}


def test_doctor_command_without_kubeconfig_checks_metrics(good: World, tmp_path: pathlib.Path) -> None:
    """The same, and it says what to give."""
    label = f"cluster={good.team}"
    url = good.prometheus.url
    run = run_command(
        "doctor",
        "-o",
        "json",
        "--prometheus-url",
        url,
        "--kubeconfig",
        str(tmp_path / "no"),
        "--prometheus-label",
        label,
    )
    assert run.code == 1
    found = diagnosed(run)
    assert (found["cluster"]["status"], found["source"]["status"]) == ("error", "ok")
    assert "no such file" in found["cluster"]["message"]


@pytest.mark.slow
def test_doctor_command_without_prometheus_checks_cluster(good: World) -> None:
    """Permissions, objects and the policy are; what takes metrics is not known."""
    flags = ["--kubeconfig", str(good.directory / "kubeconfig"), "--prometheus-url", "http://127.0.0.1:1"]
    run = run_command("doctor", "-o", "json", *flags)
    found = diagnosed(run)
    assert run.code == 1
    assert "Connection refused" in found["reachable"]["message"]
    assert {found[name]["status"] for name in ("cluster", "plan", "apply", "undo", "file", "rules")} == {"ok"}
    assert {found[name]["status"] for name in ("clock", "retention", "labels", "values", "nodes")} == {
        "unknown"
    }


def test_doctor_command_all_403_reports_missing_permissions(good: World) -> None:
    """It lists the missing rights by command, and still checks the metrics."""
    good.write_kubeconfig(grant(good.api, (), "x"))
    run, found = doctor(good)
    assert run.code == 1
    assert found["cluster"]["status"] == "error"
    assert "not allowed to list pods" in found["plan"]["message"]
    assert found["source"]["status"] == "ok"
    nobody = run_command("doctor", "-o", "json", "--kubeconfig", str(good.directory / "kubeconfig"))
    assert 'cannot list resource "services"' in diagnosed(nobody)["reachable"]["message"]


def test_doctor_command_invalid_token_401_gives_no_traceback(good: World) -> None:
    """Every question to the API server ends in 401, and none in a traceback."""
    good.write_kubeconfig("of-bad-news")
    run, found = doctor(good)
    assert run.code == 1
    assert "401 Unauthorized" in found["cluster"]["message"]
    assert found["plan"]["status"] == "unknown"
    assert found["source"]["status"] == "ok"


def test_doctor_command_invalid_policy_reports_all_problems(good: World) -> None:
    """All its problems are reported, and the other checks still run."""
    run, found = doctor(good, policy="kind: Policy\nrules: []\n")
    assert run.code == 1
    assert "apiVersion" in found["file"]["message"]
    assert (found["cluster"]["status"], found["source"]["status"]) == ("ok", "ok")
    assert {found[name]["status"] for name in ("classes", "rules", "budgets", "calendar")} == {"unknown"}


def test_doctor_command_invalid_flags_exit_2_without_requests(good: World) -> None:
    """As in the other commands: exit code 2, and nothing is asked."""
    before = len(good.api.requests.all())
    assert run_command("doctor", "--prometheus-url", "not a url").code == 2
    assert len(good.api.requests.all()) == before


# --- permissions


@pytest.mark.slow
@pytest.mark.parametrize("command", [Purpose.PLAN, Purpose.APPLY, Purpose.UNDO])
def test_doctor_command_permissions_are_reported_per_command(good: World, command: Purpose) -> None:
    """An account with the rights of one command lacks only those of the others."""
    good.write_kubeconfig(grant(good.api, needed(RIGHTS, command), "gpu-rightsizer"))
    _, found = doctor(good)
    assert found[command.value]["status"] == "ok"
    others = {Purpose.PLAN, Purpose.APPLY, Purpose.UNDO} - {command}
    lacking = {one.value for one in others if _verbs(one) - _verbs(command)}
    assert {one for one in ("plan", "apply", "undo") if found[one]["status"] != "ok"} == {
        one for one in lacking if one != command.value
    }


def _verbs(command: Purpose) -> set[tuple[object, ...]]:
    """What a command asks for, whatever is lost without."""
    return {(one.verb, one.group, one.resource, one.is_own) for one in needed(RIGHTS, command)}


def used(log: Iterable[LoggedRequest]) -> set[tuple[str, str, str]]:
    """Verb, group and resource of each request, as RBAC counts it; whether it was allowed, not its result."""
    verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}
    found = set()
    for entry in log:
        if parse_proxy_path(entry.path):
            found.add(("get", "", "services/proxy"))
            continue
        route = parse_path(entry.path)
        if route is None or entry.path.endswith("accessreviews"):
            continue
        target = route[0]
        part = f"/{target.subresource}" if target.subresource else ""
        verb = verbs.get(entry.method, "get" if target.name else "list")
        found.add((verb, target.resource.group, f"{target.resource.plural}{part}"))
    return found


@pytest.mark.slow
def test_permission_table_covers_every_request_of_each_command(good: World) -> None:
    """Each runs with its rights alone, asks for nothing beyond them, and uses all that write."""
    good.node("n2", resources={"nvidia.com/gpu": 8})
    for kind in ("StatefulSet", "ReplicaSet", "Job", "Pod"):
        good.add(kind, good.team, kind.lower(), {})
    good.add("Pod", good.team, "asked", {})
    label = ["--prometheus-label", f"cluster={good.team}"]
    for command, arguments in {
        Purpose.PLAN: ["plan", *label],
        Purpose.APPLY: ["apply", "--yes", *label],
        Purpose.UNDO: ["undo", "--all", "--yes"],
    }.items():
        rights = needed(RIGHTS, command)
        good.write_kubeconfig(grant(good.api, rights, "gpu-rightsizer"))
        good.api.requests.clear()
        run = good.run(*arguments, policy=None if command is Purpose.UNDO else POLICY_OF_A_DAY)
        assert run.code == 0, run.err + run.out
        table = {(right.verb, right.group, right.resource) for right in rights}
        asked = used(good.api.requests.all())
        # What discovery shows to have a scale cannot stand in a table; docs/kinds.md tells what it takes.
        assert asked - {("list", "apps.kruise.io", "clonesets")} <= table
        # Of the rest test_every_kind.py shows that they are needed, and suffice.
        rest = {"cronjobs", "replicationcontrollers"}
        writes = {
            row for row in table if row[0] not in {"get", "list", "watch"} and row[1] in {"", "apps", "batch"}
        }
        writes = {row for row in writes if row[2] not in rest}
        if command is Purpose.APPLY:  # takes a manifest back only where the eviction was refused
            writes.remove(("delete", "", "secrets"))
        # The first run makes one, and undo changes one only where sizes are kept.
        writes.discard(("patch", "", "configmaps"))
        assert writes - asked == set()
        known = [entry for entry in good.api.requests.all() if "clonesets" not in entry.path]
        assert {entry.code for entry in known} <= {200, 201, 404}
        good.api.settle()


POLICY_OF_A_DAY = ENFORCING.replace(
    "rules:",
    """defaults: {idle: {history: 24h, minCoverage: 0.9}, kinds: []}
rules:
  - {name: asked, match: {labels: {app: asked}}, mode: enforce, actions: [evict], notifyBefore: 1h}""",
).replace(
    "workloads: 20}",
    "workloads: 20}, {scope: cluster, per: run, workloads: 9}, {scope: namespace, per: run, workloads: 9}",
)


def test_doctor_command_roles_prints_manifests_without_requests(good: World) -> None:
    """Printed without asking anything."""
    before = len(good.api.requests.all())
    run = run_command("doctor", "--roles", "--state-namespace", "ours")
    documents = list(yaml.safe_load_all(run.out))
    assert (run.code, len(good.api.requests.all())) == (0, before)
    assert {(one["kind"], one["metadata"]["name"]) for one in documents} >= {
        ("ClusterRole", "gpu-rightsizer-plan"),
        ("Role", "gpu-rightsizer-undo"),
    }
    assert {one["metadata"].get("namespace") for one in documents if one["kind"] == "Role"} == {"ours"}


# --- what is asked of Prometheus


def asked(metrics: Metrics, labels: dict[str, str] | None = None) -> Facts:
    """The facts about one test's series; there is no cluster."""

    def no_cluster() -> Cluster:
        raise ConfigurationError("there is none")

    sources = FactSources(
        cluster=no_cluster,
        prometheus=lambda: Client(PrometheusSettings(url=metrics.prometheus.url)),
        is_named=True,
        policy=lambda: BUILT_IN,
        evicts=lambda _: False,
        terms=SourceSettings(metrics.labels if labels is None else labels),
        own="gpu-rightsizer",
        clock=lambda: datetime.datetime.now(datetime.UTC),
    )
    return collect_facts(sources)


@pytest.fixture
def metrics(prometheus: Prometheus) -> Metrics:
    """Series of this test's own."""
    return Metrics(prometheus)


def test_doctor_command_scrape_interval_and_history_are_reported(metrics: Metrics) -> None:
    """As the series have it."""
    metrics.write(idle(), pod="a", until=AHEAD, step_s=30)
    facts = asked(metrics)
    assert facts.interval_s == 30
    assert isinstance(facts.begins, datetime.datetime)
    assert abs(facts.begins - (metrics.at - datetime.timedelta(days=1))) < datetime.timedelta(minutes=30)


def test_doctor_command_duplicate_series_are_reported_by_job(metrics: Metrics) -> None:
    """A device that two jobs scrape; one that a pair of Prometheus does; one that several pods share is no copy."""
    metrics.write(idle(), pod="a", until=AHEAD)
    metrics.write(idle(), {"replica": "1"}, pod="a", until=AHEAD)
    metrics.write(idle(), pod="b", UUID="shared", until=AHEAD)
    metrics.write(idle(), pod="c", UUID="shared", until=AHEAD)
    naming = asked(metrics).naming
    assert naming == Naming({"pod": 4}, (), 2, (metrics.space,), 1)
    metrics.write(idle(), {"job": "again"}, pod="b", UUID="shared", until=AHEAD)
    again = asked(metrics).naming
    assert isinstance(again, Naming)
    assert (again.copies, again.jobs) == (2, ("again", metrics.space))


def test_doctor_command_exporter_pod_label_is_not_counted(metrics: Metrics) -> None:
    """The exporter's own pod, beside which another is named, is not counted."""
    metrics.write(idle(), pod="a", until=AHEAD)
    metrics.write(idle(), pod="exporter", exported_pod="b", exported_namespace="x", UUID="2", until=AHEAD)
    naming = asked(metrics).naming
    assert isinstance(naming, Naming)
    assert naming.forms == {"pod": 1, "exported_pod": 1}


@pytest.mark.parametrize("minutes", [7, 80, 23 * 60])
def test_doctor_command_series_that_ended_are_reported_without_a_cluster(
    metrics: Metrics, minutes: int
) -> None:
    """With when they did; their interval and pods are those of then."""
    metrics.write(idle(), pod="a", step_s=15, until=datetime.timedelta(minutes=minutes))
    facts = asked(metrics)
    assert facts.ended == metrics.at - datetime.timedelta(minutes=minutes)
    assert isinstance(facts.naming, Naming)
    assert (facts.interval_s, facts.naming.forms) == (15.0, {"pod": 1})
    said = {check.name: (one.status, one.words) for check, one in diagnose(facts)}
    assert said["source"][0] is Status.ERROR
    assert "ago: every verdict is unknown" in said["source"][1]


def test_doctor_command_partial_recording_rules_are_reported(metrics: Metrics) -> None:
    """Only those of metrics that the source has are expected."""
    metrics.write({UTIL: 0, MEMORY: 1}, pod="a", until=AHEAD)
    recorded = {"metric": UTIL}
    metrics.write({"gpu_rightsizer:activity:max5m": 0}, recorded, pod="a", until=AHEAD)
    found = asked(metrics).recorded
    assert isinstance(found, Recorded)
    assert ("gpu_rightsizer:activity:max5m", UTIL) in found.present & found.expected
    assert {metric for _, metric in found.expected} == {UTIL, MEMORY}
    assert not any("negative" in record for record, _ in found.expected)


def test_doctor_command_foreign_series_labels_are_reported_once(metrics: Metrics) -> None:
    """It is reported once, in the words of plan."""
    metrics.write(idle(), pod="a", until=AHEAD)
    facts = asked(metrics, {"test": "nobody's"})
    assert isinstance(facts.source, Failure)
    assert "none with test=" in facts.source.words
    assert isinstance(facts.node_coverage, Failure)
    assert facts.node_coverage.summary == "no GPU metrics were found"


# --- the first five minutes


def test_plan_without_flags_finds_prometheus_and_advises(good: World, tmp_path: pathlib.Path) -> None:
    """A new HOME with a kubeconfig, and no flag at all: Prometheus is found, the plan advises, nothing is changed."""
    good.namespace("monitoring")
    labels = {"app.kubernetes.io/name": "prometheus", "app.kubernetes.io/component": "server"}
    good.api.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "prometheus-server", "namespace": "monitoring", "labels": labels},
            "spec": {"ports": [{"name": "http", "port": 80}]},
        }
    )
    good.api.backends.set("monitoring", "prometheus-server", 80, good.prometheus.url)
    home = tmp_path / "home"
    (home / ".kube").mkdir(parents=True)
    (home / ".kube" / "config").write_text((good.directory / "kubeconfig").read_text())
    good.api.requests.clear()
    # The shared Prometheus holds other tests' series, some of which carry clusters of their own.
    plan = _fresh(home, "plan", "-o", "explain", "--prometheus-label", f"cluster={good.team}")
    assert plan.returncode == 0, plan.stderr
    assert "found Prometheus at service monitoring/prometheus-server:80" in plan.stderr
    assert f"{good.team}/Deployment/web" in plan.stdout
    assert "advises scale-to-zero" in plan.stdout
    assert f"kubectl -n {good.team} scale deployment.apps web --replicas 0" in plan.stdout
    assert "Applying this plan changes nothing." in " ".join(plan.stdout.split())
    checked = _fresh(home, "doctor", "--prometheus-label", f"cluster={good.team}")
    assert checked.returncode == 0, checked.stdout
    assert good.api.requests.mutating(include_dry_run=True) == []
    assert [path.name for path in home.rglob("*")] == [".kube", "config"]


@pytest.mark.slow
def test_plan_and_doctor_without_cluster_give_hint_and_plan_exits_2(tmp_path: pathlib.Path) -> None:
    """No kubeconfig, no cluster: one message with the way out, exit code 2; the doctor says the same in its table."""
    plan = _fresh(tmp_path, "plan")
    assert plan.returncode == 2
    assert "which cluster?" in plan.stderr
    assert "--kubeconfig FILE" in plan.stderr
    checked = _fresh(tmp_path, "doctor")
    assert checked.returncode == 1
    assert "which cluster?" in checked.stdout
    assert "Traceback" not in plan.stderr + checked.stderr


def _fresh(home: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As a new user would."""
    return subprocess.run(
        [sys.executable, "-m", "rightsizer", *arguments],
        env={"HOME": str(home), "PATH": os.environ["PATH"]},
        cwd=pathlib.Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
