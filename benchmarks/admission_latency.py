"""How long the admission policy of kept sizes delays a pod: creations on a real API server, without it and with it.

The ConfigMap is full (200 sizes). Pods are created with dryRun=All, so that nothing but admission is measured.
"""

import argparse
import datetime
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rightsizer.guardrails.resize_admission import resize_admission
from rightsizer.planning.kept_sizes import MOST, NAME, KeptSize
from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import find
from simulator.kubeclient import KubeClient

_GPU = "nvidia.com/gpu"
_NAMESPACE = "default"
_OWN = "gpu-rightsizer"
_UNTIL = datetime.datetime(2999, 1, 1, tzinfo=datetime.UTC)
_PATHS = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
}


def _pod(workload: str) -> dict[str, Any]:
    """A pod of a Deployment's ReplicaSet, with two GPUs."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": f"{workload}-abc",
        "uid": str(uuid.uuid4()),
    }
    amounts = {"limits": {_GPU: "2"}, "requests": {_GPU: "2"}}
    return {
        "metadata": {
            "name": f"{workload}-abc-{uuid.uuid4().hex[:5]}",
            "labels": {"pod-template-hash": "abc"},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry/serve:v2",
                    "command": ["serve"],
                    "args": ["--port=1"],
                    "resources": amounts,
                }
            ]
        },
    }


def _install(client: KubeClient) -> None:
    """Create the policy and a full ConfigMap, and wait until they hold."""
    client.create("/api/v1/namespaces", {"metadata": {"name": _OWN}})
    size = KeptSize(
        _GPU, 1, 2, _UNTIL, "", "main", "registry/serve", "run-1", "serve\n--\n--port=1"
    ).written()
    texts = {f"{_NAMESPACE}.Deployment.web-{number}": size for number in range(MOST)}
    client.create(f"/api/v1/namespaces/{_OWN}/configmaps", {"metadata": {"name": NAME}, "data": texts})
    for document in resize_admission(_OWN):
        client.create(f"/apis/admissionregistration.k8s.io/v1/{_PATHS[document['kind']]}", document)
    deadline = time.monotonic() + 60
    while _amount(_created(client, "web-7")) != "1":
        if time.monotonic() > deadline:
            sys.exit("the policy does not hold within 60 s")
        time.sleep(0.2)


def _created(client: KubeClient, workload: str) -> dict[str, Any]:
    return client.create(f"/api/v1/namespaces/{_NAMESPACE}/pods?dryRun=All", _pod(workload))


def _amount(pod: dict[str, Any]) -> str:
    return str(pod["spec"]["containers"][0]["resources"]["limits"][_GPU])


def _times_ms(create: Callable[[], object], pods: int) -> Sequence[float]:
    found = []
    for _ in range(pods):
        begin = time.perf_counter()
        create()
        found.append((time.perf_counter() - begin) * 1000)
    return sorted(found)


def main() -> None:
    """Print the median, the 99th percentile and the maximum of each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.admission_latency", description=__doc__)
    parser.add_argument("--pods", type=int, default=500, help="creations of each case")
    pods = parser.parse_args().pods
    with tempfile.TemporaryDirectory() as directory, ControlPlane(Path(directory), find()) as plane:
        client = KubeClient(plane.endpoint)
        _times_ms(lambda: _created(client, "web-7"), 100)  # warm
        cases = {"without the policy": _times_ms(lambda: _created(client, "web-7"), pods)}
        _install(client)
        cases["with it, another workload"] = _times_ms(lambda: _created(client, "other"), pods)
        cases["with it, resized"] = _times_ms(lambda: _created(client, "web-7"), pods)
    for name, times in cases.items():
        last = times[min(len(times) - 1, round(len(times) * 0.99))]
        print(
            f"{name:27} median {statistics.median(times):5.1f} ms, p99 {last:5.1f}, maximum {times[-1]:5.1f}"
        )


if __name__ == "__main__":
    main()
