"""`gpu-rightsizer report`: what it is asked, what it needs, and what plan, apply and run record for it."""

import csv
import dataclasses
import io
import json
import pathlib
import re
import sys

import pytest
import requests

from rightsizer_history.ledger import BY
from tests.rightsizer.cli.test_run_command import running, wait_for
from tests.rightsizer.commands import Run, run_command
from tests.rightsizer.reported import full_plan
from tests.rightsizer.world import DEFAULT_POLICY, World
from tests.rightsizer_history.ledger.recorded import record
from tests.rightsizer_history.report.test_ledger_forms import VALIDATOR

UNTIL = ("--since", "2026-11-01T00:00:00Z", "--until", "2026-11-30T00:00:00Z")


def _report(*flags: str) -> Run:
    run = run_command("report", *flags)
    assert "Traceback" not in run.err
    return run


def test_report_without_a_ledger_says_what_to_turn_on() -> None:
    """Flag, variable and chart value."""
    run = _report()
    assert run.code == 2
    assert "in which run, plan and apply keep their cycles with the same flag" in run.err
    assert "variable GPU_RIGHTSIZER_LEDGER, chart: rightsizer.ledger" in run.err


def test_report_of_an_empty_or_missing_directory_says_what_to_start(tmp_path: pathlib.Path) -> None:
    """Not a report full of zeros."""
    for folder in (tmp_path, tmp_path / "missing"):
        run = _report("--ledger", str(folder))
        assert (run.code, run.out) == (2, "")
        assert f"--ledger {folder}: no cycle was recorded here; start run, plan or apply with" in run.err


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--by", "teams"), 'error: --by "teams": must be one of team, owner, namespace, class, model'),
        (("--since", "yesterday"), 'error: --since "yesterday": write a time with its zone'),
        (("--since", "1h", "--until", "3d"), 'error: --since "1h": is after the end, '),
        (("--cluster", "dev"), 'error: --cluster "dev": is not in --ledger '),
        (("--ledger", ""), "error: --ledger: the value is empty"),
        (("--ledger", "s3://key:hunter2@bucket/x"), "error: --ledger s3://…@bucket: contains credentials; "),
        (("-o", "wide"), 'error: -o "wide": must be one of table, json, yaml, csv, markdown, html'),
        (("-n", "research"), "error: unknown flag -n"),
    ],
)
def test_report_wrong_flag_has_one_message(
    tmp_path: pathlib.Path, flags: tuple[str, ...], words: str
) -> None:
    """Each names the flag and what would be right."""
    record(tmp_path, full_plan())
    run = _report("--ledger", str(tmp_path), *flags)
    assert (run.code, run.out) == (2, "")
    assert words.replace("-o ", "--output ") in run.err or words in run.err, run.err
    assert "hunter2" not in run.err


@pytest.mark.parametrize("name", ["duckdb", "pyarrow"])
def test_report_without_its_libraries_names_the_extra(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """And the command that installs it."""
    record(tmp_path, full_plan())
    for module in (name, f"{name}.fs", f"{name}.parquet"):
        monkeypatch.setitem(sys.modules, module, None)
    run = _report("--ledger", str(tmp_path))
    assert run.code == 2
    assert f"the library {name} is missing; run: pip install 'gpu-rightsizer[history]'" in run.err


def test_report_takes_the_ledger_of_the_environment(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Flags replace it, and add to each other."""
    for name in "abc":
        record(tmp_path / name, dataclasses.replace(full_plan(), run=name), cluster=name)
    monkeypatch.setenv("GPU_RIGHTSIZER_LEDGER", str(tmp_path / "a"))
    for flags, wanted in (
        ((), ["a"]),
        (("--ledger", str(tmp_path / "b"), "--ledger", str(tmp_path / "c")), ["b", "c"]),
    ):
        run = _report(*UNTIL, "-o", "json", *flags)
        assert [one["name"] for one in json.loads(run.out)["clusters"]] == wanted


@pytest.mark.parametrize("by", sorted(BY))
def test_report_csv_and_json_have_the_same_sums(tmp_path: pathlib.Path, by: str) -> None:
    """And the parts are the whole; costs are empty where no price is known."""
    record(tmp_path, full_plan())
    rows = list(csv.DictReader(io.StringIO(_report("--ledger", str(tmp_path), *UNTIL, "-o", "csv").out)))
    told = json.loads(_report("--ledger", str(tmp_path), *UNTIL, "-o", "json", "--by", by).out)
    VALIDATOR.validate(told)
    total = told["total"]
    for column, key in (
        ("ConsumedQuantity", "gpuHoursHeld"),
        ("x_UsedQuantity", "gpuHoursUsed"),
        ("x_UnusedQuantity", "gpuHoursUnused"),
        ("x_UnknownQuantity", "gpuHoursUnknown"),
    ):
        assert sum(float(row[column]) for row in rows) == pytest.approx(total[key], abs=0.01)
        assert sum(part[key] for part in told["parts"]) == pytest.approx(total[key], abs=0.01)
    costs = [row["BilledCost"] for row in rows]
    assert sum(map(float, filter(None, costs))) == pytest.approx(total["cost"])
    assert {row["ResourceName"] for row in rows if not row["BilledCost"]} == {"scratch"}


def test_report_of_a_period_before_the_first_cycle_has_no_hours(tmp_path: pathlib.Path) -> None:
    """It says that none were recorded."""
    record(tmp_path, full_plan())
    run = _report(
        "--ledger", str(tmp_path), "--since", "2026-01-01T00:00:00Z", "--until", "2026-01-03T00:00:00Z"
    )
    assert run.code == 0
    assert "0 of 0 hours recorded" in " ".join(run.out.split())


@pytest.mark.prometheus
def test_apply_records_its_plan_and_what_verification_saw(world: World, tmp_path: pathlib.Path) -> None:
    """By the context's name; the report has the freed GPUs, and the workload as owner."""
    world.add("Deployment", world.team, "eval", {"gpus": 1, "replicas": 2, "usage": "idle"})
    policy = world.directory / "policy.yaml"
    policy.write_text(DEFAULT_POLICY)
    ledger = tmp_path / "ledger"
    flags = ["--prometheus-url", world.prometheus.url, "--kubeconfig", str(world.directory / "kubeconfig")]
    flags += ["--policy", str(policy), "--ledger", str(ledger), "--cluster-name", "prod-eu"]
    run = run_command("apply", *flags, "--yes", "--verify-for", "30s")
    assert run.code == 0, run.err
    told = json.loads(_report("--ledger", str(ledger), "--by", "owner", "-o", "json").out)
    VALIDATOR.validate(told)
    assert [one["name"] for one in told["clusters"]] == ["prod-eu"]
    assert told["total"]["gpuHoursHeld"] > 0
    assert (told["reclaimed"]["changes"], told["reclaimed"]["gpus"]) == (1, 2)
    assert told["heldMostUnused"][0]["name"] == f"{world.team}/Deployment/eval"


@pytest.mark.prometheus
def test_plan_of_a_past_moment_is_not_recorded(world: World, tmp_path: pathlib.Path) -> None:
    """The ledger has what was seen when it was seen."""
    flags = ("--prometheus-url", world.prometheus.url, "--kubeconfig", str(world.directory / "kubeconfig"))
    run = run_command("plan", *flags, "--at", "2h", "--ledger", str(tmp_path / "ledger"))
    assert run.code == 2
    assert "--ledger records the cluster as it is now" in run.err
    assert not (tmp_path / "ledger").exists()


@pytest.mark.prometheus
def test_run_records_each_cycle_and_serves_the_page(world: World, tmp_path: pathlib.Path) -> None:
    """By any part, if that is turned on: whoever reaches the port sees who wastes what."""
    world.add("Deployment", world.team, "eval", {"gpus": 1, "usage": "idle"})
    ledger = tmp_path / "ledger"
    flags = ("--every", "1h", "--ledger", str(ledger), "--cluster-name", "prod-eu")
    with running(world, *flags, "--serve-report") as run:
        wait_for(lambda: run.cycles() == 1, run)
        assert len(list(ledger.glob("prod-eu/usage-*.parquet"))) == 1
        for by in BY:
            answer = requests.get(f"{run.url}/report", params={"by": by}, timeout=60)
            assert (answer.status_code, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
            assert "GPU ledger" in answer.text
            linked = set(re.findall(r'href="\?by=(\w+)"', answer.text))
            assert linked == set(BY) - {by}
        assert requests.get(f"{run.url}/report?by=nothing", timeout=60).status_code == 400
        other = requests.get(f"{run.url}/report?since=1d", timeout=60)
        assert (other.status_code, other.text.split(":")[0]) == (400, "unknown parameter since")
        assert run.end() == 0
    with running(world, *flags, name="off") as run:
        answer = requests.get(f"{run.url}/report", timeout=60)
        assert answer.status_code == 404
        assert "start run with --ledger DIR and --serve-report (chart: rightsizer.ledger)" in answer.text
        assert run.end() == 0
    failed = world.run("run", "--serve-report", "--every", "1h")
    assert failed.code == 2
    assert "--serve-report: there is nothing to report without --ledger DIR" in failed.err


@pytest.mark.prometheus
def test_run_whose_ledger_breaks_goes_on_with_a_warning(world: World, tmp_path: pathlib.Path) -> None:
    """Freeing GPUs does not depend on it; but with a ledger that is no directory it does not start."""
    ledger, good, bad = tmp_path / "ledger", tmp_path / "good", tmp_path / "bad"
    good.mkdir()
    bad.write_text("a file, where the folder should be")
    ledger.symlink_to(good)
    world.add("Deployment", world.team, "eval", {"gpus": 1, "usage": "idle"})
    flags = ("--every", "1s", "--ledger", str(ledger), "--cluster-name", "prod-eu")
    with running(world, *flags) as run:
        wait_for(lambda: run.cycles() >= 1, run)
        (tmp_path / "next").symlink_to(bad)
        (tmp_path / "next").replace(ledger)
        wait_for(lambda: "this plan is not in the ledger: --ledger" in run.said, run)
        done = run.cycles()
        wait_for(lambda: run.cycles() > done, run)
        assert run.metrics().get("gpu_rightsizer_runs_total{result=failure}", 0) == 0
        assert run.end() == 0
    reached = ("--prometheus-url", world.prometheus.url, "--kubeconfig", str(world.directory / "kubeconfig"))
    refused = run_command("plan", *reached, "--ledger", str(bad), "--cluster-name", "prod-eu")
    assert (refused.code, refused.out) == (2, "")
    assert f"--ledger {bad}: " in refused.err
