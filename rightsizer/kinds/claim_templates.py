"""Fewer GPUs for pods with ResourceClaims: a new ResourceClaimTemplate, as neither these nor claims change. Pure."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.changes.record_codec import TEMPLATE_ANNOTATION
from rightsizer.inventory.resource_claims import TEMPLATES
from rightsizer.kinds.edits import edit_of, places, value_at
from rightsizer.kinds.kind import CLAIM_TEMPLATE, Kind
from rightsizer.model import ClaimTemplate, Edit, Proposal, Workload

MADE = "-[0-9]+-[0-9a-f]{8}"
"""What the name of a template for fewer devices has after that of the one that it is made from."""
_DIGITS = 8
_LONGEST = 200


def claim_edit(kind: Kind, obj: Mapping[str, Any], templates: Sequence[ClaimTemplate], count: int) -> Edit:
    """The edit that gives pods claims for `count` devices.

    Raises:
        ValueError: The object cannot be changed so; the message says why.
    """
    known = {one.name: one for one in templates}
    named = [(path, value_at(obj, path)) for pattern in kind.claims for path in places(obj, pattern)]
    found = [(path, known[name]) for path, name in named if name in known]
    if len(found) != 1:
        words = "more than one" if found else "none"
        message = f"{words} of its resourceClaims names a ResourceClaimTemplate that its pods got GPUs by"
        raise ValueError(message)
    path, template = found[0]
    return edit_of(obj, path, smaller(template, count).name)


def smaller(template: ClaimTemplate, count: int) -> ClaimTemplate:
    """The same template for fewer devices; its name is always the same, and no other workload's.

    Raises:
        ValueError: It has no request with a number of devices, or with a smaller one.
    """
    if not template.request:
        message = f"its ResourceClaimTemplate {template.name} has no single request for a number of GPUs"
        raise ValueError(message)
    if not 0 < count < template.count:
        message = (
            f"its ResourceClaimTemplate {template.name} requests {template.count} GPUs, not more than {count}"
        )
        raise ValueError(message)
    if len(template.name) > _LONGEST:
        message = (
            f"the name of its ResourceClaimTemplate {template.name} is longer than {_LONGEST} characters"
        )
        raise ValueError(message)
    spec = msgspec.json.decode(template.spec)
    for request in spec["spec"]["devices"]["requests"]:
        if request["name"] == template.request:
            request["exactly"]["count"] = count
    text = msgspec.json.encode(spec, order="deterministic")
    digest = hashlib.sha256(template.workload.encode() + text).hexdigest()[:_DIGITS]
    return ClaimTemplate(
        f"{template.name}-{count}-{digest}", text, template.workload, template.request, count
    )


def object_for(edits: Sequence[Edit], workload: Workload, proposal: Proposal | None) -> dict[str, Any] | None:
    """The ResourceClaimTemplate that must be there before these edits name it; None if they name none."""
    before = {edit.before for edit in edits if edit.path[-1] == CLAIM_TEMPLATE}
    base = next((one for one in workload.claim_templates if one.name in before), None)
    if base is None or proposal is None or proposal.gpus_per_pod is None:
        return None
    made = smaller(base, proposal.gpus_per_pod)
    metadata = {
        "name": made.name,
        "namespace": workload.ref.namespace,
        "annotations": {TEMPLATE_ANNOTATION: base.name},
    }
    head = {"apiVersion": TEMPLATES.api_version, "kind": TEMPLATES.kind, "metadata": metadata}
    return {**head, "spec": msgspec.json.decode(made.spec)}


def restored_by(edits: Sequence[Edit]) -> list[str]:
    """The names of the templates that the undo of these edits needs."""
    return [str(edit.before) for edit in edits if edit.path[-1] == CLAIM_TEMPLATE]
