"""Parquet files in a directory or a bucket: a file is there as a whole, or not at all. The extra `history` has pyarrow.

The environment holds a bucket's credentials (https://arrow.apache.org/docs/python/filesystems.html).
"""

import dataclasses
import functools
import json
import types
import urllib.parse
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from rightsizer.config import library
from rightsizer.errors import ConfigurationError, UsageError

_METADATA = "gpu-rightsizer"
UNFINISHED = ".unfinished"
"""Ends the name of a file while it is written; if the process is killed, the file stays and is not read."""


Columns = Collection[str] | Mapping[str, Callable[[Any], Any]]
"""Names of columns, perhaps with what makes the type of each of pyarrow."""


class UnreadableFileError(ValueError):
    """A file is not what this program wrote."""


def require_no_credentials(flag: str, url: str) -> None:
    """Refuse credentials in an address, which messages would repeat.

    Raises:
        UsageError: There are some.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.username is not None or parts.password is not None:
        raise UsageError(
            f"{flag} {parts.scheme}://…@{parts.hostname or ''}: contains credentials; "
            "give them to the environment of the process"
        )


@dataclasses.dataclass(frozen=True)
class ParquetFolder:
    """A directory, or a bucket such as s3://bucket/directory, or a folder `below` it; `flag` names it in messages.

    Every method raises ConfigurationError if the folder cannot be reached, or the library is missing.
    """

    flag: str
    url: str
    below: str = ""

    def library(self, module: str = "") -> types.ModuleType:
        """A module of pyarrow."""
        return library(f"pyarrow.{module}" if module else "pyarrow", "history", self.flag)

    @property
    def is_local(self) -> bool:
        """Whether it is a directory of this machine."""
        return "://" not in self.url

    def names(self, *, with_folders: bool = False) -> Iterator[str]:
        """Names of the files; with those of the folders in it, as FOLDER/NAME."""
        selector = self.library("fs").FileSelector
        try:
            system, root = self.place
            entries = system.get_file_info(selector(root, allow_not_found=True, recursive=with_folders))
        except (OSError, ValueError) as error:
            raise self._error(error) from error
        return (entry.path.removeprefix(root).lstrip("/") for entry in entries if entry.is_file)

    def write(self, name: str, table: Any, told: Mapping[str, object]) -> None:  # noqa: ANN401 - pyarrow has no types
        """Write a table, with metadata."""
        text = json.dumps(told, sort_keys=True)
        parquet = self.library("parquet")
        try:
            system, root = self.place
            path = f"{root}/{name}"
            system.create_dir(path.rpartition("/")[0])
            whole = table.replace_schema_metadata({_METADATA: text})
            parquet.write_table(whole, path + UNFINISHED, filesystem=system, compression="zstd")
            system.move(path + UNFINISHED, path)
        except (OSError, ValueError) as error:
            raise self._error(error) from error

    def make(self) -> None:
        """Create the folder, if it is not there."""
        system, root = self.place
        try:
            system.create_dir(root)
        except (OSError, ValueError) as error:
            raise self._error(error) from error

    def read(self, name: str, columns: Columns, *, only_metadata: bool = False) -> tuple[dict[str, Any], Any]:
        """The metadata and these columns of a file, which must be there; no table if only the metadata are wanted.

        Raises:
            UnreadableFileError: It is not one of ours, or a column has another type than is given.
        """
        parquet = self.library("parquet")
        system, root = self.place
        try:
            with parquet.ParquetFile(f"{root}/{name}", filesystem=system) as file:
                told = json.loads((file.schema_arrow.metadata or {})[_METADATA.encode()])
                if lacking := {*columns} - {*file.schema_arrow.names}:
                    raise UnreadableFileError(f"it lacks the column {min(lacking)}")
                self._require_types(file.schema_arrow, columns)
                table = None if only_metadata else file.read([*columns])
        except self.errors as error:
            raise UnreadableFileError(str(error)) from error
        if not isinstance(told, dict):
            message = "its metadata are not those of this program"
            raise UnreadableFileError(message)
        return told, table

    def _require_types(self, schema: Any, columns: Columns) -> None:  # noqa: ANN401 - pyarrow has no types
        arrow = self.library()
        for name, make in columns.items() if isinstance(columns, Mapping) else ():
            if (own := schema.field(name).type) != (right := make(arrow)):
                raise UnreadableFileError(f"its column {name} has the type {own}, not {right}")

    def require_whole(self, name: str, columns: Columns) -> None:
        """Read all pages of a file, a part at a time.

        Raises:
            UnreadableFileError: One cannot be read.
        """
        parquet = self.library("parquet")
        system, root = self.place
        try:
            with parquet.ParquetFile(f"{root}/{name}", filesystem=system) as file:
                for _ in file.iter_batches(columns=[*columns]):
                    pass
        except self.errors as error:
            raise UnreadableFileError(str(error)) from error

    @property
    def errors(self) -> tuple[type[Exception], ...]:
        """All that reading raises: of pyarrow, and of metadata that are none."""
        return OSError, ValueError, KeyError, RecursionError, self.library().ArrowException

    def delete(self, name: str) -> None:
        """Delete a file; it may be gone already."""
        system, root = self.place
        try:
            system.delete_file(f"{root}/{name}")
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._error(error) from error

    @functools.cached_property
    def place(self) -> tuple[Any, str]:
        """The file system, and the folder in it."""
        arrow_fs = self.library("fs")
        try:
            if not self.is_local:
                system, root = arrow_fs.FileSystem.from_uri(self.url)
                return system, f"{root.rstrip('/')}/{self.below}".rstrip("/")
        except (OSError, ValueError) as error:
            raise self._error(error) from error
        return arrow_fs.LocalFileSystem(), f"{self.url.rstrip('/')}/{self.below}".rstrip("/")

    def _error(self, error: Exception) -> ConfigurationError:
        # pyarrow's texts about local paths end with `[errno N] REASON`; those about buckets are the service's.
        is_local = isinstance(error, OSError) and error.errno is not None
        reason = str(error).rpartition("] ")[2] if is_local else str(error)
        return ConfigurationError(f"{self.flag} {self.url}: {reason}")
