"""History kept as Parquet, in a directory or a bucket: two files for each UTC day, usage of devices and facts of pods.

Several processes may read a part of the GPUs each, and write a file of it: a day is whole with all of its parts.
"""

import array
import dataclasses
import datetime
import functools
import itertools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rightsizer.errors import ConfigurationError
from rightsizer.model import Device, PodKey
from rightsizer.prometheus import promql
from rightsizer.text import span
from rightsizer.usage.source_metrics import UseKey
from rightsizer.usage.step_usage import COLUMNS, Column, DeviceSteps, StepsByUse, merge
from rightsizer_history.backtest.pod_facts import AskedFacts, PodFacts, owner_ref
from rightsizer_history.ledger.parquet import ParquetFolder, UnreadableFileError, require_no_credentials

MOST_PARTS = 16
_HEX = "0123456789abcdef"
_VERSION = 1
_DAYS = re.compile(r"usage-(\d{4}-\d\d-\d\d)-(\d+)s-(\d+)of(\d+)\.parquet")
_TEXTS = ("namespace", "pod", "uuid", "instance", "model", "profile", "job")


@dataclasses.dataclass(frozen=True, slots=True)
class HistoryPart:
    """One of `count` parts of all GPUs, by the last character of their UUIDs, which is random.

    Attributes:
        index: From 0 on.
    """

    index: int = 0
    count: int = 1

    def matchers(self, label: str) -> tuple[str, ...]:
        """Matchers of its series: what no other part has is in the last one."""
        if self.count == 1:
            return ()
        bounds = [place * len(_HEX) // self.count for place in range(self.count + 1)]
        if self.index == self.count - 1:
            return (promql.matcher(label, "!~", f".*[{_HEX[: bounds[-2]]}]"),)
        return (promql.matcher(label, "=~", f".*[{_HEX[bounds[self.index] : bounds[self.index + 1]]}]"),)


@dataclasses.dataclass(frozen=True)
class HistoryFiles:
    """Place where a history is kept.

    Attributes:
        url: A directory, or a bucket such as s3://bucket/directory.
        step: Length of the steps of its usage.
        labels: Labels that all of its series have, such as the cluster's: a history of others is refused.

    Raises:
        UsageError: The URL contains credentials.
    """

    url: str
    step: datetime.timedelta
    labels: Mapping[str, str]

    def __post_init__(self) -> None:
        """Refuse credentials, which messages would repeat."""
        require_no_credentials("--history", self.url)

    def days(self, part: HistoryPart | None = None) -> list[datetime.date]:
        """Days whose usage is there, all parts of it, or at least this part, oldest first.

        Raises:
            ConfigurationError: The files cannot be listed.
        """
        names = self._names()
        found = {datetime.date.fromisoformat(match[1]) for name in names if (match := _DAYS.fullmatch(name))}
        return sorted(
            day
            for day in found
            if self._parts(day, names) or (part is not None and self._usage_name(day, part) in names)
        )

    def lacking(self, day: datetime.date, count: int) -> list[int]:
        """Numbers of the parts of a day that are not there.

        Raises:
            ConfigurationError: The files cannot be listed.
        """
        names = self._names()
        return [
            index for index in range(count) if self._usage_name(day, HistoryPart(index, count)) not in names
        ]

    def write_usage(
        self, day: datetime.date, part: HistoryPart, found: StepsByUse, source: str, *, is_checked: bool
    ) -> None:
        """Write what one part of the GPUs did in a day, and whether only exporters told it.

        Raises:
            ConfigurationError: That is not possible.
        """
        arrow = self._folder.library()
        uses = sorted(found.items())
        texts = zip(*(_texts_of(*use) for use in uses), strict=True) if uses else [()] * len(_TEXTS)
        columns: dict[str, Any] = {
            name: arrow.array(values, arrow.string()) for name, values in zip(_TEXTS, texts, strict=True)
        }
        columns["rank"] = arrow.array([entry.rank for _, entry in uses], arrow.uint8())
        for name in COLUMNS:
            values = b"".join(bytes(entry.columns[name]) for _, entry in uses)
            flat = arrow.Array.from_buffers(arrow.uint16(), len(values) // 2, [None, arrow.py_buffer(values)])
            lengths = itertools.accumulate((len(entry.columns[name]) for _, entry in uses), initial=0)
            columns[name] = arrow.ListArray.from_arrays(arrow.array(list(lengths), arrow.int32()), flat)
        self._write(self._usage_name(day, part), columns, {"source": source, "is_checked": is_checked})

    def usage(self, day: datetime.date) -> tuple[StepsByUse, str, bool]:
        """Usage of all GPUs in a day, the metrics that tell it, and whether only exporters do.

        Raises:
            ConfigurationError: A part is missing, or a file is not what it should be.
        """
        found: StepsByUse = {}
        source, is_checked = "", True
        names = self._parts(day, self._names())
        if not names:
            raise ConfigurationError(f"{self.url}: has no usage of {day} in steps of {span(self.step)}")
        for name in names:
            table, known = self._read(name, (*_TEXTS, "rank", *COLUMNS))
            merge(found, dict(_uses(table)))
            source = source or known["source"]
            is_checked = is_checked and known.get("is_checked", False)
        return found, source, is_checked

    def days_with_facts(self, days: Collection[datetime.date], asked: AskedFacts) -> frozenset[datetime.date]:
        """Days, of these, with the facts of their pods and with all that is asked of them.

        Raises:
            ConfigurationError: A file is not what it should be.
        """
        names = self._names()
        there = [day for day in days if self._facts_name(day) in names]
        return frozenset(day for day in there if self._answers(day, asked))

    def _answers(self, day: datetime.date, asked: AskedFacts) -> bool:
        known = self._read(self._facts_name(day), ())[1]
        return (
            "images" in known
            and asked.labels <= {*known["pod_labels"]}
            and asked.resources <= {*known.get("gpu_resources", ())}
        )

    def write_facts(self, day: datetime.date, facts: Mapping[PodKey, PodFacts], asked: AskedFacts) -> None:
        """Write what is recorded of a day's pods.

        Raises:
            ConfigurationError: That is not possible.
        """
        arrow = self._folder.library()
        rows = sorted(facts.items())
        owners = [fact.owner for _, fact in rows]
        columns = {
            "namespace": [key[0] for key, _ in rows],
            "pod": [key[1] for key, _ in rows],
            "owner_kind": [owner and owner.kind for owner in owners],
            "owner_name": [owner and owner.name for owner in owners],
            "node": [fact.node for _, fact in rows],
            "priority_class": [fact.priority_class for _, fact in rows],
            "labels": [json.dumps(dict(fact.labels), sort_keys=True) for _, fact in rows],
            "images": [json.dumps(fact.images) for _, fact in rows],
        }
        arrays = {name: arrow.array(values, arrow.string()) for name, values in columns.items()}
        arrays["gpus"] = arrow.array([fact.gpus for _, fact in rows], arrow.uint32())
        told = {"pod_labels": sorted(asked.labels), "gpu_resources": sorted(asked.resources), "images": True}
        self._write(self._facts_name(day), arrays, told)

    def facts(self, day: datetime.date) -> dict[PodKey, PodFacts]:
        """Facts of a day's pods.

        Raises:
            ConfigurationError: The file is missing, or not what it should be.
        """
        names = (
            "namespace",
            "pod",
            "owner_kind",
            "owner_name",
            "node",
            "priority_class",
            "gpus",
            "labels",
            "images",
        )
        table, _ = self._read(self._facts_name(day), names)
        return {
            (namespace, pod): PodFacts(
                owner_ref(namespace, kind, name) if kind else None,
                node,
                priority,
                gpus,
                json.loads(labels),
                (*json.loads(images),),
            )
            for namespace, pod, kind, name, node, priority, gpus, labels, images in zip(
                *(table.column(name).to_pylist() for name in names), strict=True
            )
        }

    def _usage_name(self, day: datetime.date, part: HistoryPart) -> str:
        return f"usage-{day}-{int(self.step.total_seconds())}s-{part.index}of{part.count}.parquet"

    def _facts_name(self, day: datetime.date) -> str:
        return f"pods-{day}.parquet"

    def _parts(self, day: datetime.date, names: Collection[str]) -> list[str]:
        """The files of a day's usage, of the fewest parts that are all there; none if that is not so."""
        for count in range(1, MOST_PARTS + 1):
            needed = [self._usage_name(day, HistoryPart(index, count)) for index in range(count)]
            if all(name in names for name in needed):
                return needed
        return []

    def _names(self) -> frozenset[str]:
        return frozenset(self._folder.names())

    def _write(self, name: str, columns: Mapping[str, Any], more: Mapping[str, object]) -> None:
        told = {"version": _VERSION, "labels": dict(self.labels), **more}
        self._folder.write(name, self._folder.library().table(dict(columns)), told)

    def _read(self, name: str, columns: Collection[str]) -> tuple[Any, dict[str, Any]]:
        try:
            known, table = self._folder.read(name, columns)
        except UnreadableFileError as error:
            message = (
                f"{self.url}/{name}: cannot be read as history ({error}); delete it to read that day again"
            )
            raise ConfigurationError(message) from error
        if known.get("version") != _VERSION:
            message = (
                f"{self.url}/{name}: is of another version of this program; delete it to read that day again"
            )
            raise ConfigurationError(message)
        if known.get("labels") != dict(self.labels):
            message = (
                f"{self.url}/{name}: holds the history of {known.get('labels') or 'any labels'}, not of "
                f"{dict(self.labels) or 'any labels'}: use another directory"
            )
            raise ConfigurationError(message)
        return table, known

    @functools.cached_property
    def _folder(self) -> ParquetFolder:
        return ParquetFolder("--history", self.url)


def _texts_of(key: UseKey, entry: DeviceSteps) -> tuple[str, ...]:
    return (*key, entry.device.model, entry.device.instance_profile, entry.job)


def _uses(table: Any) -> Iterator[tuple[UseKey, DeviceSteps]]:  # noqa: ANN401 - pyarrow has no types
    texts = zip(*(table.column(name).to_pylist() for name in _TEXTS), strict=True)
    columns = {name: _arrays(table.column(name)) for name in COLUMNS}
    ranks = table.column("rank").to_pylist()
    for row, ((namespace, pod, uuid, instance, model, profile, job), rank) in enumerate(
        zip(texts, ranks, strict=True)
    ):
        device = Device(uuid, instance, model, profile)
        steps = DeviceSteps(device, job, rank, {name: columns[name][row] for name in COLUMNS})
        yield (namespace, pod, uuid, instance), steps


def _arrays(column: Any) -> list[Column]:  # noqa: ANN401 - pyarrow has no types
    """The lists of a column."""
    found: list[Column] = []
    for chunk in column.chunks:
        values: Column = array.array("H")
        flat, size = chunk.values, values.itemsize
        if len(flat):
            values.frombytes(flat.buffers()[1][flat.offset * size : (flat.offset + len(flat)) * size])
        found += [values[a:b] for a, b in itertools.pairwise(chunk.offsets.to_pylist())]
    return found
