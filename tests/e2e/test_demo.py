"""`make demo` itself: what it shows is true, and it leaves nothing running, however it ends."""

import functools
import html
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from dashboards.rows import ROWS
from simulator.specfile import preset
from tests.simulator.test_specfile import DEMO_IDLE

ROOT = pathlib.Path(__file__).parents[2]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.prometheus,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("demo"),
    pytest.mark.driver,
]


REAL = pytest.param(("--real",), marks=pytest.mark.controlplane, id="real")
SIMULATED = pytest.param((), id="simulated")


def _start(directory: pathlib.Path, *flags: str) -> subprocess.Popen[str]:
    """The demo in a process group of its own, as a terminal would run it."""
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "simulator.demo", "--directory", str(directory), *flags],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def _left_running(directory: pathlib.Path) -> list[str]:
    """Command lines and environments in /proc that name the directory."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            texts = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
        except OSError:
            continue
        if os.fsencode(directory) in texts and int(process.name) != os.getpid():
            found.append(texts.split(b"\0")[0].decode())
    return found


@pytest.fixture(scope="session")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[pathlib.Path, str]]:
    """A whole run with some arguments: its folder, and what it printed. One for all tests, in any order."""

    @functools.cache
    def run_once(*arguments: str) -> tuple[pathlib.Path, str]:
        directory = tmp_path_factory.mktemp("demo") / "run"
        run = _start(directory, *arguments)
        output, _ = run.communicate(timeout=800)
        assert run.returncode == 0, output
        assert _left_running(directory) == []
        return directory, output

    return run_once


@pytest.fixture(params=[SIMULATED, REAL])
def demo(
    request: pytest.FixtureRequest, demos: Callable[..., tuple[pathlib.Path, str]]
) -> tuple[pathlib.Path, str]:
    """A run on either kind of control plane."""
    return demos(*request.param)


@pytest.fixture
def items(demo: tuple[pathlib.Path, str]) -> dict[str, dict[str, Any]]:
    """The plan's items by name."""
    return {item["name"]: item for item in _plan(demo)["items"]}


def _plan(demo: tuple[pathlib.Path, str]) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((demo[0] / "plan.json").read_text())
    return plan


def test_demo_plan_has_every_gpu_workload_once(demo: tuple[pathlib.Path, str]) -> None:
    """With verdict, rule and evidence, as the schema says."""
    plan = _plan(demo)
    schema = json.loads((ROOT / "docs/plan.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(plan)
    named = [(item["namespace"], item["kind"], item["name"]) for item in plan["items"]]
    expected = [(spec.namespace, spec.kind.value, spec.name) for spec in preset("demo").workloads]
    assert sorted(named) == sorted(expected)
    assert len(plan["items"]) >= 20
    assert all(item["rule"] and item["evidence"]["reasons"] for item in plan["items"])


def test_demo_plan_protects_high_priority_class(items: dict[str, dict[str, Any]]) -> None:
    """Every workload of it, idle ones among them."""
    high = [item for item in items.values() if item["priorityClass"] == "high-priority"]
    assert {item["verdict"] for item in high} == {"protected"}
    assert "idle" in {item["finding"] for item in high}


def test_demo_plan_agrees_with_what_the_workloads_did(items: dict[str, dict[str, Any]]) -> None:
    """Only idle ones are idle; unknown are half a record, and MIG instances before Hopper.

    Clocks of their boards stand still while contexts are loaded, so power is the only signal.
    The plan is of this moment: by night a service of some replicas may need fewer.
    """
    by_name = {item["name"]: item for item in items.values()}
    unknown, act = (
        {name for name, item in by_name.items() if item["verdict"] == verdict}
        for verdict in ("unknown", "act")
    )
    before_hopper = {"tutorial", "reranker-old"}
    assert unknown == {"image-caption", "embedder"} | before_hopper
    quiet = {name for name in ("recommender", "tts") if by_name[name]["finding"] == "too-many-replicas"}
    assert act == DEMO_IDLE - {"image-caption", "fraud-model"} - before_hopper | {"moe-finetune"} | quiet


def test_demo_plan_shows_intended_verdicts(items: dict[str, dict[str, Any]]) -> None:
    """Six unused GPUs of eight are taken, half a window is unknown, a spinning zombie is found; a budget holds."""
    specs = preset("demo").workloads
    (partly,) = (spec.name for spec in specs if spec.gpus == 8 and spec.busy_gpus == 2)
    (half,) = (spec.name for spec in specs if spec.recorded == 0.5)
    assert (items[partly]["finding"], items[partly]["action"]) == ("too-many-gpus", "resize")
    assert items[partly]["frees"] == 6
    assert (items[half]["verdict"], items[half]["finding"]) == ("unknown", "partial-data")
    assert items[half]["coverage"] == pytest.approx(0.5, abs=0.03)
    (spins,) = (spec.name for spec in specs if spec.spins)
    assert (items[spins]["finding"], items[spins]["mode"]) == ("stuck", "advise")
    assert {"budget"} in [{block["code"] for block in item["blockers"]} for item in items.values()]
    acted = {item["kind"] for item in items.values() if item["verdict"] == "act"}
    assert acted == {"Deployment", "StatefulSet", "Job", "Pod"}


def test_demo_plan_acts_only_on_idle_workloads(items: dict[str, dict[str, Any]]) -> None:
    """Against the simulator's ground truth: what is stopped had not worked for a day, what is resized keeps working."""
    for spec in preset("demo").workloads:
        if _is_enforced(items[spec.name]):
            stopped = {"abandoned", "zombie", "inference_longtail", "notebook"}
            resized = items[spec.name]["action"] == "resize"
            assert spec.archetype.value in ({"overallocated"} if resized else stopped), spec


def _is_enforced(item: dict[str, Any]) -> bool:
    """Whether apply is to carry it out."""
    return item["verdict"] == "act" and item["mode"] == "enforce" and item["action"] and not item["blockers"]


def test_demo_apply_carries_out_every_enforced_item(
    demo: tuple[pathlib.Path, str], items: dict[str, dict[str, Any]]
) -> None:
    """The outcome names each enforced item, done; the demo then saw the GPUs free and one workload back."""
    outcome = json.loads((demo[0] / "outcome.json").read_text())
    done = {item["name"] for item in outcome["items"] if item["result"] == "done"}
    assert done == {name for name, item in items.items() if _is_enforced(item)}
    assert "show the GPUs as free?" in demo[1]
    before, now = (float(one) for one in re.findall(r"held (?:before|now) .* ([0-9.]+) of 32 GPUs", demo[1]))
    assert before - now == pytest.approx(
        sum(item["gpus"] for item in outcome["items"] if item["action"] != "complete"), abs=0.11
    )
    assert "<html" in (demo[0] / "plan.html").read_text()
    assert demo[1].rstrip().splitlines()[-1].strip().endswith("prometheus/")


@pytest.mark.parametrize(
    ("moment", "flags"),
    [
        ("writing a day", ()),
        ("$ gpu-rightsizer apply", ()),
        pytest.param("creating 5 nodes", (), marks=pytest.mark.deep),
        pytest.param("$ gpu-rightsizer plan", (), marks=pytest.mark.deep),
        pytest.param("start a cluster", ("--real",), marks=[pytest.mark.controlplane, pytest.mark.deep]),
        pytest.param("a real Kubernetes", ("--real",), marks=pytest.mark.controlplane),
    ],
)
def test_demo_on_ctrl_c_leaves_no_process(
    tmp_path: pathlib.Path, moment: str, flags: tuple[str, ...]
) -> None:
    """At any point: the whole foreground group is interrupted, as a terminal does."""
    directory = tmp_path / "run"
    run = _start(directory, *flags)
    assert run.stdout is not None
    seen = ""
    for line in run.stdout:
        seen += line
        if moment in line:
            break
    else:
        pytest.fail(f"never said {moment!r}:\n{seen}")
    os.killpg(run.pid, signal.SIGINT)
    rest, _ = run.communicate(timeout=200)
    deadline = time.monotonic() + 60
    while (left := _left_running(directory)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []
    assert run.returncode == 130, rest
    assert "Traceback" not in rest


def test_demo_beside_running_demo_refuses_and_keeps_its_files(tmp_path: pathlib.Path) -> None:
    """It says that there is one, touches none of its files, and can be run once the first has ended."""
    directory = tmp_path / "run"
    first = _start(directory)
    assert first.stdout is not None
    try:
        next(line for line in first.stdout if "creating 5 nodes" in line)
        theirs = {path.name: path.stat().st_ino for path in directory.iterdir()}
        second = _start(directory)
        output, _ = second.communicate(timeout=200)
        assert second.returncode == 1
        assert f"demo: another demo is running in {os.path.relpath(directory, ROOT)}" in output
        assert theirs.items() <= {path.name: path.stat().st_ino for path in directory.iterdir()}.items()
    finally:
        os.killpg(first.pid, signal.SIGINT)
        first.communicate(timeout=200)
    third = _start(directory)
    assert third.stdout is not None
    assert any("creating 5 nodes" in line for line in third.stdout)
    os.killpg(third.pid, signal.SIGINT)
    third.communicate(timeout=200)


Kept = tuple[pathlib.Path, dict[str, str], dict[str, str]]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    """A demo that keeps running: its folder, its addresses by what they are said to be, and what to export."""
    directory = tmp_path_factory.mktemp("kept") / "run"
    run = _start(directory, "--keep")
    addresses, exports = {}, {}
    try:
        assert run.stdout is not None
        for line in run.stdout:
            if address := re.match(r"  (http\S+) +\((.+)\)", line):
                addresses[address[2]] = address[1]
            if export := re.match(r"  export (\w+)=(.+)", line):
                exports[export[1]] = export[2]
            if line.startswith("Ctrl-C stops"):
                break
        yield directory, addresses, exports
    finally:
        os.killpg(run.pid, signal.SIGINT)
        output, _ = run.communicate(timeout=200)
    assert run.returncode == 0, output
    assert _left_running(directory) == []


def _json(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return json.load(answer)["data"]


def test_kept_demo_has_rules_alerts_and_all_targets(kept: Kept) -> None:
    """Its Prometheus scrapes exporters, kube-state-metrics' series and `run`, and evaluates every rule."""
    prometheus = kept[1]["Prometheus, with rules and alerts"].removesuffix("/alerts")
    targets = _json(f"{prometheus}/api/v1/targets?state=active")["activeTargets"]
    assert {target["scrapePool"] for target in targets} == {
        "gpu-exporter",
        "gpu-rightsizer",
        "kube-state-metrics",
    }
    rules = [rule for group in _json(f"{prometheus}/api/v1/rules")["groups"] for rule in group["rules"]]
    assert {rule["type"] for rule in rules} == {"recording", "alerting"}
    assert [rule for rule in rules if rule["health"] == "err"] == []


def test_kept_demo_shows_dashboard_with_data(kept: Kept) -> None:
    """All rows, the panels of the cluster with figures: 32 GPUs as the plan counts."""
    page, total = "", re.compile(r"GPUs \(by node\)</h3><div class=n[^>]*>32\.0<")
    for _ in range(40):  # rules are evaluated once a minute
        with urllib.request.urlopen(kept[1]["dashboard"]) as answer:
            page = answer.read().decode()
        if total.search(page) and "moe-finetune" in page:
            break
        time.sleep(5)
    assert all(f"<h2>⌄ {html.escape(row.title)}</h2>" in page for row in ROWS)
    assert total.search(page)
    assert "moe-finetune" in page


def test_kept_demo_counts_held_gpus_on_the_dashboard_as_a_plan_does(kept: Kept) -> None:
    """To the hundredth, with MIG instances and shared GPUs among them."""
    prometheus = kept[1]["Prometheus, with rules and alerts"].removesuffix("/alerts")
    command = [sys.executable, "-m", "rightsizer", "plan", "-o", "json"]
    env = {**os.environ, **kept[2]}
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    planned = json.loads(run.stdout)["totals"]["fleet"]["held"]
    recorded = []
    # Rules are evaluated once a minute; what ended before the first time counts as there for five.
    for _ in range(90):
        found = _json(f"{prometheus}/api/v1/query?query=sum(gpu:node:held)")["result"]
        recorded = [float(one["value"][1]) for one in found]
        if recorded == pytest.approx([planned], abs=0.01):
            break
        time.sleep(5)
    assert recorded == pytest.approx([planned], abs=0.01)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kept_demo_takes_every_command_of_the_plan_from_kubectl(kept: Kept) -> None:
    """As they are printed, for each workload that `apply` left as it was."""
    directory = kept[0]
    done = {item["uid"] for item in json.loads((directory / "outcome.json").read_text())["items"]}
    items = json.loads((directory / "plan.json").read_text())["items"]
    commands = [item["command"] for item in items if item.get("command") and item["uid"] not in done]
    assert all(any(f" {verb} " in command for command in commands) for verb in ("scale", "patch"))
    env = {**os.environ, "KUBECONFIG": str(directory / "cluster/kubeconfig")}
    printed = {}
    for command in ("kubectl get pods -A", "kubectl get nodes", "kubectl describe nodes", *commands):
        run = subprocess.run(command, shell=True, env=env, capture_output=True, text=True, check=False)
        assert run.returncode == 0, f"{command}\n{run.stderr}"
        printed[command] = run.stdout
    assert re.search(r"^NAMESPACE +NAME +READY +STATUS +RESTARTS +AGE", printed["kubectl get pods -A"])
    assert re.search(r"^NAME +STATUS +ROLES +AGE +VERSION", printed["kubectl get nodes"])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kept_demo_first_hour_in_a_second_terminal(kept: Kept, tmp_path: pathlib.Path) -> None:
    """With what the demo says to export, and an empty home: every kind of command in its first form.

    Its mistakes are played where they need less than a demo: tests/rightsizer/cli/test_mistakes.py names the places.
    """
    directory, _, exports = kept
    env = {
        "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        **exports,
    }
    ledger = "--ledger ledger --cluster-name demo"

    def typed(command: str) -> str:
        run = subprocess.run(
            command, shell=True, env=env, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, f"{command}\n{run.stdout}{run.stderr}"
        assert "Traceback" not in run.stderr
        return run.stdout

    assert typed("kubectl get nodes -o name").count("node/") == 5
    assert typed(f"gpu-rightsizer plan {ledger}").startswith("32 GPUs, ")
    chosen = json.loads(typed("gpu-rightsizer plan -n serving --verdict keep -o json"))
    assert {(item["namespace"], item["verdict"]) for item in chosen["items"]} == {("serving", "keep")}
    *_, undone = (
        item
        for item in json.loads((directory / "outcome.json").read_text())["items"]
        if item["result"] == "done" and item["kind"] == "StatefulSet"
    )
    namespace, name = undone["namespace"], f"{undone['namespace']}/StatefulSet/{undone['name']}"
    typed(f"gpu-rightsizer undo {name} --yes")
    while f"pod/{undone['name']}-0\n" not in typed(f"kubectl -n {namespace} get pods -o name"):
        time.sleep(0.2)
    assert "changes nothing" in typed(f"gpu-rightsizer apply {name} --yes {ledger}"), (
        "what somebody took back stays"
    )
    assert name in typed("gpu-rightsizer history --since 1h")
    assert "cluster demo:" in typed("gpu-rightsizer report --ledger ledger --since 1d --by namespace")
    told = typed(f"gpu-rightsizer report --ledger {directory / 'ledger'} --since 1d")
    assert "cluster simulator:" in told
    assert "Reclaimed: 11 GPUs by 5 changes" in told
    backtest = json.loads(typed("gpu-rightsizer backtest --from 1d -o json"))
    (judged,) = (one for one in backtest["judges"] if one["name"] == "demo-policy.yaml")
    assert {"Deployment", "Job"} <= judged["by"]["kind"].keys(), (backtest["gpus"], judged["by"]["kind"])
