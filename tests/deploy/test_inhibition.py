"""deploy/prometheus/alertmanager.yaml: one fault is one page, and nothing is muted that tells of another one."""

import datetime
import pathlib
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import requests
import yaml

from simulator.processes import Server
from tests.deploy.test_alerts import ALERTS, CASES, full
from tests.exporter.rig import eventually

CONFIG = pathlib.Path(__file__).parents[2] / "deploy/prometheus/alertmanager.yaml"
RULES: list[dict[str, Any]] = yaml.load(CONFIG.read_text(), Loader=yaml.CSafeLoader)["inhibit_rules"]
_MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')

GPU = {"hostname": "n1", "node": "n1", "gpu": "0", "UUID": "GPU-0"}
NEXT = {"hostname": "n1", "node": "n1", "gpu": "1", "UUID": "GPU-1"}
PROGRAM = {**GPU, "xid": "43"}
EXPORTER = {"job": "gpu-exporter", "instance": "a:9400", "node": "n1"}
SECOND = {"job": "gpu-exporter", "instance": "b:9400", "node": "n2"}
OURS = {"job": "gpu-rightsizer", "instance": "a:9401", "namespace": "g"}

ALWAYS = {"job", "instance"}
"""Labels that no series of a target is without."""
Fired = tuple[str, Mapping[str, str]]
FAULTS: Mapping[str, tuple[Sequence[Fired], set[str]]] = {
    "uncorrectable memory errors": (
        [
            ("GpuEccUncorrectable", GPU),
            ("GpuXidFatal", {**GPU, "xid": "48"}),
            ("GpuXidHardware", {**GPU, "xid": "63"}),
            ("GpuXidApplication", PROGRAM),
            ("GpuRowsRemapped", GPU),
            ("GpuRowRemapPending", GPU),
        ],
        {"GpuEccUncorrectable 0", "GpuRowRemapPending 0"},
    ),
    "a card without spare rows": (
        [
            ("GpuRowRemapFailed", GPU),
            ("GpuEccUncorrectable", GPU),
            ("GpuXidFatal", {**GPU, "xid": "64"}),
            ("GpuRowRemapPending", GPU),
        ],
        {"GpuRowRemapFailed 0"},
    ),
    "off the bus": (
        [
            ("GpuLost", {**GPU, "reason": "gpu_lost"}),
            ("GpuXidFatal", {**GPU, "xid": "79"}),
            ("GpuEccUncorrectable", GPU),
            ("GpuReadingsFailing", {**EXPORTER, "collector": "power"}),
        ],
        {"GpuLost 0"},
    ),
    "a hung GPU, and another fault of its neighbour": (
        [("GpuHung", GPU), ("GpuExporterStale", EXPORTER), ("GpuXidFatal", {**NEXT, "xid": "48"})],
        {"GpuHung 0", "GpuXidFatal 1"},
    ),
    "a driver that is away, and an exporter of another node": (
        [
            ("GpuDriverNotAnswering", EXPORTER),
            ("GpuExporterDown", {**EXPORTER, "namespace": "gpu-rightsizer"}),
            ("GpuNodeWithoutMetrics", {"node": "n1"}),
            ("GpuExporterDown", SECOND),
            ("GpuNodeWithoutMetrics", {"node": "n3"}),
        ],
        {"GpuDriverNotAnswering a:9400", "GpuExporterDown b:9400", "GpuNodeWithoutMetrics n3"},
    ),
    "heat": (
        [("GpuThermalThrottling", GPU), ("GpuTemperatureHigh", GPU), ("GpuTemperatureHigh", NEXT)],
        {"GpuThermalThrottling 0", "GpuTemperatureHigh 1"},
    ),
    "a policy that cannot be read": (
        [("GpuRightsizerConfigInvalid", OURS), ("GpuRightsizerFailing", OURS)],
        {"GpuRightsizerConfigInvalid a:9401"},
    ),
    "a rightsizer that is gone, and one elsewhere": (
        [
            ("GpuRightsizerDown", OURS),
            ("GpuRightsizerSilent", {"namespace": "g"}),
            ("GpuRightsizerSilent", {"namespace": "h"}),
        ],
        {"GpuRightsizerDown a:9401", "GpuRightsizerSilent h"},
    ),
    "of which GPU and node nothing is known": (
        [
            ("GpuLost", {"gpu": "0"}),
            ("GpuXidFatal", {"gpu": "1", "xid": "48"}),
            ("GpuExporterDown", {"job": "x", "instance": "a:1"}),
            ("GpuSeriesVanished", {"hostname": "n1"}),
            # muted, by which it is seen that Alertmanager has come to the end of the list
            ("GpuThermalThrottling", GPU),
            ("GpuTemperatureHigh", GPU),
        ],
        {
            *("GpuLost 0", "GpuXidFatal 1", "GpuExporterDown a:1", "GpuSeriesVanished n1"),
            "GpuThermalThrottling 0",
        },
    ),
}


def _matchers(texts: Sequence[str]) -> dict[str, tuple[str, str]]:
    return {found[1]: (found[2], found[3]) for text in texts for found in [_MATCHER.fullmatch(text)] if found}


def _named(texts: Sequence[str]) -> set[str]:
    """The alerts that matchers are about; each part of a pattern is about one at least."""
    parts = _matchers(texts)["alertname"][1].split("|")
    found = {part: {name for name in ALERTS if re.fullmatch(part, name)} for part in parts}
    assert all(found.values()), found
    return set().union(*found.values())


def _labels(alert: str) -> set[str]:
    """Those that an alert has in any of its cases."""
    fired = [one for case in CASES[alert].values() for shown in case["firing"].values() for one in shown]
    return {name for one in fired for name in re.findall(r'(\w+)="', full(one))}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: str(rule["source_matchers"][0]))
def test_inhibit_rule_names_existing_alerts(rule: Mapping[str, Any]) -> None:
    """Both have the compared labels; a label that both lack would count as equal."""
    sources, targets = _named(rule["source_matchers"]), _named(rule["target_matchers"])
    assert len(_matchers(rule["source_matchers"])) == len(rule["source_matchers"])
    assert not sources & targets
    assert all(ALERTS[name]["labels"]["severity"] != "info" for name in sources)
    asked = {name for name, (operator, _) in _matchers(rule["source_matchers"]).items() if operator == "!="}
    equal = set(rule["equal"]) - {"cluster"}
    assert equal <= asked | ALWAYS
    for name in targets:
        assert equal <= _labels(name) | {"node"}, (
            name
        )  # which scrape.yaml and the chart's monitors give every target


def test_route_waits_for_explaining_alerts() -> None:
    """Alerts that mute critical alerts about a GPU fire before the first page."""
    (route,) = yaml.safe_load(CONFIG.read_text())["route"]["routes"]
    waits = int(route["group_wait"].removesuffix("m"))
    for rule in RULES:
        if any(ALERTS[name]["labels"]["severity"] == "critical" for name in _named(rule["target_matchers"])):
            for name in _named(rule["source_matchers"]):
                assert int(ALERTS[name]["for"].removesuffix("m")) < waits, name


@pytest.fixture(scope="module")
def alertmanager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real Alertmanager with this configuration."""
    directory = tmp_path_factory.mktemp("alertmanager")

    def command(port: int) -> list[str]:
        flags = {
            "config.file": CONFIG,
            "storage.path": directory / "data",
            "web.listen-address": f"127.0.0.1:{port}",
            "cluster.listen-address": "",
        }
        return ["prometheus-alertmanager", *(f"--{name}={value}" for name, value in flags.items())]

    server = Server("alertmanager", command, ready_path="/-/ready", log=directory / "log")
    server.start(timeout_s=60)
    yield server
    server.stop()


@pytest.mark.alertmanager
def test_alertmanager_configuration_is_valid() -> None:
    """By amtool."""
    done = subprocess.run(
        ["amtool", "check-config", str(CONFIG)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.alertmanager
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_with_several_alerts_sends_one_page(fault: str, alertmanager: Server) -> None:
    """The alerts of a fault that remain after inhibition, in a cluster of their own."""
    fired, left = FAULTS[fault]
    now = datetime.datetime.now(datetime.UTC).isoformat()
    alerts = [
        {
            "labels": {
                "alertname": name,
                "cluster": fault,
                "severity": ALERTS[name]["labels"]["severity"],
                **labels,
            },
            "startsAt": now,
        }
        for name, labels in fired
    ]
    posted = requests.post(f"{alertmanager.url}/api/v2/alerts", json=alerts, timeout=10)
    assert posted.status_code == 200, posted.text
    # It takes alerts in first, and mutes a moment later.
    eventually(lambda: _unmuted(alertmanager, fault) == left)


def _unmuted(alertmanager: Server, fault: str) -> set[str]:
    query = {"inhibited": "false", "filter": f'cluster="{fault}"'}
    found = requests.get(f"{alertmanager.url}/api/v2/alerts", params=query, timeout=10).json()
    return {_told(one["labels"]) for one in found}


def _told(labels: Mapping[str, str]) -> str:
    place = next(labels[key] for key in ("gpu", "instance", "node", "hostname", "namespace") if key in labels)
    return f"{labels['alertname']} {place}"
