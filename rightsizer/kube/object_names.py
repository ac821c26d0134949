"""The names of objects: what they may be, and the API paths and shell commands that are made of them. Pure.

Whoever may create a pod or annotate an object chooses names: in owner references, records and references of
autoscalers. Some of them no API server checks. So they are checked here, before any path or command is made of them.
https://kubernetes.io/docs/concepts/overview/working-with-objects/names/
"""

import dataclasses
import functools
import hashlib
import re
import shlex
import urllib.parse
from collections.abc import Sequence
from typing import Final

from rightsizer.errors import ClusterError
from rightsizer.model import ObjectRef

INVALID_OWNER: Final = "InvalidOwner"
"""Kind of an owner that nothing can be called; no API server serves it."""

_LONGEST: Final = 253
_SUBDOMAIN = r"[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?"
_RULES = (
    re.compile(rf"(?:{_SUBDOMAIN}/)?[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?"),  # group and version
    re.compile(r"[A-Za-z](?:[-A-Za-z0-9]{0,61}[A-Za-z0-9])?"),  # kind
    re.compile(r"(?:[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)?"),  # namespace; none of objects of the cluster
    re.compile(_SUBDOMAIN),
    re.compile(r"(?:[A-Za-z0-9](?:[-.:_A-Za-z0-9]*[A-Za-z0-9])?)?"),  # UID; none in hand-written files
)
_SEGMENT = re.compile(r"(?!\.\.?\Z)[^/%?#\\\s\x00-\x20\x7f]+")
"""A segment of a path, as Kubernetes limits it: no name leads to another directory."""


@functools.lru_cache(maxsize=1 << 14)  # of owners of many pods
def is_possible(ref: ObjectRef) -> bool:
    """Whether an object can be called so: lower-case DNS names, and no `..` in them."""
    parts = (ref.api_version, ref.kind, ref.namespace, ref.name, ref.uid)
    return ".." not in ref.name and all(
        len(part) <= _LONGEST and rule.fullmatch(part) for part, rule in zip(parts, _RULES, strict=True)
    )


def require_name(ref: ObjectRef | None) -> None:
    """Check the name of an object.

    Raises:
        ValueError: Nothing can be called so.
    """
    if ref is not None and not is_possible(ref):
        message = "names no object"
        raise ValueError(message)


def invalid_name(*texts: str) -> str:
    """A name in place of one that nothing can have; the same for the same texts."""
    return f"invalid-{hashlib.sha256(repr(texts).encode()).hexdigest()[:8]}"


def api_path(api_version: str, namespace: str, *segments: str) -> str:
    """The path of a collection, an object or a subresource; without a namespace, of all or of the cluster.

    Raises:
        ClusterError: A name would lead elsewhere; nothing is sent.
    """
    root = ["apis", *api_version.split("/")] if "/" in api_version else ["api", api_version]
    parts = [*root, *(("namespaces", namespace) if namespace else ()), *segments]
    bad = [part for part in parts if not _SEGMENT.fullmatch(part)]
    if bad:
        raise ClusterError(f"not sent: {bad[0]!r} is no name of an object")
    return "".join("/" + urllib.parse.quote(part, safe=":") for part in parts)


def require_direct(path: str) -> None:
    """Check a path right before it is sent.

    Raises:
        ClusterError: One of its segments leads to another directory.
    """
    if any(urllib.parse.unquote(part) in {".", ".."} for part in path.split("/")):
        raise ClusterError(f"not sent: the path {path!r} leads elsewhere")


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """The output of a command, as an argument of another one after `prefix`."""

    command: str
    prefix: str = ""


def shell_command(*words: str | Output, fed: str = "") -> str:
    """A command to copy, every word of it quoted for the shell; `fed` is what it reads."""
    command = " ".join(_quoted(word) for word in words)
    return f"{shlex.join(['echo', fed])} | {command}" if fed else command


def kubectl(
    ref: ObjectRef, verb: str, *words: str | Output, resource: str = "", options: Sequence[str] = ()
) -> str:
    """A command about one object; empty if nothing can be called so."""
    if not is_possible(ref):
        return ""
    kind, dot, group = ref.full_kind.partition(".")
    named = resource or kind.lower() + dot + group
    return shell_command("kubectl", "-n", ref.namespace, verb, *options, named, ref.name, *words)


def _quoted(word: str | Output) -> str:
    if isinstance(word, str):
        return shlex.quote(word)
    return f'{word.prefix}"$({word.command})"'
