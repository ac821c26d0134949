"""Parsers of gpu-rightsizer."""

import contextlib
import datetime
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

import urllib3

from rightsizer.changes.memory import MemoryStore, key_of, parse_memory
from rightsizer.changes.record_codec import (
    HISTORY_ANNOTATION,
    UNDO_ANNOTATION,
    came_back_after,
    read_history,
    recorded_changes,
)
from rightsizer.cli.crontab import parse_schedule
from rightsizer.cli.plan_session import utc_now
from rightsizer.config import PREFIX, PrometheusSettings, parse_duration
from rightsizer.errors import ClusterError, ConfigurationError, PrometheusError, UsageError
from rightsizer.execute.listing import list_changes, list_events
from rightsizer.execute.undo import find_undoable
from rightsizer.inventory.cluster_reader import read_cluster
from rightsizer.inventory.gpu_requests import ResourceTable, count_of, parse_gpu_resource
from rightsizer.inventory.nodes import parse_hami_register
from rightsizer.inventory.objects_file import read_file
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS, RECORDABLE_KINDS
from rightsizer.kinds.notices import read_notice
from rightsizer.kinds.patches import describe, original_replicas, read_record, resumed_at
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.lease import Lease
from rightsizer.kube.owner_kinds import OWNERS
from rightsizer.model import ClusterName, ObjectRef, PriorityClass
from rightsizer.planning.breaker import parse_state, state_texts, stop_reason
from rightsizer.policy import policy_file
from rightsizer.policy.classes import read_class
from rightsizer.policy.protections import OWN_NAMESPACE
from rightsizer.prices import load as load_prices
from rightsizer.prometheus.discovery import connect
from rightsizer.prometheus.query_api import ParseCache, Prometheus, QueryRange, decode_points
from rightsizer.report.approvals import read_saved_plan
from rightsizer.text import read_instant
from rightsizer.usage.recording_rules import rules_problem
from rightsizer.usage.source_metrics import LabelNames
from rightsizer.usage.sources import SourceSettings, read_signals
from rightsizer.usage.usage_source import PrometheusUsage
from rightsizer_extender.extender_endpoint import Extender
from rightsizer_extender.preemption_state import PreemptionState
from rightsizer_extender.question_server import InvalidBody
from rightsizer_extender.victim_charges import VictimCharges
from tests.fuzz.fuzz_target import YAML_S, FuzzTarget, as_file

AT = datetime.datetime(2026, 11, 21, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)

# --- Prometheus


class _Answering:
    """A Prometheus that gives one answer to everything."""

    where, hint = "http://prometheus", "the flags"

    def __init__(self, body: bytes) -> None:
        self._body = body

    def send(self, endpoint: str, form: Mapping[str, str], timeout_s: float) -> tuple[int, bytes]:
        """The answer; the status is in its first byte if that is a digit."""
        del endpoint, form, timeout_s
        status = {b"4": 422, b"5": 500, b"6": 401}.get(self._body[:1])
        return (200, self._body) if status is None else (status, self._body[1:])


def _prometheus(data: bytes) -> Prometheus:
    # One attempt: a retry would wait.
    return Prometheus(PrometheusSettings(timeout_s=0.001, parallel=1), _Answering(data))


def _vector(data: bytes) -> None:
    server = _prometheus(data)
    for ask in (
        lambda: server.query("up", AT),
        lambda: server.query_as("up", AT, ParseCache(LabelNames().parse)),
        server.now,
        lambda: server.status("buildinfo"),
    ):
        with contextlib.suppress(PrometheusError):
            ask()


def _range(data: bytes) -> None:
    server, steps = _prometheus(data), QueryRange(AT - DAY, AT, 300)
    with contextlib.suppress(PrometheusError):
        server.query_range("up", steps)
    server.query_range_as(
        "up", steps, labels=ParseCache(LabelNames().parse), values=ParseCache(decode_points)
    )


def _rules(data: bytes) -> None:
    rules_problem(_prometheus(data).rules())


_POD = ("default", "web-0")


def _usage(data: bytes) -> None:
    """One of the questions about usage, by the input, with the same answer to each of its queries."""
    usage = PrometheusUsage(_prometheus(data), SourceSettings())
    usage.expect({_POD}, {_POD})
    asks: tuple[Callable[[], object], ...] = (
        lambda: usage.usages(DAY, AT),
        lambda: usage.recent(AT),
        lambda: usage.activity(DAY, AT, with_coverage=True),
        lambda: usage.histories({_POD: AT - 7 * DAY}, 7 * DAY, AT, threshold=0.01),
        lambda: usage.waits({_POD}, DAY, AT),
        lambda: usage.nodes(AT),
        lambda: usage.begins(DAY, AT),
        lambda: usage.series(AT),
        lambda: usage.profiles(DAY, AT, usages=usage.usages(DAY, AT), shared={_POD}),
    )
    asks[sum(data) % len(asks)]()


# --- kube-scheduler


def _nowhere() -> Cluster:
    raise ClusterError("nothing is watched")


def _extender(data: bytes) -> None:
    """A question about victims, or about scores; without a plan."""
    charges = VictimCharges(_nowhere, OWN_NAMESPACE, utc_now)
    extender = Extender(PreemptionState(_nowhere, ResourceTable(), 60.0, charges), lambda *_: None)
    for answer in extender.routes.values():
        with contextlib.suppress(InvalidBody):
            answer(data)


# --- the API server

_GROUPS = {row.group: row.versions for row in OWNERS if row.group} | {
    "autoscaling": ("v2",),
    "keda.sh": ("v1alpha1",),
    "autoscaling.k8s.io": ("v1",),
    "resource.k8s.io": ("v1",),
    "kueue.x-k8s.io": ("v1beta2",),
    "example.com": ("v1",),
}


def _groups(groups: Mapping[str, tuple[str, ...]]) -> bytes:
    """An APIGroupList."""
    listed = [
        {"name": group, "versions": [{"version": one} for one in versions]}
        for group, versions in groups.items()
    ]
    return json.dumps({"groups": listed}).encode()


_SERVED = _groups(_GROUPS)
_FEW = b"apis " + _groups({"apps": ("v1",), "ray.io": ("v1",)}) + b"\n"
"""A line of an input, with fewer kinds to list."""


class _FuzzedCluster(Cluster):
    """An API server whose answers are the lines of an input: the last part of a path, and the body."""

    def __init__(self, data: bytes, status: int = 200) -> None:  # makes no connection
        self.host, self.is_inside, self.gpu_resources = "https://api", False, ()
        self.name = ClusterName("api", self.host)
        self._source, self._timeout_s = "the kubeconfig", 1.0
        self._is_read_only, self._throttled = False, ""
        self._served, self._resources, self._version = None, {}, None
        self.before_writing = lambda: None
        lines = (line.partition(b" ") for line in data.split(b"\n"))
        self._bodies = {name.decode(errors="replace"): body for name, _, body in lines}
        self._status = status

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        body: Mapping[str, Any] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        del headers, timeout_s, body
        name = path.rsplit("/", 1)[-1]
        status, found = self._status, self._bodies.get(name, _OTHERS.get(name, _NOT_FOUND))
        if method == "GET" and (found is _NOT_FOUND or "continue" in query):
            status = 404
        return urllib3.HTTPResponse(io.BytesIO(found), status=status)


_PLURALS = {
    *("nodes", "namespaces", "priorityclasses", "poddisruptionbudgets", "secrets", "events", "services"),
    *(row.plural for row in OWNERS),
}
_OTHERS = dict.fromkeys(_PLURALS, b'{"items":[]}') | {"apis": _SERVED}
"""What an API server answers where an input says nothing."""
_NOT_FOUND = b'{"kind":"Status","status":"Failure","code":404,"reason":"NotFound","message":"not found"}'


def _cluster(data: bytes) -> None:
    build_fleet(read_cluster(_FuzzedCluster(data), RECORDABLE_KINDS, state_namespace="rightsizer"))


def _each(data: bytes, *reads: Callable[[Cluster], object]) -> None:
    for read in reads:
        with contextlib.suppress(ClusterError, ConfigurationError):
            read(_FuzzedCluster(data))


def _manifests(data: bytes) -> None:
    """Secrets of evicted pods, and what other objects tell of changes; of third parties' kinds those of Ray."""
    asks: tuple[Callable[[Cluster], object], ...] = (
        lambda cluster: find_undoable(cluster, "rightsizer", at=AT),
        lambda cluster: list_changes(cluster, "rightsizer"),
        list_events,
    )
    _each(_FEW + data, asks[sum(data) % len(asks)])


def _stores(data: bytes) -> None:
    """ConfigMaps and the Lease in the state namespace."""
    _each(
        data,
        lambda cluster: MemoryStore(cluster, "rightsizer").read(),
        lambda cluster: Lease(
            cluster, "rightsizer", "me", monotonic=lambda: 1.0, clock=lambda: AT
        ).try_acquire(),
    )


def _discovery(data: bytes) -> None:
    """Services that look like a Prometheus, and what they answer."""
    connect(PrometheusSettings(timeout_s=0.001), _FuzzedCluster(data))


def _refusal(data: bytes) -> None:
    """The body of an error response."""
    for status in (200, 302, 401, 422, 429):
        with contextlib.suppress(ClusterError):
            _FuzzedCluster(b"web " + data.replace(b"\n", b" "), status).get_object("/api/web")


def _objects_file(data: bytes) -> None:
    build_fleet(read_file(as_file(data), RECORDABLE_KINDS))


# --- what we keep on objects and in our namespace


def _notes(data: bytes) -> None:
    """Our annotations, each with the same text."""
    text = data.decode(errors="replace")
    annotations = {
        PREFIX + name: text
        for name in ("undo", "history", "notice", "resumed-at", "came-back-after", "snooze-until")
    }
    recorded_changes(annotations, [AT])
    came_back_after(annotations, [AT])
    original_replicas(annotations)
    read_history({HISTORY_ANNOTATION: text})
    rows = (*KINDS, *CONTROL_OBJECT_KINDS)
    with contextlib.suppress(
        ValueError
    ):  # of one kind, by the input: of all of them it takes ten times as long
        record = read_record({UNDO_ANNOTATION: text}, rows[sum(data) % len(rows)])
        if record is not None:
            describe(record)
    for read in (read_notice, resumed_at):
        with contextlib.suppress(ValueError):
            read(annotations)


_OWNER = ObjectRef("apps/v1", "Deployment", "default", "web")


def _memory(data: bytes) -> None:
    parse_memory({key_of(_OWNER): data.decode(errors="replace")})


def _state(data: bytes) -> None:
    text = data.decode(errors="replace")
    state = parse_state(dict.fromkeys(("breaker.json", "pauses.json", "scope.json"), text))
    state_texts(state)
    stop_reason(state, "default", AT)


def _class(data: bytes) -> None:
    """Annotations of a PriorityClass, a line each."""
    lines = (line.partition("=") for line in data.decode(errors="replace").split("\n"))
    read_class(PriorityClass("batch", 1000, annotations={PREFIX + name: text for name, _, text in lines}))


# --- files


def _policy(data: bytes) -> None:
    policy_file.parse(data, source="policy.yaml")


def _signals(data: bytes) -> None:
    read_signals(as_file(data))


def _prices(data: bytes) -> None:
    load_prices(as_file(data))


def _approvals(data: bytes) -> None:
    read_saved_plan(data.decode(errors="replace"), source="plan.json")


# --- short texts


def _texts(data: bytes) -> None:
    """Everything that is one short text: in annotations, labels, quantities and flags."""
    text = data.decode(errors="replace")
    for read in (parse_duration, parse_schedule, parse_gpu_resource):
        with contextlib.suppress(ValueError, UsageError):
            read(text)
    read_instant(text, zone=datetime.UTC)
    count_of(text)
    parse_hami_register(text)


TARGETS = (
    FuzzTarget("prometheus-vector", _vector),
    FuzzTarget("prometheus-range", _range, (PrometheusError,)),
    FuzzTarget("prometheus-rules", _rules, (PrometheusError,)),
    FuzzTarget("extender", _extender),
    FuzzTarget("prometheus-usage", _usage, (PrometheusError,)),
    FuzzTarget("prometheus-discovery", _discovery, (ConfigurationError, ClusterError)),
    FuzzTarget("cluster", _cluster, (ClusterError,)),
    FuzzTarget("manifests", _manifests),
    FuzzTarget("stores", _stores),
    FuzzTarget("api-refusal", _refusal),
    FuzzTarget("objects-file", _objects_file, (ConfigurationError,)),
    FuzzTarget("notes", _notes),
    FuzzTarget("memory", _memory),
    FuzzTarget("control-state", _state),
    FuzzTarget("priority-class", _class),
    FuzzTarget("policy", _policy, (ConfigurationError,), YAML_S),
    FuzzTarget("signals", _signals, (ConfigurationError,), YAML_S),
    FuzzTarget("prices", _prices, (ConfigurationError,), YAML_S),
    FuzzTarget("approvals", _approvals, (ConfigurationError,), YAML_S),
    FuzzTarget("texts", _texts),
)
