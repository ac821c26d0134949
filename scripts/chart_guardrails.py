"""What the chart's RBAC and admission policies are selected from, as `gpu-rightsizer policy` prints them.

Written to the chart's files/rights.json and files/admission.json, since Helm cannot run our code (JSON, since it reads
that ten times as fast as YAML). Templates only select and fill in: everything that they say stands there. Tests compare
what they make of a policy with what the commands say.
"""

import json
from collections.abc import Iterator
from typing import Any

from rightsizer.doctor.rights import RIGHTS, Right
from rightsizer.guardrails.admission import (
    CLAIM_TEMPLATES,
    EVENTS,
    OWN_OBJECTS,
    TEMPLATE_SIZES,
    admission_policies,
    command_group,
    name_of,
)
from rightsizer.guardrails.rbac import WRITE_PATHS, Need, is_for, names, need
from rightsizer.guardrails.resize_admission import resize_admission
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS
from rightsizer.kinds.core import POD
from rightsizer.kinds.kind import Kind
from rightsizer.model import Mode
from rightsizer.policy.protections import SYSTEM_NAMESPACES
from rightsizer.policy.rule import SAFE_ACTIONS
from rightsizer.policy.schema import API_VERSION, DEFAULT_KINDS, Policy

OWN, ACCOUNT, PATTERN, RULE = "OWN-NAMESPACE", "OWN-ACCOUNT", "PATTERN", "RULE"
"""In place of what the release and its policy say."""
RANGE, MIN, MAX = "RANGE", -1_111_111_111, 999_999_999


def rights() -> str:
    """What opens which kind, and which right is for what."""
    rows = (*KINDS, *CONTROL_OBJECT_KINDS)
    document = {
        "safeActions": [action.value for action in SAFE_ACTIONS],
        "podNames": list(names(POD)),
        "askedKinds": [kind for row in DEFAULT_KINDS if row.notifyBefore for kind in row.kinds],
        "kinds": [_kind(row) for row in rows],
        "rights": list(_rights(rows)),
    }
    return _written(document)


def admission() -> str:
    """The policy of each kind, and that of evictions, with words in place of what a release says."""
    document = {
        "apiVersion": API_VERSION,
        "kind": "Policy",
        "protectedNamespaces": [PATTERN],
        "rules": [
            {"name": RULE, "match": {"priorityClasses": [PATTERN]}, "mode": Mode.PROTECT.value},
            {"name": RANGE, "match": {"priority": {"min": MIN, "max": MAX}}, "mode": Mode.PROTECT.value},
        ],
    }
    found = admission_policies(Policy.model_validate(document), account=ACCOUNT, own=OWN)
    prefix = "gpu-rightsizer-"
    policies = {
        one["metadata"]["name"].removeprefix(prefix): one["spec"]
        for one in found
        if one["kind"] == "ValidatingAdmissionPolicy"
    }
    commands = {
        _key(row): name_of(command_group(row.stop.command), row.stop.command.plural)
        for row in KINDS
        if row.stop is not None and row.stop.command is not None
    }
    always = [EVENTS, *(name_of(*one) for one in OWN_OBJECTS), CLAIM_TEMPLATES, TEMPLATE_SIZES]
    return _written(
        {
            "systemNamespaces": sorted(SYSTEM_NAMESPACES),
            "always": always,
            "commands": commands,
            "policies": policies,
            "sizes": resize_admission(OWN)[0]["spec"],
        }
    )


def _written(document: dict[str, Any]) -> str:
    return json.dumps(document, indent=1) + "\n"


def _key(row: Kind) -> str:
    """What a kind's objects are called in file names and templates; as its admission policy is."""
    return name_of(row.group, row.of.plural)


def _kind(row: Kind) -> dict[str, Any]:
    ways = [
        {
            "actions": [action.value for action in way.actions],
            "about": list(way.about),
            "asking": way.asking,
        }
        for way in WRITE_PATHS
        if way.row is row
    ]
    return {"name": _key(row), "openings": ways}


def _rights(rows: tuple[Kind, ...]) -> Iterator[dict[str, Any]]:
    """In the order in which a role has them."""

    def order(right: Right) -> tuple[str, str, tuple[str, ...], str]:
        return right.group, right.resource, right.names, right.verb

    for right in sorted(RIGHTS, key=order):
        what = need(right)
        if what is None:
            continue
        entry: dict[str, Any] = {
            "group": right.group,
            "resource": right.resource,
            "verb": right.verb,
            "own": right.is_own,
            "names": list(right.names),
            "need": what.value,
        }
        if what is Need.KIND:
            entry["kinds"] = [_key(row) for row in rows if is_for(right, row)]
        yield entry
