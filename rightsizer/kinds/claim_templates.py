"""Fewer or smaller GPUs for pods with ResourceClaims: a new ResourceClaimTemplate, as neither these nor claims change.

Pure.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.changes.record_codec import TEMPLATE_ANNOTATION
from rightsizer.inventory.gpu_requests import DRIVER, MIG_CLASS, WHOLE_CLASS, claimed_profile
from rightsizer.inventory.resource_claims import TEMPLATES
from rightsizer.kinds.edits import edit_of, places, value_at
from rightsizer.kinds.kind import CLAIM_TEMPLATE, Kind
from rightsizer.model import ClaimTemplate, Edit, Proposal, Workload

MADE = "-[0-9]+-[0-9a-f]{8}"
"""Pattern of the suffix that a ResourceClaimTemplate for fewer devices adds to the name of the original."""
_DIGITS = 8
_LONGEST = 200


PROFILE = r"""^device\.attributes\[["']gpu\.nvidia\.com["']\]\.profile == ["'][1-9][0-9]*g\.[0-9]+gb["']$"""
"""The selector of a MIG profile, as the examples of NVIDIA's DRA driver have it; an expression of RE2, too."""
_PROFILE_NAME = re.compile(r"[1-9][0-9]*g\.[0-9]+gb")


def claim_edit(
    kind: Kind, obj: Mapping[str, Any], templates: Sequence[ClaimTemplate], proposal: Proposal
) -> Edit:
    """The edit that gives pods claims for fewer devices, or for smaller ones.

    Raises:
        ValueError: The object cannot be changed so; the message says why.
    """
    known = {template.name: template for template in templates}
    named = [(path, value_at(obj, path)) for pattern in kind.claims for path in places(obj, pattern)]
    found = [(path, known[name]) for path, name in named if name in known]
    if len(found) != 1:
        words = "more than one" if found else "none"
        message = f"{words} of its resourceClaims names a ResourceClaimTemplate that its pods got GPUs by"
        raise ValueError(message)
    path, template = found[0]
    return edit_of(obj, path, smaller(template, proposal).name)


def smaller(template: ClaimTemplate, proposal: Proposal) -> ClaimTemplate:
    """The same template for fewer or smaller devices; its name is always the same, and no other workload's.

    Raises:
        ValueError: It has no request with a number of devices, or with a smaller one; or it is unknown how it requests
            a MIG profile.
    """
    named = f"its ResourceClaimTemplate {template.name}"
    if not template.request:
        message = f"{named} has no single request for a number of GPUs"
        raise ValueError(message)
    if len(template.name) > _LONGEST:
        message = f"the name of {named} is longer than {_LONGEST} characters"
        raise ValueError(message)
    spec = msgspec.json.decode(template.spec)
    devices = spec["spec"]["devices"]
    (exactly,) = (ask["exactly"] for ask in devices["requests"] if ask["name"] == template.request)
    count = template.count if proposal.gpus_per_pod is None else proposal.gpus_per_pod
    if proposal.gpus_per_pod is not None:
        if not 0 < count < template.count:
            message = f"{named} requests {template.count} GPUs, not more than {count}"
            raise ValueError(message)
        exactly["count"] = count
    elif devices.get("constraints") or devices.get("config"):
        message = f"{named} has constraints or a config, which may be for its present device only"
        raise ValueError(message)
    else:
        _request_profile(exactly, proposal, named)
    text = msgspec.json.encode(spec, order="deterministic")
    digest = hashlib.sha256(template.workload.encode() + text).hexdigest()[:_DIGITS]
    return ClaimTemplate(
        f"{template.name}-{count}-{digest}", text, template.workload, template.request, count
    )


def _request_profile(exactly: dict[str, Any], proposal: Proposal, named: str) -> None:
    """Request another MIG profile, or one in place of a whole GPU.

    Raises:
        ValueError: How the profile is requested is unknown.
    """
    wanted = [claimed for name, _ in proposal.asks if (claimed := claimed_profile(name)) is not None]
    if len(wanted) != 1:
        message = "its pods have ResourceClaims, which are only for whole GPUs or MIG devices"
        raise ValueError(message)
    ((device_class, profile),) = wanted
    expressions = [(rule.get("cel") or {}).get("expression", "") for rule in exactly.get("selectors") or ()]
    if exactly.get("capacity"):
        expressions.append("an amount of its capacity")
    if exactly["deviceClassName"] == WHOLE_CLASS and device_class == MIG_CLASS and not expressions:
        exactly["deviceClassName"] = MIG_CLASS
        expression = f'device.attributes["{DRIVER}"].profile == "{profile}"'
    elif (
        exactly["deviceClassName"] == device_class
        and len(expressions) == 1
        and re.fullmatch(PROFILE, expressions[0])
    ):
        expression = _PROFILE_NAME.sub(profile, expressions[0])
    else:
        message = f"{named} does not request a whole GPU, or a MIG device by its profile alone"
        raise ValueError(message)
    exactly["selectors"] = [{"cel": {"expression": expression}}]


def object_for(edits: Sequence[Edit], workload: Workload, proposal: Proposal | None) -> dict[str, Any] | None:
    """The ResourceClaimTemplate that must be there before these edits name it; None if they name none."""
    before = {edit.before for edit in edits if edit.path[-1] == CLAIM_TEMPLATE}
    base = next((template for template in workload.claim_templates if template.name in before), None)
    if base is None or proposal is None:
        return None
    made = smaller(base, proposal)
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
