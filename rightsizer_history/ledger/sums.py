"""Sums of the ledgers of one or many clusters over a period, by DuckDB.

DuckDB reads local files itself; pyarrow reads those of buckets for it. Memory is bounded: what
does not fit is summed in parts.
"""

import collections
import contextlib
import dataclasses
import datetime
import functools
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self, TypeVar

from rightsizer.config import library
from rightsizer.errors import ConfigurationError, UsageError
from rightsizer.model import Action
from rightsizer.planning.cost_summary import HOUR_S
from rightsizer_history.ledger import BY
from rightsizer_history.ledger.entries import LONGEST, MADE, RETURNED, ChangeEntry
from rightsizer_history.ledger.files import (
    CHANGES,
    COLUMNS,
    FLAG,
    HOLDER,
    MEASURES,
    USAGE,
    Ledger,
    LedgerContent,
    LedgerFile,
    change_of,
    counted_once,
)
from rightsizer_history.ledger.parquet import UnreadableFileError

T = TypeVar("T")

_MEMORY = "512MB"
_THREADS = 4
_ROWS_AT_ONCE = 4096
LEADERS = 10
_SLACK_H = 0.1
"""Hours by which those recorded for a day may exceed its length."""
_MOST = 1e15
"""Hours, GPUs or money in one row."""
_DIGITS = 6
"""Digits to which equal amounts are equal, in whatever order they were summed up."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hours:
    """GPU-hours and money of a part of the fleet.

    Attributes:
        held: Of these, `used` by mean activity; for `unknown` no activity is known.
        reclaimable: Those that the findings would have freed.
        cost: Of what was held, `unused_cost` of what was measured as unused, where a price is known.
        unpriced: Held, without a known price.
    """

    held: float = 0.0
    used: float = 0.0
    unknown: float = 0.0
    reclaimable: float = 0.0
    cost: float = 0.0
    unused_cost: float = 0.0
    unpriced: float = 0.0

    @property
    def unused(self) -> float:
        """Held and measured as unused."""
        return max(self.held - self.used - self.unknown, 0.0)

    @property
    def has_no_price(self) -> bool:
        """Whether no price is known for any of it: its cost is unknown, not zero."""
        return self.unpriced > 0 and not self.cost

    def __add__(self, other: "Hours") -> "Hours":
        """Sum of both."""
        return Hours(*(getattr(self, name) + getattr(other, name) for name in _HOURS))


_HOURS = tuple(field.name for field in dataclasses.fields(Hours))
_SUMS = "sum(held_h), sum(used_h), sum(unknown_h), sum(reclaimable_h), sum(cost), sum(unused_cost), sum(unpriced_h)"
_UNUSED = "greatest(sum(held_h) - sum(used_h) - sum(unknown_h), 0)"


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerPart:
    """One team, owner, namespace, class, model or cluster.

    Attributes:
        name: Empty for those without.
        reclaimed: GPU-hours that it did not hold by changes of the period.
        returned: GPUs that were returned to it.
    """

    name: str
    hours: Hours
    reclaimed: float = 0.0
    returned: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterTime:
    """Part of the period that a cluster recorded, and the GPU-hours that its nodes had; None if unknown."""

    name: str
    recorded_h: float
    fleet_h: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class Reclaim:
    """Result of the changes of the period.

    Attributes:
        changes: That were made.
        gpus: GPUs that verification saw free; of `unverified` it did not.
        hours: GPU-hours until they were returned, or until the end of the period, and their price.
        returned: GPUs that were returned, by an undo, a revert, a rollback or a scale-up.
        returned_earlier: Returned, too, but of changes that were made before the period or are not in the ledger.
    """

    changes: int = 0
    gpus: float = 0.0
    unverified: float = 0.0
    hours: float = 0.0
    cost: float = 0.0
    unpriced: float = 0.0
    returned: float = 0.0
    returned_earlier: float = 0.0


class Freed(NamedTuple):
    """GPU-hours that a change, or all of a part, reclaimed, and the GPUs that were returned."""

    hours: float = 0.0
    returned: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class LedgerAccount:
    """The account of a period.

    Attributes:
        begin: Midnight, UTC.
        end: Until when.
        by: A key of BY.
        currency: Empty if clusters have several: then no amount is a sum.
        parts: Largest unused first.
        leaders: The owners that held most unused, at most LEADERS; `more_leaders` held some, too.
        trend: By UTC day.
        problems: In words, such as files that cannot be read.
    """

    begin: datetime.datetime
    end: datetime.datetime
    by: str
    currency: str
    clusters: Sequence[ClusterTime]
    total: Hours
    parts: Sequence[LedgerPart]
    leaders: Sequence[LedgerPart]
    trend: Mapping[datetime.date, Hours]
    reclaim: Reclaim
    problems: Sequence[str] = ()
    more_leaders: int = 0


class LedgerReader:
    """The files of some ledgers for a period; a context manager.

    Attributes:
        clusters: Only these; empty for all.
        problems: What is left out or counts twice, in words.

    Raises:
        ConfigurationError: A ledger cannot be read, nothing was recorded, or a library is missing.
        UsageError: A cluster is not there.
    """

    def __init__(
        self,
        urls: Sequence[str],
        begin: datetime.datetime,
        end: datetime.datetime,
        clusters: Sequence[str] = (),
    ) -> None:
        self._duckdb = library("duckdb", "history", "report")
        self.begin, self.end = begin, end
        contents: list[LedgerContent] = []
        self.problems: list[str] = []
        seen: list[LedgerFile] = []
        for url in dict.fromkeys(urls):
            ledger = Ledger(url)
            files = [file for file in ledger.files() if not clusters or file.cluster in clusters]
            seen += files
            read, unreadable = ledger.contents(
                # A plan after midnight stands for time of the day before, too.
                file
                for file in files
                if begin.date() <= file.at.date() and file.at <= end + LONGEST
            )
            contents += read
            self.problems += unreadable
        found, copies = counted_once(contents)
        self.problems += copies
        for name in clusters:
            if name not in {file.cluster for file in seen}:
                raise UsageError(f'--cluster "{name}": is not in {FLAG} {", ".join(urls)}')
        if not seen:
            raise ConfigurationError(
                f"{FLAG} {', '.join(urls)}: no cycle was recorded here; start run, plan or apply with {FLAG} "
                "(chart: rightsizer.ledger)"
            )
        self._spilled = _temporary_directory()
        config = {
            "memory_limit": _MEMORY,
            "threads": str(_THREADS),
            "preserve_insertion_order": "false",
            "temp_directory": self._spilled.name if self._spilled else "",  # by default .tmp where one stands
        }
        self._errors = self._duckdb.Error, *Ledger(urls[0]).folder.errors
        self._config = config
        self._found = found
        self._whole(self._open)

    def _open(self) -> None:
        self._connection = self._duckdb.connect(config=self._config)
        # In a Python without a file, such as `python -c`, DuckDB would draw its progress into the report.
        self._connection.execute("SET enable_progress_bar = false")
        self._tables: set[str] = set()
        for table in (USAGE, CHANGES):
            self._add(table, [(part.ledger, part.file) for part in self._found if part.file.table == table])
        self.problems += [words for words in self._count_days_once() if words not in self.problems]

    def _whole(self, ask: Callable[[], T]) -> T:
        """An answer; where a file turns out to be damaged, one without it."""
        try:
            return ask()
        except ConfigurationError:
            if not self._leave_out_damaged():
                raise
            self._open()
            return ask()

    def _leave_out_damaged(self) -> bool:
        """Leave out files of which not all can be read, by name; whether there were any."""
        whole = []
        for part in self._found:
            folder = part.ledger.folder
            try:
                folder.require_whole(part.file.path, COLUMNS[part.file.table])
                whole.append(part)
            except UnreadableFileError as error:
                self.problems.append(f"{folder.url}/{part.file.path}: left out, cannot be read: {error}")
        is_less = len(whole) < len(self._found)
        self._found = whole
        return is_less

    def __enter__(self) -> Self:
        """Return itself: nothing needs to be opened."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Close the database."""
        self._connection.close()
        if self._spilled:
            self._spilled.cleanup()

    def _add(self, table: str, files: Sequence[tuple[Ledger, LedgerFile]]) -> None:
        """Make a view of all files of a table; those of earlier versions have more columns."""
        columns = ", ".join(map(_possible, COLUMNS[table]))
        local = [f"{ledger.folder.place[1]}/{file.path}" for ledger, file in files if ledger.folder.is_local]
        sources = []
        if local:
            listed = ", ".join("'" + path.replace("'", "''") + "'" for path in local)
            sources.append(f"SELECT {columns} FROM read_parquet([{listed}])")  # noqa: S608 - quoted
        remote = dict.fromkeys(ledger for ledger, _ in files if not ledger.folder.is_local)
        for number, ledger in enumerate(remote):
            system, root = ledger.folder.place
            paths = [f"{root}/{file.path}" for of, file in files if of is ledger]
            name = f"{table}_{number}"
            dataset = ledger.folder.library("dataset").dataset(paths, format="parquet", filesystem=system)
            self._connection.register(name, dataset)
            sources.append(f"SELECT {columns} FROM {name}")  # noqa: S608 - our own name
        if sources:
            self._tables.add(table)
            union = " UNION ALL BY NAME ".join(sources)
            with self._translated():
                self._connection.execute(f"CREATE VIEW {table} AS {union}")

    def _ask(self, query: str) -> Iterator[Sequence[Any]]:
        with self._translated():
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(_ROWS_AT_ONCE):
                yield from rows

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except self._errors as error:
            words = str(error).split("\n", 1)[0]
            raise ConfigurationError(
                f"{FLAG}: summing up failed: {words}; if it names a file, move that file out of the ledger"
            ) from error

    def _usage(
        self, keys: str, what: str, *, where: str = "name <> ''", then: str = ""
    ) -> Iterator[Sequence[Any]]:
        if USAGE not in self._tables:
            return iter(())
        last = (self.end - datetime.timedelta(microseconds=1)).date()
        days = f"day >= DATE '{self.begin.date()}' AND day <= DATE '{last}'"
        rows = f"FROM {USAGE} WHERE {days} AND {where} GROUP BY {keys}"
        return self._ask(f"SELECT {keys}, {what} {rows} {then}")

    def account(self, by: str) -> LedgerAccount:
        """Sum up, by a key of BY."""
        return self._whole(functools.partial(self._account, by))

    def _account(self, by: str) -> LedgerAccount:
        clusters = [
            ClusterTime(*row)
            for row in self._usage("cluster", "sum(recorded_h), sum(fleet_h)", where="name = ''")
        ]
        currencies, trend = set(), collections.defaultdict[datetime.date, Hours](Hours)
        for day, currency, *sums in self._usage("day, currency", _SUMS):
            currencies.add(currency)
            trend[day] += Hours(*sums)
        currency = min(currencies) if len(currencies) == 1 else ""
        changes = self._changes()
        levels = reclaimed(changes, self.end)
        parts = self._parts(by, changes, levels)
        leaders, more_leaders = self._leaders(changes, levels)
        problems = list(self.problems)
        if len(currencies) > 1:
            problems.append(
                f"plans have prices in different currencies ({', '.join(sorted(currencies))}): no money is summed; "
                "give every plan one price list (--prices)"
            )
        return LedgerAccount(
            begin=self.begin,
            end=self.end,
            by=by,
            currency=currency,
            clusters=sorted(clusters, key=lambda cluster: cluster.name),
            total=sum(trend.values(), Hours()),
            parts=parts,
            leaders=leaders,
            trend=dict(sorted(trend.items())),
            reclaim=_reclaim(changes, levels),
            problems=problems,
            more_leaders=more_leaders,
        )

    def _count_days_once(self) -> Sequence[str]:
        """Count the mean where a day has more recorded hours than it is long; says of which clusters."""
        more = collections.defaultdict[str, float](float)
        factors = []
        for cluster, day, hours in self._usage("cluster, day", "sum(recorded_h)", where="name = ''"):
            midnight = datetime.datetime.combine(day, datetime.time(), datetime.UTC)
            length = min(self.end - midnight, LONGEST).total_seconds() / HOUR_S
            if hours > length + _SLACK_H:
                more[cluster] += hours - length
                factors.append((cluster, day, length / hours))
        if factors:
            measures = ", ".join(f"{name} * coalesce(factor, 1) AS {name}" for name in MEASURES)
            self._connection.execute("CREATE TABLE factors (cluster VARCHAR, day DATE, factor DOUBLE)")
            self._connection.executemany("INSERT INTO factors VALUES (?, ?, ?)", factors)
            self._connection.execute(f"ALTER VIEW {USAGE} RENAME TO recorded")
            self._connection.execute(
                f"CREATE VIEW {USAGE} AS SELECT recorded.* REPLACE ({measures}) "  # noqa: S608 - our own names
                "FROM recorded LEFT JOIN factors USING (cluster, day)"
            )
        return [
            f"{cluster}: {hours:.1f} hours are recorded twice, by several processes at once; their mean counts; "
            "give --ledger to one process"
            for cluster, hours in sorted(more.items())
        ]

    def _parts(
        self, by: str, changes: Sequence[ChangeEntry], levels: Mapping[int, Freed]
    ) -> Sequence[LedgerPart]:
        column = BY[by]
        freed = _sums_of_changes(column, changes, levels)
        found = {name: Hours(*sums) for name, *sums in self._usage(column, _SUMS)}
        names = {*found, *(name for name, sums in freed.items() if any(sums))}
        parts = [LedgerPart(name, found.get(name, Hours()), *freed.get(name, Freed())) for name in names]
        return sorted(parts, key=lambda part: (-round(part.hours.unused, _DIGITS), part.name))

    def _leaders(
        self, changes: Sequence[ChangeEntry], levels: Mapping[int, Freed]
    ) -> tuple[Sequence[LedgerPart], int]:
        """The first owners and the number of the others; a fleet may have a million, most of them of one Job."""
        freed = _sums_of_changes("owner", changes, levels)
        rows = self._usage(
            "owner",
            f"{_SUMS}, count(*) OVER ()",
            then=f"HAVING {_UNUSED} > 0 ORDER BY round({_UNUSED}, {_DIGITS}) DESC, owner LIMIT {LEADERS}",
        )
        found, number = [], 0
        for name, *sums, number in rows:  # noqa: B007 - it is the same in each row
            found.append(LedgerPart(name, Hours(*sums), *freed.get(name, Freed())))
        return found, number - len(found)

    def _changes(self) -> Sequence[ChangeEntry]:
        if CHANGES not in self._tables:
            return []
        begin, end = self.begin.isoformat(), self.end.isoformat()
        times = f"\"at\" >= TIMESTAMPTZ '{begin}' AND \"at\" <= TIMESTAMPTZ '{end}'"
        query = f"SELECT DISTINCT * FROM {CHANGES} WHERE {times}"  # noqa: S608 - our own times
        with self._translated():
            rows = self._connection.sql(query).to_arrow_table().to_pylist()
        every = map(change_of, rows)
        once = {(change.cluster, change.event, change.at, change.run, change.uid): change for change in every}
        return sorted(once.values(), key=lambda change: change.at)

    def charges(self) -> Iterator[Mapping[str, Any]]:
        """Hours that each workload held on each day, one row each, without an order."""
        keys = ("day", "cluster", *HOLDER, "currency")
        for row in self._usage(", ".join(keys), _SUMS):
            yield {**dict(zip(keys, row, strict=False)), "hours": Hours(*row[len(keys) :])}


def _possible(name: str) -> str:
    """A column without what this program never wrote: no number of hours or money, no currency, no text."""
    if name in {*MEASURES, "gpus", "price"}:
        return f'CASE WHEN "{name}" IS NULL OR "{name}" BETWEEN 0 AND {_MOST} THEN "{name}" ELSE 0 END AS "{name}"'
    if name == "currency":
        return (
            "CASE WHEN regexp_full_match(currency, '[A-Z]{3}') THEN currency ELSE 'unknown' END AS currency"
        )
    return f'"{name}"' if name in {"day", "at", "is_verified"} else f'coalesce("{name}", \'\') AS "{name}"'


def _temporary_directory() -> tempfile.TemporaryDirectory[str] | None:
    """Room for what does not fit into memory; None where nothing can be written."""
    try:
        return tempfile.TemporaryDirectory(prefix="gpu-rightsizer-", ignore_cleanup_errors=True)
    except OSError:
        return None


def _sums_of_changes(
    column: str, changes: Sequence[ChangeEntry], levels: Mapping[int, Freed]
) -> Mapping[str, Freed]:
    """Sums by a column; GPUs returned also of changes before the period."""
    found = collections.defaultdict[str, Freed](Freed)
    for place, change in enumerate(changes):
        name = change.cluster if column == "cluster" else getattr(change.holder, column)
        hours, returned = found[name]
        returned += change.gpus if change.event == RETURNED else 0.0
        found[name] = Freed(hours + levels.get(place, Freed()).hours, returned)
    return found


def reclaimed(changes: Sequence[ChangeEntry], end: datetime.datetime) -> Mapping[int, Freed]:
    """GPU-hours that each change reclaimed, by its place in the list: until it was returned, or the end.

    Only what verification saw go counts. A return ends the change that it names; a scale-up returns the latest first.
    """
    by_uid = collections.defaultdict[str, dict[int, tuple[ChangeEntry, float]]](dict)
    found = collections.defaultdict[int, Freed](Freed)

    def add(number: int, made: ChangeEntry, until: datetime.datetime, gpus: float, returned: float) -> None:
        hours = gpus * max((until - made.at).total_seconds(), 0.0) / HOUR_S
        found[number] = Freed(found[number].hours + hours, found[number].returned + returned)

    for place, change in enumerate(changes):
        left = by_uid[change.uid]
        if change.event == MADE and change.is_verified:
            left[place] = change, change.gpus
        if change.event != RETURNED:
            continue
        given = change.gpus
        for number, (made, gpus) in reversed(left.items()):
            if change.action == Action.SCALE_UP or made.run == change.run:
                back = min(given, gpus)
                given -= back
                add(number, made, change.at, back, back)
                left[number] = made, gpus - back
    for left in by_uid.values():
        for number, (made, gpus) in left.items():
            add(number, made, end, gpus, 0.0)
    return found


def _reclaim(changes: Sequence[ChangeEntry], levels: Mapping[int, Freed]) -> Reclaim:
    made = [change for change in changes if change.event == MADE]
    returned = sum(freed.returned for freed in levels.values())
    again = sum(change.gpus for change in changes if change.event == RETURNED)
    return Reclaim(
        changes=len(made),
        gpus=sum(change.gpus for change in made if change.is_verified),
        unverified=sum(change.gpus for change in made if not change.is_verified),
        hours=sum(freed.hours for freed in levels.values()),
        cost=sum(freed.hours * (changes[place].price or 0.0) for place, freed in levels.items()),
        unpriced=sum(freed.hours for place, freed in levels.items() if changes[place].price is None),
        returned=returned,
        returned_earlier=max(again - returned, 0.0),
    )


def since_midnight(since: datetime.datetime) -> datetime.datetime:
    """The beginning of this UTC day: the ledger keeps days whole."""
    return since.astimezone(datetime.UTC).replace(hour=0, minute=0, second=0, microsecond=0)
