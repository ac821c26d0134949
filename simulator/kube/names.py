"""What may be a name, a label, an annotation. Pure (k8s.io/apimachinery/pkg/util/validation)."""

import re
from collections.abc import Iterator, Mapping

from simulator.kube.errors import FieldError
from simulator.kube.objects import Object
from simulator.kube.resources import Resource

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_MAX_LABEL = 63
_MAX_SUBDOMAIN = 253
_MAX_ANNOTATIONS_BYTES = 262_144  # over all annotations of an object

_SUBDOMAIN_WORDS = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    r"'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_WORDS = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end "
    "with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?')"
)
_VALUE_WORDS = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start "
    "and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for "
    "validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_KEY_WORDS = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_LABEL_NAMED = {"Namespace", "StatefulSet"}  # names that become part of a DNS label


def dns_label(field: str, value: object) -> list[FieldError]:
    """Problems of a DNS-1123 label."""
    text = str(value)
    if len(text) > _MAX_LABEL:
        return [FieldError.invalid(field, text, f"must be no more than {_MAX_LABEL} characters")]
    return [] if _LABEL.fullmatch(text) else [FieldError.invalid(field, text, _LABEL_WORDS)]


def dns_subdomain(field: str, value: object) -> list[FieldError]:
    """Problems of a DNS-1123 subdomain."""
    text = str(value)
    if len(text) > _MAX_SUBDOMAIN:
        return [FieldError.invalid(field, text, f"must be no more than {_MAX_SUBDOMAIN} characters")]
    return [] if _SUBDOMAIN.fullmatch(text) else [FieldError.invalid(field, text, _SUBDOMAIN_WORDS)]


def metadata_problems(resource: Resource, obj: Object) -> Iterator[FieldError]:
    """Problems of an object's name, labels, annotations, finalizers and owner references."""
    metadata = obj["metadata"]
    check = dns_label if resource.kind in _LABEL_NAMED else dns_subdomain
    yield from check("metadata.name", metadata["name"])
    yield from label_problems("metadata.labels", metadata.get("labels", {}))
    yield from _annotation_problems(metadata.get("annotations", {}))
    for finalizer in metadata.get("finalizers", ()):
        yield from key_problems("metadata.finalizers", finalizer)
    for index, reference in enumerate(metadata.get("ownerReferences", ())):
        field = f"metadata.ownerReferences[{index}]"
        yield from [
            FieldError.required(f"{field}.{key}")
            for key in ("apiVersion", "kind", "name", "uid")
            if not reference.get(key)
        ]
    controllers = [row for row in metadata.get("ownerReferences", ()) if row.get("controller")]
    if len(controllers) > 1:
        yield FieldError.invalid(
            "metadata.ownerReferences",
            len(controllers),
            "Only one reference can have Controller set to true",
        )


def label_problems(field: str, labels: Mapping[str, object]) -> Iterator[FieldError]:
    """Problems of labels' keys and values."""
    for key, value in labels.items():
        yield from key_problems(field, key)
        if not isinstance(value, str):
            yield FieldError.invalid(field, value, "must be a string")
        elif len(value) > _MAX_LABEL:
            yield FieldError.invalid(field, value, f"must be no more than {_MAX_LABEL} characters")
        elif value and not _QUALIFIED.fullmatch(value):
            yield FieldError.invalid(field, value, _VALUE_WORDS)


def key_problems(field: str, key: str) -> Iterator[FieldError]:
    """What is wrong with the key of a label or annotation, or whatever else is a qualified name."""
    prefix, slash, name = key.rpartition("/")
    if slash:
        yield from dns_subdomain(field, prefix)
    if len(name) > _MAX_LABEL:
        yield FieldError.invalid(field, key, f"name part must be no more than {_MAX_LABEL} characters")
    elif not _QUALIFIED.fullmatch(name):
        yield FieldError.invalid(field, key, _KEY_WORDS)


def _annotation_problems(annotations: Mapping[str, object]) -> Iterator[FieldError]:
    field = "metadata.annotations"
    total = 0
    for key, value in annotations.items():
        yield from key_problems(field, key.lower())
        total += len(key.encode()) + len(str(value).encode())
        if not isinstance(value, str):
            yield FieldError.invalid(field, value, "must be a string")
    if total > _MAX_ANNOTATIONS_BYTES:
        yield FieldError(
            "FieldValueTooLong", field, f"Too long: may not be more than {_MAX_ANNOTATIONS_BYTES} bytes"
        )
