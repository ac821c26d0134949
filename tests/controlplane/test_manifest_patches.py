"""`plan --patches` on a real API server: it accepts each patch as kubectl sends it, and only GPU amounts change."""

from pathlib import Path

import pytest
import yaml

from simulator.controlplane.plane import ControlPlane
from simulator.prometheus import Prometheus
from tests.controlplane.world import RealWorld
from tests.rightsizer.kinds.test_patches import merged

pytestmark = [pytest.mark.controlplane, pytest.mark.prometheus, pytest.mark.xdist_group("controlplane")]

GPU = "nvidia.com/gpu"


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet"])
def test_patch_of_plan_is_accepted_and_pods_have_fewer_gpus(
    world: RealWorld, tmp_path: Path, kind: str
) -> None:
    """A strategic merge patch; the plan only advises on this StatefulSet, whose rollback could not work."""
    world.node()
    world.add(kind, "w", ["busy", "idle"], gpus=2)
    run = world.run("plan", "--patches", str(tmp_path / "patches"))
    assert run.code == 0, run.err
    (path,) = (tmp_path / "patches" / world.team).glob(f"{kind.lower()}.apps-w.yaml")
    before, patch = world.get(kind, "w"), yaml.safe_load(path.read_text())
    patched = world.api.patch(f"{world.collection(kind)}/w", patch, kind="strategic-merge-patch")
    assert patched.status_code == 200, patched.text
    template = before["spec"]["template"]["spec"]
    (container,) = template["containers"]
    expected = {**template, "containers": [{**container, "resources": {"limits": {GPU: "1"}}}]}
    assert world.get(kind, "w")["spec"]["template"]["spec"] == expected


def test_patch_of_third_party_kind_is_refused_for_another_container(
    third_parties: ControlPlane, prometheus: Prometheus, tmp_path: Path
) -> None:
    """A JSON patch, which tests that the container is still at its place."""
    with RealWorld(third_parties, prometheus, tmp_path) as world:
        world.node()
        path = f"/apis/argoproj.io/v1alpha1/namespaces/{world.team}/rollouts"
        world.create("Deployment", "w", gpus=2)
        template = world.get("Deployment", "w")["spec"]["template"]
        world.api("DELETE", f"{world.collection('Deployment')}/w")
        body = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Rollout",
            "metadata": {"name": "w"},
            "spec": {"replicas": 1, "template": template},
        }
        owner = world.api.create(path, body)
        reference = {
            "apiVersion": body["apiVersion"],
            "kind": body["kind"],
            "name": "w",
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        pod = merged(template, {"metadata": {"name": "w-0", "ownerReferences": [reference]}})
        world.api.create(f"{world.api.core}/pods", pod)
        world.seen("w", ["busy", "idle"], gpus=2)
        run = world.run("plan", "--patches", str(tmp_path / "patches"))
        assert run.code == 0, run.err
        (file,) = (tmp_path / "patches" / world.team).glob("rollout.argoproj.io-w.yaml")
        patch = yaml.safe_load(file.read_text())
        patched = world.api.patch(f"{path}/w", patch, kind="json-patch").json()
        (container,) = patched["spec"]["template"]["spec"]["containers"]
        assert (container["name"], container["resources"]["limits"]) == ("main", {GPU: "1"})
        template["spec"]["containers"] = [
            {"name": "other", "image": "x", "resources": container["resources"]}
        ]
        world.api.patch(f"{path}/w", {"spec": {"template": template}})
        assert world.api.patch(f"{path}/w", patch, kind="json-patch").status_code == 422
