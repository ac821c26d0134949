"""The objects by which a controller is told to stop another, or to let it go on. Pure."""

import hashlib
from typing import Any

from rightsizer.kinds.kind import CommandObject
from rightsizer.model import ObjectRef


def command_body(orders: CommandObject, ref: ObjectRef, verb: str, *, run: str) -> tuple[str, dict[str, Any]]:
    """Collection path and object that orders something about a workload; of one run always the same, so never two.

    Args:
        orders: What is created.
        ref: The workload; the order goes with it.
        verb: What is ordered, such as AbortJob.
        run: On whose behalf.
    """
    suffix = hashlib.sha256(f"{run}/{ref.uid}".encode()).hexdigest()[:10]
    target = {
        "apiVersion": ref.api_version,
        "kind": ref.kind,
        "name": ref.name,
        "uid": ref.uid,
        "controller": True,
    }
    name = f"{ref.name[:200]}-{verb.lower()}-{suffix}"
    body = {
        "apiVersion": orders.api_version,
        "kind": orders.kind,
        "metadata": {"name": name, "namespace": ref.namespace, "ownerReferences": [target]},
        "action": verb,
        "target": target,
    }
    return f"/apis/{orders.api_version}/namespaces/{ref.namespace}/{orders.plural}", body
