"""Manifests of evicted pods on a real API server: its Pod Security admission, and forged Secrets."""

import base64
import json

import pytest

from tests.controlplane.contract.server import Object
from tests.controlplane.world import STATE_NAMESPACE, RealWorld
from tests.rightsizer.kinds.test_saved_pods import BEYOND, OF_NEW_SERVERS, WITHIN, pod_of

pytestmark = [pytest.mark.controlplane, pytest.mark.prometheus, pytest.mark.xdist_group("controlplane")]

_SINCE = 34
"""The minor version that checks hosts of probes and hooks."""


def test_real_pod_security_agrees_about_baseline(world: RealWorld) -> None:
    """It refuses exactly what undo creates only if it is named."""
    label = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}}
    assert world.api.patch(f"/api/v1/namespaces/{world.team}", label).status_code == 200
    minor = int(world.api.get("/version")["minor"].rstrip("+"))
    beyond = {**BEYOND, **(OF_NEW_SERVERS if minor >= _SINCE else {})}
    codes = {name: _code(world, pod_of(spec)) for name, spec in {**beyond, **WITHIN}.items()}
    assert codes == dict.fromkeys(beyond, 403) | dict.fromkeys(WITHIN, 201)


def _code(world: RealWorld, pod: Object) -> int:
    body = {**pod, "metadata": {"name": "shell", "namespace": world.team}}
    reply = world.api("POST", f"{world.api.core}/pods", body, params={"dryRun": "All"})
    assert reply.status_code != 403 or "violates PodSecurity" in reply.text
    return int(reply.status_code)


@pytest.mark.parametrize("kind", ["gpu-rightsizer.io/pod-manifest", "Opaque"])
def test_forged_manifest_creates_no_pod(world: RealWorld, kind: str) -> None:
    """An administrator's undo leaves it alone, in the team's namespace and in the system's."""
    secrets = f"/api/v1/namespaces/{STATE_NAMESPACE}/secrets"
    for namespace in (world.team, "kube-system"):
        name = f"forged-{world.team}"
        manifest = pod_of(BEYOND["privileged"], namespace=namespace, name=name)
        record = {"at": "2026-11-20T00:00:00Z", "run": world.team, "action": "evict"}
        files = {"manifest": json.dumps(manifest), "record": json.dumps(record)}
        data = {key: base64.b64encode(text.encode()).decode() for key, text in files.items()}
        labels = {"gpu-rightsizer.io/manifest": world.team}
        metadata = {"name": f"{namespace}-{world.team}-0123abcd", "labels": labels}
        world.api.create(secrets, {"metadata": metadata, "type": kind, "data": data})
        run = world.run("undo", f"{namespace}/Pod/{name}", "--yes", "-o", "json")
        results = [item["result"] for item in run.items.values()] if run.out else []
        assert (run.code, results) == ((1, ["untrusted"]) if kind != "Opaque" else (2, []))
        assert world.api("GET", f"/api/v1/namespaces/{namespace}/pods/{name}").status_code == 404
        world.api("DELETE", f"{secrets}/{metadata['name']}")
