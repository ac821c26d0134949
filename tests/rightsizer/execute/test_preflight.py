"""The last look before a write: what it covers, by which clock, how it is tied to the write, and what ends it."""

import base64
import datetime
import json
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from simulator.kube import Fault
from tests.rightsizer.commands import Run
from tests.rightsizer.given import manifest
from tests.rightsizer.relay import Relay
from tests.rightsizer.world import BUDGETS, DEFAULT_POLICY, World, created

pytestmark = pytest.mark.prometheus

SHORT_POLICY = DEFAULT_POLICY.replace("window: 24h", "window: 1h")
HOUR_S = 3600
UNDO = "gpu-rightsizer.io/undo"
SECRETS = "/api/v1/namespaces/gpu-rightsizer/secrets"


@pytest.fixture
def relay(world: World) -> Iterator[Relay]:
    """A Prometheus whose clock and answers are the test's own; the world's commands ask it."""
    with Relay(world.prometheus.url) as running:
        world.relay = running
        yield running


@pytest.fixture
def longer(relay: Relay, monkeypatch: pytest.MonkeyPatch) -> Relay:
    """The same, with more than a day on record also as of three hours ago."""
    monkeypatch.setattr("tests.rightsizer.given.DAY_S", 28 * HOUR_S)
    return relay


def _apply(world: World, *flags: str, policy: str = DEFAULT_POLICY) -> Run:
    return world.run("apply", "--yes", "-o", "json", *flags, policy=policy)


def _size(world: World, name: str) -> int:
    replicas: int = created(world.api, "Deployment", world.team, name)["spec"]["replicas"]
    return replicas


def _opt_out_and_grow(world: World, kind: str) -> None:
    annotations = {"annotations": {"gpu-rightsizer.io/mode": "off"}}
    size = {} if kind == "Pod" else {"spec": {"replicas": 7}}
    world.api.patch(kind, world.team, "idle", {"metadata": annotations, **size})


def _replace(world: World, kind: str) -> None:
    world.api.delete(kind, world.team, "idle")
    world.api.settle()
    world.add(kind, world.team, "idle", {"priorityClass": "high-priority", "replicas": 3})


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Pod"])
@pytest.mark.parametrize("change", [_opt_out_and_grow, _replace])
def test_write_object_changed_since_preflight_is_refused(
    world: World, kind: str, change: Callable[[World, str], None]
) -> None:
    """What changes right after the workload was looked at is not stopped: the write names the version looked at."""
    world.add(kind, world.team, "idle", {"replicas": 2})
    world.after("poddisruptionbudgets", lambda: change(world, kind))
    run = _apply(world)
    assert run.items["idle"]["result"] == "changed", run.items
    after = created(world.api, kind, world.team, "idle")
    assert after.get("spec", {}).get("replicas") in {None, 7, 3}
    assert "gpu-rightsizer.io/undo" not in after["metadata"].get("annotations", {})
    assert world.api.list("Secret", "gpu-rightsizer") == []


GANGS = f"""
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
gangLabels: [example.com/cluster]
defaults: {{kinds: []}}
rules:
  - {{name: all, match: {{everything: true}}, mode: enforce, actions: [evict]}}
{BUDGETS}"""


def test_preflight_pod_that_became_one_of_a_gang_of_the_policy_is_left_alone(world: World) -> None:
    """The policy's labels count again, not only those known by themselves."""
    labels = {"labels": {"example.com/cluster": "c"}}
    world.add("Pod", world.team, "alone", {})
    world.add("Pod", world.team, "worker", labels)
    head = manifest("Pod", world.team, "head", {**labels, "limits": {"nvidia.com/gpu": 0}})

    def add_head() -> None:
        world.api.create(head)

    world.after("events", add_head)
    items = _apply(world, policy=GANGS).items
    assert {name: item["result"] for name, item in items.items()} == {"alone": "done", "worker": "changed"}
    assert created(world.api, "Pod", world.team, "worker")


SLICE = "nvidia.com/mig-1g.10gb"
SLICES = f"""
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
rules:
  - {{name: all, match: {{everything: true}}, mode: enforce, findings: {{oversized-gpu: enforce}}}}
{BUDGETS}"""


@pytest.mark.parametrize(("cores", "result"), [(1, "done"), (2, "changed")])
def test_preflight_node_cpu_taken_since_plan_blocks_move(world: World, cores: int, result: str) -> None:
    """Of nine cores two pods are to have four each; while the first is made anew, another pod takes one, or two."""
    labels: dict[str, Any] = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}
    world.node("m1", resources={SLICE: 7, "cpu": 9}, **labels)
    for name in ("a", "b"):
        world.add("Deployment", world.team, name, {"usage": "small", "cpu": 4})
    other = manifest("Pod", world.team, "other", {"cpu": cores, "limits": {"nvidia.com/gpu": 0}})
    other["spec"]["nodeName"] = "m1"

    def come() -> None:
        world.api.create(other)

    world.after("events", come)
    items = _apply(world, policy=SLICES).items
    assert {name: item["result"] for name, item in items.items()} == {"a": "done", "b": result}, items


@pytest.mark.parametrize(
    ("namespace", "result"), [("", "done"), ("-x", "changed")], ids=["its-own", "another"]
)
def test_preflight_stranger_on_shared_gpus_since_plan_blocks_move(
    world: World, namespace: str, result: str
) -> None:
    """While the first pod is made anew, a pod of the same namespace gets a share, or one of another."""
    labels = {
        "product": "NVIDIA-H100-80GB-HBM3-SHARED",
        "sharing-strategy": "time-slicing",
        "memory": "81559",
        "count": "2",
    }
    gpus: dict[str, Any] = {f"nvidia.com/gpu.{key}": value for key, value in labels.items()}
    world.node("s1", resources={"nvidia.com/gpu.shared": 8}, **gpus)
    for name in ("a", "b"):
        world.add("Deployment", world.team, name, {"usage": "small"})
    limits = {"nvidia.com/gpu": 0, "nvidia.com/gpu.shared": 1}
    other = manifest("Pod", world.team + namespace, "other", {"limits": limits})
    other["spec"]["nodeName"] = "s1"

    def come() -> None:
        if namespace:
            name = {"name": world.team + namespace}
            world.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": name})
        world.api.create(other)

    world.after("events", come)
    items = _apply(world, policy=SLICES).items
    assert {name: item["result"] for name, item in items.items()} == {"a": "done", "b": result}, items
    words = "pods outside of its trust domain share GPUs of s1"
    assert (words in items["b"]["detail"]) is (result == "changed")


@pytest.mark.slow
@pytest.mark.parametrize("policy", [DEFAULT_POLICY, SHORT_POLICY], ids=["24h-window", "1h-window"])
def test_preflight_gpu_active_since_old_plan_is_skipped(world: World, longer: Relay, policy: str) -> None:
    """A question left open for three hours, in which the GPU worked and rested again: also beyond the window."""
    world.add("Deployment", world.team, "idle", {"age_h": 28})
    world.add("Deployment", world.team, "worked", {"usage": "worked-two-hours-ago", "age_h": 28})
    longer.clocks = [-3 * HOUR_S, 0]
    items = _apply(world, policy=policy).items
    assert (items["idle"]["result"], items["worked"]["result"]) == ("done", "changed"), items
    assert "was active in the last 3h 10m" in items["worked"]["detail"]
    assert _size(world, "worked") == 1


@pytest.mark.slow
@pytest.mark.covers("P6")
def test_preflight_metrics_gap_since_plan_is_not_idle(world: World, longer: Relay) -> None:
    """Where nothing was recorded since the plan but the last minutes, its evidence does not hold any more."""
    world.add("Deployment", world.team, "silent", {"usage": "silent-for-two-hours", "age_h": 28})
    longer.clocks = [-3 * HOUR_S, 0]
    item = _apply(world, policy=SHORT_POLICY).items["silent"]
    assert item["result"] == "changed", item
    assert _size(world, "silent") == 1


def test_preflight_recent_plan_runs_only_small_queries(world: World, relay: Relay) -> None:
    """Within minutes of the plan each last look costs a few small queries, not the fleet's whole day again."""
    for name in ("a", "b"):
        world.add("Deployment", world.team, name, {})
    assert _apply(world).code == 0
    day = [query for query in relay.asked if "[1439m59s999ms]" in query and "avg_over_time" in query]
    assert day
    assert len(day) == len(set(day))


class _SlowClock:
    """This machine's clock, an hour slow."""

    @staticmethod
    def now(tz: datetime.tzinfo) -> datetime.datetime:
        return datetime.datetime.now(tz) - datetime.timedelta(hours=1)


@pytest.mark.covers("P7")
def test_preflight_slow_local_clock_uses_prometheus_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is recent is said by Prometheus's clock: a machine that runs an hour slow misses nothing."""
    world.add("Deployment", world.team, "first", {"replicas": 4})
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    slow = types.SimpleNamespace(datetime=_SlowClock, timedelta=datetime.timedelta, UTC=datetime.UTC)
    monkeypatch.setattr("rightsizer.cli.plan_session.datetime", slow)
    world.after("events", lambda: _wake_up(world))
    items = _apply(world).items
    assert (items["first"]["result"], items["idle"]["result"]) == ("done", "changed"), items
    assert "was active" in items["idle"]["detail"]


@pytest.mark.covers("P7")
def test_change_record_slow_local_clock_uses_prometheus_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is noted of a change the next plan counts budgets and cooldowns: a slow machine must not shorten them."""
    world.add("Deployment", world.team, "idle", {})
    slow = types.SimpleNamespace(datetime=_SlowClock, timedelta=datetime.timedelta, UTC=datetime.UTC)
    monkeypatch.setattr("rightsizer.cli.plan_session.datetime", slow)
    assert _apply(world).items["idle"]["result"] == "done"
    record = json.loads(created(world.api, "Deployment", world.team, "idle")["metadata"]["annotations"][UNDO])
    age = datetime.datetime.now(datetime.UTC) - datetime.datetime.fromisoformat(record["at"])
    assert age < datetime.timedelta(minutes=10)


class _FastClock:
    """This machine's clock, two days ahead."""

    @staticmethod
    def now(tz: datetime.tzinfo) -> datetime.datetime:
        return datetime.datetime.now(tz) + datetime.timedelta(days=2)


@pytest.mark.covers("P7")
def test_pause_fast_local_clock_uses_prometheus_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody pauses for a day while a run goes on whose machine is two days ahead: it stops."""
    for name in ("a", "b"):
        world.add("Deployment", world.team, name, {})

    def pause() -> None:
        with monkeypatch.context() as patch:
            patch.setattr("rightsizer.cli.plan_session.datetime", datetime)
            assert world.run("pause", "--reason", "incident", "--for", "1d").code == 0

    fast = types.SimpleNamespace(datetime=_FastClock, timedelta=datetime.timedelta, UTC=datetime.UTC)
    monkeypatch.setattr("rightsizer.cli.plan_session.datetime", fast)
    world.after("events", pause)
    items = _apply(world).items
    assert (items["a"]["result"], items["b"]["result"]) == ("done", "blocked"), items


def _wake_up(world: World) -> None:
    for pod in world.pods_of(world.team, "idle"):
        world.record(pod, "just-woken", 1)


@pytest.mark.covers("P7")
def test_preflight_prometheus_clock_behind_plan_ends_run(world: World, relay: Relay) -> None:
    """By a Prometheus that lives before the plan nothing can be called recent."""
    world.add("Deployment", world.team, "idle", {})
    relay.clocks = [0, -2 * HOUR_S]
    run = _apply(world)
    assert (run.code, run.items["idle"]["result"]) == (1, "skipped")
    assert "Prometheus's clock has gone back" in run.items["idle"]["detail"]


@pytest.mark.covers("P1")
def test_preflight_prometheus_down_skips_rest_after_one_try(world: World, relay: Relay) -> None:
    """Gone in the middle of a run: the next workload and all after it are skipped with the reason, after one try."""
    for name in ("a", "b", "c"):
        world.add("Deployment", world.team, name, {})

    def leave() -> None:
        relay.is_gone = True
        relay.asked.clear()

    world.after("events", leave)
    run = _apply(world)
    assert (run.code, [item["result"] for item in run.items.values()]) == (1, ["done", "skipped", "skipped"])
    for item in list(run.items.values())[1:]:
        assert item["detail"].startswith(f"not attempted: querying Prometheus at {relay.url}")
    assert relay.asked == ["time()"] * 3  # one question; the client asks it thrice
    assert [_size(world, name) for name in ("a", "b", "c")] == [0, 1, 1]


LOST = {
    "dry-run": (Fault("shell/eviction", "POST", 1, drop=True), "skipped", 0, 1),
    "manifest": (Fault(f"^{SECRETS}$", "POST", 1, drop=True, after_effect=True), "skipped", 0, 1),
    "eviction-before": (Fault("shell/eviction", "POST", 1, drop=True), "refused", 1, 1),
    "eviction-after": (Fault("shell/eviction", "POST", 1, drop=True, after_effect=True), "done", 1, 0),
    "gateway-timeout": (Fault("shell/eviction", "POST", 1, status=504, after_effect=True), "done", 1, 0),
    "etcd-timeout": (Fault("shell/eviction", "POST", 1, status=500, after_effect=True), "done", 1, 0),
    "unavailable": (Fault("shell/eviction", "POST", 1, status=503), "refused", 1, 1),
    "forbidden": (Fault("shell/eviction", "POST", 1, status=403), "refused", 0, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("step", LOST)
def test_evict_lost_response_keeps_manifest_only_when_in_doubt(world: World, step: str) -> None:
    """Only after the eviction itself anything is in doubt; a manifest stays exactly where it may be needed."""
    fault, result, secrets, pods = LOST[step]
    world.add("Pod", world.team, "shell", {})
    if step not in {"dry-run", "manifest"}:
        world.api.inject(Fault("shell/eviction", "POST", 1, delay_s=0.01))  # the dry run goes through
    world.api.inject(fault)
    run = _apply(world)
    assert run.items["shell"]["result"] == result, run.items
    assert len(world.api.list("Secret", "gpu-rightsizer")) == secrets
    assert len(world.pods_of(world.team, "shell")) == pods


@pytest.mark.parametrize("step", ["dry-run", "manifest"])
def test_evict_pod_deleted_by_others_is_not_reported_evicted(world: World, step: str) -> None:
    """The answer to something harmless was lost, and then the pod was gone: that is not called evicted."""
    world.add("Pod", world.team, "shell", {})
    world.api.inject(LOST[step][0])
    world.after("pods/shell/eviction", lambda: world.api.delete("Pod", world.team, "shell"))
    item = _apply(world).items["shell"]
    assert (item["result"], world.pods_of(world.team, "shell")) == ("skipped", [])


@pytest.mark.slow
def test_undo_manifest_of_pod_never_evicted_is_not_needed(world: World) -> None:
    """The manifest of an eviction that did not take effect is named as not needed, and is no hindrance later."""
    world.add("Pod", world.team, "shell", {})
    world.api.inject(Fault("shell/eviction", "POST", 1, delay_s=0.01))
    world.api.inject(LOST["eviction-before"][0])
    assert _apply(world).items["shell"]["result"] == "refused"
    (left,) = world.api.list("Secret", "gpu-rightsizer")
    assert json.loads(world.run("undo", "-o", "json").out)["items"] == []
    again = _apply(world)
    assert again.items["shell"]["result"] == "done", again.items
    (kept,) = world.api.list("Secret", "gpu-rightsizer")
    assert kept["metadata"]["name"] == left["metadata"]["name"]
    assert _record(kept)["run"] == json.loads(again.out)["metadata"]["run"]


def _record(secret: Mapping[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(base64.b64decode(secret["data"]["record"]))
    return record
