"""GPUs that only a DRA driver publishes, on the real scheduler and controllers: counted, and freed for who waits."""

import contextlib
import json
import time
from typing import Any

import pytest

from rightsizer.config import ClusterSettings
from rightsizer.inventory.cluster_reader import read_cluster
from rightsizer.inventory.device_allocation import Tries, allocate
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kube.cluster import Cluster
from tests.controlplane.contract.server import Object
from tests.controlplane.world import DRA, RealWorld, uids
from tests.deploy.chart import find_one, pod_of, render

pytestmark = [pytest.mark.controlplane, pytest.mark.prometheus, pytest.mark.xdist_group("controlplane")]


def test_plan_counts_gpus_that_only_resource_slices_tell(world: RealWorld) -> None:
    """By the allocated devices: a whole GPU, and a MIG device as its part; a node without either is none."""
    world.dra_node(gpus=2)
    world.claim_template("whole", count=2)
    world.add("Job", "whole", gpus=2, claim="whole")
    assert world.plan()["whole"]["gpus"] == 2
    world.dra_node(gpus=1, profile="1g.10gb")
    world.claim_template("part", count=1, kind="mig")
    world.add("Job", "part", claim="part")
    assert world.plan()["part"]["gpus"] == pytest.approx(1 / 7, abs=1e-3)


ALONE_S = 15.0
"""How long kube-scheduler has the pods for itself: it tries again with each pod that ends, and after backoffs."""
LIMIT_S = 60.0


@pytest.mark.slow
@pytest.mark.parametrize("place", range(3), ids=["first", "second", "third"])
def test_pod_that_kube_scheduler_leaves_pending_runs_within_a_minute(world: RealWorld, place: int) -> None:
    """It cannot preempt pods that hold DRA devices. One idle Job is suspended; the busy and the other idle one stay.

    Wherever the busy one is among the three that could make room.
    """
    world.dra_node(gpus=6)
    urgent = world.priority_class("urgent", 100_000)
    world.claim_template("two", count=2)
    usage = ["idle", "idle"]
    usage.insert(place, "busy")
    before = {
        f"job-{number}": world.add("Job", f"job-{number}", one, gpus=2, claim="two")
        for number, one in enumerate(usage)
    }
    world.create("Job", "urgent", claim="two", priorityClass=urgent)
    world.unschedulable("urgent")
    time.sleep(ALONE_S)
    world.unschedulable("urgent")
    assert all(uids(world.running(name, 1)) == uids(pods) for name, pods in before.items())
    with world.loop(world.on_demand_policy("suspend"), said="metrics on port"):
        began = time.monotonic()
        world.api.eventually(
            lambda: [pod["status"]["phase"] for pod in world.pods("urgent")],
            lambda phases: phases == ["Running"],
            timeout_s=LIMIT_S,
        )
        took_s = time.monotonic() - began
    left = {name for name, pods in before.items() if uids(world.pods(name)) == uids(pods)}
    assert took_s < LIMIT_S
    assert len(left) == len(before) - 1
    assert f"job-{place}" in left
    assert _held(world) == 6


def test_stopped_workload_of_claims_is_verified_by_their_deallocation(world: RealWorld) -> None:
    """A claim made from a template goes with its pod; one by name stays, without devices."""
    world.dra_node(gpus=4)
    world.claim_template("two", count=2)
    claims = f"{DRA}/namespaces/{world.team}/resourceclaims"
    template = world.api.get(f"{DRA}/namespaces/{world.team}/resourceclaimtemplates/two")
    world.api.create(claims, {"metadata": {"name": "named"}, "spec": template["spec"]["spec"]})
    world.add("Job", "made", gpus=2, claim="two")
    world.add("Job", "by-name", gpus=2, claim_name="named")
    assert _held(world) == 4
    done = world.apply()
    assert {name: item["effect"]["gpusFree"] for name, item in done.items()} == {"made": 2, "by-name": 2}
    assert "still allocated" not in str(done)
    assert _held(world) == 0


def test_claim_that_no_freed_gpu_would_satisfy_stops_nothing(world: RealWorld) -> None:
    """It asks for a card of more memory than the idle Job's."""
    world.dra_node(gpus=2)
    urgent = world.priority_class("urgent", 100_000)
    world.claim_template("two", count=2)
    large = 'device.capacity[device.driver].memory.compareTo(quantity("100Gi")) > 0'
    world.claim_template("large", count=1, selector=large)
    world.add("Job", "idle", gpus=2, claim="two", priorityClass="medium-priority")
    policy = world.on_demand_policy("suspend")
    world.create("Job", "urgent", claim="large", priorityClass=urgent)
    world.unschedulable("urgent")
    assert world.apply("--policy", str(policy)) == {}
    world.running("idle", 1)
    said = json.loads(world.run("plan", "-o", "json", "--policy", str(policy)).out)["problems"]
    assert any("no GPU matches its request" in one for one in said), said


def test_parts_of_a_gpu_are_counted_as_the_scheduler_hands_them_out(world: RealWorld) -> None:
    """Rounded up to its steps; who waits fits as soon as, and only if, enough of them come free."""
    node = world.dra_node(gpus=1, step="10Gi")
    for name, memory in (("a", "25Gi"), ("b", "25Gi"), ("c", "5Gi"), ("d", "11Gi")):
        world.claim_template(name, count=1, memory=memory)
        world.create("Job", name, claim=name)
        world.unschedulable(name) if name == "d" else world.running(name, 1)
    with contextlib.closing(Cluster(ClusterSettings(kubeconfig=world.kubeconfig))) as cluster:
        fleet = build_fleet(read_cluster(cluster, ()))
    (device,) = fleet.devices.nodes[node]
    parts = fleet.devices.held[device.id]
    assert sorted(dict(one.consumed)["memory"] / 2**30 for one in parts) == [10, 30, 30]
    (waiting,) = [one for one in fleet.waiting if one.ref.namespace == world.team]
    assert [each.choices[0].consumes[device.id] for each in waiting.claims[0].requests] == [
        {"memory": 20 * 2**30}
    ]
    for gone, fits in ((0, False), (10, False), (30, True)):
        freed = [one for one in parts if dict(one.consumed)["memory"] == gone * 2**30][:1]
        found = allocate(waiting.claims, fleet.devices, node, fleet.devices.held, Tries(), freed=freed)
        assert (found is not None) == fits


def _exporter(world: RealWorld) -> tuple[Object, Object]:
    """The chart's claim template and a pod of its DaemonSet, for the team's namespace and nodes."""
    values = {"platform": "gpu-operator-dra", "exporter": {"deviceClassName": f"gpu-{world.team}"}}
    objects = render(values, only=["exporter"], namespace=world.team)
    spec = {
        **pod_of(find_one(objects, "DaemonSet", "gpu-rightsizer-exporter")),
        "nodeSelector": world.labels,
        "affinity": {},
    }
    del spec["serviceAccountName"], spec["priorityClassName"]
    template = find_one(objects, "ResourceClaimTemplate", "gpu-rightsizer-exporter")
    return template, {"metadata": {"name": "exporter", "labels": {"app": "exporter"}}, "spec": spec}


@pytest.mark.helm
def test_exporter_of_the_chart_runs_beside_who_holds_all_gpus(world: RealWorld) -> None:
    """Its claim observes: it needs a label of the namespace, leaves the GPUs to others, and no plan counts it."""
    world.dra_node(gpus=2)
    world.claim_template("two", count=2)
    world.add("Job", "holder", gpus=2, claim="two")
    template, pod = _exporter(world)
    templates = f"{DRA}/namespaces/{world.team}/resourceclaimtemplates"
    refused = world.api("POST", templates, template)
    assert "resource.kubernetes.io/admin-access" in refused.json()["message"]
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    assert world.api.patch(f"/api/v1/namespaces/{world.team}", label).status_code == 200
    world.api.create(templates, template)
    world.api.create(f"{world.api.core}/pods", pod)
    world.running("exporter", 1)
    items = world.plan()
    assert {name: item["gpus"] for name, item in items.items()} == {"holder": 2}


def _sized(world: RealWorld) -> dict[str, Any]:
    """What apply does with a Deployment that uses one of its four GPUs, and makes room before its new pod comes."""
    policy = world.policy_of("actions: [resize], findings: {too-many-gpus: enforce}")
    world.dra_node(gpus=8)
    world.claim_template("four", count=4)
    world.add("Deployment", "serve", ["busy", "idle", "idle", "idle"], gpus=4, claim="four")
    strategy = {"spec": {"strategy": {"type": "Recreate", "rollingUpdate": None}}}
    world.api.patch(f"{world.api.apps}/deployments/serve", strategy)
    return world.apply("--policy", str(policy))


def _held(world: RealWorld) -> int:
    """DRA devices that the namespace's claims hold."""
    claims = world.api.items(f"{DRA}/namespaces/{world.team}/resourceclaims")
    held = [one["status"]["allocation"]["devices"] for one in claims if "allocation" in one.get("status", {})]
    return sum(len(one["results"]) for one in held)


def test_resize_makes_a_template_for_fewer_devices_and_undo_restores_its_own(world: RealWorld) -> None:
    """One PATCH names a copy of the template; the pods then hold one device, and four again after undo."""
    done = _sized(world)
    assert done["serve"]["result"] == "done", done
    world.api.eventually(lambda: _held(world), lambda held: held == 1)
    world.running("serve", 1)
    deployment = world.get("Deployment", "serve")
    name = deployment["spec"]["template"]["spec"]["resourceClaims"][0]["resourceClaimTemplateName"]
    made = world.api.get(f"{DRA}/namespaces/{world.team}/resourceclaimtemplates/{name}")
    assert name.startswith("four-1-")
    assert made["metadata"]["annotations"] == {"gpu-rightsizer.io/smaller-than": "four"}
    assert [one["uid"] for one in made["metadata"]["ownerReferences"]] == [deployment["metadata"]["uid"]]
    assert world.undo("Deployment", "serve")["result"] == "done"
    world.api.eventually(lambda: _held(world), lambda held: held == 4)
    world.running("serve", 1)


@pytest.mark.parametrize("is_whole", [True, False], ids=["of-a-whole-gpu", "of-a-larger-profile"])
def test_reslice_makes_a_template_for_a_smaller_mig_device_and_undo_restores_its_own(
    world: RealWorld, *, is_whole: bool
) -> None:
    """The second GPU is partitioned for it, and the first one is free until undo."""
    policy = world.policy_of("actions: [reslice], findings: {oversized-gpu: enforce}")
    world.dra_node(gpus=2, dynamic_mig=True)
    world.nvidia_classes()
    profile = 'device.attributes["gpu.nvidia.com"].profile == "{}"'
    if is_whole:
        world.claim_template("one", count=1, device_class="gpu.nvidia.com")
    else:
        half = profile.format("3g.40gb")
        world.claim_template("one", count=1, device_class="mig.nvidia.com", selector=half)
    world.add("Deployment", "serve", "small" if is_whole else "small-on-half", claim="one")
    done = world.apply("--policy", str(policy))
    assert done["serve"]["result"] == "done", done
    world.api.eventually(lambda: _profiles(world), lambda found: found == ["1g.10gb"])
    world.running("serve", 1)
    name = world.get("Deployment", "serve")["spec"]["template"]["spec"]["resourceClaims"][0][
        "resourceClaimTemplateName"
    ]
    made = world.api.get(f"{DRA}/namespaces/{world.team}/resourceclaimtemplates/{name}")
    (request,) = made["spec"]["spec"]["devices"]["requests"]
    assert request["exactly"]["deviceClassName"] == "mig.nvidia.com"
    assert request["exactly"]["selectors"] == [{"cel": {"expression": profile.format("1g.10gb")}}]
    assert world.undo("Deployment", "serve")["result"] == "done"
    world.api.eventually(lambda: _profiles(world), lambda found: found == ["" if is_whole else "3g.40gb"])
    world.running("serve", 1)


def _profiles(world: RealWorld) -> list[str]:
    """The MIG profiles of the devices that the namespace's claims hold; empty for a whole GPU."""
    published = {
        device["name"]: device["attributes"].get("profile", {}).get("string", "")
        for one in world.api.items(f"{DRA}/resourceslices", labelSelector=f"team={world.team}")
        for device in one["spec"].get("devices", ())
    }
    claims = world.api.items(f"{DRA}/namespaces/{world.team}/resourceclaims")
    held = [one["status"]["allocation"]["devices"] for one in claims if "allocation" in one.get("status", {})]
    return [published[each["device"]] for one in held for each in one["results"]]


def test_undo_without_the_former_template_changes_nothing(world: RealWorld) -> None:
    """No pod could start with it."""
    _sized(world)
    world.api("DELETE", f"{DRA}/namespaces/{world.team}/resourceclaimtemplates/four")
    refused = world.undo("Deployment", "serve")
    assert refused["result"] != "done"
    assert "ResourceClaimTemplate four is gone" in refused["detail"]
