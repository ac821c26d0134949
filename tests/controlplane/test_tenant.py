"""What a tenant with `edit` rights writes to a real API server changes nothing of others, and stops no change."""

import contextlib
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from rightsizer.config import FIELD_MANAGER
from rightsizer.guardrails.admission import admission_policies
from rightsizer.policy.policy_file import parse
from simulator.controlplane.plane import ControlPlane
from simulator.prometheus import Prometheus
from tests.controlplane.contract.server import Object
from tests.controlplane.contract.test_guardrails import GROUP, PLURALS
from tests.controlplane.world import POLICY, STATE_NAMESPACE, RealWorld
from tests.rightsizer.given import manifest

pytestmark = [pytest.mark.controlplane, pytest.mark.prometheus, pytest.mark.xdist_group("controlplane")]


@pytest.mark.parametrize(
    "name", ["../../{}/deployments/web", "web"], ids=["path", "name-of-another-namespace"]
)
def test_pod_that_claims_another_namespaces_owner_changes_nothing_there(world: RealWorld, name: str) -> None:
    """The API server keeps the reference; the protected Deployment stays as it is, with its own pod alone."""
    world.node()
    world.add("Deployment", "web", priorityClass="high-priority")
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "controller": True}
    owner |= {"name": name.format(world.team), "uid": world.get("Deployment", "web")["metadata"]["uid"]}
    forger = f"{world.team}-forger"
    world.api.create("/api/v1/namespaces", {"metadata": {"name": forger}})
    given = {"priorityClass": "low-priority", "nodeSelector": world.labels}
    pod = manifest("Pod", forger, "claims", given)
    pod["metadata"]["ownerReferences"] = [owner]
    world.api.create(f"/api/v1/namespaces/{forger}/pods", pod)
    try:
        item = world.plan()["web"]
        assert (item["verdict"], item["action"], item["gpus"]) == ("protected", None, 1)
        world.apply()
        assert world.get("Deployment", "web")["spec"]["replicas"] == 1
        assert "../" not in world.run("plan", "-o", "json").out
    finally:
        world.api("DELETE", f"/api/v1/namespaces/{forger}")


_MOST = 1_572_864  # of etcd: bytes of a request
NAMES = ("full-a", "full-b", "full-c")


def test_object_too_large_for_etcd_opens_no_breaker(world: RealWorld) -> None:
    """The dry run passes, and etcd refuses what the record adds to it (500)."""
    world.node()
    for name in (*NAMES, "idle"):
        world.add("Deployment", name)
    first = _MOST
    for name in NAMES:
        containers = world.get("Deployment", name)["spec"]["template"]["spec"]["containers"]
        for size in range(first, _MOST - 10_000, -400):
            containers[0]["env"] = [{"name": "A", "value": "x" * size}]
            spec = {"paused": True, "template": {"spec": {"containers": containers}}}
            reply = world.api.patch(f"{world.collection('Deployment')}/{name}", {"spec": spec})
            if reply.status_code == 200:
                first = size
                break
    results = {name: item["result"] for name, item in world.apply().items()}
    assert results == {**dict.fromkeys(NAMES, "blocked"), "idle": "done"}
    assert "\nbreaker: closed\n" in world.run("breaker").out


def test_object_full_of_annotations_opens_no_breaker(world: RealWorld) -> None:
    """The API server refuses every write to it (422); the next workload is changed, and so is the one after."""
    world.node()
    for name in (*NAMES, "idle"):
        world.add("Deployment", name)
    annotations = {"metadata": {"annotations": {"a": "x" * ((256 << 10) - 64)}}}
    for name in NAMES:
        assert world.api.patch(f"{world.collection('Deployment')}/{name}", annotations).status_code == 200
    results = {name: item["result"] for name, item in world.apply().items()}
    assert results == {"full-a": "blocked", "full-b": "blocked", "full-c": "blocked", "idle": "done"}
    assert "\nbreaker: closed\n" in world.run("breaker").out


@contextlib.contextmanager
def _guarded(world: RealWorld) -> Iterator[None]:
    """The rendered policies about whatever the program writes in the team's namespace, in force."""
    policy = parse(POLICY.replace("TEAM", world.team).encode(), source="policy.yaml").policy
    in_team = f'request.namespace == "{world.team}" && "fieldManager" in request.options'
    with contextlib.ExitStack() as stack:
        for document in admission_policies(policy, account="unused", own=STATE_NAMESPACE):
            for condition in document["spec"].get("matchConditions", ()):
                is_own = f'request.options["fieldManager"] == "{FIELD_MANAGER}"'
                condition["expression"] = f"{in_team} && {is_own}"
            path = f"{GROUP}/{PLURALS[document['kind']]}"
            world.api.create(path, document)
            stack.callback(world.api, "DELETE", f"{path}/{document['metadata']['name']}")
        yield


def _custom(world: RealWorld, kind: str, resource: str, name: str, **spec: list[Object]) -> None:
    """An object of a third party's kind with an idle pod; lists of its spec get more entries."""
    given = {"nodeSelector": world.labels}
    body = manifest(kind, world.team, name, given)
    for field, more in spec.items():
        body["spec"][field] += more
    made = world.api.create(f"/apis/{body['apiVersion']}/namespaces/{world.team}/{resource}", body)
    pod = manifest("Pod", world.team, name, given)
    owner = {"apiVersion": body["apiVersion"], "kind": body["kind"], "name": name, "controller": True}
    pod["metadata"]["ownerReferences"] = [{**owner, "uid": made["metadata"]["uid"]}]
    world.api.create(f"{world.api.core}/pods", pod)
    world.seen(name)


_WRAPPERS = ("AppWrapper.workload.codeflare.dev", "appwrappers")


def test_what_owners_write_opens_no_breaker_by_the_guardrails(
    third_parties: ControlPlane, prometheus: Prometheus, tmp_path: Path
) -> None:
    """A class that only the template names, and an object too costly to check, block themselves alone (422)."""
    with RealWorld(third_parties, prometheus, tmp_path) as world, _guarded(world):
        world.node()
        for name in ("names-class", "idle"):
            world.add("Deployment", name)
        strange = {"template": {"kind": "ConfigMap", "spec": "text"}}
        _custom(world, *_WRAPPERS, "strange", components=[strange])
        _custom(world, *_WRAPPERS, "costly", components=[{"template": {"spec": {}}}] * 50_000)
        paused = {"paused": True, "template": {"spec": {"priorityClassName": "system-node-critical"}}}
        path = f"{world.collection('Deployment')}/names-class"
        assert world.api.patch(path, {"spec": paused}).status_code == HTTPStatus.OK
        dry = {"dryRun": "All", "fieldManager": FIELD_MANAGER}
        world.api.eventually(
            lambda: world.api.patch(path, {"spec": {"paused": False}}, params=dry).status_code,
            lambda code: code == HTTPStatus.FORBIDDEN,
        )
        items = world.apply("--verify-for", "0")
        results = {name: item["result"] for name, item in items.items()}
        assert results == {"names-class": "blocked", "costly": "blocked", "strange": "done", "idle": "done"}
        assert "pods of a system class" in items["names-class"]["detail"]
        assert " cost " in items["costly"]["detail"], items["costly"]
        assert "\nbreaker: closed\n" in world.run("breaker").out


def test_full_quota_of_a_namespace_opens_no_breaker(
    third_parties: ControlPlane, prometheus: Prometheus, tmp_path: Path
) -> None:
    """A tenant lets its namespace have no Commands, without which a Volcano Job cannot be stopped (403)."""
    with RealWorld(third_parties, prometheus, tmp_path) as world:
        world.node()
        world.add("Deployment", "idle")
        _custom(world, "Job.batch.volcano.sh", "jobs", "train")
        hard = {"count/commands.bus.volcano.sh": "0"}
        quota = {"metadata": {"name": "none"}, "spec": {"hard": hard}}
        world.api.create(f"{world.api.core}/resourcequotas", quota)
        items = world.apply("--verify-for", "0")
        assert {name: item["result"] for name, item in items.items()} == {"train": "blocked", "idle": "done"}
        # Whether it is exceeded, or its status unknown, is a race.
        assert " quota: none, " in items["train"]["detail"]
        assert "\nbreaker: closed\n" in world.run("breaker").out
