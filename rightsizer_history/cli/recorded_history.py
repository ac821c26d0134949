"""The history that `backtest` and `tune` replay: read from Prometheus, or from files of what was read before.

The cluster tells which scraped targets are exporters now. In weeks, addresses change hands: so of the jobs that have
exporters all series count, but for those of targets that are none now.
"""

import dataclasses
import datetime
import functools
import re
import time
from collections.abc import Iterable, Mapping, Sequence

from rightsizer.cli.connection import (
    cluster_settings,
    gpu_resources,
    instant_of,
    prometheus_settings,
    signal_terms,
)
from rightsizer.cli.messages import note
from rightsizer.errors import ClusterError, ConfigurationError, EvidenceIncomplete, UsageError
from rightsizer.inventory.cluster_reader import resource_table
from rightsizer.inventory.pods import PodReader, PodTable
from rightsizer.kube.api_objects import PodObject
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.kept_objects import Parsing
from rightsizer.model import AddressTable, PodKey, Whereabouts
from rightsizer.policy.schema import Policy
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.source_metrics import TARGET
from rightsizer.usage.sources import detect_source
from rightsizer.usage.step_usage import CHUNK, StepsByUse, chunks, device_steps
from rightsizer_history.backtest.history_files import MOST_PARTS, HistoryFiles, HistoryPart
from rightsizer_history.backtest.pod_facts import AskedFacts, PodFacts, pod_facts
from rightsizer_history.backtest.recorder import Recorder, grid_of
from rightsizer_history.backtest.recording import Grid, Recording
from rightsizer_history.cli import ReplayOptions

LATE = datetime.timedelta(hours=1)
"""The samples of a day may come so late, as from remote writers: then only is it kept."""
CURRENT = datetime.timedelta(days=2)
"""The cluster knows the addresses of targets at the end of a history that is no older, such as of whole days."""
POLL_S = 2.0
TELL_S = 60.0


def record(
    arguments: ReplayOptions,
    length: datetime.timedelta,
    step: datetime.timedelta,
    policies: Sequence[Policy],
) -> Recording | None:
    """The history of this length, in such steps; None where this process has read its part of it for another.

    Raises:
        EvidenceIncomplete: There is none.
    """
    asked = AskedFacts(matched_labels(policies), frozenset(gpu_resources(arguments)))
    history = _History.of(arguments, length, step, asked)
    if history.files is not None:
        history.fill()
        if history.part.index:
            note(f"part {history.part.index} of {history.part.count} is in {history.files.url}")
            return None
        history.await_parts()
    grid = history.grid
    recorder, facts = Recorder(grid), dict[PodKey, PodFacts]()
    source, unchecked = "", 0
    for chunk in chunks(step, grid.steps):
        found, source, is_checked = history.usage(chunk)
        unchecked += not is_checked
        recorder.add(chunk, found)
        facts |= history.facts(chunk)
        if history.files is None:
            note(f"read {chunk.stop * 100 // grid.steps}% of {arguments.since}")
    recording = recorder.recording(facts, source=source, unchecked=unchecked)
    if not recording.groups:
        raise EvidenceIncomplete(f"Prometheus has no GPU series that name pods in the last {arguments.since}")
    return recording


def matched_labels(policies: Iterable[Policy]) -> frozenset[str]:
    """Keys of the labels that rules match."""
    return frozenset(key for policy in policies for rule in policy.rules for key in rule.match.labels or ())


@dataclasses.dataclass(frozen=True)
class _History:
    """Source of a history: files, Prometheus, or both."""

    arguments: ReplayOptions
    grid: Grid
    files: HistoryFiles | None
    part: HistoryPart
    asked: AskedFacts

    @classmethod
    def of(
        cls,
        arguments: ReplayOptions,
        length: datetime.timedelta,
        step: datetime.timedelta,
        asked: AskedFacts,
    ) -> "_History":
        """Choose the source by the flags.

        Raises:
            UsageError: One of them is invalid, or does not fit the others.
        """
        settings = prometheus_settings(arguments)
        part = _part(arguments.part)
        if arguments.history is None:
            if arguments.part is not None:
                raise UsageError("--part needs --history")
            if not settings.url:
                raise UsageError(f"{arguments.command} needs --prometheus-url, or --history")
            end = _end(arguments, Prometheus(settings).now())
            return cls(arguments, grid_of(end, length, step), None, part, asked)
        if length % CHUNK or CHUNK % step:
            message = (
                f'--from "{arguments.since}" with --step "{arguments.step}": --history holds whole UTC days'
            )
            raise UsageError(f"{message}; write such as 30d and 10m")
        files = HistoryFiles(arguments.history, step, settings.labels)
        if settings.url:
            end = _end(arguments, Prometheus(settings).now() - LATE)
        else:
            days = files.days()
            if not days:
                raise UsageError(
                    f"{files.url} has no whole day in steps of {arguments.step}: name --prometheus-url"
                )
            last = datetime.datetime.combine(days[-1], datetime.time(), datetime.UTC) + CHUNK
            end = min(_end(arguments, last), last)
        midnight = datetime.datetime.combine(end.astimezone(datetime.UTC), datetime.time(), datetime.UTC)
        return cls(arguments, grid_of(midnight, length, step), files, part, asked)

    def usage(self, chunk: range) -> tuple[StepsByUse, str, bool]:
        """Usage of a chunk, the metrics that tell it, and whether only exporters do."""
        if self.files is not None:
            return self.files.usage(self._day(chunk))
        return self._read(chunk), self._querier.source.name, self._source.is_checked

    def facts(self, chunk: range) -> Mapping[PodKey, PodFacts]:
        """Facts of the pods of a chunk."""
        if self.files is not None:
            return self.files.facts(self._day(chunk))
        return pod_facts(self._until(chunk), self.asked)

    def fill(self) -> None:
        """Read the days of this part that are missing, and what is missing of all pods' facts."""
        files = self.files
        if files is None:
            return
        days = {self._day(chunk): chunk for chunk in self._chunks()}
        usage = {*files.days(self.part)}
        facts = {*days} if self.part.index else files.days_with_facts(days, self.asked)
        for number, (day, chunk) in enumerate(days.items(), 1):
            if day in usage and day in facts:
                continue
            if day not in usage:
                found, name = self._read(chunk), self._querier.source.name
                files.write_usage(day, self.part, found, name, is_checked=self._source.is_checked)
            if day not in facts:
                files.write_facts(day, pod_facts(self._until(chunk), self.asked), self.asked)
            note(f"read {number * 100 // len(days)}% of {self.arguments.since}")
        if kept := len(days.keys() & usage & facts):
            note(f"{kept} of {len(days)} days were in {files.url}, and are not asked for again")

    def await_parts(self) -> None:
        """Wait until the other parts have been read, by whoever reads them."""
        files, told = self.files, 0.0
        if files is None or self.part.count == 1:
            return
        days = {self._day(chunk) for chunk in self._chunks()}
        while missing := days - set(files.days()):
            if time.monotonic() - told >= TELL_S:
                lacking = files.lacking(min(missing), self.part.count)
                parts = ", ".join(f"{index}/{self.part.count}" for index in lacking)
                note(
                    f"waiting for {parts} of {min(missing)}, and of {len(missing)} days in all, in {files.url}"
                )
                told = time.monotonic()
            time.sleep(POLL_S)

    def _chunks(self) -> list[range]:
        return chunks(datetime.timedelta(seconds=self.grid.step_s), self.grid.steps)

    def _day(self, chunk: range) -> datetime.date:
        return self.grid.time(chunk.start).date()

    def _read(self, chunk: range) -> StepsByUse:
        step = datetime.timedelta(seconds=self.grid.step_s)
        querier = self._until(chunk)
        matchers = (*querier.matchers, *self.part.matchers(querier.source.labels.device[0]))
        return device_steps(dataclasses.replace(querier, matchers=matchers), step=step, steps=len(chunk))

    def _until(self, chunk: range) -> SourceQuerier:
        return dataclasses.replace(self._querier, at=self.grid.time(chunk.stop), memo={})

    @property
    def _querier(self) -> SourceQuerier:
        return self._source.querier

    @functools.cached_property
    def _source(self) -> "_Source":
        settings = prometheus_settings(self.arguments)
        if not settings.url:
            where = self.files.url if self.files is not None else ""
            raise UsageError(
                f"{where} lacks a part of {self.grid.begin:%Y-%m-%d} to {self.grid.end:%Y-%m-%d}: "
                "name --prometheus-url, or a shorter --from"
            )
        terms, prometheus = signal_terms(self.arguments, settings.labels), Prometheus(settings)
        whereabouts, problem = None, "the history ended days ago, when targets had other addresses"
        if prometheus.now() - self.grid.end <= CURRENT:
            whereabouts, problem = _whereabouts(self.arguments)
        querier = detect_source(prometheus, terms, at=self.grid.end, whereabouts=whereabouts)
        provenance = querier.provenance
        if whereabouts is not None and not provenance.namespaces:
            problem = provenance.problem or "the cluster has neither pods with GPUs nor these targets"
        if problem:
            note(f"the provenance of GPU series is unknown, so every scraped target counts: {problem}")
        for words in provenance.words():
            note(words)
        return _Source(
            querier if problem else _of_the_past(querier), is_checked=not (problem or provenance.doubt)
        )


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
    """The metrics of a history, and whether only those of exporters count."""

    querier: SourceQuerier
    is_checked: bool


def _whereabouts(arguments: ReplayOptions) -> tuple[Whereabouts | None, str]:
    """Nodes on which pods run now; without a cluster None, and why."""
    try:
        cluster = Cluster(cluster_settings(arguments))
        add = Parsing(PodReader(resource_table(cluster.gpu_resources)), PodTable.add)
        table = cluster.reduce("/api/v1/pods", PodObject, PodTable, add=add)
    except (ClusterError, ConfigurationError) as error:
        if isinstance(error, ConfigurationError) and (arguments.kubeconfig or arguments.context):
            raise
        return None, str(error)
    found = (gpu_pod.pod for gpu_pod in table.gpu_pods)
    return Whereabouts({(pod.ref.namespace, pod.ref.name): pod.node for pod in found}, table.addresses), ""


def _of_the_past(querier: SourceQuerier) -> SourceQuerier:
    """Without the addresses of now, which others had: what is ignored now is left out by name."""
    provenance = querier.provenance
    ignored = sorted({target.instance for target in provenance.ignored if target.job in provenance.jobs})
    return dataclasses.replace(
        querier,
        matchers=(*querier.matchers, *([promql.none_of(TARGET, ignored)] if ignored else ())),
        provenance=dataclasses.replace(provenance, whereabouts=Whereabouts({}, AddressTable())),
    )


def _end(arguments: ReplayOptions, now: datetime.datetime) -> datetime.datetime:
    return instant_of("--at", arguments.at, now) if arguments.at else now


def _part(text: str | None) -> HistoryPart:
    if text is None:
        return HistoryPart()
    match = re.fullmatch(r"(\d{1,2})/(\d{1,2})", text)
    part = HistoryPart(int(match[1]), int(match[2])) if match else HistoryPart(1, 0)
    if not (part.index < part.count <= MOST_PARTS):
        raise UsageError(
            f'--part "{text}": write I/N, from 0/N to (N-1)/N with N up to {MOST_PARTS}, such as 0/4'
        )
    return part
