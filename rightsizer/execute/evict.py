"""Evicts a bare pod, after saving its manifest for undo.

The manifest may hold credentials in its environment, so it is saved as a Secret in gpu-rightsizer's namespace. Its
digest is in the memory before.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from rightsizer.changes.record_codec import (
    CLASS_ANNOTATION,
    GPUS_ANNOTATION,
    MANIFEST_LABEL,
    MANIFEST_TYPE,
    POD_ANNOTATION,
    encode_record,
    manifest_name,
)
from rightsizer.errors import ClusterUnreachable, RequestRefused
from rightsizer.execute.run_context import ApplySession, log_cluster_error, mutating_request
from rightsizer.kinds import path_of
from rightsizer.kinds.kind import Kind
from rightsizer.kinds.patches import record_of
from rightsizer.kinds.saved_pods import MANIFEST, RECORD, digest_of, recreatable
from rightsizer.model import Decision, Workload
from rightsizer.text import tidy


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
    if session.is_dry_run:
        return ""
    record = record_of(decision, (), run=session.run, at=session.clock(), by=session.instance)
    files = {MANIFEST: json.dumps(recreatable(pod)), RECORD: encode_record(record)}
    kept = msgspec.structs.replace(session.priced(record, decision), manifest_digest=digest_of(files))
    with session.memory.kept(fresh, kept, session.clock()):
        place = _save(_manifest_secret(decision, files, session), session)
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
        # Left by an eviction that never took effect: the pod of this UID still exists.
        session.cluster.delete(place)
        session.cluster.create(secrets, secret)
    except ClusterUnreachable:
        _drop(place, session)
        raise
    return place


def _drop(place: str, session: ApplySession) -> None:
    with log_cluster_error(f"Secret {place} is not deleted"):
        session.cluster.delete(place)


def _manifest_secret(decision: Decision, files: Mapping[str, str], session: ApplySession) -> dict[str, Any]:
    ref = decision.workload.ref
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
                GPUS_ANNOTATION: str(tidy(decision.workload.gpus)),
                CLASS_ANNOTATION: decision.workload.priority_class,
            },
        },
        "data": {name: base64.b64encode(text.encode()).decode() for name, text in files.items()},
    }
