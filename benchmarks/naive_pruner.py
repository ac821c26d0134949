"""The plain way to find idle GPU workloads, as a baseline of cost: one query, one list of pods, and their owners.

As gpu-pruner (https://github.com/wseaton/gpu-pruner) asks: pods whose GPUs had no activity in half an hour, and that
are older than that. It knows nothing of gaps, counters, shared GPUs, replicas or pauses, and changes nothing.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

import requests
from kubernetes import client, config

_WINDOW_S, _GRACE_S = 1_800, 300
_OWNER = "exported_namespace, exported_pod, namespace, pod"
_QUERY = f"max by ({_OWNER}) (max_over_time(DCGM_FI_DEV_GPU_UTIL[{_WINDOW_S}s])) == 0"
_LIMIT = 500
_TIMEOUT_S = 120.0


def idle_pods(url: str) -> set[tuple[str, str]]:
    """Pods whose GPUs were at 0 % throughout the window, by namespace and name."""
    reply = requests.post(f"{url}/api/v1/query", data={"query": _QUERY}, timeout=_TIMEOUT_S)
    reply.raise_for_status()
    labels = [series["metric"] for series in reply.json()["data"]["result"]]
    return {
        (found.get("exported_namespace") or found["namespace"], found.get("exported_pod") or found["pod"])
        for found in labels
        if "pod" in found
    }


def pods() -> Iterator[dict[str, Any]]:
    """All pods, in pages."""
    api, token = client.CoreV1Api(), ""
    while True:
        reply: Any = api.list_pod_for_all_namespaces(limit=_LIMIT, _continue=token, _preload_content=False)
        page = json.loads(reply.data)
        yield from page["items"]
        if not (token := page["metadata"].get("continue", "")):
            return


def idle_owners(url: str) -> set[str]:
    """The controllers of idle pods that are old enough; a ReplicaSet's Deployment by its name."""
    idle, found = idle_pods(url), set[str]()
    begun = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - _WINDOW_S - _GRACE_S))
    for pod in pods():
        meta = pod["metadata"]
        if (meta["namespace"], meta["name"]) in idle and meta["creationTimestamp"] < begun:
            owner = next((one for one in meta.get("ownerReferences", ()) if one.get("controller")), None)
            kind, name = (owner["kind"], owner["name"]) if owner else ("Pod", meta["name"])
            if kind == "ReplicaSet":
                kind, name = "Deployment", name.rpartition("-")[0]
            found.add(f"{meta['namespace']}/{kind}/{name}")
    return found


def main() -> int:
    """Print the workloads that it would scale to zero."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--prometheus-url", required=True)
    parser.add_argument("--kubeconfig", required=True)
    options, _ = parser.parse_known_args()
    config.load_kube_config(options.kubeconfig)
    json.dump(sorted(idle_owners(options.prometheus_url)), sys.stdout, indent=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
