"""Attackers, workloads and policies of the poisoning suite: forged series on a real Prometheus, one plan per policy.

`python -m tests.rightsizer.poisoning [CLUSTERS [FIRST]]` prints how many decisions about others each attacker changed.
First a scraped pod forges series; then, in CLUSTERS random clusters from seed FIRST on, a tenant forges objects and
series. It exits with 1 unless every number is zero.
"""

import argparse
import collections
import concurrent.futures
import functools
import json
import multiprocessing
import pathlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulator.prometheus import Prometheus
from simulator.series_store import Series
from tests.rightsizer.wire.draws import CLASSES
from tests.rightsizer.wire.forger import besieged
from tests.rightsizer.world import World

UTIL, ENGINE, COPY, POWER = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
)
DAY_S = 25 * 3600
STEPS = 12
"""Cycles of a random cluster."""

Labels = dict[str, str]
Forgery = Callable[[Labels, Labels], Iterator[Series]]
Decisions = dict[str, tuple[object, ...]]

_HEAD = """apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {idle: {window: 24h, history: 24h, minCoverage: 0.9}}
rules:
"""
POLICIES: Mapping[str, str] = {
    "stop": _HEAD
    + "  - {name: all, match: {everything: true}, mode: enforce, actions: [scale-to-zero, suspend], "
    "findings: {stuck: enforce}}\n",
    "shrink": _HEAD + "  - {name: all, match: {everything: true}, mode: enforce, "
    "findings: {too-many-replicas: enforce, too-many-gpus: enforce, oversized-gpu: enforce}}\n",
    "advise": _HEAD + "  - {name: all, match: {everything: true}, mode: advise}\n",
}
WORKLOADS: Mapping[str, Mapping[str, Any]] = {
    "busy": {"usage": "busy"},
    "idle": {"usage": "idle"},
    "lately": {"usage": "worked-two-hours-ago"},
    "light": {"usage": "light"},
    "half": {"usage": [["busy", "idle"], ["busy", "idle"]], "gpus": 2, "replicas": 2},
}
ON_HOST = "tenant on its node's network"
JOBS = ("gpu", "tenant", ON_HOST)
"""The exporters' own scrape job, which the tenant's pod joined, or one of its own; there also with a node's address."""


def series(values: Mapping[str, float], labels: Labels, *, step_s: int = 60) -> Iterator[Series]:
    """A day of constant samples of each metric."""
    seconds = range(int(time.time()) - DAY_S, int(time.time()) + 120, step_s)
    for name, value in values.items():
        yield Series({"__name__": name, **labels}, seconds, [value] * len(seconds))


def _records(pod: Labels) -> Iterator[Series]:
    """Idle records of a day, and junk until nearly all series are recorded."""
    for number in range(60):
        labels = (
            pod if not number else {**pod, "UUID": f"GPU-junk-{number}", "exported_pod": f"junk-{number}"}
        )
        for kind, metric, value in (("activity", UTIL, 0), ("traffic", COPY, 0), ("power", POWER, 100)):
            records = {f"gpu_rightsizer:{kind}:{name}5m": value for name in ("mean", "max")}
            records |= {f"gpu_rightsizer:{kind}:count5m": 5}
            yield from series(records, {**labels, "metric": metric}, step_s=300)


FORGERIES: Mapping[str, Forgery] = {
    "idle-records-of-a-busy-pod": lambda busy, _: _records(busy),
    "another-cluster": lambda busy, _: series({UTIL: 0}, {**busy, "cluster": "theirs"}),
    "another-cluster-and-address": lambda busy, _: series(
        {UTIL: 0}, {**busy, "cluster": "theirs", "instance": "10.99.0.1:80"}
    ),
    "node-as-instance": lambda _, idle: series({UTIL: 99, ENGINE: 0.99}, {**idle, "instance": "n1"}),
    "spinning-of-an-idle-pod": lambda _, idle: series({UTIL: 99, ENGINE: 0.99}, idle),
    "another-idle-device": lambda busy, _: series({UTIL: 0, COPY: 0, POWER: 100}, {**busy, "UUID": "GPU-x"}),
    "another-busy-device": lambda _, idle: series({UTIL: 99, POWER: 600}, {**idle, "UUID": "GPU-x"}),
    "impossible-values": lambda busy, idle: iter(
        [*series({UTIL: -1}, busy), *series({UTIL: 808_334_905}, idle)]
    ),
    "counters": lambda busy, _: series(
        {"gpu_pod_busy_seconds_total": 1, "gpu_busy_seconds_total": 1, "gpu_busy_gap_seconds_total": 0}, busy
    ),
}
"""What the tenant's pod exposes about a pod that works, and one that does not."""


class Victims:
    """The workloads, and a pod of a tenant that Prometheus scrapes."""

    def __init__(self, world: World) -> None:
        self.world = world
        for name, given in WORKLOADS.items():
            world.add("Deployment", world.team, name, given)
        world.namespace("tenant")
        world.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "forger", "namespace": "tenant"},
                "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "forger"}]},
            }
        )
        world.api.settle()

    def forge(self, name: str, job: str) -> None:
        """Let the tenant's pod expose the series of a forgery."""
        pod = self.world.api.get("Pod", "tenant", "forger")
        assert pod is not None
        address = pod["status"]["hostIP" if job == ON_HOST else "podIP"]
        target = {
            "job": "tenant" if job == ON_HOST else job,
            "instance": f"{address}:8080",
            "namespace": "tenant",
            "pod": "forger",
        }
        busy, idle = ({**self._labels(workload), **target} for workload in ("busy", "idle"))
        self.world.prometheus.write(FORGERIES[name](busy, idle))

    def plan(self, policy: str) -> dict[str, Any]:
        """The plan under one of the policies, as JSON."""
        flags = ["-o", "json", "--exporter-namespace", "gpu-rightsizer"]
        run = self.world.run("plan", *flags, policy=POLICIES[policy])
        assert run.code == 0, run.err
        return json.loads(run.out)  # type: ignore[no-any-return]

    def decisions(self) -> dict[str, Decisions]:
        """By policy and workload."""
        return {policy: _decided(self.plan(policy)) for policy in POLICIES}

    def _labels(self, workload: str) -> Labels:
        """The labels of a workload's pod and device, as its exporter has them."""
        pod = self.world.pods_of(self.world.team, workload)[0]
        (found,) = self.world.prometheus.query(f'{UTIL}{{exported_pod="{pod["metadata"]["name"]}"}}')
        names = ("exported_namespace", "exported_pod", "exported_container", "UUID", "modelName", "gpu")
        return {key: found["metric"][key] for key in names}


def _decided(plan: Mapping[str, Any]) -> Decisions:
    return {item["name"]: (item["verdict"], item["finding"], item["action"]) for item in plan["items"]}


def by_series(directory: pathlib.Path, name: str, job: str) -> int:
    """How many decisions a forgery changed, of all workloads under all policies."""
    directory.mkdir(parents=True)
    with Prometheus(directory / "prometheus") as prometheus, World(directory, prometheus) as world:
        victims = Victims(world)
        before = victims.decisions()
        victims.forge(name, job)
        after = victims.decisions()
    return sum(before[policy][one] != after[policy].get(one) for policy in before for one in before[policy])


def _enforcing(policy: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A drawn policy with other fields of the rules that enforce."""
    rules = [{**one, **fields} if one["mode"] == "enforce" else one for one in policy["rules"]]
    return {**policy, "rules": rules}


AMENDED: Mapping[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "as drawn": lambda policy: policy,
    "two an hour": lambda policy: {**policy, "budgets": [{"per": "hour", "workloads": 2}]},
    "stuck": lambda policy: _enforcing(policy, findings={"stuck": "enforce", "too-many-replicas": "enforce"}),
    "all classes": lambda policy: _enforcing(
        {**policy, "rules": policy["rules"][2:3]}, match={"priorityClasses": [*CLASSES]}
    ),
}
"""What becomes of the policies of random clusters, in turn."""


def amendment(seed: int) -> str:
    """The one for a cluster."""
    return [*AMENDED][seed % len(AMENDED)]


def by_tenant(directory: pathlib.Path, seed: int) -> tuple[int, int]:
    """How many reclaims of others a forging tenant caused, and prevented or delayed by more than a cycle."""
    amend = AMENDED[amendment(seed)]
    calm, forged = (
        besieged(directory / f"{seed}-{forges}", seed, STEPS, forges=forges, amend=amend)
        for forges in (False, True)
    )
    # The tenant's own pods may take the slices that others' would have been given: then the next one has its turn.
    caused = len(forged.how - calm.how - calm.due) + len(forged.violations)
    late = [
        one
        for one, step in calm.taken.items()
        if step + 1 < STEPS and forged.taken.get(one, STEPS) > step + 1
        if (*one, True) not in calm.how or one not in forged.short
    ]
    return caused, len(late)


def main(clusters: int = 20, first: int = 0) -> int:
    """Print the table; 1 where a number is not zero."""
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as where:
        directory = pathlib.Path(where)
        for name in FORGERIES:
            for job in JOBS:
                counts[f"series, job {job}: {name}"] = by_series(directory / f"{name}-{job}", name, job)
        seeds = range(first, first + clusters)
        with concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
            for seed, (caused, late) in zip(
                seeds, pool.map(functools.partial(by_tenant, directory), seeds), strict=True
            ):
                counts[f"tenant, policy {amendment(seed)}: reclaims caused"] += caused
                counts[f"tenant, policy {amendment(seed)}: reclaims delayed"] += late
                if caused or late:
                    sys.stderr.write(f"seed {seed}: {caused} caused, {late} delayed\n")
                if (done := seed + 1 - first) % 100 == 0:
                    sys.stderr.write(f"{done} of {clusters} clusters\n")
    width = max(map(len, counts))
    sys.stdout.write("".join(f"{what:<{width}} {count:>4}\n" for what, count in counts.items()))
    return 1 if any(counts.values()) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "clusters", type=int, nargs="?", default=20, help="random clusters (default %(default)s)"
    )
    parser.add_argument(
        "first", type=int, nargs="?", default=0, help="seed of the first (default %(default)s)"
    )
    sys.exit(main(**vars(parser.parse_args())))
