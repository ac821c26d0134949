"""The file of --state-file: what plans have read of usage, for the next process; a failure is a warning."""

import contextlib
import glob
import logging
import os
import pathlib
import tempfile

from rightsizer.cli.plan_session import program_version
from rightsizer.errors import ClusterError
from rightsizer.evidence.slot_table import KeptTables
from rightsizer.kube.api_objects import Metadata
from rightsizer.kube.cluster import Cluster

MOST_BYTES = 1 << 30
"""Larger files are not read."""

log = logging.getLogger(__name__)


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


def restore(tables: KeptTables, path: pathlib.Path, cluster: Cluster) -> None:
    """Continue with what is in the file, if this version wrote it for this cluster."""
    if not path.is_file():
        log.info("--state-file %s: there is no such file yet", path)
        return
    try:
        with path.open("rb") as file:
            tables.restore(file.read(MOST_BYTES), owner_of(cluster))
    except (OSError, ValueError, ClusterError) as error:
        log.warning("--state-file %s is not used: %s; all is queried", path, error)


def save(tables: KeptTables, path: pathlib.Path, cluster: Cluster) -> None:
    """Replace the file by all that is kept; a reader finds the old one or the new one, never a part."""
    try:
        owner = owner_of(cluster)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as file:
            file.write(tables.saved(owner))
        os.replace(file.name, path)  # noqa: PTH105 - both names are texts
    except (OSError, ClusterError) as error:
        log.warning("--state-file %s is not written: %s", path, error)
    with contextlib.suppress(OSError):
        for part in path.parent.glob(f".{glob.escape(path.name)}-*"):
            part.unlink()  # what could not be written, or of a process that was killed
