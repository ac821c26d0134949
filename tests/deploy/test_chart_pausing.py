"""The exporter leaves nodes that the GPU Operator upgrades or repartitions, because an open driver blocks both."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.deploy.chart import Object, exporter
from tests.deploy.test_chart import PLATFORMS

pytestmark = pytest.mark.helm

DEPLOY = "nvidia.com/gpu.deploy."
PAUSED: Mapping[str, Mapping[str, str]] = {
    "driver-upgrade": {f"{DEPLOY}client": "paused-for-driver-upgrade"},
    "driver-upgrade-before-26.7": {f"{DEPLOY}dcgm-exporter": "paused-for-driver-upgrade"},
    "driver-upgrade-with-claims": {f"{DEPLOY}dcgm-exporter-dra": "paused-for-driver-upgrade"},
    "mig": {f"{DEPLOY}client": "paused-for-mig-change", f"{DEPLOY}dcgm-exporter": "paused-for-mig-change"},
    "both": {f"{DEPLOY}dcgm-exporter": "paused-for-mig-change_paused-for-driver-upgrade"},
}
"""Node labels that NVIDIA's driver manager and MIG manager write, or one of them."""
AT_WORK: Mapping[str, Mapping[str, str]] = {
    "no-operator": {},
    "at-work": {f"{DEPLOY}{name}": "true" for name in ("client", "dcgm-exporter", "driver")},
    "without-their-exporter": {f"{DEPLOY}dcgm-exporter": "false"},
    "never-deployed": {f"{DEPLOY}dcgm-exporter": ""},
}
GPU_NODE = {
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu": "true",
    "cloud.google.com/gke-accelerator": "l4",
    "kubernetes.azure.com/accelerator": "nvidia",
    "k8s.amazonaws.com/accelerator": "nvidia",
    "feature.node.kubernetes.io/pci-10de.present": "true",
    "pool": "a",
}
"""For any platform, and for a pool."""
POOL = {"nodePools": [{"name": "a", "nodeSelector": {"pool": "a"}}]}
CHOSEN: Mapping[str, tuple[Object, Object]] = {
    **{name or "labelled": ({"platform": name}, {}) for name in PLATFORMS},
    "pool": (POOL, {}),
    "own-labels": ({}, {"nodeSelector": {"pool": "a"}}),
    "all-nodes": ({}, {"nodeSelector": {}}),
}


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """A requirement of a node selector term in Kubernetes's semantics: NotIn holds for a missing label."""
    value = labels.get(expression["key"])
    match expression["operator"]:
        case "Exists":
            return value is not None
        case "In":
            return value in expression["values"]
        case "NotIn":
            return value not in expression["values"]
    raise AssertionError(expression)


def _runs_on(pod: Object, labels: Mapping[str, str]) -> bool:
    if not pod.get("nodeSelector", {}).items() <= labels.items():
        return False
    node = pod.get("affinity", {}).get("nodeAffinity", {})
    terms = node.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms")
    return terms is None or any(
        all(_holds(one, labels) for one in term["matchExpressions"]) for term in terms
    )


@pytest.mark.parametrize("name", CHOSEN)
def test_exporter_leaves_node_paused_by_gpu_operator(name: str) -> None:
    """For every kind of node selection and every label of the operator's managers; other nodes keep it."""
    values, given = CHOSEN[name]
    pod = exporter(values, **given)
    for case, labels in PAUSED.items():
        assert not _runs_on(pod, {**GPU_NODE, **labels}), case
    for case, labels in AT_WORK.items():
        assert _runs_on(pod, {**GPU_NODE, **labels}), case


def test_exporter_without_pausing_stays_on_node() -> None:
    """The pod has no such requirement."""
    pod = exporter({}, pauseForGpuOperator=False)
    assert "affinity" not in pod
    assert all(_runs_on(pod, {**GPU_NODE, **labels}) for labels in PAUSED.values())
