"""The scenarios of GPUs that a device plugin offers, on a cluster of DRA alone: the same plan for each workload.

The objects of a scenario are written to a file twice: as they are, and with slices, claims and templates in place of
the resource `nvidia.com/gpu`. What only a device plugin has (MIG resources, shares, amounts) is not here.
"""

import copy
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
import yaml

from simulator.prometheus import Prometheus
from tests.rightsizer.commands import run_command
from tests.rightsizer.kubectl import GPU, device_class, dra_gpu, resource_slice
from tests.rightsizer.test_scenarios import FOLDER, QUICK, dated, give
from tests.rightsizer.world import BUDGETS, DEFAULT_POLICY, World

Object = dict[str, Any]
_KINDS = ("Namespace", "Node", "PriorityClass", "Pod", "Deployment", "ReplicaSet", "StatefulSet", "Job")
_OWNERS = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "Job"})
_SAME = ("verdict", "finding", "mode", "rule", "action", "gpus", "frees", "proposal", "wantedBy")
_OF_PLUGINS = {
    *("amounts-of-a-gpu-instead", "mig-by-its-board", "one-slice-is-for-one", "shared-gpus"),
    *("sliceable-where-a-node-offers-it", "slices-of-another-node", "counters-that-stand-still"),
    *("room-beside-gpus", "several-shares-of-one-gpu", "gpus-of-init-containers"),
    *("renamed-resources-are-named", "gpus-in-reach-are-looked-at"),
}
_OF_OTHER_OBJECTS = {
    *("pods-of-another-cluster", "stranded-is-named"),
    "managed-elsewhere",
    "managers-by-the-policys-word",
    "disruption-budgets-hold",
    *("forged-demand-stops-nobody", "queued-work-gets-idle-gpus"),
}
"""Of objects or nodes that are not in the file, or of a plan that fails."""


def _cases() -> list[Any]:
    paths = [path for path in FOLDER.glob("*.yaml") if path.stem not in _OF_PLUGINS | _OF_OTHER_OBJECTS]
    return [
        pytest.param(path, id=path.stem, marks=() if path.stem in QUICK else pytest.mark.slow)
        for path in sorted(paths)
    ]


@pytest.mark.prometheus
@pytest.mark.parametrize("path", _cases())
def test_scenario_on_dra_gives_the_same_plan(
    path: pathlib.Path, tmp_path: pathlib.Path, prometheus: Prometheus
) -> None:
    """Verdict, finding, rule, action, GPUs and blockers of each workload."""
    scenario: dict[str, Any] = yaml.safe_load(dated(path.read_text()))
    is_exported = scenario.get("labels", "exported") == "exported"
    with World(tmp_path, prometheus, exported=is_exported) as world:
        give(world, scenario["given"], path.stem)
        world.api.settle()
        objects = [one for kind in _KINDS for one in world.api.list(kind)]
    policy = scenario.get("policy", scenario.get("steps", [{}])[0].get("policy", DEFAULT_POLICY))
    policy += "" if "budgets:" in policy else BUDGETS
    plain = _plan(objects, policy, tmp_path, prometheus)
    assert plain
    assert _plan(list(_on_dra(objects)), policy, tmp_path, prometheus) == plain


def _plan(objects: Sequence[Object], policy: str, directory: pathlib.Path, prometheus: Prometheus) -> Object:
    """What the plan says of each workload."""
    (directory / "policy.yaml").write_text(policy)
    (directory / "objects.json").write_text(
        json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    )
    flags = ["--policy", str(directory / "policy.yaml"), "--cluster-objects", str(directory / "objects.json")]
    run = run_command("plan", "-o", "json", "--prometheus-url", prometheus.url, *flags)
    assert run.code == 0, run.err
    return {
        name: {
            **{key: item[key] for key in _SAME},
            "blockers": [one["code"] for one in item["blockers"]],
        }
        for name, item in run.items.items()
    }


def _on_dra(objects: Sequence[Object]) -> Iterator[Object]:
    """The same cluster, with a DRA driver in place of the device plugin."""
    yield device_class()
    free: dict[str, list[str]] = {}
    made: dict[tuple[str, int], Object] = {}
    for one in copy.deepcopy(objects):
        if one["kind"] == "Node":
            amounts = [one["status"][key].pop(GPU, "0") for key in ("capacity", "allocatable")]
            name, count = one["metadata"]["name"], int(amounts[-1])
            devices = [dra_gpu(number) for number in range(count)]
            free[name] = [device["name"] for device in devices]
            if devices:
                yield resource_slice(f"{name}-gpus", *devices, node=name)
        elif one["kind"] in _OWNERS:
            _claim(one["spec"]["template"]["spec"], one["metadata"]["namespace"], made)
        elif one["kind"] == "Pod":
            template = _claim(one["spec"], one["metadata"]["namespace"], made)
            if template:
                yield _claim_of(one, template, free)
        yield one
    yield from made.values()


def _claim(spec: Object, namespace: str, made: dict[tuple[str, int], Object]) -> Object | None:
    """Let pods claim the GPUs that their container asks for; the template of the claim."""
    (resources,) = [container.setdefault("resources", {}) for container in spec["containers"]]
    counts = [
        amounts.pop(GPU) for amounts in resources.values() if isinstance(amounts, dict) and GPU in amounts
    ]
    if not counts:
        return None
    count = int(counts[0])
    name = f"gpus-{count}"
    exactly = {"deviceClassName": "gpu.nvidia.com", "allocationMode": "ExactCount", "count": count}
    request = {"name": "r", "exactly": exactly}
    template = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"spec": {"devices": {"requests": [request]}}},
    }
    resources["claims"] = [{"name": "gpus"}]
    spec["resourceClaims"] = [{"name": "gpus", "resourceClaimTemplateName": name}]
    return made.setdefault((namespace, count), template)


def _claim_of(pod: Object, template: Mapping[str, Any], free: dict[str, list[str]]) -> Object:
    """A pod's claim, allocated where the pod is on a node."""
    metadata, node = pod["metadata"], pod["spec"].get("nodeName")
    name = f"{metadata['name']}-gpus"
    pod["status"]["resourceClaimStatuses"] = [{"name": "gpus", "resourceClaimName": name}]
    spec = template["spec"]["spec"]
    status: Object = {}
    if node:
        devices = [free[node].pop(0) for _ in range(spec["devices"]["requests"][0]["exactly"]["count"])]
        results = [
            {"request": "r", "driver": "gpu.nvidia.com", "pool": node, "device": one} for one in devices
        ]
        users = [{"resource": "pods", "name": metadata["name"], "uid": metadata["uid"]}]
        status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    named = {"name": name, "namespace": metadata["namespace"]}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": named}
    return {**head, "spec": spec, "status": status}
