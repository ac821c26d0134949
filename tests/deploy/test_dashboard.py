"""dashboards/grafana.json is up to date and complete, and every query has a result on the demo's Prometheus."""

import dataclasses
import json
import pathlib
import re
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import requests

from dashboards.__main__ import DASHBOARD, rendered
from dashboards.panels import Kind, Source
from dashboards.rows import ROWS, VARIABLES
from dashboards.rules import GROUPS
from exporter.sampling import catalogue
from rightsizer.report.metrics import METRICS
from simulator.cluster import Cluster
from simulator.history import parse
from simulator.kube_state import KINDS, kube_state_past
from simulator.prometheus import Prometheus
from simulator.recorded_rules import record
from simulator.series_store import Series
from simulator.specfile import preset
from tests.deploy.recorded import (
    STEP_S,
    TRUTH_STEP_S,
    as_dcgm_exporter,
    exporters_past,
    last_hours,
)

ROOT = pathlib.Path(__file__).parents[2]
BOARD: dict[str, Any] = json.loads(DASHBOARD.read_text())
PANELS = [(panel, query) for row in ROWS for panel in row.panels for query in panel.queries]

on_the_demo = [
    pytest.mark.prometheus,
    pytest.mark.driver,
    pytest.mark.timeout(900),
    pytest.mark.xdist_group("dashboard"),
]

KUBE_STATE_METRICS = {
    "kube_pod_info",
    "kube_pod_owner",
    "kube_pod_status_phase",
    "kube_pod_container_resource_requests",
}
EXPORTER = {"gpu_allocated", "gpu_replicas", "up"}
"""Metrics of the exporter without a collector, and of Prometheus itself."""
_METRIC = re.compile(r"\b(?:DCGM_\w+|gpu_\w+|kube_\w+|up\b|gpu:[\w:]+)")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def _metrics(expression: str) -> set[str]:
    """Names of metrics in a query, including matchers of __name__."""
    named = [each for text in re.findall(r'__name__=~"([^"]*)"', expression) for each in text.split("|")]
    return {*named, *_METRIC.findall(_QUOTED.sub('""', expression))}


def test_dashboard_file_equals_tables() -> None:
    """`python -m dashboards` or `make golden` writes it."""
    assert DASHBOARD.read_text() == rendered()[DASHBOARD]


def test_dashboard_and_rules_query_only_existing_metrics() -> None:
    """Metrics come from an exporter, the rightsizer, kube-state-metrics or a recording rule."""
    served = {name for each in catalogue.metrics() for name in (each.dcgm.name, each.dcgm_49.name)}
    served |= {row.full_name for row in METRICS} | KUBE_STATE_METRICS | EXPORTER
    recorded = {rule.record for group in GROUPS for rule in group.rules}
    for expression in [rule.expr for group in GROUPS for rule in group.rules]:
        assert _metrics(expression) <= served | recorded, expression
    for _, query in PANELS:
        assert _metrics(query.expr) <= {row.full_name for row in METRICS} | recorded, query.expr
    for variable in VARIABLES:
        assert _metrics(variable.series) <= recorded


def test_recorded_series_are_all_queried() -> None:
    """A panel, another rule or (for pods) an alert queries each rule."""
    asked = {name for _, query in PANELS for name in _metrics(query.expr)}
    asked |= {name for group in GROUPS for rule in group.rules for name in _metrics(rule.expr)}
    recorded = {rule.record for group in GROUPS for rule in group.rules}
    assert {name for name in recorded - asked if not name.startswith("gpu:pod:")} == set()


def _shown() -> list[dict[str, Any]]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def test_panels_do_not_overlap() -> None:
    """Panels stay within the width and have unique numbers."""
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells), panel["title"]
        taken |= cells
    numbers = [panel["id"] for panel in BOARD["panels"]]
    assert len(set(numbers)) == len(numbers)


def test_panel_has_title_description_unit_and_no_data_text() -> None:
    """Also, the data source is the variable."""
    for panel in _shown():
        if panel["type"] == Kind.TEXT:
            assert panel["options"]["content"]
            continue
        defaults = panel["fieldConfig"]["defaults"]
        assert panel["title"], panel
        assert panel["description"].endswith("."), panel["title"]
        assert defaults["unit"], panel["title"]
        assert defaults["noValue"], panel["title"]
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        assert all(target["legendFormat"] for target in panel["targets"]), panel["title"]


def test_figure_obeys_only_variables_of_its_title() -> None:
    """Neighbouring figures obey different variables, which their titles name."""
    titled = {"(by node)": ("$node", "$class"), "(by class, namespace)": ("$class", "$node")}
    found = set()
    for panel, query in PANELS:
        for words, (obeyed, ignored) in titled.items():
            if words in panel.title:
                found.add(panel.title)
                assert obeyed in query.expr, panel.title
                assert ignored not in query.expr, panel.title
    assert len(found) == 6


def test_variables_are_all_used_and_queries_filter_by_cluster() -> None:
    """No variable is without effect."""
    text = json.dumps(BOARD["panels"])
    for variable in BOARD["templating"]["list"]:
        assert f"${variable['name']}" in text or f"${{{variable['name']}}}" in text, variable["name"]
    for panel, query in PANELS:
        assert 'cluster=~"$cluster"' in query.expr, panel.title


def _filled(expression: str, **chosen: str) -> str:
    """A query as Grafana sends it, with these variables set."""
    for variable in VARIABLES:
        value = chosen.get(variable.name, ".*")
        expression = expression.replace(f'"${variable.name}"', f'"{value}"')
    filled = expression.replace("$__range", "1h")
    assert "$" not in filled, filled
    return filled


class Board:
    """The dashboard over a Prometheus."""

    def __init__(self, prometheus: Prometheus, seconds: range) -> None:
        self.prometheus = prometheus
        self.minutes = range(seconds[0], seconds[-1] + 1, 60)

    def answer(self, kind: Kind, expression: str) -> list[dict[str, Any]]:
        """The result for a panel."""
        if kind is Kind.LINES:
            return self.prometheus.query_range(expression, self.minutes[-15:])
        return self.prometheus.query(expression, at_s=self.minutes[-1])

    def value(self, expression: str) -> float:
        """A single number."""
        (one,) = self.prometheus.query(_filled(expression), at_s=self.minutes[-1])
        return float(one["value"][1])

    def empty(self, **chosen: str) -> dict[tuple[str, str], Source]:
        """Panels and queries without a result, with their needs."""
        return {
            (panel.title, query.name): query.source if query.source is not Source.EXPORTER else panel.source
            for panel, query in PANELS
            if not self.answer(panel.kind, _filled(query.expr, **chosen))
        }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The demo's cluster with a pending pod."""
    with Cluster(preset("demo"), tmp_path_factory.mktemp("demo")) as running:
        assert running.api is not None
        running.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpu-rightsizer"}})
        running.api.create(_waiting_pod())
        yield running


def _waiting_pod() -> dict[str, Any]:
    resources = {name: {"nvidia.com/gpu": "16"} for name in ("requests", "limits")}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "wants-sixteen", "namespace": "training"},
        "spec": {
            "priorityClassName": "high-priority",
            "containers": [{"name": "main", "image": "none", "resources": resources}],
        },
    }


@dataclasses.dataclass(frozen=True, slots=True)
class Past:
    """Series of the hours before the rightsizer started."""

    seconds: range
    ours: list[Series]
    dcgm_exporter: list[Series]
    kube_state_metrics: list[Series]


@pytest.fixture(scope="module")
def past(cluster: Cluster) -> Past:
    """The same two hours, for each exporter."""
    _await_accounts(cluster)
    seconds = last_hours(2.25)
    assert cluster.api is not None
    return Past(
        seconds,
        list(exporters_past(cluster, seconds, honor_labels=False)),
        list(exporters_past(cluster, seconds, honor_labels=True, labelled=as_dcgm_exporter)),
        list(kube_state_past({kind: cluster.api.list(kind) for kind in KINDS}, seconds)),
    )


def _await_accounts(cluster: Cluster) -> None:
    """Waits until the exporter attributes the processes on shared GPUs, which takes a cycle or two."""
    deadline = time.monotonic() + 300
    while True:
        pods: dict[str, set[str]] = {"DCGM_FI_DEV_FB_USED": set(), "gpu_pod_busy_seconds_total": set()}
        for sample in parse(cluster.exporters["l40s-a"].get("/metrics")[1]):
            if sample.name in pods and (pod := sample.labels.get("pod")):
                pods[sample.name].add(pod)
        holders, accounted = pods.values()
        if holders and holders == accounted:
            return
        assert time.monotonic() < deadline, (holders, accounted)
        time.sleep(0.2)


@pytest.fixture(scope="module")
def board(cluster: Cluster, past: Past, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """Past series of gpu-exporter and kube-state-metrics, and metrics of a rightsizer that acted."""
    folder = tmp_path_factory.mktemp("ours")
    seconds = past.seconds
    with Prometheus(folder / "prometheus") as prometheus:
        prometheus.write([*past.ours, *past.kube_state_metrics])
        prometheus.write(_rightsizers(_scrape_of_run(cluster, prometheus, folder), seconds))
        record(prometheus, range(seconds[0], seconds[-1] + 1, 60))
        yield Board(prometheus, seconds)


POLICY = (
    (ROOT / "simulator/demo-policy.yaml")
    .read_text()
    .replace("24h", "1h")
    .replace("history: 1d", "history: 1h")
    .replace("gpus: 14", "gpus: 7")  # so that the second cycle, too, has changes that this budget blocks
)


def _scrape_of_run(cluster: Cluster, prometheus: Prometheus, folder: pathlib.Path) -> str:
    """Metrics of `gpu-rightsizer run` after it freed GPUs and ran another cycle."""
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    _publish_backtest(cluster, prometheus, policy)
    command = [sys.executable, "-m", "rightsizer", "run", "--every", "1s", "--yes"]
    command += ["--listen", address, "--prometheus-url", prometheus.url, "--policy", str(policy)]
    with (
        (folder / "run.log").open("w") as log,
        subprocess.Popen(
            [*command, "--kubeconfig", str(cluster.kubeconfig)], cwd=ROOT, stdout=log, stderr=log
        ) as process,
    ):
        try:
            deadline = time.monotonic() + 500
            while True:
                try:
                    text = requests.get(f"http://{address}/metrics", timeout=10).text
                except requests.ConnectionError:
                    text = ""
                if re.search(r"^gpu_rightsizer_freed_gpus{.*} [1-9]", text, re.MULTILINE):
                    return text
                in_time = process.poll() is None and time.monotonic() < deadline
                assert in_time, (folder / "run.log").read_text()
                time.sleep(0.2)
        finally:
            process.kill()


def _publish_backtest(cluster: Cluster, prometheus: Prometheus, policy: pathlib.Path) -> None:
    """The figures of the hours before."""
    asked = ["--from", "1h", "--every", "5m", "--step", "5m", "--enforce", "--publish"]
    command = [sys.executable, "-m", "rightsizer", "backtest", *asked, "--policy", str(policy)]
    command += ["--prometheus-url", prometheus.url, "--kubeconfig", str(cluster.kubeconfig)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def _rightsizers(scrape: str, seconds: range) -> Iterator[Series]:
    """As if it had run for an hour and counted everything in the last quarter of it."""
    scraped = seconds[-121:]
    target = {"job": "gpu-rightsizer", "instance": "rightsizer:9401"}
    for sample in parse(scrape):
        values = [sample.value] * len(scraped)
        if sample.name.endswith("_total"):
            values[:90] = [0.0] * 90
        if sample.name.startswith("gpu_rightsizer_") and not sample.name.endswith("_created"):
            yield Series({"__name__": sample.name, **target, **sample.labels}, scraped, values)


@pytest.fixture(scope="module")
def dcgm_board(past: Past, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """Only the series of a dcgm-exporter for the same past."""
    with Prometheus(tmp_path_factory.mktemp("dcgm") / "prometheus") as prometheus:
        seconds = past.seconds
        prometheus.write(past.dcgm_exporter)
        record(prometheus, range(seconds[0], seconds[-1] + 1, 60))
        yield Board(prometheus, seconds)


@pytest.mark.prometheus
def test_last_cycle_panel_shows_oldest_installation(tmp_path: pathlib.Path) -> None:
    """Other clusters, namespaces and waiting replicas do not hide a dead installation."""
    name = "gpu_rightsizer_last_success_timestamp_seconds"
    (expr,) = (_filled(query.expr) for _, query in PANELS if name in query.expr)
    ago = {'cluster="a"': 1000, 'cluster="b",namespace="g",pod="1"': 400, 'cluster="b",namespace="h"': 1100}
    with Prometheus(tmp_path) as prometheus:
        seconds = range(1_800_000_000, 1_800_001_200, 60)
        for labels, at in (*ago.items(), ('cluster="b",namespace="g",pod="2"', 0)):
            told = dict(re.findall(r'(\w+)="(\w+)"', labels))
            prometheus.write([Series({"__name__": name, **told}, seconds, [seconds[0] + at] * len(seconds))])
        ((found,),) = ([one["value"][1]] for one in prometheus.query(expr, at_s=seconds[-1]))
    assert float(found) == seconds[-1] - seconds[0] - min(ago.values())


class TestOnTheDemo:
    """Real exporters' series, real rules, a real rightsizer."""

    pytestmark = on_the_demo

    def test_queries_with_all_sources_have_results(self, board: Board) -> None:
        """With gpu-exporter, kube-state-metrics and the rightsizer's `run`."""
        assert board.empty() == {}

    def test_queries_with_dcgm_exporter_alone_miss_only_stated_needs(self, dcgm_board: Board) -> None:
        """Without gpu-exporter, kube-state-metrics and the rightsizer."""
        assert set(dcgm_board.empty().values()) <= {
            Source.GPU_EXPORTER,
            Source.PENDING,
            Source.RIGHTSIZER,
        }

    def test_gpu_counts_equal_cluster_with_either_exporter(self, board: Board, dcgm_board: Board) -> None:
        """All boards, as the plan counts them, also those with MIG instances on a part of them."""
        for each in (board, dcgm_board):
            assert each.value("sum(gpu:node:gpus)") == 8 + 8 + 8 + 4 + 4
            assert each.value('sum(gpu:node:gpus{modelName=~".*L40S.*"})') == 4
            assert each.value("sum(gpu:pod:held)") == pytest.approx(each.value("sum(gpu:node:held)"))
        # dcgm-exporter does not say how many replicas there are beside those that pods hold
        assert board.value("sum(gpu:node:held)") < dcgm_board.value("sum(gpu:node:held)")
        assert board.value("sum(gpu:namespace:waiting)") == 16

    def test_utilization_equals_simulator_truth(self, board: Board, cluster: Cluster) -> None:
        """Over the same seconds as the rules' rates; Prometheus 3 leaves a window's first sample out."""
        end_s, agent = board.minutes[-1], cluster.agents["l40s-a"]
        for gpu in range(4):
            means = []
            for window_s in (300, 300 - STEP_S):
                window = range(end_s - window_s + TRUTH_STEP_S, end_s + 1, TRUTH_STEP_S)
                means.append(statistics.fmean(agent.machine.division(gpu, at).percent for at in window) / 100)
            found = board.value(f'gpu:device:utilization:ratio{{UUID="{agent.node.gpu_uuid(gpu)}"}}')
            assert min(means) - 0.001 <= found <= max(means) + 0.001
        parts = board.value('sum(gpu:pod:utilization:ratio{modelName=~".*L40S.*"})')
        assert parts == pytest.approx(board.value('sum(gpu:node:used{modelName=~".*L40S.*"})'), abs=0.01)

    def test_dcgm_copies_on_shared_gpus_give_no_pod_utilization(self, dcgm_board: Board) -> None:
        """With dcgm-exporter; the use of whole GPUs is known."""
        shared = "gpu:pod:utilization:ratio and on (cluster, UUID, GPU_I_ID) (gpu:device:pods > 1)"
        assert dcgm_board.prometheus.query(shared, at_s=dcgm_board.minutes[-1]) == []
        assert dcgm_board.value("count(gpu:pod:utilization:ratio)") > 10

    def test_workloads_have_names_and_classes(self, board: Board, dcgm_board: Board) -> None:
        """From kube-state-metrics; without it workloads come from pod names, without class."""
        specs = {spec.name: spec.priority_class for spec in preset("demo").workloads}
        found = board.prometheus.query("gpu:workload:held", at_s=board.minutes[-1])
        assert {one["metric"]["workload"]: one["metric"]["priority_class"] for one in found} == specs
        guessed = dcgm_board.prometheus.query("gpu:workload:held", at_s=dcgm_board.minutes[-1])
        assert {one["metric"]["workload"] for one in guessed} == set(specs)
        assert not any("priority_class" in one["metric"] for one in guessed)

    @pytest.mark.parametrize(
        "chosen",
        [
            {"namespace": "serving"},
            {"class": "low-priority"},
            {"node": "l40s-a"},
            {"model": "Tesla T4"},
            {"workload": "tts|ocr"},
        ],
        ids="-".join,
    )
    def test_variable_choice_filters_every_panel(self, board: Board, chosen: Mapping[str, str]) -> None:
        """Every panel that shows the label shows only that value."""
        labels = {variable.name: variable.label for variable in VARIABLES}
        ((name, value),) = chosen.items()
        for panel, query in PANELS:
            for one in board.answer(panel.kind, _filled(query.expr, **chosen)):
                if labels[name] in one["metric"] and f"${name}" in query.expr:
                    assert re.fullmatch(value, one["metric"][labels[name]]), panel.title

    def test_variables_offer_existing_values(self, board: Board) -> None:
        """All but `cluster`, a label that no series has here."""
        offered = {}
        for variable in VARIABLES:
            found = board.prometheus.query(_filled(variable.series), at_s=board.minutes[-1])
            offered[variable.name] = {one["metric"].get(variable.label) for one in found} - {None}
        assert offered.pop("cluster") == set()
        assert all(offered.values())
        assert offered["class"] == {"high-priority", "medium-priority", "low-priority"}
