"""Evicts a bare pod, after saving its manifest for undo.

The manifest may hold credentials in its environment, so it is saved as a Secret in gpu-rightsizer's namespace.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from rightsizer.changes.record_codec import (
    CLASS_ANNOTATION,
    GPUS_ANNOTATION,
    MANIFEST_LABEL,
    POD_ANNOTATION,
    encode_record,
    manifest_name,
)
from rightsizer.errors import ClusterUnreachable, RequestRefused
from rightsizer.execute.run_context import ApplySession, log_cluster_error, mutating_request
from rightsizer.kinds import path_of
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import MANIFEST_TYPE, record_of
from rightsizer.model import ChangeRecord, Decision, Workload

_SERVICE_ACCOUNT_MOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


def recreatable(pod: Mapping[str, Any]) -> dict[str, Any]:
    """A pod's manifest as its author could have written it: without what the cluster added on admission and binding.

    The API server resolves the priority from the class again, and mounts a new service account token.
    """
    metadata = pod["metadata"]
    spec = {
        key: value
        for key, value in pod["spec"].items()
        if key not in {"nodeName", "priority", "preemptionPolicy"}
    }
    tokens = {
        volume["name"] for volume in spec.get("volumes", []) if volume["name"].startswith("kube-api-access-")
    }
    if tokens:
        spec["volumes"] = [volume for volume in spec["volumes"] if volume["name"] not in tokens]
        for group in ("initContainers", "containers"):
            if group in spec:
                spec[group] = [_without_token(container) for container in spec[group]]
    kept = {key: metadata[key] for key in ("name", "namespace", "labels", "annotations") if key in metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": kept, "spec": spec}


def _without_token(container: Mapping[str, Any]) -> dict[str, Any]:
    mounts = [
        mount for mount in container.get("volumeMounts", []) if mount["mountPath"] != _SERVICE_ACCOUNT_MOUNT
    ]
    return {**container, "volumeMounts": mounts}


def evict(decision: Decision, row: Kind, fresh: Workload, session: ApplySession) -> str:
    """Evict a bare pod as preflight read it; what was done, for people.

    Raises:
        ClusterError: The API server refuses, or does not answer; nothing was changed.
        WriteResultUnknown: It is unknown whether the pod was evicted.
    """
    ref = fresh.ref
    path = path_of(ref, row)
    pod = session.cluster.get_object(path)
    conditions = {"preconditions": {"uid": ref.uid, "resourceVersion": fresh.resource_version}}
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": ref.name, "namespace": ref.namespace},
        "deleteOptions": conditions,
    }
    dry_eviction = {**eviction, "deleteOptions": {**conditions, "dryRun": ["All"]}}
    session.cluster.create(f"{path}/eviction", dry_eviction, dry_run=True)
    record = record_of(decision, (), run=session.run, at=session.clock(), by=session.instance)
    with session.memory.kept(fresh, record, session.clock()):
        place = _save(_manifest_secret(decision, pod, record, session), session)
        try:
            with mutating_request():
                session.cluster.create(f"{path}/eviction", eviction)
        except RequestRefused:
            _drop(place, session)
            raise
    # If the answer is lost, the manifest stays: the eviction may still take effect.
    return f"evicted; undo manifest: Secret {session.state_namespace}/{place.rpartition('/')[2]}"


def _save(secret: Mapping[str, Any], session: ApplySession) -> str:
    """Save a manifest; the path of its Secret."""
    secrets = f"/api/v1/namespaces/{session.state_namespace}/secrets"
    place = f"{secrets}/{secret['metadata']['name']}"
    try:
        session.cluster.create(secrets, secret)
    except RequestRefused as refused:
        if refused.reason != "AlreadyExists":
            raise
        # Left by an eviction that never took effect: the pod of this UID is still here.
        session.cluster.delete(place)
        session.cluster.create(secrets, secret)
    except ClusterUnreachable:
        _drop(place, session)
        raise
    return place


def _drop(place: str, session: ApplySession) -> None:
    """Delete a manifest that is not needed."""
    with log_cluster_error(f"Secret {place} is not deleted"):
        session.cluster.delete(place)


def _manifest_secret(
    decision: Decision, pod: Mapping[str, Any], record: ChangeRecord, session: ApplySession
) -> dict[str, Any]:
    ref = decision.workload.ref
    files = {"manifest": json.dumps(recreatable(pod)), "record": encode_record(record)}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": MANIFEST_TYPE,
        "metadata": {
            "name": manifest_name(ref),
            "namespace": session.state_namespace,
            "labels": {MANIFEST_LABEL: session.run},
            "annotations": {
                POD_ANNOTATION: f"{ref.namespace}/{ref.name}",
                GPUS_ANNOTATION: str(decision.workload.gpus),
                CLASS_ANNOTATION: decision.workload.priority_class,
            },
        },
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
    }
