"""Checks of Prometheus itself: is it there, how far does it go back, and how much does it answer at once. Pure."""

import datetime
from collections.abc import Iterator, Mapping
from typing import Any

from rightsizer.config import format_duration, parse_duration
from rightsizer.doctor.diagnosis import Check, Diagnosis, Family, Message, Status, known, some
from rightsizer.doctor.facts import Facts, Failure
from rightsizer.findings.data_quality import FEWEST_SAMPLES
from rightsizer.model import Fleet
from rightsizer.policy.criteria import Criteria
from rightsizer.policy.effective import NO_FLEET, Rulebook
from rightsizer.policy.schema import ADVISE_ONLY
from rightsizer.text import count

TOLERATED_S = 10.0
"""NTP holds machines much closer; beyond it a pod's age is wrong by as much."""
TOO_FAR_S = 300.0
SPARSE_S = 60.0
USUAL_S = (1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0)
"""Intervals that people configure."""
DEFAULT_RETENTION = datetime.timedelta(days=15)
"""Prometheus's own, where neither time nor size is given."""

ANSWERS = Message(Status.OK, "{where} answers in {took_ms:.0f} ms ({product})")
SILENT = Message(
    Status.PROBLEM,
    "no answer: {why}",
    "see whether it answers from here; where it is in the cluster: kubectl port-forward, and --prometheus-url "
    "http://localhost:9090; the flags of each flavour: docs/prometheus.md",
    "curl -sS 'http://HOST:9090/api/v1/query?query=1'",
)
UNNAMED = Message(
    Status.PROBLEM,
    "none: {why}",
    "name one by --prometheus-url http://HOST:9090 or GPU_RIGHTSIZER_PROMETHEUS_URL; see which there are:",
    "kubectl get services -A | grep -iE 'prom|thanos|mimir|victoria|vm'",
)

SAME_TIME = Message(Status.OK, "its clock and ours are {skew_s:.0f} s apart")
SKEWED = Message(
    Status.WARNING,
    "its clock is {skew_s:.0f} s {direction} ours",
    "set both by NTP; the ages of pods are the API server's times, judged by Prometheus's clock",
    "timedatectl set-ntp true",
)
FAR_OFF = Message(
    Status.PROBLEM,
    "its clock is {skew} {direction} ours",
    "set both by NTP; until then pods look older or younger than they are",
    "timedatectl set-ntp true",
)

FITS = Message(
    Status.OK, "it loads {limit:,} samples for one query, of which half of {ours:,} is asked for at most"
)
TOO_SMALL = Message(
    Status.PROBLEM,
    "it loads {limit:,} samples for one query, and we take it for {ours:,}",
    "give --prometheus-max-samples {limit}, or start it with --query.max-samples={ours}",
)
NO_LIMIT = Message(
    Status.UNKNOWN,
    "it does not tell how many samples it loads for one query; taken for {ours:,}",
    "where queries are refused as too large, give --prometheus-max-samples {tenth}",
)

REACHES = Message(Status.OK, "GPU series go back {span}, as far as the policy looks")
TOO_SHORT = Message(
    Status.PROBLEM,
    "GPU series begin {begins}: the policy's window of {window} is not covered until {until}, and all is unknown",
    "wait until then, or write a shorter window into the policy: defaults.idle.window",
)
SHORT = Message(
    Status.WARNING,
    "GPU series begin {begins}; the policy looks for pauses in {history}: idle is only advised on until {until}",
    "wait until then, or write idle.history: {so_far} (or less) into the policy",
)
FORGETS = Message(
    Status.WARNING,
    "it keeps {kept}, and the policy looks back {wanted}: idle is only ever advised on",
    "start it with --storage.tsdb.retention.time={days}d, or write idle.history: {kept} into the policy",
)

DENSE = Message(Status.OK, "a sample every {interval}")
SPARSE = Message(
    Status.WARNING,
    "a sample every {interval} only: what works for less than that may go unseen",
    "set scrape_interval of the exporter's job (a ServiceMonitor's spec.endpoints[].interval) to 15s, or run "
    "gpu-exporter, whose counters miss nothing between two scrapes",
)
TOO_SPARSE = Message(
    Status.PROBLEM,
    "a sample every {interval}: the policy's window of {window} holds {samples}, and {least} are needed",
    "set scrape_interval of the exporter's job to {wanted} or less, or a window of at least {longer} in the policy",
)

RECORDED = Message(Status.OK, "all {count} are on record over {window}, and are asked instead of samples")
RECORDED_LATELY = Message(
    Status.OK, "all {count} are on record, but not over {window} yet; until then samples are asked"
)
NOT_NEEDED = Message(Status.OK, "none, and none needed: the samples of {devices} fit into one query")
WANTED = Message(
    Status.WARNING,
    "none: the samples of {devices} over {window} are more than one query loads, and are asked for in parts",
    "load deploy/prometheus/recording-rules.yaml (rule_files, or groups of a PrometheusRule)",
)
INCOMPLETE = Message(
    Status.WARNING,
    "{missing} of {count} are not on record ({names}): samples are asked instead of all of them",
    "load the whole of deploy/prometheus/recording-rules.yaml anew, and look at /rules of Prometheus for errors",
)
OTHER_TABLE = Message(Status.OK, "not for this table of metrics: samples are asked")


def spans(facts: Facts) -> tuple[list[datetime.timedelta], datetime.timedelta]:
    """The windows that the policy looks at, shortest first, and how far back it looks for pauses."""
    loaded = facts.policy
    policy = ADVISE_ONLY if isinstance(loaded, Failure) else loaded.policy
    fleet: Fleet = NO_FLEET if isinstance(facts.fleet, Failure) else facts.fleet
    book = Rulebook(policy, fleet, at=facts.at, own=facts.own)
    windows, histories = set[datetime.timedelta](), set[datetime.timedelta]()
    for criteria in book.all_criteria():
        windows |= criteria.windows
        histories |= _history(criteria)
    return sorted(windows), max(histories, default=datetime.timedelta())


def _history(criteria: Criteria) -> set[datetime.timedelta]:
    return {criteria.idle.history} if criteria.idle.returnFactor else set()


def product(build: Mapping[str, Any] | Failure) -> str:
    """What a server says that it is; VictoriaMetrics gives no more than the version of Prometheus that it is like."""
    if isinstance(build, Failure):
        return "a server that does not say what it is"
    version = str(build.get("version", ""))
    if "application" in build:
        return f"{build['application']} {version}"
    if set(build) <= {"version"}:
        return "a server as VictoriaMetrics is" if build else "a server that does not say what it is"
    return f"Thanos {version}" if version.startswith("0.") else f"Prometheus {version}"


def _reachable(facts: Facts) -> Iterator[Diagnosis]:
    server = facts.server
    if isinstance(server, Failure):
        yield (UNNAMED if server.is_unnamed else SILENT)(why=server.words)
    else:
        yield ANSWERS(product=product(server.build), where=server.where, took_ms=server.took_s * 1000)


def _clock(facts: Facts) -> Iterator[Diagnosis]:
    server = known(facts.server)
    skew_s = (server.now - server.ours).total_seconds()
    direction = "ahead of" if skew_s > 0 else "behind"
    # What cannot be told apart from the way there and back, and from whole seconds, is no difference.
    if abs(skew_s) <= TOLERATED_S + server.took_s:
        yield SAME_TIME(skew_s=abs(skew_s))
    elif abs(skew_s) <= TOO_FAR_S:
        yield SKEWED(skew_s=abs(skew_s), direction=direction)
    else:
        yield FAR_OFF(skew=format_duration(abs(skew_s)), direction=direction)


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


def _retention(facts: Facts) -> datetime.timedelta | None:
    """How long samples are kept, where a Prometheus says so by its flags."""
    flags = known(facts.server).flags
    if isinstance(flags, Failure) or "storage.tsdb.retention.time" not in flags:
        return None
    try:
        kept = parse_duration(str(flags["storage.tsdb.retention.time"]))
    except ValueError:  # 0s, or in years
        is_by_size = str(flags.get("storage.tsdb.retention.size", "0B")) != "0B"
        return None if is_by_size or flags["storage.tsdb.retention.time"] != "0s" else DEFAULT_RETENTION
    return kept


def _record(facts: Facts) -> Iterator[Diagnosis]:
    windows, history = spans(facts)
    window, wanted = windows[-1], max(windows[-1], history)
    begins = known(facts.begins)
    now = known(facts.server).now
    if begins is None or now - begins >= wanted:
        yield REACHES(span=_words(wanted))
    else:
        told = {
            "begins": f"{begins:%Y-%m-%d %H:%M} UTC",
            "so_far": _words(_whole(now - begins)).replace(" ", ""),
            "window": _words(window),
            "history": _words(history),
        }
        if now - begins < window:
            yield TOO_SHORT(**told, until=f"{begins + window:%Y-%m-%d %H:%M} UTC")
        else:
            yield SHORT(**told, until=f"{begins + history:%Y-%m-%d}")
    kept = _retention(facts)
    if kept is not None and kept < wanted:
        yield FORGETS(kept=_words(kept), wanted=_words(wanted), days=-(-wanted // datetime.timedelta(days=1)))


def _interval(facts: Facts) -> Iterator[Diagnosis]:
    interval_s = known(facts.interval_s)
    window = spans(facts)[0][0]
    samples = int(window.total_seconds() // interval_s)
    interval = format_duration(interval_s)
    if samples < FEWEST_SAMPLES:
        yield TOO_SPARSE(
            interval=interval,
            window=_words(window),
            samples=samples,
            least=FEWEST_SAMPLES,
            wanted=format_duration(window.total_seconds() // FEWEST_SAMPLES),
            longer=format_duration(-(-interval_s * FEWEST_SAMPLES // 60) * 60),
        )
    elif interval_s > SPARSE_S and not known(facts.source).has_counters:
        yield SPARSE(interval=interval)
    else:
        yield DENSE(interval=interval)


def meant(span: datetime.timedelta, samples: float) -> float:
    """The interval, in seconds, that is meant where so many samples lie in a span: one more or less, as they fall."""
    span_s = span.total_seconds()
    least_s, most_s = span_s / (samples + 1), span_s / (samples - 1)
    return next((one for one in USUAL_S if least_s <= one <= most_s), span_s / samples)


def _rules(facts: Facts) -> Iterator[Diagnosis]:
    recorded, source = known(facts.recorded), known(facts.source)
    window = spans(facts)[0][-1]
    told = {"count": len(recorded.expected), "window": _words(window)}
    missing = sorted(recorded.expected - recorded.present)
    if not source.has_rules:
        yield OTHER_TABLE()
    elif recorded.present and missing:
        names = some((f"{record} of {metric}" for record, metric in missing), 1)
        yield INCOMPLETE(**told, missing=len(missing), names=names)
    elif recorded.present:
        yield (RECORDED if recorded.expected <= recorded.early else RECORDED_LATELY)(**told)
    else:
        devices = known(facts.naming).devices
        samples = devices * window.total_seconds() / known(facts.interval_s)
        yield (WANTED if samples > facts.max_samples / 2 else NOT_NEEDED)(
            devices=count(devices, "device"), window=told["window"]
        )


def _words(length: datetime.timedelta) -> str:
    return format_duration(length.total_seconds())


def _whole(length: datetime.timedelta) -> datetime.timedelta:
    """In whole hours, rounded down, as people write durations."""
    return datetime.timedelta(hours=max(length // datetime.timedelta(hours=1), 1))


FAMILY = Family(
    "prometheus",
    (
        Check("reachable", "Whether it answers, and what it is.", _reachable, (ANSWERS, SILENT, UNNAMED)),
        Check(
            "clock",
            "Its clock, by which everything is judged, beside ours.",
            _clock,
            (SAME_TIME, SKEWED, FAR_OFF),
        ),
        Check(
            "sample-limit",
            "What it loads for one query (`--query.max-samples`).",
            _limit,
            (FITS, TOO_SMALL, NO_LIMIT),
        ),
        Check(
            "record",
            "How far GPU series go back, and how long they are kept.",
            _record,
            (REACHES, TOO_SHORT, SHORT, FORGETS),
        ),
        Check("scrape-interval", "How often GPUs are scraped.", _interval, (DENSE, SPARSE, TOO_SPARSE)),
        Check(
            "recording-rules",
            "Our recording rules, which large fleets need.",
            _rules,
            (RECORDED, RECORDED_LATELY, NOT_NEEDED, WANTED, INCOMPLETE, OTHER_TABLE),
        ),
    ),
)
