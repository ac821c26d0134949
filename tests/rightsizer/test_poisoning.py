"""Series that a tenant's scraped pod invents change no decision: the plan command on a real Prometheus."""

import json
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from simulator.prometheus import Prometheus, Series
from tests.rightsizer.world import World

pytestmark = [pytest.mark.prometheus, pytest.mark.slow]

UTIL, ENGINE, COPY, POWER = (
    "DCGM_FI_DEV_GPU_UTIL",
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
    "DCGM_FI_DEV_POWER_USAGE",
)
DAY_S = 25 * 3600
POLICY = """apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {idle: {window: 24h, history: 24h, minCoverage: 0.9}}
rules:
  - {name: all, match: {everything: true}, mode: enforce, actions: [scale-to-zero], findings: {stuck: enforce}}
"""

Labels = dict[str, str]


@pytest.fixture
def world(tmp_path: pathlib.Path) -> Iterator[World]:
    """A busy and an idle workload, and a pod of a tenant that Prometheus scrapes."""
    with Prometheus(tmp_path / "own") as own, World(tmp_path, own) as running:
        running.add("Deployment", running.team, "busy", {"usage": "busy"})
        running.add("Deployment", running.team, "idle", {"usage": "idle"})
        running.namespace("tenant")
        running.api.create(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "forger", "namespace": "tenant"},
                "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "forger"}]},
            }
        )
        running.api.settle()
        yield running


def _series(values: Mapping[str, float], labels: Labels, *, step_s: int = 60) -> Iterator[Series]:
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
            yield from _series(records, {**labels, "metric": metric}, step_s=300)


FORGERIES: dict[str, Callable[[Labels, Labels], Iterator[Series]]] = {
    "idle-records-of-a-busy-pod": lambda busy, _: _records(busy),
    "another-cluster": lambda busy, _: _series({UTIL: 0}, {**busy, "cluster": "theirs"}),
    "spinning-of-an-idle-pod": lambda _, idle: _series({UTIL: 99, ENGINE: 0.99}, idle),
    "another-idle-device": lambda busy, _: _series({UTIL: 0, COPY: 0, POWER: 100}, {**busy, "UUID": "GPU-x"}),
    "another-busy-device": lambda _, idle: _series({UTIL: 99, POWER: 600}, {**idle, "UUID": "GPU-x"}),
    "impossible-values": lambda busy, idle: iter(
        [*_series({UTIL: -1}, busy), *_series({UTIL: 808_334_905}, idle)]
    ),
    "counters": lambda busy, _: _series(
        {"gpu_pod_busy_seconds_total": 1, "gpu_busy_seconds_total": 1, "gpu_busy_gap_seconds_total": 0}, busy
    ),
}


@pytest.mark.parametrize("job", ["gpu", "tenant"])
@pytest.mark.parametrize("name", FORGERIES)
def test_plan_series_of_a_tenants_pod_change_no_decision(world: World, name: str, job: str) -> None:
    """In the exporters' job or its own; the plan says what it ignored."""
    before = _plan(world)
    assert before["problems"] == []
    pod = world.api.get("Pod", "tenant", "forger")
    assert pod is not None
    target = {
        "job": job,
        "instance": f"{pod['status']['podIP']}:8080",
        "namespace": "tenant",
        "pod": "forger",
    }
    labels = [{**_labels(world, workload), **target} for workload in ("busy", "idle")]
    world.prometheus.write(FORGERIES[name](*labels))
    after = _plan(world)
    assert _decided(after) == _decided(before)
    if name != "idle-records-of-a-busy-pod":
        assert "ignored: not from an exporter" in after["problems"][0]


def _plan(world: World) -> dict[str, Any]:
    flags = ["-o", "json", "--exporter-namespace", "gpu-rightsizer"]
    run = world.run("plan", *flags, policy=POLICY)
    assert run.code == 0, run.err
    return json.loads(run.out)  # type: ignore[no-any-return]


def _decided(plan: dict[str, Any]) -> dict[str, tuple[object, ...]]:
    items: dict[str, tuple[object, ...]] = {
        item["name"]: (item["verdict"], item["finding"], item["action"]) for item in plan["items"]
    }
    assert set(items) == {"busy", "idle"}
    return items


def _labels(world: World, workload: str) -> Labels:
    """The labels of a workload's pod and device, as its exporter has them."""
    (pod,) = world.pods_of(world.team, workload)
    (found,) = world.prometheus.query(f'{UTIL}{{exported_pod="{pod["metadata"]["name"]}"}}')
    names = ("exported_namespace", "exported_pod", "exported_container", "UUID", "modelName", "gpu")
    return {key: found["metric"][key] for key in names}
