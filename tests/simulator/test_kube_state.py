"""Series of kube-state-metrics, as 2.20 writes them: names and labels by its internal/store/pod.go."""

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.kube_state import kube_state_metrics

POD: Mapping[str, Any] = {
    "metadata": {
        "namespace": "team",
        "name": "web-0",
        "uid": "u1",
        "ownerReferences": [
            {"kind": "StatefulSet", "name": "web", "controller": True},
            {"kind": "X", "name": "x"},
        ],
    },
    "spec": {
        "nodeName": "n1",
        "priorityClassName": "high",
        "resourceClaims": [
            {"name": "gpu", "resourceClaimTemplateName": "one-gpu"},
            {"name": "nic", "resourceClaimName": "shared"},
        ],
        "containers": [
            {
                "name": "main",
                "image": "web:1",
                "resources": {"requests": {"cpu": "500m", "memory": "1Gi", "nvidia.com/gpu": "1"}},
            }
        ],
        "initContainers": [
            {
                "name": "log",
                "restartPolicy": "Always",
                "resources": {"requests": {"nvidia.com/mig-1g.10gb": 2}},
            },
            {"name": "first"},
        ],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "containerStatuses": [{"name": "main", "image": "docker.io/web:1"}],
        "initContainerStatuses": [{"name": "log"}],
        "resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "web-0-gpu-x7k2p"}],
    },
}
NAMES = {"namespace": "team", "pod": "web-0", "uid": "u1"}


def _told(name: str, pod: Mapping[str, Any] = POD) -> Sequence[tuple[Mapping[str, str], float]]:
    return [
        (
            {
                key: text
                for key, text in labels.items()
                if key != "__name__" and (key, text) not in NAMES.items()
            },
            value,
        )
        for labels, value in kube_state_metrics({"Pod": [pod]})
        if labels["__name__"] == name
    ]


def test_kube_state_every_series_of_a_pod_has_its_uid() -> None:
    """Pods of one name differ by it."""
    for labels, _ in kube_state_metrics({"Pod": [POD]}):
        assert labels.items() >= NAMES.items()


def test_kube_state_pod_info_names_its_controller() -> None:
    """Beside node and PriorityClass."""
    ((labels, _),) = _told("kube_pod_info")
    assert labels == {
        "pod_ip": "10.0.0.1",
        "node": "n1",
        "created_by_kind": "StatefulSet",
        "created_by_name": "web",
        "priority_class": "high",
        "host_network": "false",
    }


def test_kube_state_owner_that_is_no_controller_is_told_as_such() -> None:
    """And a pod without owner has a series without labels of one."""
    owners = [labels["owner_is_controller"] for labels, _ in _told("kube_pod_owner")]
    assert owners == ["true", "false"]
    assert _told("kube_pod_owner", {**POD, "metadata": NAMES | {"name": "web-0"}}) == [({}, 1.0)]


def test_kube_state_requests_have_units() -> None:
    """Of every resource."""
    found = {
        labels["resource"]: (labels["unit"], value)
        for labels, value in _told("kube_pod_container_resource_requests")
    }
    assert found == {"cpu": ("core", 0.5), "memory": ("byte", 2.0**30), "nvidia_com_gpu": ("integer", 1.0)}


def test_kube_state_init_containers_have_metrics_of_their_own() -> None:
    """The restart policy names a sidecar, once its container has a status."""
    ((request, value),) = _told("kube_pod_init_container_resource_requests")
    assert (request["container"], request["resource"], value) == ("log", "nvidia_com_mig_1g_10gb", 2.0)
    assert _told("kube_pod_init_container_info") == [({"container": "log", "restart_policy": "Always"}, 1.0)]
    ((info, _),) = _told("kube_pod_container_info")
    assert info == {"container": "main", "image_spec": "web:1", "image": "docker.io/web:1"}


def test_kube_state_each_claim_of_a_pod_has_a_series() -> None:
    """With the claim that was made from a template."""
    assert [labels for labels, _ in _told("kube_pod_resourceclaim_info")] == [
        {
            "claim_name": "gpu",
            "resourceclaim_name": "web-0-gpu-x7k2p",
            "resourceclaim_template_name": "one-gpu",
        },
        {"claim_name": "nic", "resourceclaim_name": "shared"},
    ]
