"""Who writes what we would change of an object, by its metadata.managedFields: also where no mark tells of them. Pure.

https://kubernetes.io/docs/reference/using-api/server-side-apply/#field-management
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.config import FIELD_MANAGER

GITOPS: Mapping[str, str] = {
    "argocd-controller": "Argo CD",
    "argocd-application-controller": "Argo CD",
    "kustomize-controller": "Flux",
    "helm-controller": "Flux",
    "helm": "Helm",
}
"""What they call themselves, by whichever operation they write."""

_BY_HAND = ("kubectl", "Terraform", "pulumi")
"""Whoever runs these applies once, and not whenever something differs."""
_APPLY = "Apply"


class FieldsV1(msgspec.Struct):
    """metav1.FieldsV1: keys are fields with `f:` before them; of it only the spec matters."""

    spec: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="f:spec")


class ManagedFieldsEntry(msgspec.Struct, rename="camel"):
    """metav1.ManagedFieldsEntry."""

    manager: str = ""
    operation: str = ""
    subresource: str = ""
    fields_v1: FieldsV1 | None = None


def writers(entries: Sequence[ManagedFieldsEntry], size: tuple[str, ...]) -> tuple[str, ...]:
    """Those who would write the field again, by their names: GitOps that holds any of the spec, and who applies it.

    Args:
        entries: The object's.
        size: Path of the field whose change stops it.
    """
    return tuple(sorted(set(_writers(entries, size))))


def _writers(entries: Sequence[ManagedFieldsEntry], size: tuple[str, ...]) -> Iterator[str]:
    for entry in entries:
        name, spec = entry.manager, bytes(entry.fields_v1.spec) if entry.fields_v1 else b""
        if not spec or entry.subresource or name == FIELD_MANAGER:
            continue
        if name in GITOPS or (entry.operation == _APPLY and _holds(spec, size) and not _is_by_hand(name)):
            yield name


def _is_by_hand(name: str) -> bool:
    return name.startswith(_BY_HAND)


def _holds(spec: bytes, size: tuple[str, ...]) -> bool:
    if not size:
        return False
    here: Any = msgspec.json.decode(spec)
    for step in size[1:]:
        if not isinstance(here, dict) or f"f:{step}" not in here:
            return False
        here = here[f"f:{step}"]
    return True
