"""Creating, reading, replacing and deleting over HTTP: status codes, metadata and refusals."""

import pytest

from simulator.kube import ApiServer
from tests.simulator.kube.manifests import Object, configmap, job, node, pod
from tests.simulator.kube.wire import Clock, Http, Official

CONFIGMAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


def test_created_object_gets_system_fields(http: Http) -> None:
    """UID, creation time, resourceVersion and namespace come from the server, whatever the client wrote."""
    sent = configmap(uid="mine", creationTimestamp="2000-01-01T00:00:00Z", generation=9)
    reply = http("POST", CONFIGMAPS, sent)
    metadata = reply.json()["metadata"]
    assert reply.status_code == 201
    assert metadata["uid"] not in {"", "mine"}
    assert metadata["creationTimestamp"] == "2026-11-20T12:00:00Z"
    assert metadata["namespace"] == "default"
    assert int(metadata["resourceVersion"]) > 0
    assert "generation" not in metadata


def test_unknown_path_is_404(http: Http) -> None:
    """What no resource stands behind is answered 404 in the real server's words."""
    status = http("GET", "/apis/example.com/v1/things").json()
    assert (status["code"], status["message"]) == (404, "the server could not find the requested resource")


def test_create_in_missing_namespace_is_404(http: Http) -> None:
    """Creation in a namespace that does not exist is 404 about the namespace."""
    status = http("POST", "/api/v1/namespaces/none/configmaps", configmap(namespace="none")).json()
    assert (status["code"], status["message"]) == (404, 'namespaces "none" not found')


def test_create_in_terminating_namespace_is_403(server: ApiServer, http: Http) -> None:
    """Creation in a namespace that is being deleted is 403 with the cause NamespaceTerminating."""
    server.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})
    server.create(configmap(namespace="team", finalizers=["example.com/hold"]))
    http("DELETE", "/api/v1/namespaces/team")
    reply = http("POST", "/api/v1/namespaces/team/configmaps", configmap("d", namespace="team"))
    assert (reply.status_code, reply.json()["reason"]) == (403, "Forbidden")
    assert reply.json()["details"]["causes"][0]["reason"] == "NamespaceTerminating"


def test_create_with_other_namespace_in_body_is_400(http: Http) -> None:
    """A body for another namespace is refused with 400."""
    reply = http("POST", CONFIGMAPS, configmap(namespace="other"))
    assert (reply.status_code, reply.json()["reason"]) == (400, "BadRequest")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        pytest.param({**configmap(), "kind": "Secret"}, 400, id="another-kind"),
        pytest.param({**configmap(), "apiVersion": "v2"}, 400, id="another-version"),
        pytest.param(configmap(resourceVersion="7"), 500, id="resource-version-on-create"),
        pytest.param(configmap("Upper"), 422, id="upper-case-name"),
        pytest.param(configmap("a" * 254), 422, id="name-too-long"),
        pytest.param({**configmap(), "metadata": {}}, 422, id="no-name"),
        pytest.param(configmap(labels={"a b": "c"}), 422, id="bad-label-key"),
        pytest.param(configmap(labels={"a": "c d"}), 422, id="bad-label-value"),
        pytest.param(configmap(labels={"a": "c" * 64}), 422, id="long-label-value"),
        pytest.param(configmap(labels={"a": 1}), 400, id="label-not-text"),
        pytest.param(configmap(annotations={"a": "x" * 262_144}), 422, id="annotations-too-large"),
        pytest.param([], 400, id="not-an-object"),
    ],
)
def test_create_of_malformed_body_is_refused(http: Http, body: object, code: int) -> None:
    """A body that is malformed or invalid gets a Status and leaves nothing behind."""
    reply = http("POST", CONFIGMAPS, body)
    assert (reply.status_code, reply.json()["kind"]) == (code, "Status")
    assert http("GET", CONFIGMAPS).json()["items"] == []


def test_body_without_json_is_400_or_415(http: Http) -> None:
    """A body that is no JSON is 400; one in another format is 415."""
    broken = http.session.post(http.url + CONFIGMAPS, data="{", headers={"Content-Type": "application/json"})
    text = http.session.post(http.url + CONFIGMAPS, data="a", headers={"Content-Type": "text/plain"})
    assert (broken.status_code, broken.json()["reason"]) == (400, "BadRequest")
    assert (text.status_code, text.json()["reason"]) == (415, "UnsupportedMediaType")


def test_update_of_lease_or_budget_without_version_is_422(server: ApiServer, http: Http) -> None:
    """What the real server never updates unconditionally is 422 without a resourceVersion."""
    lease: Object = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}}
    server.create(lease)
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
    assert http("PUT", path, lease).status_code == 422
    current = http("GET", path).json()
    current["spec"] = {"holderIdentity": "me", "leaseDurationSeconds": 15}
    assert http("PUT", path, current).json()["spec"]["holderIdentity"] == "me"


def test_status_and_spec_are_written_separately(http: Http) -> None:
    """The main resource ignores status; /status ignores spec."""
    sent = {**pod(schedulerName="nobody"), "status": {"phase": "Running"}}
    assert http("POST", PODS, sent).json()["status"]["phase"] == "Pending"
    http.patch(f"{PODS}/p", {"status": {"phase": "Running"}})
    assert http("GET", f"{PODS}/p").json()["status"]["phase"] == "Pending"
    http.patch(f"{PODS}/p/status", {"status": {"phase": "Running"}, "spec": {"nodeName": "elsewhere"}})
    stored = http("GET", f"{PODS}/p").json()
    assert stored["status"]["phase"] == "Running"
    assert "nodeName" not in stored["spec"]


def test_node_created_with_status_keeps_it(http: Http) -> None:
    """A Node's POST may carry its capacity; allocatable follows from it."""
    made = http("POST", "/api/v1/nodes", node("n")).json()
    assert made["status"]["allocatable"]["nvidia.com/gpu"] == "8"


def test_delete_without_grace_answers_status_with_uid(http: Http) -> None:
    """A deletion at once is a Success Status that names the object by its UID."""
    made = http("POST", CONFIGMAPS, configmap()).json()
    status = http("DELETE", f"{CONFIGMAPS}/c").json()
    assert (status["status"], status["details"]["uid"]) == ("Success", made["metadata"]["uid"])
    assert http("GET", f"{CONFIGMAPS}/c").status_code == 404


def test_deleted_object_with_finalizer_stays_until_it_is_removed(http: Http) -> None:
    """A deleted object with a finalizer stays, marked, and goes with its last finalizer."""
    http("POST", CONFIGMAPS, configmap(finalizers=["example.com/hold"]))
    http("DELETE", f"{CONFIGMAPS}/c")
    assert http("GET", f"{CONFIGMAPS}/c").json()["metadata"]["deletionTimestamp"] == "2026-11-20T12:00:00Z"
    http.patch(f"{CONFIGMAPS}/c", {"metadata": {"finalizers": None}})
    assert http("GET", f"{CONFIGMAPS}/c").status_code == 404


def test_delete_collection_removes_selected_objects_only(http: Http) -> None:
    """DELETE on a collection takes what its selector matches and leaves the rest."""
    http("POST", CONFIGMAPS, configmap("a", labels={"x": "1"}))
    http("POST", CONFIGMAPS, configmap("b", labels={"x": "2"}))
    assert http("DELETE", f"{CONFIGMAPS}?labelSelector=x%3D1").status_code == 200
    assert [item["metadata"]["name"] for item in http("GET", CONFIGMAPS).json()["items"]] == ["b"]


@pytest.mark.parametrize("name", ["default", "kube-system"])
def test_delete_of_system_namespace_is_403(http: Http, name: str) -> None:
    """The namespaces that a cluster cannot be without are refused with 403."""
    assert http("DELETE", f"/api/v1/namespaces/{name}").status_code == 403


def test_official_client_can_write_back_what_it_read(
    core: Official, batch: Official, server: ApiServer
) -> None:
    """Objects read by the official client can be written back by it."""
    made = server.create(job(suspend=True))
    server.settle()
    read = batch.read_namespaced_job("j", "default")
    read.metadata.labels = {"a": "b"}
    assert batch.replace_namespaced_job("j", "default", read).metadata.labels == {"a": "b"}
    assert read.metadata.uid == made["metadata"]["uid"]
    assert [entry.metadata.name for entry in core.list_namespace().items][:2] == [
        "default",
        "kube-node-lease",
    ]


def test_in_process_writes_pass_the_same_validation(server: ApiServer, clock: Clock) -> None:
    """What is created in process is stamped by the server's clock and can be patched, replaced and deleted."""
    clock.forward(60)
    made = server.create(configmap())
    assert made["metadata"]["creationTimestamp"] == "2026-11-20T12:01:00Z"
    server.patch("ConfigMap", "default", "c", {"data": {"a": "1"}})
    stored = server.get("ConfigMap", "default", "c")
    assert stored is not None
    server.update({**stored, "data": {"a": "2"}})
    assert [entry["data"] for entry in server.list("ConfigMap", "default")] == [{"a": "2"}]
    server.delete("ConfigMap", "default", "c")
    assert server.get("ConfigMap", "default", "c") is None
