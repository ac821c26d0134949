"""Creates the ResourceClaimTemplate that a workload names next, and checks that the one to restore is still there."""

from collections.abc import Mapping, Sequence
from typing import Any

from rightsizer.errors import RequestRefused
from rightsizer.inventory.resource_claims import TEMPLATES, TemplateObject
from rightsizer.kinds.claim_templates import restored_by
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.object_names import api_path
from rightsizer.model import Edit, ObjectRef


def create_template(
    cluster: Cluster, body: Mapping[str, Any], owner: ObjectRef, *, dry_run: bool = False
) -> None:
    """Create a template that is deleted together with its workload; the same one exists from an earlier attempt.

    Raises:
        ClusterError: The API server refuses, or does not answer.
        ValueError: There is another one of its name.
    """
    reference = {"apiVersion": owner.api_version, "kind": owner.kind, "name": owner.name, "uid": owner.uid}
    metadata = {**body["metadata"], "ownerReferences": [reference]}
    collection = api_path(TEMPLATES.api_version, owner.namespace, TEMPLATES.plural)
    try:
        cluster.create(collection, {**body, "metadata": metadata}, dry_run=dry_run)
    except RequestRefused as refused:
        if refused.reason != "AlreadyExists":
            raise
        if cluster.get_object(f"{collection}/{metadata['name']}")["spec"] != body["spec"]:
            message = f"there is another ResourceClaimTemplate {metadata['name']}"
            raise ValueError(message) from refused


def missing_template(cluster: Cluster, edits: Sequence[Edit], namespace: str) -> str:
    """The template that the undo of these edits needs, if it is gone: pods could not start; else empty."""
    for name in restored_by(edits):
        path = api_path(TEMPLATES.api_version, namespace, TEMPLATES.plural, name)
        if cluster.find(path, TemplateObject) is None:
            return name
    return ""
