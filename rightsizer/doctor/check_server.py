"""Checks of Prometheus itself: connection, clock, retention and query limits. Pure."""

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from rightsizer.config import format_duration
from rightsizer.doctor.diagnosis import Diagnosis, Facts, Failure, Message, Status, check, known, some
from rightsizer.findings.data_quality import MIN_SAMPLES
from rightsizer.model import Fleet
from rightsizer.policy.effective import NO_FLEET, PolicyEvaluator
from rightsizer.policy.schema import ADVISE_ONLY
from rightsizer.prometheus.query_api import retention
from rightsizer.text import count

TOLERATED_S = 10.0
"""NTP holds machines much closer; beyond it a pod's age is wrong by as much."""
TOO_FAR_S = 300.0
SPARSE_S = 60.0
USUAL_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""Common scrape intervals."""


def spans(facts: Facts) -> tuple[list[datetime.timedelta], datetime.timedelta]:
    """The windows of the policy, shortest first, and how far back it looks for pauses."""
    loaded = facts.policy
    policy = ADVISE_ONLY if isinstance(loaded, Failure) else loaded.policy
    fleet: Fleet = NO_FLEET if isinstance(facts.fleet, Failure) else facts.fleet
    book = PolicyEvaluator(policy, fleet, at=facts.at, own=facts.own)
    histories = (criteria.idle.history for criteria in book.all_criteria() if criteria.idle.idleFactor)
    return sorted(book.windows()), max(histories, default=datetime.timedelta())


def product(build: Mapping[str, Any] | Failure) -> str:
    """The product and version; VictoriaMetrics reports only the Prometheus version that it is compatible with."""
    if isinstance(build, Failure):
        return "unknown server"
    version = str(build.get("version", ""))
    if "application" in build:
        return f"{build['application']} {version}"
    if set(build) <= {"version"}:
        return "VictoriaMetrics or similar" if build else "unknown server"
    return f"Thanos {version}" if version.startswith("0.") else f"Prometheus {version}"


ANSWERS = Message(Status.OK, "{where} answers in {took_ms:.0f} ms ({product})")
SILENT = Message(
    Status.ERROR,
    "no answer: {why}",
    "check that it is reachable from here; in a cluster: kubectl port-forward, then --prometheus-url "
    "http://localhost:9090; other servers: docs/prometheus.md",
    "curl -sS 'http://HOST:9090/api/v1/query?query=1'",
)
UNNAMED = Message(
    Status.ERROR,
    "no Prometheus found: {why}",
    "set --prometheus-url http://HOST:9090 or GPU_RIGHTSIZER_PROMETHEUS_URL; candidates:",
    "kubectl get services -A | grep -iE 'prom|thanos|mimir|victoria|vm'",
)


@check("prometheus", "reachable", "Prometheus answers; its product and version.")
def _reachable(facts: Facts) -> Iterator[Diagnosis]:
    server = facts.server
    if isinstance(server, Failure):
        yield (UNNAMED if server.is_unnamed else SILENT)(why=server.words)
    else:
        yield ANSWERS(product=product(server.build), where=server.where, took_ms=server.took_s * 1000)


SAME_TIME = Message(Status.OK, "its clock and the local clock differ by {skew_s:.0f} s")
SKEWED = Message(
    Status.WARNING,
    "its clock is {skew_s:.0f} s {direction} the local clock",
    "synchronise both with NTP; pod ages mix the clocks of the API server and Prometheus",
    "timedatectl set-ntp true",
)
FAR_OFF = Message(
    Status.ERROR,
    "its clock is {skew} {direction} the local clock",
    "synchronise both with NTP; until then pod ages are wrong",
    "timedatectl set-ntp true",
)


@check("prometheus", "clock", "Its clock, compared with the local clock.")
def _clock(facts: Facts) -> Iterator[Diagnosis]:
    server = known(facts.server)
    skew_s = (server.now - server.local).total_seconds()
    direction = "ahead of" if skew_s > 0 else "behind"
    # A difference within the round trip and whole seconds is ignored.
    if abs(skew_s) <= TOLERATED_S + server.took_s:
        yield SAME_TIME(skew_s=abs(skew_s))
    elif abs(skew_s) <= TOO_FAR_S:
        yield SKEWED(skew_s=abs(skew_s), direction=direction)
    else:
        yield FAR_OFF(skew=format_duration(abs(skew_s)), direction=direction)


FITS = Message(
    Status.OK, "Prometheus allows {limit:,} samples per query; gpu-rightsizer uses at most half of {ours:,}"
)
TOO_SMALL = Message(
    Status.ERROR,
    "Prometheus allows only {limit:,} samples per query; gpu-rightsizer assumes {ours:,}",
    "set --prometheus-max-samples {limit}, or start Prometheus with --query.max-samples={ours}",
)
NO_LIMIT = Message(
    Status.UNKNOWN,
    "the limit of samples per query is unknown; gpu-rightsizer assumes {ours:,}",
    "if queries are refused as too large, set --prometheus-max-samples {tenth}",
)


@check("prometheus", "sample-limit", "Samples that it allows per query (`--query.max-samples`).")
def _limit(facts: Facts) -> Iterator[Diagnosis]:
    flags = known(facts.server).flags
    text = "" if isinstance(flags, Failure) else str(flags.get("query.max-samples", ""))
    ours = facts.max_samples
    if not text.isdecimal():
        yield NO_LIMIT(ours=ours, tenth=ours // 10)
    elif int(text) < ours:
        yield TOO_SMALL(limit=int(text), ours=ours)
    else:
        yield FITS(limit=int(text), ours=ours)


REACHES = Message(Status.OK, "GPU series cover {span}, as far as the policy looks back")
TOO_SHORT = Message(
    Status.ERROR,
    "GPU series begin {begins}; until {until} they do not cover the policy's window of {window}, so "
    "every verdict is unknown",
    "wait, or set a shorter defaults.idle.window in the policy",
)
SHORT = Message(
    Status.WARNING,
    "GPU series begin {begins}; the policy looks back {history} for earlier idle periods, so required idle times are "
    "{times} times as long, less each day until {until}",
    "wait, or set idle.history: {so_far} (or less) in the policy",
)
FORGETS = Message(
    Status.WARNING,
    "Prometheus keeps {kept}, but the policy looks back {wanted}: required idle times are {times} times as long",
    "start Prometheus with --storage.tsdb.retention.time={days}d, or set idle.history: {kept} in the policy",
)


@check("prometheus", "retention", "How far GPU series go back, and their retention.")
def _record(facts: Facts) -> Iterator[Diagnosis]:
    windows, history = spans(facts)
    window, wanted = windows[-1], max(windows[-1], history)
    flags = known(facts.server).flags
    kept = None if isinstance(flags, Failure) else retention(flags)
    reach = min(history, kept) if kept else history
    begins = known(facts.begins)
    now = known(facts.server).now
    if begins is None or now - begins >= wanted:
        yield REACHES(span=_length(wanted))
    else:
        found = {
            "begins": f"{begins:%Y-%m-%d %H:%M} UTC",
            "so_far": _length(_whole(now - begins)).replace(" ", ""),
            "window": _length(window),
            "history": _length(history),
        }
        if now - begins < window:
            yield TOO_SHORT(**found, until=f"{begins + window:%Y-%m-%d %H:%M} UTC")
        elif now - begins < reach:
            yield SHORT(**found, until=f"{begins + reach:%Y-%m-%d}", times=f"{history / (now - begins):.1f}")
    if kept is not None and kept < wanted:
        days, times = -(-wanted // datetime.timedelta(days=1)), min(wanted / kept, max(kept / window, 1.0))
        yield FORGETS(kept=_length(kept), wanted=_length(wanted), days=days, times=f"{times:.1f}")


DENSE = Message(Status.OK, "a sample every {interval}")
SPARSE = Message(
    Status.WARNING,
    "only one sample every {interval}: shorter work may be missed",
    "set scrape_interval of the exporter's job (spec.endpoints[].interval of a ServiceMonitor) to 15s, "
    "or run gpu-exporter, whose counters miss nothing",
)
TOO_SPARSE = Message(
    Status.ERROR,
    "a sample every {interval}: the policy's window of {window} holds {samples}, but needs {least}",
    "set scrape_interval of the exporter's job to {wanted} or less, or the policy's window to at least {longer}",
)


@check("prometheus", "scrape-interval", "How often GPUs are scraped.")
def _interval(facts: Facts) -> Iterator[Diagnosis]:
    interval_s = known(facts.interval_s)
    window = spans(facts)[0][0]
    samples = int(window.total_seconds() // interval_s)
    interval = format_duration(interval_s)
    if samples < MIN_SAMPLES:
        yield TOO_SPARSE(
            interval=interval,
            window=_length(window),
            samples=samples,
            least=MIN_SAMPLES,
            wanted=format_duration(window.total_seconds() // MIN_SAMPLES),
            longer=format_duration(-(-interval_s * MIN_SAMPLES // 60) * 60),
        )
    elif interval_s > SPARSE_S and not known(facts.source).has_counters:
        yield SPARSE(interval=interval)
    else:
        yield DENSE(interval=interval)


def scrape_interval_s(span: datetime.timedelta, samples: float) -> float:
    """The likely scrape interval in seconds, given the samples in a span: one more or less, depending on its start."""
    span_s = span.total_seconds()
    least_s, most_s = span_s / (samples + 1), span_s / (samples - 1)
    return next((usual_s for usual_s in USUAL_S if least_s <= usual_s <= most_s), span_s / samples)


RECORDED = Message(Status.OK, "all {count} rules cover {window} and are used")
RECORDED_LATELY = Message(
    Status.OK, "all {count} rules exist, but do not cover {window} yet; until then samples are used"
)
NOT_NEEDED = Message(Status.OK, "none, and none needed: samples of {devices} fit into one query")
WANTED = Message(
    Status.WARNING,
    "none: samples of {devices} over {window} exceed the limit of one query, so it is split",
    "load deploy/prometheus/recording-rules.yaml (rule_files, or groups of a PrometheusRule)",
)
INCOMPLETE = Message(
    Status.WARNING,
    "{missing} of {count} rules are missing ({names}), so samples are used",
    "load all of deploy/prometheus/recording-rules.yaml again, and check Prometheus's /rules for errors",
)
UNVERIFIED = Message(
    Status.WARNING,
    "recorded series exist, but are not used: {why}",
    "load exactly deploy/prometheus/recording-rules.yaml; if the server cannot list its rules: --recording-rules "
    "trusted; if nobody loaded rules, a scraped target invents these series",
)
OTHER_TABLE = Message(
    Status.OK, "not available for this signals table, or where labels of pods are mixed; samples are used"
)


@check("prometheus", "recording-rules", "The recording rules that large fleets need.")
def _rules(facts: Facts) -> Iterator[Diagnosis]:
    recorded, source = known(facts.recorded), known(facts.source)
    window = spans(facts)[0][-1]
    found = {"count": len(recorded.expected), "window": _length(window)}
    missing = sorted(recorded.expected - recorded.present)
    if not source.has_rules:
        yield OTHER_TABLE()
    elif recorded.present and recorded.problem:
        yield UNVERIFIED(why=recorded.problem)
    elif recorded.present and missing:
        names = some((f"{record} of {metric}" for record, metric in missing), 1)
        yield INCOMPLETE(**found, missing=len(missing), names=names)
    elif recorded.present:
        yield (RECORDED if recorded.expected <= recorded.early else RECORDED_LATELY)(**found)
    else:
        devices = known(facts.naming).devices
        samples = devices * window.total_seconds() / known(facts.interval_s)
        yield (WANTED if samples > facts.max_samples / 2 else NOT_NEEDED)(
            devices=count(devices, "device"), window=found["window"]
        )


def _length(length: datetime.timedelta) -> str:
    return format_duration(length.total_seconds())


def _whole(length: datetime.timedelta) -> datetime.timedelta:
    """Round down to whole hours, at least one."""
    return datetime.timedelta(hours=max(length // datetime.timedelta(hours=1), 1))
