"""Kustomize and Helm install the same: each component on the base is what the chart renders with its values."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from rightsizer.changes.record_codec import MANIFEST_TYPE
from scripts.kustomize import (
    BESIDE,
    COMPONENTS,
    GIVEN,
    KUSTOMIZE,
    NAME,
    PLATFORMS,
    Key,
    Object,
    files,
    render,
)
from simulator.controlplane import programs
from simulator.kube import ApiServer, Rule
from tests.controlplane.contract.objects import pod_spec, replicated
from tests.controlplane.contract.server import Api, Simulated

pytestmark = [pytest.mark.helm, pytest.mark.kustomize]

_EVERY_CLUSTERS = {"v1", "apps", "batch", "networking.k8s.io", "policy", "rbac.authorization.k8s.io"}
_KINDS = {"CronJob", "Deployment", "DaemonSet"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of base and components, with an overlay to write into."""
    for file in ("base", "components"):
        for path in (KUSTOMIZE / file).rglob("*.yaml"):
            to = tmp_path / path.relative_to(KUSTOMIZE)
            to.parent.mkdir(parents=True, exist_ok=True)
            to.write_text(path.read_text())
    return tmp_path


def _build(folder: Path) -> dict[Key, Object]:
    program = programs.find((programs.KUSTOMIZE,))["kustomize"]
    run = subprocess.run([program, "build", folder], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return {
        (one["kind"], one["metadata"]["name"]): one for one in yaml.load_all(run.stdout, yaml.CSafeLoader)
    }


def _overlay(folder: Path, components: Sequence[str], **fields: Any) -> dict[Key, Object]:
    """What an overlay with these components comes to."""
    overlay = folder / "overlays" / "mine"
    overlay.mkdir(parents=True)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": ["../../base"],
        "components": [f"../../components/{name}" for name in components],
        **fields,
    }
    (overlay / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return _build(overlay)


def _same(kustomized: dict[Key, Object], helms: dict[Key, Object]) -> None:
    """Object by object; kustomize has the namespace besides, which `helm install --create-namespace` makes."""
    namespace = kustomized.pop(("Namespace", NAME))
    assert namespace["metadata"]["labels"] == {"pod-security.kubernetes.io/enforce": "privileged"}
    assert set(kustomized) == set(helms)
    for key, found in helms.items():
        assert kustomized[key] == found, key


def test_kustomize_files_are_up_to_date() -> None:
    """`make kustomize` writes them."""
    there = {
        str(path.relative_to(KUSTOMIZE)): path.read_text()
        for part in ("base", "components")
        for path in (KUSTOMIZE / part).rglob("*.yaml")
    }
    assert there == files()


def test_base_equals_chart_default() -> None:
    """Nothing more, nothing less."""
    _same(_build(KUSTOMIZE / "base"), render({}))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMPONENTS)
def test_component_equals_chart_with_its_values(folder: Path, name: str) -> None:
    """On the base, or with the component that it needs."""
    chosen = [BESIDE[name], name] if name in BESIDE else [name]
    expected = render(COMPONENTS[name])
    if name in GIVEN:
        without = render(GIVEN[name])
        added = {key: found for key, found in expected.items() if key not in without}
        expected = {**render({}), **added}
    _same(_overlay(folder, chosen), expected)


@pytest.mark.slow
@pytest.mark.parametrize("platform", PLATFORMS)
def test_components_combined_equal_chart(folder: Path, platform: str) -> None:
    """An acting Deployment with monitoring, on each platform."""
    chosen = ["acting-deployment", "monitoring-deployment", platform]
    values = {**COMPONENTS["monitoring"], **COMPONENTS["acting-deployment"], **COMPONENTS[platform]}
    _same(_overlay(folder, chosen), render(values))


def test_overlay_sets_image_and_namespace(folder: Path) -> None:
    """`images` and `namespace` of an overlay reach every pod, account and binding; the state namespace follows."""
    image = {"name": NAME, "newName": "registry.example.com/gpu", "newTag": "1"}
    found = _overlay(folder, [], namespace="elsewhere", images=[image])
    pods = [yaml.safe_dump(one) for (kind, _), one in found.items() if kind in _KINDS]
    assert len(pods) == 2
    assert all("image: registry.example.com/gpu:1" in pod for pod in pods)
    assert found["ClusterRoleBinding", f"{NAME}-read"]["subjects"][0]["namespace"] == "elsewhere"
    spaces = {one["metadata"].get("namespace") for one in found.values()} - {None}
    assert spaces == {"elsewhere"}
    assert f"value: {NAME}\n" not in "".join(pods)


@pytest.mark.parametrize(
    ("fields", "account"),
    [
        ({}, "gpu-rightsizer:gpu-rightsizer"),
        ({"namespace": "elsewhere"}, "elsewhere:gpu-rightsizer"),
        ({"namespace": "elsewhere", "namePrefix": "blue-"}, "elsewhere:blue-gpu-rightsizer"),
    ],
    ids=["ours", "another-namespace", "another-name"],
)
def test_admission_policy_in_any_namespace_restricts_account(
    folder: Path, fields: Object, account: str
) -> None:
    """It may change replicas elsewhere, but no image and nothing in its own namespace."""
    found = _overlay(folder, ["acting"], **fields)
    subjects = [one["subjects"][0] for (kind, _), one in found.items() if kind == "ClusterRoleBinding"]
    assert {f"{one['namespace']}:{one['name']}" for one in subjects} == {account}
    user, own = f"system:serviceaccount:{account}", account.partition(":")[0]
    with ApiServer(termination_delay_s=0.0) as server:
        for name in ("research", own):
            server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            server.create(_deployment(name))
        for (kind, _), one in found.items():
            if kind.startswith("ValidatingAdmission"):
                server.create(one)
        api = Api(Simulated(server))
        server.access.allow(Rule(user))
        evil = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": "evil"}]}}}}
        for where, body, code in (
            ("research", {"spec": {"replicas": 1}}, 200),
            ("research", evil, 403),
            (own, {"spec": {"replicas": 1}}, 403),
        ):
            path = f"/apis/apps/v1/namespaces/{where}/deployments/w"
            assert api.patch(path, body, user=user).status_code == code, (where, body)
        secret = {"metadata": {"name": "w-0123abcd", "labels": {"gpu-rightsizer.io/manifest": "r"}}}
        for kind, code in (("kubernetes.io/service-account-token", 403), (MANIFEST_TYPE, 201)):
            reply = api("POST", f"/api/v1/namespaces/{own}/secrets", {"type": kind, **secret}, user=user)
            assert reply.status_code == code, reply.text


def _deployment(namespace: str) -> Object:
    body = replicated("w", 2, pod=pod_spec())
    body["metadata"]["namespace"] = namespace
    return {"apiVersion": "apps/v1", "kind": "Deployment", **body}


def test_example_overlay_builds() -> None:
    """The overlay to copy, with image, Prometheus and platform; every cluster serves its kinds."""
    found = _build(KUSTOMIZE / "overlays" / "example")
    (container,) = found["Deployment", NAME]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example.com/gpu-rightsizer:0.1.0"
    assert container["env"][-1]["name"] == "GPU_RIGHTSIZER_PROMETHEUS_URL"
    assert ("CronJob", NAME) not in found
    assert {one["apiVersion"].partition("/")[0] for one in found.values()} <= _EVERY_CLUSTERS
