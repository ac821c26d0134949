"""The file of --state-file: what plans have read of histories, for the next process; a failure is a warning."""

import contextlib
import logging
import os
import pathlib
import tempfile
from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from rightsizer.cli.plan_session import program_version
from rightsizer.errors import ClusterError
from rightsizer.kube.api_objects import Metadata
from rightsizer.kube.cluster import Cluster

MOST_BYTES = 1 << 30
"""Larger files are not read."""

log = logging.getLogger(__name__)


class Kept(Protocol):
    """What is kept for the next process."""

    def saved(self, owner: str) -> bytes:
        """All of it."""
        ...

    def restore(self, data: bytes, owner: str) -> None:
        """Continue with what another process saved; raises ValueError, and takes nothing over, if it cannot."""
        ...


def owner_of(cluster: Cluster) -> str:
    """Who may continue with a file: this version, for the cluster with this UID, which is that of kube-system.

    Raises:
        ClusterError: It cannot be read.
    """
    named = "metadata.name=kube-system"
    found = cluster.list_all("/api/v1/namespaces", Metadata, metadata_only=True, field_selector=named)
    if len(found) != 1:
        raise ClusterError("which cluster it is cannot be known: there is no namespace kube-system")
    return f"{program_version()} {found[0].metadata.uid}"


def restore(kept: Sequence[Kept], path: pathlib.Path, cluster: Cluster) -> None:
    """Continue with what is in the file, if this version wrote it for this cluster."""
    if not path.is_file():
        log.info("--state-file %s: there is no such file yet", path)
        return
    try:
        parts, owner = _parts(path, len(kept)), owner_of(cluster)
        for each, data in zip(kept, parts, strict=True):
            each.restore(data, owner)
    except msgspec.DecodeError:
        log.warning("--state-file %s is not used whole: it is damaged; what it lacks is queried", path)
    except (OSError, ValueError, ClusterError) as error:
        log.warning("--state-file %s is not used whole: %s; what it lacks is queried", path, error)


def _parts(path: pathlib.Path, number: int) -> list[bytes]:
    with path.open("rb") as file:
        parts = msgspec.msgpack.decode(file.read(MOST_BYTES), type=list[bytes])
    if len(parts) != number:
        message = "another command wrote it"
        raise ValueError(message)
    return parts


def save(kept: Sequence[Kept], path: pathlib.Path, cluster: Cluster) -> None:
    """Replace the file by all that is kept."""
    try:
        owner = owner_of(cluster)
        write((one.saved(owner) for one in kept), path)
    except ClusterError as error:
        log.warning("--state-file %s is not written: %s", path, error)


def write(kept: Iterable[bytes], path: pathlib.Path) -> None:
    """Replace the file; a reader finds the old one or the new one, never a part."""
    name = ""
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            name = file.name
            file.write(msgspec.msgpack.encode(list(kept)))
        os.replace(name, path)  # noqa: PTH105 - both names are texts
    except OSError as error:
        log.warning("--state-file %s is not written: %s", path, error)
        with contextlib.suppress(OSError):
            pathlib.Path(name).unlink()
