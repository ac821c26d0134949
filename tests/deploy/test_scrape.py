"""deploy/prometheus/scrape.yaml: which pods are scraped, under which labels; and that the rules' jobs are these."""

import copy
import json
import pathlib
import re
import subprocess
from typing import Any

import pytest
import yaml

ROOT = pathlib.Path(__file__).parents[2]
SCRAPE: dict[str, Any] = yaml.load(
    (ROOT / "deploy/prometheus/scrape.yaml").read_text(), Loader=yaml.CSafeLoader
)
JOBS: dict[str, dict[str, Any]] = {job["job_name"]: job for job in SCRAPE["scrape_configs"]}


def _port(address: str, name: str, labels: dict[str, str], phase: str = "Running") -> dict[str, Any]:
    """A container's port as role pod of kubernetes_sd_configs finds it."""
    found = {f"__meta_kubernetes_pod_label_{key}": value for key, value in labels.items()}
    found |= {
        "__meta_kubernetes_namespace": "monitoring",
        "__meta_kubernetes_pod_container_port_name": name,
        "__meta_kubernetes_pod_container_port_number": address.partition(":")[2],
        "__meta_kubernetes_pod_name": f"pod-{address.partition(':')[0]}",
        "__meta_kubernetes_pod_node_name": "n1",
        "__meta_kubernetes_pod_phase": phase,
    }
    return {"targets": [address], "labels": found}


OURS = {"app_kubernetes_io_name": "gpu-rightsizer"}
EXPORTER = {**OURS, "app_kubernetes_io_component": "exporter"}
RIGHTSIZER = {**OURS, "app_kubernetes_io_component": "rightsizer"}
CLUSTER = [
    _port("10.0.0.1:9400", "metrics", EXPORTER),
    _port("10.0.0.2:9401", "metrics", RIGHTSIZER),
    _port("10.0.0.3:9400", "metrics", {"app_kubernetes_io_name": "dcgm-exporter"}),
    _port("10.0.0.4:9400", "metrics", {"app": "nvidia-dcgm-exporter"}),
    _port("10.0.0.5:9400", "metrics", EXPORTER, phase="Succeeded"),
    _port("10.0.0.6:8080", "http", EXPORTER),
    _port("10.0.0.7:9400", "metrics", {"app_kubernetes_io_name": "grafana"}),
    _port("10.0.0.8:8443", "proxy", {"app": "nvidia-dcgm-exporter"}),
]


@pytest.fixture
def config(tmp_path: pathlib.Path) -> pathlib.Path:
    """The jobs with these pods' ports in place of the cluster's, which promtool of some distributions cannot ask."""
    document = copy.deepcopy(SCRAPE)
    for job in document["scrape_configs"]:
        (discovery,) = job.pop("kubernetes_sd_configs")
        assert discovery["role"] == "pod"
        assert discovery["namespaces"]["names"], "any pod with the right labels would be scraped"
        job["static_configs"] = CLUSTER
    path = tmp_path / "prometheus.yml"
    path.write_text(yaml.safe_dump(document))
    return path


def _promtool(*arguments: str) -> str:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.prometheus
def test_scrape_configuration_passes_promtool(config: pathlib.Path) -> None:
    """As part of a Prometheus configuration."""
    assert "SUCCESS" in _promtool("check", "config", str(config))


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ("gpu-exporter", {"10.0.0.1:9400": {}}),
        ("dcgm-exporter", {"10.0.0.3:9400": {}, "10.0.0.4:9400": {}}),
        ("gpu-rightsizer", {"10.0.0.2:9401": {"namespace": "monitoring", "pod": "pod-10.0.0.2"}}),
    ],
)
def test_scraped_targets_have_expected_labels(
    job: str, expected: dict[str, dict[str, str]], config: pathlib.Path
) -> None:
    """Only running pods with these labels; the exporter's own pod never appears as the GPU's user."""
    found = json.loads(_promtool("check", "service-discovery", str(config), job))
    kept = {one["labels"]["instance"]: one["labels"] for one in found if one.get("labels")}
    shown = {
        address: {name: value for name, value in labels.items() if not name.startswith("__")}
        for address, labels in kept.items()
    }
    always = {"job": job, "node": "n1"}
    assert shown == {address: {**always, "instance": address, **more} for address, more in expected.items()}


def test_honor_labels_keep_pod_of_gpu() -> None:
    """For both exporters; the rightsizer's series have no other pods."""
    assert {name: job.get("honor_labels", False) for name, job in JOBS.items()} == {
        "gpu-exporter": True,
        "dcgm-exporter": True,
        "gpu-rightsizer": False,
    }


def test_alerts_match_job_names() -> None:
    """Each job name matches one alert about targets that are down."""
    text = (ROOT / "deploy/prometheus/alerts.yaml").read_text()
    exporters, ours = re.findall(r'up\{job=~"([^"]+)"\}', text)
    assert {name for name in JOBS if re.fullmatch(exporters, name)} == {"gpu-exporter", "dcgm-exporter"}
    assert {name for name in JOBS if re.fullmatch(ours, name)} == {"gpu-rightsizer"}
