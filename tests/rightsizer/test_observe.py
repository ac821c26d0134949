"""What is made of the API server's objects and of Prometheus's series, where a scenario would be too coarse."""

import datetime
import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from rightsizer.inventory.cluster_state import ClusterState
from rightsizer.inventory.gpu_requests import LARGEST, ResourceTable
from rightsizer.inventory.pods import PodTable
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kube.api_objects import LabelSelector, LabelSelectorRequirement, PodObject
from simulator.prometheus import Prometheus
from tests.rightsizer.test_scenarios import DEFAULT_POLICY
from tests.rightsizer.world import World, created, stamp


def _finding(world: World, name: str) -> tuple[str, str]:
    run = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert run.code == 0, run.err
    item = run.items[name]
    return item["verdict"], item["finding"]


@pytest.mark.covers("P14")
@pytest.mark.prometheus
@pytest.mark.parametrize("usage", ["four-hours-missing", "thinned-out"])
def test_an_outage_of_everything_is_a_gap(world: World, usage: str) -> None:
    """Where no series has its samples, Prometheus was down or starved: that nothing is denser makes nothing whole."""
    with Prometheus(world.directory / "own") as own:
        world.prometheus = own
        world.add("Deployment", world.team, "idle", {"usage": usage})
        assert _finding(world, "idle") == ("unknown", "partial-data")


SHORT = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {idle: {window: WINDOW, grace: 1m}}
rules: [{name: all, match: {everything: true}, mode: enforce}]
"""


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("window", "step_s", "verdict", "finding"),
    [
        ("5m", 16, "act", "idle"),  # 18 or 19 samples, by where the window falls
        ("10m", 60, "unknown", "window-too-short"),
        ("21m", 60, "act", "idle"),
    ],
)
def test_a_window_of_few_samples(
    world: World, monkeypatch: pytest.MonkeyPatch, window: str, step_s: int, verdict: str, finding: str
) -> None:
    """It is judged where samples suffice; else it is said that the window is too short, and what would do."""
    monkeypatch.setattr("tests.rightsizer.given.STEP_S", step_s)
    monkeypatch.setattr("tests.rightsizer.given.DAY_S", 3600)
    with Prometheus(world.directory / "own") as own:
        world.prometheus = own
        world.add("Deployment", world.team, "idle", {})
        run = world.run("plan", "-o", "json", policy=SHORT.replace("WINDOW", window))
    item = run.items["idle"]
    assert (item["verdict"], item["finding"]) == (verdict, finding)
    assert item["coverage"] >= 0.9
    if verdict == "unknown":
        # Prometheus 2 counts the sample on the window's older edge too, 3 does not.
        assert re.fullmatch(
            r"the window of 10m holds (10 samples, .* make it 23m|11 samples, .* make it 20m) or longer, or scrape .*",
            item["evidence"]["words"][0],
        )


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["cluster=none"], 'none with cluster="none" (--prometheus-label): cluster is (none), ours'),
        (["cluster=ours", "zone=b"], 'none with cluster="ours", zone="b" (--prometheus-label): cluster is '),
    ],
)
def test_a_label_that_no_series_carries(world: World, labels: list[str], words: str) -> None:
    """It is named, with the values that there are; the exporter is not blamed."""
    with Prometheus(world.directory / "own") as own:
        world.prometheus = own
        world.add("Pod", world.team, "a", {})
        world.labels = {"cluster": "ours"}
        world.add("Pod", world.team, "b", {})
        flags = [flag for label in labels for flag in ("--prometheus-label", label)]
        run = world.run("plan", *flags)
    assert (run.code, run.out) == (1, "")
    assert words in run.err


@pytest.mark.covers("P19")
@pytest.mark.prometheus
def test_two_clusters_in_one_prometheus_are_told_apart(world: World) -> None:
    """A pod of the same name elsewhere never speaks for ours: without a name for our cluster there is no plan."""
    with Prometheus(world.directory / "own") as own:
        world.prometheus = own
        world.labels = {"cluster": "theirs"}
        world.add("Pod", world.team, "shell", {"usage": "idle"})
        world.labels = {"cluster": "ours"}
        (pod,) = world.pods_of(world.team, "shell")
        world.record(pod, "busy", 1)
        run = world.run("plan", policy=DEFAULT_POLICY)
        assert (run.code, run.out) == (1, "")
        assert (
            "GPU series of several clusters (ours, theirs); name yours: --prometheus-label cluster="
            in run.err
        )
        for cluster, verdict in (("ours", "keep"), ("theirs", "act")):
            run = world.run(
                "plan", "-o", "json", "--prometheus-label", f"cluster={cluster}", policy=DEFAULT_POLICY
            )
            assert run.items["shell"]["verdict"] == verdict


@pytest.mark.covers("P12")
@pytest.mark.prometheus
def test_a_container_that_restarted_makes_its_pod_young(world: World) -> None:
    """The window must not reach back beyond the process that runs now."""
    world.add("Deployment", world.team, "idle", {})
    assert _finding(world, "idle") == ("act", "idle")
    (pod,) = world.pods_of(world.team, "idle")
    status = created(world.api, "Pod", world.team, pod["metadata"]["name"])["status"]
    started = stamp(datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=2))
    containers = [
        {**one, "state": {"running": {"startedAt": started}}} for one in status["containerStatuses"]
    ]
    patch = {"status": {"containerStatuses": containers}}
    world.api.patch("Pod", world.team, pod["metadata"]["name"], patch, subresource="status")
    assert _finding(world, "idle") == ("unknown", "too-young")


@pytest.mark.prometheus
def test_ended_pods_hold_nothing(world: World) -> None:
    """A Job's finished pods are neither missing data nor GPUs held."""
    world.add("Job", world.team, "sweep", {"replicas": 2})
    first, _ = world.pods_of(world.team, "sweep")
    name = first["metadata"]["name"]
    world.api.patch("Pod", world.team, name, {"status": {"phase": "Succeeded"}}, subresource="status")
    run = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert (run.items["sweep"]["gpus"], len(run.items["sweep"]["pods"])) == (1, 1)


@pytest.mark.prometheus
def test_a_budget_of_another_namespace_does_not_count(world: World) -> None:
    """A PodDisruptionBudget guards its own namespace only."""
    world.add("Deployment", world.team, "idle", {})
    other = f"{world.team}-other"
    world.namespace(other)
    spec = {"minAvailable": 1, "selector": {"matchLabels": {"app": "idle"}}}
    meta = {"name": "guard", "namespace": other}
    world.api.create(
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": spec}
    )
    assert _finding(world, "idle") == ("act", "idle")


@pytest.mark.prometheus
def test_the_topmost_controller_is_judged(world: World) -> None:
    """A Deployment that belongs to something unknown is advised on under that something's name."""
    world.add("Deployment", world.team, "predictor", {})
    owner = {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "name": "llm",
        "uid": "u1",
        "controller": True,
    }
    world.api.patch("Deployment", world.team, "predictor", {"metadata": {"ownerReferences": [owner]}})
    run = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert set(run.items) == {"llm"}
    item = run.items["llm"]
    assert (item["kind"], item["verdict"], item["action"]) == ("InferenceService", "act", "suspend")
    outcome = world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY).items["llm"]
    assert (outcome["result"], "could not be read; only its pods could" in outcome["detail"]) == (
        "changed",
        True,
    )


def _pod(spec: dict[str, Any]) -> PodObject:
    document = {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": spec}
    return msgspec.convert(document, PodObject)


def _container(name: str, **resources: Mapping[str, str | int]) -> dict[str, Any]:
    return {"name": name, "resources": resources}


GPU = "nvidia.com/gpu"


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param({"containers": [_container("a", limits={GPU: "2"})]}, {GPU: 2}, id="limit"),
        pytest.param({"containers": [_container("a", requests={GPU: "2"})]}, {GPU: 2}, id="request-only"),
        pytest.param(
            {"containers": [_container("a", limits={GPU: "2"}), _container("b", limits={GPU: "1"})]},
            {GPU: 3},
            id="containers-add-up",
        ),
        pytest.param(
            {
                "containers": [_container("a", limits={GPU: "2"})],
                "initContainers": [_container("i", limits={GPU: "1"})],
            },
            {GPU: 2},
            id="init-container-within",
        ),
        pytest.param(
            {
                "containers": [_container("a", limits={GPU: "2"})],
                "initContainers": [_container("i", limits={GPU: "4"})],
            },
            {GPU: 4},
            id="init-container-beyond",
        ),
        pytest.param(
            {
                "containers": [_container("a", limits={GPU: "2"})],
                "initContainers": [{**_container("i", limits={GPU: "1"}), "restartPolicy": "Always"}],
            },
            {GPU: 3},
            id="sidecar-adds",
        ),
        pytest.param(
            {
                "containers": [
                    _container("a", limits={"nvidia.com/mig-3g.40gb": "1", "nvidia.com/gpu.shared": "2"})
                ]
            },
            {"nvidia.com/mig-3g.40gb": 1, "nvidia.com/gpu.shared": 2},
            id="mig-and-shared",
        ),
        pytest.param(
            {
                "containers": [
                    _container("a", limits={"nvidia.com/hostdev": "1", "cpu": "2", "amd.com/gpu": "1"})
                ]
            },
            {},
            id="others-are-no-devices",
        ),
        pytest.param({"containers": [_container("a", limits={GPU: "0"})]}, {}, id="zero"),
    ],
)
def test_devices_that_a_pod_holds(spec: dict[str, Any], expected: dict[str, int]) -> None:
    """As the scheduler counts them."""
    assert ResourceTable().request_of(_pod(spec)).devices == expected


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        ("1k", 1000),
        ("2e0", 2),
        ("2E0", 2),
        ("4Ki", 4096),
        ("2000m", 2),
        ("0.5k", 500),
        ("1.", 1),
        ("+1", 1),
        ("1E", 10**18),
        (3, 3),
        (str(LARGEST - 1), LARGEST - 1),
    ],
)
def test_amounts_as_kubernetes_writes_them(amount: str | int, expected: int) -> None:
    """An API server keeps whole numbers in any of these spellings (tests/controlplane/contract/test_limits.py)."""
    item = _pod({"containers": [_container("a", limits={GPU: amount})]})
    asked = ResourceTable().request_of(item)
    assert (asked.devices, asked.unreadable) == ({GPU: expected}, ())


@pytest.mark.parametrize(
    "amount",
    [
        *("500m", "1.5", "-1", "1e-1000", "", "x", "1q", "1kk", "\u0662", "1" * 5000, "1e" + "1" * 5000),
        *("1e99999", "1e999999999", "9" * 30),
    ],
)
def test_an_amount_that_is_no_number_of_devices(amount: str) -> None:
    """It is counted as nothing, and told, rather than guessed at or the end of the run."""
    item = _pod({"containers": [_container("a", limits={GPU: "2"}), _container("b", limits={GPU: amount})]})
    asked = ResourceTable().request_of(item)
    assert asked.devices == {GPU: 2}
    assert asked.unreadable == (f"{GPU}: {amount[:40]!r}",)


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.parametrize("amount", ["1k", "2e0", "4Ki"])
def test_one_users_pod_does_not_stop_the_rest(world: World, amount: str) -> None:
    """However a waiting or an ended pod spells its GPUs, everybody else's plan is made and carried out."""
    world.add("Deployment", world.team, "idle", {})
    for name in ("waiting", "ended"):
        world.add("Pod", world.team, name, {"gpus": amount, "usage": [[]], "nodeSelector": {"no": "such"}})
    world.api.patch("Pod", world.team, "ended", {"status": {"phase": "Succeeded"}}, subresource="status")
    planned = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert planned.code == 0, planned.err
    assert {name: item["verdict"] for name, item in planned.items.items()} == {
        "idle": "act",
        "waiting": "unknown",
    }
    assert world.run("apply", "--yes", "-o", "json", policy=DEFAULT_POLICY).items["idle"]["result"] == "done"


@pytest.mark.parametrize(
    ("selector", "labels", "expected"),
    [
        pytest.param(LabelSelector(), {"a": "b"}, True, id="empty-selects-all"),
        pytest.param(LabelSelector({"a": "b"}), {"a": "b", "c": "d"}, True, id="labels-match"),
        pytest.param(LabelSelector({"a": "b"}), {}, False, id="label-missing"),
        pytest.param(
            LabelSelector(None, [LabelSelectorRequirement("a", "In", ["b"])]), {"a": "b"}, True, id="in"
        ),
        pytest.param(
            LabelSelector(None, [LabelSelectorRequirement("a", "NotIn", ["b"])]), {}, True, id="not-in-absent"
        ),
        pytest.param(
            LabelSelector(None, [LabelSelectorRequirement("a", "NotIn", ["b"])]),
            {"a": "b"},
            False,
            id="not-in",
        ),
        pytest.param(LabelSelector(None, [LabelSelectorRequirement("a", "Exists")]), {}, False, id="exists"),
        pytest.param(
            LabelSelector(None, [LabelSelectorRequirement("a", "DoesNotExist")]), {}, True, id="absent"
        ),
        pytest.param(
            LabelSelector(None, [LabelSelectorRequirement("a", "Future")]), {}, True, id="unreadable-covers"
        ),
    ],
)
def test_whom_a_budget_selects(selector: LabelSelector, labels: dict[str, str], expected: bool) -> None:
    """As the API server's label selectors; what cannot be read is taken to cover the pod."""
    assert selector.selects(labels) is expected


def test_owner_references_in_a_circle_end() -> None:
    """Nonsense in the cluster does not hang us."""
    loop = [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}]
    document = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "ownerReferences": loop},
        "spec": {"containers": [_container("a", limits={GPU: "1"})]},
    }
    pod = msgspec.convert(document, PodObject)
    table = PodTable(ResourceTable())
    table.add([pod])
    assert [one.ref.kind for one in build_fleet(ClusterState(pods=tuple(table.gpu_pods))).workloads] == [
        "ReplicaSet"
    ]
