"""`gpu-rightsizer backtest` on a real Prometheus: what policies would have done with a week of recorded workloads."""

import datetime
import json
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from rightsizer.policy.policy_file import BUILT_IN, load
from simulator.kube import Fault
from simulator.prometheus import Prometheus
from tests.rightsizer.cli.test_run_command import running, wait_for
from tests.rightsizer.commands import Run, run_command
from tests.rightsizer.metrics import COPY, DAY, HOUR, MEMORY, POWER, UTIL, Metrics, Value, within
from tests.rightsizer.receiver import Receiver
from tests.rightsizer.world import World

pytestmark = [pytest.mark.prometheus, pytest.mark.xdist_group("backtest")]

WEEK_MIN = 7 * 24 * 60
POLICY = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
rules:
  - name: all
    match: {everything: true}
    mode: enforce
    idle: {window: 24h, unusedWindow: 24h, idleFactor: 0}
"""


def _used(activity: Value) -> dict[str, Value]:
    power = (lambda left: 120 + 5 * activity(left)) if callable(activity) else 120 + 5 * activity
    return {UTIL: activity, COPY: activity, MEMORY: 40_000, POWER: power}


@pytest.fixture(scope="module")
def week(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metrics]:
    """A trainer that always works, a service that was left behind, and a notebook that worked on its last day again."""
    with Prometheus(tmp_path_factory.mktemp("prometheus")) as running:
        metrics = Metrics(running)
        trainer, left, notebook = "trainer-x7k2p", "left-6d4cf56db6-bvx8k", "notes-0"
        pods = {
            trainer: _used(90),
            left: _used(within(WEEK_MIN, 6 * 24 * 60, 60)),
            notebook: _used(lambda left: 30 if left > 3.5 * 24 * 60 or left < 12 * 60 else 0),
        }
        for pod, last in zip(pods, "37c", strict=True):
            metrics.write(pods[pod], pod=pod, since=7 * DAY, step_s=300, UUID=f"GPU-{last}")
        facts = {
            trainer: ("Job", "trainer", "low"),
            left: ("ReplicaSet", "left-6d4cf56db6", "low"),
            notebook: ("StatefulSet", "notes", "high"),
        }
        for pod, (kind, name, priority_class) in facts.items():
            for metric, labels in {
                "kube_pod_container_resource_requests": {"resource": "nvidia_com_gpu", "container": "c"},
                "kube_pod_owner": {"owner_kind": kind, "owner_name": name, "owner_is_controller": "true"},
                "kube_pod_info": {"node": "n1", "priority_class": priority_class},
                "kube_pod_labels": {"label_example_com_team": "blue"},
            }.items():
                more = {"pod": pod, "UUID": "", "modelName": ""}
                metrics.write({metric: 1}, {**more, **labels}, since=7 * DAY, step_s=300)
        metrics.write(  # 8 GB of the GPU are no 8000 GPUs
            {"kube_pod_container_resource_requests": 8000},
            {"pod": left, "UUID": "", "modelName": "", "resource": "nvidia_com_gpumem", "container": "c"},
            since=7 * DAY,
            step_s=300,
        )
        metrics.write(
            {"kube_replicaset_owner": 1},
            {"replicaset": "left-6d4cf56db6", "owner_kind": "Deployment", "owner_name": "left"},
            since=7 * DAY,
            step_s=300,
            owner_is_controller="true",
            UUID="",
            modelName="",
        )
        yield metrics


def _backtest(metrics: Metrics, *arguments: str) -> Run:
    given = ("--prometheus-url", metrics.prometheus.url, "--prometheus-label", f"test={metrics.space}")
    return run_command("backtest", *given, "--at", metrics.at.isoformat(), "--from", "7d", *arguments)


def _judges(metrics: Metrics, *arguments: str) -> dict[str, dict[str, Any]]:
    done = _backtest(metrics, "-o", "json", *arguments)
    assert done.code == 0, done.err
    return {judge["name"]: judge for judge in json.loads(done.out)["judges"]}


@pytest.fixture
def policy(tmp_path: pathlib.Path) -> str:
    """The policy of a file."""
    path = tmp_path / "mine.yaml"
    path.write_text(POLICY)
    return str(path)


def test_backtest_names_who_would_have_worked_again(week: Metrics, policy: str) -> None:
    """The notebook paused for three days; the service never came back, and the trainer never paused."""
    judges = _judges(week, "--policy", policy)
    mine = judges["mine.yaml"]
    assert (mine["stops"]["value"], mine["returned"]["value"], mine["atWork"]) == (2, 1, 0)
    (hurt,) = mine["hurt"]
    assert hurt["workload"] == f"{week.space}/StatefulSet/notes"
    assert 47 <= hurt["neededAfterSeconds"] / 3600 <= 49
    assert mine["by"]["kind"].keys() == {"Deployment", "StatefulSet"}
    assert mine["by"]["class"] == {
        "high": {"freedGpuHours": pytest.approx(48, abs=1), "stops": 1, "returned": 1},
        "low": {"freedGpuHours": pytest.approx(112, abs=1), "stops": 1, "returned": 0},
    }


def test_backtest_compares_with_rules_of_thumb_and_an_oracle(week: Metrics, policy: str) -> None:
    """Doing nothing frees nothing, and nobody frees more than who knows the future."""
    freed = {name: one["freedGpuHours"]["value"] for name, one in _judges(week, "--policy", policy).items()}
    assert freed["do nothing"] == 0
    assert freed["do nothing"] < freed["mine.yaml"] <= freed["idle 30m"] <= freed["oracle"]


def test_backtest_of_policy_that_advises_changes_nothing_unless_enforced(
    week: Metrics, tmp_path: pathlib.Path
) -> None:
    """`--enforce` asks what would happen if it did."""
    path = tmp_path / "careful.yaml"
    path.write_text(POLICY.replace("mode: enforce", "mode: advise"))
    advised = _judges(week, "--policy", str(path))["careful.yaml"]
    enforced = _judges(week, "--policy", str(path), "--enforce")["careful.yaml"]
    assert (advised["stops"]["value"], enforced["stops"]["value"]) == (0, 2)


def test_backtest_rule_by_labels_knows_those_of_kube_state_metrics(
    week: Metrics, tmp_path: pathlib.Path
) -> None:
    """They are asked for by the keys that the policy names."""
    path = tmp_path / "labels.yaml"
    path.write_text(POLICY.replace("{everything: true}", "{labels: {example.com/team: blue}}"))
    assert _judges(week, "--policy", str(path))["labels.yaml"]["stops"]["value"] == 2
    path.write_text(POLICY.replace("{everything: true}", "{labels: {example.com/team: red}}"))
    assert _judges(week, "--policy", str(path))["labels.yaml"]["stops"]["value"] == 0


def test_backtest_label_of_no_pod_is_not_known(week: Metrics, tmp_path: pathlib.Path) -> None:
    """kube-state-metrics publishes labels by its allow list only."""
    path = tmp_path / "labels.yaml"
    path.write_text(
        POLICY.replace("{everything: true}", "{labels: {example.com/team: blue, costCenter: '*'}}")
    )
    words = json.loads(_backtest(week, "-o", "json", "--policy", str(path)).out)["unknown"]
    assert any("label costCenter, which kube-state-metrics tells of no pod" in each for each in words)
    path.write_text(POLICY.replace("{everything: true}", "{labels: {example.com/team: blue}}"))
    words = json.loads(_backtest(week, "-o", "json", "--policy", str(path)).out)["unknown"]
    assert not any("tells of no pod" in each for each in words)


def _whole_days(metrics: Metrics, policy: str) -> list[str]:
    midnight = datetime.datetime.combine(metrics.at, datetime.time(), datetime.UTC)
    return ["backtest", "--at", midnight.isoformat(), "--from", "5d", "--policy", policy, "-o", "json"]


def _asked(metrics: Metrics) -> list[str]:
    return ["--prometheus-url", metrics.prometheus.url, "--prometheus-label", f"test={metrics.space}"]


def test_backtest_history_is_read_once(week: Metrics, policy: str, tmp_path: pathlib.Path) -> None:
    """From files it says the same to the byte; only what is missing is read again, and without Prometheus nothing."""
    arguments, url = _whole_days(week, policy), tmp_path / "kept"
    plain = run_command(*arguments, *_asked(week))
    assert plain.code == 0, plain.err
    kept = [*arguments, "--history", str(url), "--prometheus-label", f"test={week.space}"]
    first = run_command(*kept, *_asked(week))
    assert (first.out, first.code) == (plain.out, 0), first.err
    assert "read 100%" in first.err
    assert run_command(*kept).out == plain.out
    days = sorted(url.glob("usage-*"))
    assert len(days) == 5
    days[2].unlink()
    missing = run_command(*kept)
    assert (missing.code, missing.out) == (2, "")
    assert "name --prometheus-url" in missing.err
    resumed = run_command(*kept, *_asked(week))
    assert resumed.out == plain.out
    assert "4 of 5 days were in" in resumed.err


def test_backtest_history_is_asked_again_for_labels_of_another_policy(
    week: Metrics, policy: str, tmp_path: pathlib.Path
) -> None:
    """Labels of pods are kept as far as a policy named them."""
    kept = [*_whole_days(week, policy), "--history", str(tmp_path / "kept"), *_asked(week)]
    assert run_command(*kept).code == 0
    blue = pathlib.Path(policy)
    blue.write_text(POLICY.replace("{everything: true}", "{labels: {example.com/team: blue}}"))
    for _ in range(2):
        done = run_command(*kept)
        (mine,) = (one for one in json.loads(done.out)["judges"] if one["name"] == blue.name)
        assert mine["stops"]["value"] == 2
    assert "5 of 5 days were in" in done.err


def test_backtest_parts_of_four_processes_say_the_same(
    week: Metrics, policy: str, tmp_path: pathlib.Path
) -> None:
    """Each reads its part of the GPUs; the first reports when the others are done."""
    arguments = _whole_days(week, policy)
    kept = ["--history", str(tmp_path / "kept")]
    command = [sys.executable, "-m", "rightsizer", *arguments, *_asked(week), *kept]
    running = [
        subprocess.Popen(
            [*command, "--part", f"{number}/4"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for number in range(4)
    ]
    said = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0] * 4, said[0][1][-300:]
    assert [out for out, _ in said[1:]] == [""] * 3
    assert said[0][0] == run_command(*arguments, *_asked(week)).out


def test_backtest_that_waits_for_parts_names_them(week: Metrics, policy: str, tmp_path: pathlib.Path) -> None:
    """Their processes may have failed."""
    kept = ["--history", str(tmp_path / "kept"), "--part", "0/2"]
    command = [sys.executable, "-m", "rightsizer", *_whole_days(week, policy), *_asked(week), *kept]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as waiting:
        assert waiting.stderr is not None
        told = next(line for line in waiting.stderr if "waiting" in line)
        waiting.kill()
    assert "waiting for 1/2 of 20" in told
    assert "5 days in all" in told


def test_backtest_history_of_another_cluster_is_refused(
    week: Metrics, policy: str, tmp_path: pathlib.Path
) -> None:
    """It would be taken for this one's."""
    kept = [*_whole_days(week, policy), "--history", str(tmp_path / "kept"), *_asked(week)]
    assert run_command(*kept).code == 0
    done = run_command(*kept, "--prometheus-label", "cluster=other")
    assert done.code == 2
    assert "use another directory" in done.err


@pytest.mark.slow
def test_backtest_is_the_same_each_time(week: Metrics, policy: str) -> None:
    """Intervals are drawn from a fixed seed."""
    forms = ("table", "markdown", "csv", "html", "yaml")
    runs = {form: [_backtest(week, "--policy", policy, "-o", form).out for _ in range(2)] for form in forms}
    for form, (one, other) in runs.items():
        assert one == other, form
        assert "notes" in one, form


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("a.html", "<!doctype html>"),
        ("a.json", "{"),
        ("a.csv", "judge,"),
        ("a.md", "# Backtest"),
        ("a.txt", "4.7 days"),
    ],
)
def test_backtest_saved_report_has_the_form_of_its_ending(
    week: Metrics, policy: str, tmp_path: pathlib.Path, name: str, begin: str
) -> None:
    """Beside what is printed."""
    path = tmp_path / name
    done = _backtest(week, "--policy", policy, "--every", "6h", "--save", str(path))
    assert done.code == 0, done.err
    assert path.read_text().lower().startswith(begin.lower())
    assert done.out.startswith("4.7 days")


@pytest.mark.parametrize("name", ["report", "report.pdf", "missing/report.html"])
def test_backtest_save_that_cannot_be_written_is_told_before_anything_is_read(
    tmp_path: pathlib.Path, name: str
) -> None:
    """Not after an hour."""
    done = run_command("backtest", "--prometheus-url", "http://localhost:1", "--save", str(tmp_path / name))
    assert done.code == 2
    assert "--save" in done.err


def test_backtest_policies_of_one_file_name_are_told_apart(
    week: Metrics, policy: str, tmp_path: pathlib.Path
) -> None:
    """By their paths."""
    other = tmp_path / "other" / "mine.yaml"
    other.parent.mkdir()
    other.write_text(POLICY)
    assert {policy, str(other)} <= _judges(
        week, "--policy", policy, "--policy", str(other), "--every", "6h"
    ).keys()


def test_backtest_takes_the_policy_of_the_environment(
    week: Metrics, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the other commands do."""
    monkeypatch.setenv("GPU_RIGHTSIZER_POLICY", policy)
    assert "mine.yaml" in _judges(week, "--every", "6h")


@pytest.fixture
def told(world: World, receiver: Receiver) -> tuple[str, ...]:
    """Arguments of a backtest of a day in which a service was idle, whose policy has a receiver with a secret."""
    world.labels = {"test": world.team}
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    address = world.directory / "address"
    address.write_text(f"{receiver.url}/s3cr3t")
    path = world.directory / "mine.yaml"
    path.write_text(
        POLICY.replace("24h", "4h").replace("enforce", "advise")
        + f"notifications: [{{type: slack, urlFile: {address}}}]\n"
    )
    given = ("--prometheus-url", world.prometheus.url, "--prometheus-label", f"test={world.team}")
    here = ("--kubeconfig", str(world.directory / "kubeconfig"))
    asked = ("--from", "1d", "--enforce", "--publish", "--notify", "--save", str(world.directory / "a.html"))
    return ("backtest", *given, *here, "--policy", str(path), *asked)


def test_backtest_tells_receivers_and_run_serves_its_figures(
    world: World, receiver: Receiver, told: tuple[str, ...]
) -> None:
    """It writes one ConfigMap, and changes nothing else; what was edited since is not served."""
    done = run_command(*told)
    assert done.code == 0, done.err
    assert [request.path for request in world.api.requests.mutating(include_dry_run=True)] == [
        "/api/v1/namespaces/gpu-rightsizer/configmaps"
    ]
    ((path, _, body),) = receiver.got
    assert path == "/s3cr3t"
    assert "mine.yaml would have freed" in body["text"]
    assert "a.html of" in body["text"]
    assert "s3cr3t" not in done.out + done.err
    series = "gpu_rightsizer_backtest_freed_gpus{policy=mine.yaml}"
    with running(world, "--every", "1s") as run:
        wait_for(lambda: run.cycles() >= 1, run)
        found = run.metrics()
        assert 0 < found[series] <= 2
        assert found["gpu_rightsizer_backtest_replayed_seconds{policy=mine.yaml}"] == 16 * 3600
        world.api.patch(
            "ConfigMap", "gpu-rightsizer", "gpu-rightsizer-backtest", {"data": {"backtest.json": "{"}}
        )
        wait_for(lambda: series not in run.metrics(), run)
        assert "the last backtest is unknown" in run.said
    assert run_command(*told).code == 0
    kept = world.api.get("ConfigMap", "gpu-rightsizer", "gpu-rightsizer-backtest")
    assert kept is not None
    assert json.loads(kept["data"]["backtest.json"])["replayedHours"] == 16


def test_backtest_that_reaches_nobody_fails_after_it_did_the_rest(
    world: World, receiver: Receiver, told: tuple[str, ...]
) -> None:
    """A receiver and an API server that refuse are warnings; report and exit code are there, secrets are not."""
    receiver.code = 500
    world.api.inject(Fault("configmaps", "*", None, status=403))
    done = run_command(*told)
    assert done.code == 1
    assert "warning notifications[0]: the receiver answered 500" in done.err
    assert "warning --publish: reading" in done.err
    assert "s3cr3t" not in done.err
    assert (world.directory / "a.html").exists()
    assert done.out.startswith("0.7 days")


def test_backtest_without_receivers_says_so(week: Metrics, policy: str) -> None:
    """It is no failure: a chart may ask for it before anybody wants messages."""
    done = _backtest(week, "--policy", policy, "--every", "6h", "--notify")
    assert done.code == 0
    assert "the policy has no notifications" in done.err


def test_backtest_without_kube_state_metrics_guesses_owners_and_says_so(prometheus: Prometheus) -> None:
    """Pods of the exporters, which name no workload, are not workloads."""
    metrics = Metrics(prometheus)
    job = {"job": "dcgm"}
    exporter = {"pod": "dcgm-exporter-abcde", "namespace": "monitoring", "UUID": "GPU-free"}
    workload = {"exported_pod": "left-6d4cf56db6-bvx8k", "exported_namespace": metrics.space}
    metrics.write(_used(0), {**job, **exporter}, since=2 * DAY, step_s=300)
    metrics.write(_used(0), {**job, **exporter, **workload, "UUID": "GPU-1"}, since=2 * DAY, step_s=300)
    done = _backtest(metrics, "-o", "json", "--enforce", "--every", "6h")
    document = json.loads(done.out)
    assert document["workloads"] == 1
    assert any("their kinds are guessed" in words for words in document["unknown"])
    assert any("when the record begins" in words for words in document["unknown"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--from", "2h"), "shorter than 3 cycles"),
        (("--step", "1m"), "write 5m to 1h"),
        (("--every", "25m"), "a multiple of --step"),
        (("--from", "soon"), "--from"),
        (("--at", "2026-11-01"), "says no zone"),
        (("--part", "0/4"), "--part needs --history"),
        (("--history", "/dev/null", "--part", "4/4"), "write I/N"),
        (("--history", "/dev/null", "--part", "half"), "write I/N"),
        (("--history", "/dev/null", "--from", "36h"), "whole UTC days"),
        (("--history", "/dev/null", "--step", "7m", "--every", "7m"), "whole UTC days"),
        (("--history", "/dev/null/kept"), "--history /dev/null/kept: "),
        (("--history", "/dev/null"), "--history /dev/null: "),
        (("--history", "moon://kept"), "--history moon://kept: "),
    ],
)
def test_backtest_wrong_flag_is_told(week: Metrics, arguments: tuple[str, ...], words: str) -> None:
    """Before anything is read."""
    done = _backtest(week, *arguments)
    assert done.code == 2
    assert words in done.err


def test_backtest_without_history_is_told(prometheus: Prometheus) -> None:
    """Not a table of zeros."""
    done = _backtest(Metrics(prometheus))
    assert done.code != 0
    assert "no GPU series" in done.err


def _tuned(metrics: Metrics, tmp_path: pathlib.Path, days: int) -> Run:
    """Of six services that work for 7 of 12 hours, and have a second replica that never works."""
    for number in range(6):
        shift = number * 60
        metrics.write(
            _used(lambda left, shift=shift: 60 if (left + shift) % 720 > 300 else 0),  # type: ignore[misc]
            pod=f"web{number}-6d4cf56db6-bvx8k",
            since=days * DAY,
            step_s=300,
        )
        spare = {"pod": f"web{number}-6d4cf56db6-c2d9x", "UUID": f"GPU-spare-{number}"}
        metrics.write(_used(0), spare, since=days * DAY, step_s=300)
    path = tmp_path / "base.yaml"
    path.write_text("\n".join(line for line in POLICY.splitlines() if "idle:" not in line))
    arguments = ("--policy", str(path), "--price-of-a-mistake", "1000", "--every", "2h", "--from", f"{days}d")
    given = ("--prometheus-url", metrics.prometheus.url, "--prometheus-label", f"test={metrics.space}")
    return run_command("tune", *given, "--at", metrics.at.isoformat(), *arguments)


def _comments(text: str) -> str:
    return " ".join(word for line in text.splitlines() if line[:1] == "#" for word in line[1:].split())


def test_tune_prints_a_policy_that_can_be_used(tmp_path: pathlib.Path, prometheus: Prometheus) -> None:
    """With the reasons, and a backtest of the time that it was not learned from."""
    done = _tuned(Metrics(prometheus), tmp_path, 14)
    assert done.code == 0, done.err
    comments = _comments(done.out)
    assert "costs 1000 GPU-hours" in comments
    assert "window: 168h\n" in done.out
    assert all(one in comments for one in ("before", "tuned", "oracle", "all other kinds", "6 services"))
    assert "Not known:" in comments
    assert "bursts between two scrapes" in comments
    assert "less than a week" not in comments
    written = tmp_path / "tuned.yaml"
    written.write_text(done.out)
    again = run_command("policy", "check", "--offline", str(written))
    assert again.code == 0, again.err
    assert "name: all" in done.out
    policy = load(written).policy.defaults
    # One replica of two suffices whenever both are idle: a longer memory of jumps would only cost.
    assert policy.tooManyReplicas.jumpHistory == HOUR
    # Work ended all that had lasted for 4 h; a mistake that costs less asks for less certainty of what lasted longer.
    assert {row.percent > 90 for row in policy.idle.returns if row.after <= 4 * HOUR} == {True}
    assert all(row.gaps is not None and row.gaps >= 5 for row in policy.idle.returns)


def test_tune_of_less_than_a_fortnight_makes_nothing_wait_shorter(
    tmp_path: pathlib.Path, prometheus: Prometheus
) -> None:
    """Half of it holds no weekend; it says so on stderr and in the file."""
    done = _tuned(Metrics(prometheus), tmp_path, 4)
    assert done.code == 0, done.err
    assert done.err.count("learns from less than a week") == 1
    assert "less than a week, so nothing waits shorter than before; the table is" in _comments(done.out)
    written = tmp_path / "tuned.yaml"
    written.write_text(done.out)
    tuned, before = load(written).policy.defaults, BUILT_IN.policy.defaults
    assert tuned.idle.shortest_s >= before.idle.shortest_s
    assert tuned.idle.idleFactor >= before.idle.idleFactor
    assert tuned.tooManyReplicas == before.tooManyReplicas


def test_backtest_names_rules_that_match_nothing(week: Metrics, tmp_path: pathlib.Path) -> None:
    """A misspelled class frees nothing, which a figure alone does not tell."""
    path = tmp_path / "typo.yaml"
    rule = "  - name: typo\n    match: {priorityClasses: [lwo]}\n    mode: advise\n"
    path.write_text(POLICY.replace("rules:\n", f"rules:\n{rule}"))
    told = _judges(week, "--policy", str(path))["typo.yaml"]["remarks"]
    assert told == [
        "1 rule with mode: advise changed nothing: --enforce asks what they would do",
        "no recorded workload is under rule typo",
    ]
    assert _judges(week, "--policy", str(path), "--enforce")["typo.yaml"]["remarks"] == told[1:]


def test_backtest_tells_what_it_was_asked(week: Metrics, policy: str) -> None:
    """So that its figures can be had again."""
    done = _backtest(week, "--policy", policy, "--every", "2h", "--restart-cost", "20m", "-o", "json")
    document = json.loads(done.out)
    keys = ("begin", "stepSeconds", "everySeconds", "restartSeconds", "enforced")
    begin = week.at - 7 * DAY * 2 / 3
    assert abs(datetime.datetime.fromisoformat(document["begin"]) - begin) < HOUR
    assert [document[key] for key in keys[1:]] == [600.0, 7200.0, 1200.0, False]
    assert "pauses of more than 2d 8h before the first cycle: a plan looks back 14d" in " ".join(
        document["unknown"]
    )


def test_backtest_policy_named_as_a_rule_is_told_apart(week: Metrics, tmp_path: pathlib.Path) -> None:
    """And the same file twice is a mistake."""
    path = tmp_path / "oracle"
    path.write_text(POLICY)
    assert str(path) in _judges(week, "--policy", str(path))
    done = _backtest(week, "--policy", str(path), "--policy", str(path))
    assert (done.code, done.err.splitlines()[0]) == (2, f"error: --policy {path}: is given twice")


def test_policy_learned_window_is_where_few_returned(tmp_path: pathlib.Path) -> None:
    """The shortest time from which on no row has more than the policy accepts."""
    path = tmp_path / "learned.yaml"
    rows = "[{after: 1h, percent: 4}, {after: 4h, percent: 30}, {after: 12h, percent: 5}, {after: 1d, percent: 0.5}]"
    path.write_text(POLICY.replace("window: 24h", f"window: learned, returns: {rows}"))
    (rule,) = load(path).policy.rules
    assert rule.idle is not None
    assert rule.idle.window == 12 * HOUR
    path.write_text(path.read_text().replace("window: learned", "window: learned, maxReturnPercent: 1"))
    assert load(path).policy.rules[0].idle == rule.idle.model_copy(
        update={"window": DAY, "maxReturnPercent": 1.0}
    )
    assert run_command("policy", "check", "--offline", str(path)).code == 0


@pytest.mark.parametrize("price", ["0", "-1", "much", "nan", "1e9"])
def test_tune_impossible_price_is_told(price: str) -> None:
    """Before anything is read."""
    done = run_command("tune", "--price-of-a-mistake", price, "--prometheus-url", "http://localhost:1")
    assert done.code == 2
    assert "write GPU-hours" in done.err
