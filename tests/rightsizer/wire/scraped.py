"""A Prometheus of a random cluster: what its exporters say of the truth, and whatever else is scraped there.

It answers the queries of the real client, so that series become usage by the rightsizer's own code only.
"""

import datetime
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rightsizer.config import PrometheusSettings
from rightsizer.prometheus.query_api import Prometheus
from rightsizer.usage.recording_rules import rule_groups
from rightsizer.usage.sources import SourceSettings
from rightsizer.usage.usage_source import PrometheusUsage
from simulator.kube import ApiServer
from tests.rightsizer.given import H100
from tests.rightsizer.wire.amounts import Share, held
from tests.rightsizer.wire.promql import NAME, Series, Spans, Track, Vector, evaluate
from tests.rightsizer.wire.truth import HEAVY, IDLE_POWER_W, Habit, Load, Truth

MONITORING = "monitoring"
JOB = "gpu"
MINUTE_S, RECORD_S = 60, 300
_MIB = 1 << 20
_ROUNDING = 1e-6
_KINDS: Mapping[str, tuple[str, float]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("activity", 0.01),
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": ("activity", 1.0),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("traffic", 0.01),
    "DCGM_FI_PROF_DRAM_ACTIVE": ("traffic", 1.0),
    "DCGM_FI_DEV_FB_USED": ("memory", _MIB),
    "DCGM_FI_DEV_POWER_USAGE": ("power", 1.0),
}
"""What the recording rules call a metric, and its factor."""


class Scraped:
    """Stands in place of the connection to a Prometheus.

    Attributes:
        names_exporters: Whether the exporters' namespace is given.
        forged: What targets other than the exporters say.
    """

    where, hint = "scraped", ""

    def __init__(
        self,
        api: ApiServer,
        clock: Callable[[], datetime.datetime],
        truth: Truth,
        *,
        names_exporters: bool,
        records_since: datetime.datetime | None,
    ) -> None:
        self._api, self._clock, self._truth = api, clock, truth
        self._records_since, self.names_exporters = records_since, names_exporters
        self._settings = SourceSettings(exporter_namespaces=(MONITORING,) if names_exporters else ())
        self.forged: list[Track] = []
        self._honest: dict[str, list[Track]] = {}
        self._addresses: dict[str, str] = {}  # of the exporters, by node
        self._series: tuple[object, Series] | None = None

    def settle_in(self) -> None:
        """An exporter on each node."""
        self._api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": MONITORING}})
        names = [node["metadata"]["name"] for node in self._api.list("Node")]
        for name in names:
            spec = {"nodeName": name, "containers": [{"name": "main", "image": "exporter"}]}
            meta = {"name": f"exporter-{name}", "namespace": MONITORING}
            self._api.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        self._api.settle()
        pods = self._api.list("Pod", MONITORING)
        self._addresses = {pod["spec"]["nodeName"]: pod["status"]["podIP"] for pod in pods}

    def connected(self) -> tuple[Prometheus, PrometheusUsage]:
        """A client, and what judges by it."""
        client = Prometheus(PrometheusSettings(parallel=1), self)
        return client, PrometheusUsage(client, self._settings)

    # --- what the exporters say

    def devices(self) -> dict[tuple[str, str], list[Mapping[str, str]]]:
        """The labels of the devices that each workload has now, by its namespace and name."""
        found: dict[tuple[str, str], list[Mapping[str, str]]] = {}
        for _, workload, _, pod in self._truth.running():
            found.setdefault(workload, []).extend(self._labels(pod))
        return found

    def _labels(self, pod: Mapping[str, Any]) -> Iterator[Mapping[str, str]]:
        """The labels of each device of a pod, as the exporter on its node has them."""
        meta, node, has = pod["metadata"], pod["spec"]["nodeName"], held(pod)
        for index in range(has.devices):
            yield {
                "job": JOB,
                "instance": f"{self._addresses[node]}:9400",
                "namespace": MONITORING,
                "pod": f"exporter-{node}",
                "Hostname": node,
                "exported_namespace": meta["namespace"],
                "exported_pod": meta["name"],
                "modelName": H100,
                "UUID": f"GPU-{meta['uid']}-{index}",
                **({"GPU_I_ID": "1", "GPU_I_PROFILE": has.share.profile} if has.share.profile else {}),
            }

    def _scrape(self) -> None:
        """Let the series of pods that run reach until now; those of others end where they were.

        Of a workload with a lie there are none of activity.
        """
        for _, workload, place, pod in self._truth.running():
            self._honest[pod["metadata"]["uid"]] = [
                one
                for index, labels in enumerate(self._labels(pod))
                for one in self._device(
                    labels, list(self._loads(workload, place, pod, index)), held(pod).share
                )
                if workload not in self._truth.lies or not _is_activity(one.labels[NAME])
            ]

    def _loads(
        self, workload: tuple[str, str], place: int, pod: Mapping[str, Any], index: int
    ) -> Iterator[tuple[float, float, Load, bool]]:
        """After which second, until which, what runs on a device when it works, and whether it does."""
        habit = self._truth.habits.get(workload, Habit())
        works = [one for one in self._truth.work.get(workload, ()) if place < one.pods]
        began, now = datetime.datetime.fromisoformat(pod["status"]["startTime"]), self._clock()
        turns = {turn for one in works for turn in (one.begin, one.end) if turn} | {habit.until or now}
        instants = [began, *sorted(turn for turn in turns if began < turn < now), now]
        for begin, end in itertools.pairwise(instants):
            is_kept = habit.holds(end)
            is_used = not (is_kept and habit.devices) or index < habit.devices
            load = (habit.load if is_kept else None) or HEAVY
            is_busy = is_used and any(one.overlaps(begin, end) for one in works)
            yield begin.timestamp(), end.timestamp(), load, is_busy

    def _device(
        self, labels: Mapping[str, str], loads: list[tuple[float, float, Load, bool]], share: Share
    ) -> Iterator[Track]:
        whole = share if share.profile else Share(1.0, 1.0, 1.0, math.inf)
        percent, activity, traffic = (
            (1.0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_DRAM_ACTIVE")
            if share.profile
            else (100.0, "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_MEM_COPY_UTIL")
        )
        values: dict[str, Callable[[Load, bool], float]] = {
            activity: lambda load, works: percent * works * min(1.0, load.activity[1] / whole.compute),
            traffic: lambda load, works: percent * works * min(1.0, load.traffic / whole.bandwidth),
            "DCGM_FI_DEV_FB_USED": lambda load, _: min(load.memory_bytes, share.memory_bytes) / _MIB,
        }
        if not share.profile:
            values["DCGM_FI_DEV_POWER_USAGE"] = lambda load, works: (
                load.power_w[1] if works else IDLE_POWER_W[1]
            )
        for name, value in values.items():
            spans = tuple((begin, end, value(load, works)) for begin, end, load, works in loads)
            yield Track({NAME: name, **labels}, spans)
            if self._records_since:
                since = self._records_since.timestamp()
                later = tuple((max(since, begin), end, number) for begin, end, number in spans if end > since)
                yield from recorded(name, labels, later) if later else ()

    # --- what is asked

    def send(self, endpoint: str, form: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
        """The response to a query."""
        del timeout_s
        if endpoint.startswith("status/"):  # as of Thanos or VictoriaMetrics
            return 404, b"404 page not found"
        return 200, f'{{"status": "success", "data": {self._answer(endpoint, form)}}}'.encode()

    def _answer(self, endpoint: str, form: Mapping[str, str]) -> str:
        if endpoint == "rules":
            return json.dumps({"groups": list(_groups()) if self._records_since else []})
        if form["query"] == "time()":
            now = self._clock().timestamp()
            return json.dumps({"resultType": "scalar", "result": [now, repr(now)]})
        is_range = endpoint == "query_range"
        begin, end = (float(form[name]) for name in (("start", "end") if is_range else ("time", "time")))
        step = float(form.get("step", 1.0))
        steps = tuple(begin + number * step for number in range(int((end - begin) / step + _ROUNDING) + 1))
        found = evaluate(form["query"], self._current(), steps)
        return _matrix(found, steps) if is_range else _vector(found, begin)

    def _current(self) -> Series:
        state = self._clock(), len(self.forged)
        if self._series is None or self._series[0] != state:
            self._scrape()
            honest = (one for tracks in self._honest.values() for one in tracks)
            self._series = state, Series([*honest, *self.forged])
        return self._series[1]


def recorded(name: str, labels: Mapping[str, str], spans: Spans) -> Iterator[Track]:
    """What the recording rules make of a series; here all that happens lasts for whole intervals."""
    kind, scale = _KINDS[name]
    texts = {**labels, "metric": name}
    for statistic in ("mean", "max") if kind != "memory" else ("max",):
        scaled = tuple((begin, end, value * scale) for begin, end, value in spans)
        yield Track({NAME: f"gpu_rightsizer:{kind}:{statistic}5m", **texts}, scaled, RECORD_S)
    if kind == "activity":
        counts = ((spans[0][0], spans[-1][1], RECORD_S / MINUTE_S),)
        yield Track({NAME: f"gpu_rightsizer:{kind}:count5m", **texts}, counts, RECORD_S)


def _is_activity(name: str) -> bool:
    return "activity" in name or (name in _KINDS and _KINDS[name][0] == "activity")


def _groups() -> Iterator[Mapping[str, Any]]:
    """The shipped rules, as a server tells them."""
    for group in rule_groups():
        rules = [
            {
                "name": rule["record"],
                "type": "recording",
                "query": rule["expr"],
                "labels": rule["labels"],
                "health": "ok",
            }
            for rule in group["rules"]
        ]
        yield {"name": group["name"], "interval": float(RECORD_S), "rules": rules}


def _vector(found: Vector, at: float) -> str:
    rows = (f'{{"metric": {json.dumps(labels)}, "value": [{at}, "{row[0]}"]}}' for labels, row in found)
    return f'{{"resultType": "vector", "result": [{", ".join(rows)}]}}'


def _matrix(found: Vector, steps: tuple[float, ...]) -> str:
    texts: dict[int, str] = {}  # most rows are alike
    for _, row in found:
        if id(row) not in texts:
            points = zip(steps, row, strict=True)
            texts[id(row)] = ", ".join(f'[{step}, "{value}"]' for step, value in points if value is not None)
    rows = (f'{{"metric": {json.dumps(labels)}, "values": [{texts[id(row)]}]}}' for labels, row in found)
    return f'{{"resultType": "matrix", "result": [{", ".join(rows)}]}}'
