"""Collects all facts, each independently, and runs every check on them.

It only reads; its one POST is a SelfSubjectAccessReview, which the API server does not store.
"""

import collections
import dataclasses
import datetime
import time
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from rightsizer.doctor import check_cluster, check_policy, check_server, check_signals
from rightsizer.doctor.check_server import scrape_interval_s, spans
from rightsizer.doctor.diagnosis import (
    NO_SERVER,
    Check,
    Diagnosis,
    Facts,
    Failure,
    Naming,
    NotKnown,
    Recorded,
    Server,
)
from rightsizer.doctor.rights import Right, rights_for
from rightsizer.errors import EvidenceIncomplete, RightsizerError
from rightsizer.inventory.cluster_reader import read_cluster
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kinds import RECORDABLE_KINDS
from rightsizer.kube.cluster import Cluster
from rightsizer.model import Fleet, PodKey, Usages, Whereabouts
from rightsizer.policy.policy_file import LoadedPolicy
from rightsizer.policy.schema import Policy
from rightsizer.prometheus import promql
from rightsizer.prometheus.query_api import Prometheus, Sample
from rightsizer.usage.device_usage import window_usages
from rightsizer.usage.label_search import labels_hint
from rightsizer.usage.node_coverage import first_sample, last_sample, node_coverage
from rightsizer.usage.querier import SourceQuerier
from rightsizer.usage.recording_rules import RAW, RULE_INTERVAL, rule_groups
from rightsizer.usage.source_metrics import JOB, MetricSource, Statistic
from rightsizer.usage.sources import LOOKBACKS, SourceSettings, detect_source, metrics_present

T = TypeVar("T")
U = TypeVar("U")

NO_SOURCE = "no GPU metrics were found"
NO_FLEET = "the cluster's objects could not be read"
NO_POLICY = "the policy is invalid"

SPANS = tuple(datetime.timedelta(minutes=minutes) for minutes in (10, 60, 6 * 60, 24 * 60))
ENOUGH = 6

LATELY = datetime.timedelta(hours=1)
_RECORDS = '__name__=~"gpu_rightsizer:.*5m"'


@dataclasses.dataclass(frozen=True, slots=True)
class FactSources:
    """Connections, and settings from the flags.

    Attributes:
        is_named: Whether a URL is given; otherwise Prometheus is searched for in the cluster.
        evicts: Whether a policy allows evictions.
        own: The state namespace.
        clock: The local clock.
    """

    cluster: Callable[[], Cluster]
    prometheus: Callable[[], Prometheus]
    is_named: bool
    policy: Callable[[], LoadedPolicy]
    evicts: Callable[[Policy], bool]
    terms: SourceSettings
    own: str
    clock: Callable[[], datetime.datetime]


def collect_facts(sources: FactSources) -> Facts:
    """Collect all facts that can be known."""
    cluster = attempt(sources.cluster)
    fleet = then(cluster, lambda found: build_fleet(read_cluster(found, RECORDABLE_KINDS)))
    policy = summarized(attempt(sources.policy), NO_POLICY)
    facts = Facts(
        at=sources.clock(),
        own=sources.own,
        max_samples=sources.terms.max_samples,
        host=then(cluster, lambda found: found.host),
        policy=policy,
        evicts=isinstance(policy, Failure) or sources.evicts(policy.policy),
        fleet=summarized(fleet, NO_FLEET),
        allowed=then(summarized(cluster, NO_FLEET), lambda found: _allowed(found, sources.own)),
    )
    if isinstance(cluster, Failure) and not sources.is_named:
        words = "no URL is set, and without a cluster none can be found"
        return dataclasses.replace(facts, server=Failure(words, NO_SERVER.summary, is_unnamed=True))
    prometheus = attempt(sources.prometheus)
    if isinstance(prometheus, Failure):
        failure = Failure(prometheus.words, NO_SERVER.summary, is_unnamed=not sources.is_named)
        return dataclasses.replace(facts, server=failure)
    server = summarized(attempt(lambda: _server(prometheus, sources.clock)), NO_SERVER.summary)
    facts = dataclasses.replace(facts, server=server)
    if isinstance(server, Failure):
        return facts
    return _with_metrics(facts, prometheus, sources.terms, server.now)


def attempt(question: Callable[[], T]) -> T | Failure:
    """A fact, or why it is unknown."""
    try:
        return question()
    except RightsizerError as error:
        return Failure(" ".join(str(error).split()))


def then(fact: T | Failure, question: Callable[[T], U]) -> U | Failure:
    """A fact that follows from another one, if that is known."""
    return fact if isinstance(fact, Failure) else attempt(lambda: question(fact))


def summarized(fact: T | Failure, words: str) -> T | Failure:
    """The fact; a failure that one check reports, with the words of the other checks that need the fact."""
    return dataclasses.replace(fact, summary=words) if isinstance(fact, Failure) else fact


def _allowed(cluster: Cluster, own: str) -> dict[Right, bool]:
    try:
        served: Collection[str] = cluster.served()
    except RightsizerError:  # the API groups are unknown: check only Kubernetes's own
        served = ()
    return {right: all(map(cluster.is_allowed, right.attributes(own))) for right in rights_for(served)}


def _server(prometheus: Prometheus, clock: Callable[[], datetime.datetime]) -> Server:
    """Compares both clocks half-way between request and response."""
    before, began = clock(), time.monotonic()
    now = prometheus.now()
    took_s = time.monotonic() - began
    return Server(
        where=prometheus.where,
        now=now,
        local=before + datetime.timedelta(seconds=took_s / 2),
        took_s=took_s,
        build=attempt(lambda: prometheus.status("buildinfo")),
        flags=attempt(lambda: prometheus.status("flags")),
    )


def _with_metrics(
    facts: Facts, prometheus: Prometheus, settings: SourceSettings, at: datetime.datetime
) -> Facts:
    held = frozenset() if isinstance(facts.fleet, Failure) else _held(facts.fleet)
    windows, history = spans(facts)
    longest = windows[-1]
    whereabouts = None if isinstance(facts.fleet, Failure) else _whereabouts(facts.fleet)
    querier = summarized(
        attempt(lambda: detect_source(prometheus, settings, at=at, pods=held, whereabouts=whereabouts)),
        NO_SOURCE,
    )
    ended = then(querier, lambda found: last_sample(found, LOOKBACKS[-1]))
    latest = querier
    if isinstance(ended, datetime.datetime):
        latest = then(querier, lambda found: dataclasses.replace(found, at=ended, memo={}))
    return dataclasses.replace(
        facts,
        source=then(querier, _source),
        interval_s=then(latest, _interval_s),
        begins=then(querier, lambda found: first_sample(found, max(longest, history))),
        ended=ended,
        naming=then(latest, _naming),
        recorded=then(querier, lambda found: _recorded(found, longest)),
        usages=then(latest, lambda found: _usages(found, held)),
        provenance=then(querier, lambda found: found.provenance),
        node_coverage=then(querier, node_coverage),
    )


def _interval_s(querier: SourceQuerier) -> float:
    """The interval of the densest series, from the shortest span with enough samples."""
    for span in SPANS:
        counts = (RAW.count(metric, querier.matchers, span) for metric in querier.markers())
        answers = (querier.prometheus.query(f"max({counted})", querier.at) for counted in counts)
        samples = max((sample.value for answer in answers for sample in answer), default=0.0)
        if samples >= ENOUGH:
            return scrape_interval_s(span, samples)
    raise EvidenceIncomplete(f"there are fewer than {ENOUGH} samples of any GPU in the last {SPANS[-1]}")


def _held(fleet: Fleet) -> frozenset[PodKey]:
    pods = (pod for workload in fleet.workloads for pod in workload.pods if pod.holds)
    return frozenset((pod.ref.namespace, pod.ref.name) for pod in pods)


def _whereabouts(fleet: Fleet) -> Whereabouts:
    pods = (pod for workload in fleet.workloads for pod in workload.pods if pod.holds)
    return Whereabouts({(pod.ref.namespace, pod.ref.name): pod.node for pod in pods}, fleet.addresses)


def _source(querier: SourceQuerier) -> MetricSource:
    """The source with the metrics that exist; with earlier ones if an exporter stopped."""
    for back in LOOKBACKS:
        found = metrics_present(querier, querier.at - back)
        if kept := tuple(metric for metric in querier.source.metrics if metric.name in found):
            return dataclasses.replace(querier.source, metrics=kept)
    return querier.source


def _usages(querier: SourceQuerier, held: frozenset[PodKey]) -> Usages:
    found = window_usages(querier, LATELY)
    return {
        key: tuple(usage for usage in usages if usage.is_held)
        for key, usages in found.items()
        if not held or key in held
    }


def _naming(querier: SourceQuerier) -> Naming:
    labels = querier.source.labels
    selected = querier.selected(querier.markers(), querier.pod_matchers)
    forms: collections.Counter[str] = collections.Counter()
    foreign: set[PodKey] = set()
    devices: dict[tuple[str, str], list[Sample]] = {}
    for sample in querier.prometheus.query(promql.by("count", (*labels.use, JOB), selected), querier.at):
        pod = labels.pod_of(sample.labels)
        if pod is None:
            continue
        if querier.gpu_pods and pod not in querier.gpu_pods:
            foreign.add(pod)
            continue
        forms[next(name for name in labels.pod if sample.labels.get(name))] += int(sample.value)
        devices.setdefault(labels.device_of(sample.labels), []).append(sample)
    copied = [found for found in devices.values() if _is_copied(querier, found)]
    jobs = {sample.labels.get(JOB, "") for found in copied for sample in found}
    hint = "" if forms else labels_hint(querier, querier.at)
    return Naming(dict(forms), tuple(sorted(foreign)), len(devices), tuple(sorted(jobs)), len(copied), hint)


def _is_copied(querier: SourceQuerier, found: list[Sample]) -> bool:
    """Whether one pod has several series of one device; a shared device has one series per pod."""
    by_pod: collections.Counter[PodKey | None] = collections.Counter()
    for sample in found:
        by_pod[querier.source.labels.pod_of(sample.labels)] += int(sample.value)
    return max(by_pod.values()) > 1


def _recorded(querier: SourceQuerier, window: datetime.timedelta) -> Recorded:
    """The recording rules; the one for negative values is not expected, because they are rare."""
    metrics = {metric.name for metric in _source(querier).metrics}
    asked = promql.by("count", ["__name__", "metric"], promql.selector("", [_RECORDS, *querier.matchers]))
    expected = {
        (rule["record"], rule["labels"]["metric"])
        for group in rule_groups()
        for rule in group["rules"]
        if rule["labels"]["metric"] in metrics and f":{Statistic.NEGATIVE}5m" not in rule["record"]
    }
    present, early = (
        {
            (sample.labels.get("__name__", ""), sample.labels.get("metric", ""))
            for sample in querier.prometheus.query(asked, instant)
        }
        for instant in (querier.at, querier.at - window + 2 * RULE_INTERVAL)
    )
    return Recorded(frozenset(expected), frozenset(present), frozenset(early), querier.rules_problem())


FAMILIES = ("inventory", "permissions", "prometheus", "signals", "coverage", "policy")
"""Families of checks in order of output: what fails in one makes checks of later ones unknown."""
MODULES = (check_cluster, check_server, check_signals, check_policy)
CHECKS = sorted(
    (row for module in MODULES for row in vars(module).values() if isinstance(row, Check)),
    key=lambda check: FAMILIES.index(check.family),
)


def diagnose(facts: Facts) -> Iterator[tuple[Check, Diagnosis]]:
    """The diagnoses of all checks."""
    return ((check, found) for check in CHECKS for found in _judged(check, facts))


def _judged(check: Check, facts: Facts) -> list[Diagnosis]:
    try:
        return list(check.judge(facts))
    except NotKnown as unknown:
        return [unknown.diagnosis]
