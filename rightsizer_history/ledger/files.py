"""The ledger's files: a folder for each cluster, with a file for each cycle, merged into one for each hour and UTC day.

A merged file names those that it holds. So a file that is merged, but not deleted yet, counts once.
"""

import collections
import dataclasses
import datetime
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rightsizer_history.ledger.entries import ChangeEntry, Holder, UsageEntry
from rightsizer_history.ledger.parquet import (
    UNFINISHED,
    ParquetFolder,
    UnreadableFileError,
    require_no_credentials,
)

FLAG = "--ledger"
USAGE, CHANGES = "usage", "changes"
_VERSIONS = {USAGE: 1, CHANGES: 2}
"""Version 1 of CHANGES has more columns, and events `taken`, which count for nothing."""
_CYCLE, _HOUR, _DAY = "cycle", "hour", "day"
_FORMATS = {_CYCLE: "%Y%m%dT%H%M%S%fZ", _HOUR: "%Y%m%dT%HZ", _DAY: "%Y%m%d"}
_NAME = re.compile(
    r"(?P<table>usage|changes)-(?P<day>\d{8})(?:T(?P<hour>\d\d)(?:(?P<rest>\d{10})Z-[\w.-]+|Z))?\.parquet"
)
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")
_READERS = 16
"""Footers that are read at once: a bucket answers each in tens of milliseconds."""

HOLDER = tuple(field.name for field in dataclasses.fields(Holder))
MEASURES = tuple(
    field.name for field in dataclasses.fields(UsageEntry) if field.name not in {"day", "holder", "currency"}
)


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerFile:
    """One file.

    Attributes:
        path: FOLDER/NAME below the ledger.
        level: Of a cycle, an hour or a day.
        at: When its time begins; of a cycle, its own time.
    """

    path: str
    table: str
    level: str
    at: datetime.datetime

    @property
    def cluster(self) -> str:
        """The folder."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Without the folder."""
        return self.path.rpartition("/")[2]


def file_of(path: str) -> LedgerFile | None:
    """The file of this path; None if its name is not one of the ledger's."""
    match = _NAME.fullmatch(path.rpartition("/")[2])
    if match is None:
        return None
    level = _CYCLE if match["rest"] else _HOUR if match["hour"] else _DAY
    text = match["day"] + (f"T{match['hour']}{match['rest'] or ''}Z" if match["hour"] else "")
    try:
        at = datetime.datetime.strptime(text, _FORMATS[level]).replace(tzinfo=datetime.UTC)
    except ValueError:
        return None
    return LedgerFile(path, match["table"], level, at)


def is_cluster_name(name: str) -> bool:
    """Whether it can be the name of a folder."""
    return _CLUSTER.fullmatch(name) is not None


class Ledger:
    """A directory or bucket with the folders of clusters.

    Raises:
        UsageError: The URL contains credentials.
    """

    def __init__(self, url: str) -> None:
        require_no_credentials(FLAG, url)
        self.folder = ParquetFolder(FLAG, url)

    def files(self) -> Sequence[LedgerFile]:
        """All files of all clusters, oldest first.

        Raises:
            ConfigurationError: They cannot be listed.
        """
        found = filter(None, map(file_of, self.folder.names(with_folders=True)))
        return sorted(found, key=lambda file: (file.at, file.path))

    def contents(self, files: Iterable[LedgerFile]) -> tuple[Sequence["LedgerContent"], Sequence[str]]:
        """The cycles that each holds; and in words, which cannot be read."""
        with ThreadPoolExecutor(_READERS) as pool:
            read = list(pool.map(self._content, files))
        unreadable = [found for found in read if isinstance(found, str)]
        return [found for found in read if not isinstance(found, str)], unreadable

    def _content(self, file: LedgerFile) -> "LedgerContent | str":
        try:
            told, _ = self.folder.read(file.path, COLUMNS[file.table], only_metadata=True)
            merged = _ours(told, file.table)["merged"]
        except UnreadableFileError as error:
            return f"{self.folder.url}/{file.path}: left out, cannot be read: {error}"
        held = filter(None, (file_of(f"{file.cluster}/{name}") for name in merged or (file.name,)))
        return LedgerContent(self, file, frozenset(file.name for file in held if file.level == _CYCLE))


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerContent:
    """A file of a ledger, and the names of the cycles in it."""

    ledger: Ledger
    file: LedgerFile
    cycles: frozenset[str]

    @property
    def folder(self) -> str:
        """URL of the folder."""
        return f"{self.ledger.folder.url}/{self.file.cluster}"


def counted_once(contents: Iterable[LedgerContent]) -> tuple[Sequence[LedgerContent], Sequence[str]]:
    """Files that count, so that no cycle counts twice; and in words, which folders hold cycles of others.

    A merged file counts instead of those that it holds. A cycle's name has its time and run: the same name in another
    folder is a copy. A file with a copied cycle is left out whole.
    """
    counted: list[LedgerContent] = []
    where: dict[str, str] = {}
    copies = collections.defaultdict[tuple[str, str], int](int)
    for content in sorted(contents, key=lambda content: -len(content.cycles)):
        known = next((where[name] for name in sorted(content.cycles) if name in where), None)
        if known is None:
            counted.append(content)
            where |= dict.fromkeys(content.cycles, content.folder)
        elif known != content.folder:
            copies[content.folder, known] += len(content.cycles - where.keys())
    words = []
    for (folder, known), lost in sorted(copies.items()):
        more = f", and {lost} more in the same files" if lost else ""
        words.append(f"{folder}: left out: cycles that are in {known}, too{more}")
    return counted, words


class ClusterLedger:
    """The folder of one cluster, for writing."""

    def __init__(self, url: str, cluster: str) -> None:
        self.cluster = cluster
        require_no_credentials(FLAG, url)
        self._folder = ParquetFolder(FLAG, url, cluster)

    def check(self) -> None:
        """Create the folder, and check that it can be read and the library is there.

        Raises:
            ConfigurationError: It cannot.
        """
        self._folder.make()
        list(self._folder.names())

    def last(self, at: datetime.datetime) -> datetime.datetime | None:
        """Time of the last plan that was recorded before this moment; None if none was."""
        times = [
            file.at for file in self._files() if file.table == USAGE and file.level == _CYCLE and file.at < at
        ]
        return max(times, default=None)

    def write_usage(self, at: datetime.datetime, run: str, entries: Iterable[UsageEntry]) -> None:
        """Write the rows of a plan.

        Raises:
            ConfigurationError: That is not possible.
        """
        self._write(USAGE, at, run, [_usage_row(entry) for entry in entries])

    def write_changes(self, at: datetime.datetime, run: str, entries: Iterable[ChangeEntry]) -> None:
        """Write what became of GPUs; without entries there is no file.

        Raises:
            ConfigurationError: That is not possible.
        """
        if rows := [_change_row(entry) for entry in entries]:
            self._write(CHANGES, at, run, rows)

    def merge(self, now: datetime.datetime) -> None:
        """Merge the files of each hour and day that is over.

        Only one process may do so at a time. If another does, or this one is killed, nothing is counted twice.

        Raises:
            ConfigurationError: The folder cannot be written.
        """
        hour = now.astimezone(datetime.UTC).replace(minute=0, second=0, microsecond=0)
        midnight = hour.replace(hour=0)
        names = list(self._folder.names())
        for table in (USAGE, CHANGES):
            files = [file for file in self._files(names) if file.table == table]
            # The file of the last plan stays: it says when that was.
            last = max((file.at for file in files if file.level == _CYCLE), default=None)
            others = [file for file in files if file.level != _CYCLE or file.at != last]
            kept = files if table == CHANGES else others
            self._merge_each(table, _DAY, [file for file in kept if file.at < midnight])
            today = [file for file in kept if midnight <= file.at < hour]
            self._merge_each(table, _HOUR, today)
        for name in names:
            file = file_of(f"{self.cluster}/{name.removesuffix(UNFINISHED)}")
            if name.endswith(UNFINISHED) and file and file.at < midnight:
                self._folder.delete(name)

    def _merge_each(self, table: str, level: str, files: Sequence[LedgerFile]) -> None:
        def name_of(file: LedgerFile) -> str:
            return f"{table}-{file.at.strftime(_FORMATS[level])}.parquet"

        for name, group in itertools.groupby(files, name_of):
            members = [file.name for file in group]
            if members != [name]:
                self._merge(table, name, members)

    def _merge(self, table: str, name: str, members: Sequence[str]) -> None:
        """Write the merged file first, then delete what it holds."""
        arrow = self._folder.library()
        read: dict[str, tuple[Mapping[str, Any], Any]] = {}
        for member in members:
            try:
                told, rows = self._folder.read(member, COLUMNS[table])
                read[member] = _ours(told, table), rows
            except UnreadableFileError:
                if member == name:
                    return
                # It stays where it is, and a report names it.
        if not {*members} <= {*self._folder.names()}:
            return  # another process merges them, and has begun to delete
        held = {name for told, _ in read.values() for name in told["merged"]}
        new = sorted(member for member in read if member not in held and member != name)
        if new:
            rows = arrow.concat_tables([rows for member, (_, rows) in read.items() if member not in held])
            told = {"merged": sorted(held | set(new)), "cluster": self.cluster, "version": _VERSIONS[table]}
            self._folder.write(name, _summed(rows) if table == USAGE else _once(rows), told)
        for member in read:
            if member != name:
                self._folder.delete(member)

    def _files(self, names: Iterable[str] | None = None) -> Sequence[LedgerFile]:
        names = self._folder.names() if names is None else names
        found = filter(None, (file_of(f"{self.cluster}/{name}") for name in names))
        return sorted(found, key=lambda file: (file.at, file.path))

    def _write(
        self, table: str, at: datetime.datetime, run: str, rows: Sequence[Mapping[str, object]]
    ) -> None:
        arrow = self._folder.library()
        stamp = at.astimezone(datetime.UTC).strftime(_FORMATS[_CYCLE])
        name = f"{table}-{stamp}-{run}.parquet"
        columns = {"cluster": arrow.array([self.cluster] * len(rows), arrow.string())}
        for key, kind in _TYPES[table].items():
            columns[key] = arrow.array([row[key] for row in rows], kind(arrow))
        told = {"merged": [], "cluster": self.cluster, "version": _VERSIONS[table]}
        self._folder.write(name, arrow.table(columns), told)


def _ours(told: Mapping[str, Any], table: str) -> Mapping[str, Any]:
    merged = told.get("merged")
    is_list = isinstance(merged, list) and all(isinstance(name, str) for name in merged)
    if told.get("version") not in range(1, _VERSIONS[table] + 1) or not is_list:
        message = "it is of another version of this program"
        raise UnreadableFileError(message)
    return told


def _summed(table: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    keys = [name for name in table.column_names if name not in MEASURES]
    found = table.group_by(keys, use_threads=False).aggregate([(name, "sum") for name in MEASURES])
    renamed = {f"{name}_sum": name for name in MEASURES}
    return found.rename_columns([renamed.get(name, name) for name in found.column_names]).select(
        table.column_names
    )


def _once(table: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    return table.group_by(table.column_names, use_threads=False).aggregate([]).select(table.column_names)


def _text(arrow: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    return arrow.string()


def _real(arrow: Any) -> Any:  # noqa: ANN401 - pyarrow has no types
    return arrow.float64()


_TYPES: Mapping[str, Mapping[str, Callable[[Any], Any]]] = {
    USAGE: {
        "day": lambda arrow: arrow.date32(),
        **dict.fromkeys((*HOLDER, "currency"), _text),
        **dict.fromkeys(MEASURES, _real),
    },
    CHANGES: {
        "at": lambda arrow: arrow.timestamp("us", "UTC"),
        **dict.fromkeys(("event", "run", "uid", *HOLDER, "action", "currency"), _text),
        **dict.fromkeys(("gpus", "price"), _real),
        "is_verified": lambda arrow: arrow.bool_(),
    },
}
COLUMNS = {table: {"cluster": _text, **types} for table, types in _TYPES.items()}
"""The columns of each table, with their types."""


def _usage_row(entry: UsageEntry) -> Mapping[str, object]:
    measures = {name: getattr(entry, name) for name in MEASURES}
    return {"day": entry.day, **_holder_row(entry.holder), "currency": entry.currency, **measures}


def _holder_row(holder: Holder) -> Mapping[str, str]:
    return {name: getattr(holder, name) for name in HOLDER}


_PLAIN = tuple(
    field.name for field in dataclasses.fields(ChangeEntry) if field.name not in {"holder", "cluster"}
)


def _change_row(entry: ChangeEntry) -> Mapping[str, object]:
    return {**{name: getattr(entry, name) for name in _PLAIN}, **_holder_row(entry.holder)}


def change_of(row: Mapping[str, Any]) -> ChangeEntry:
    """A row of the table of changes as an entry."""
    return ChangeEntry(
        **{name: row[name] for name in _PLAIN},
        holder=Holder(*(row[name] for name in HOLDER)),
        cluster=row["cluster"],
    )
