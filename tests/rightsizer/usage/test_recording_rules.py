"""Recording rules (deploy/prometheus/recording-rules.yaml): recorded series give the results of raw samples."""

import dataclasses
import datetime
import json
import math
import pathlib
import random
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from rightsizer.config import PrometheusSettings
from rightsizer.model import Slot, Usage, Usages
from rightsizer.planning.measure import with_samples
from rightsizer.prometheus.query_api import Prometheus as Client
from rightsizer.usage import recording_rules
from rightsizer.usage.querier import RecordedWindows
from rightsizer.usage.recording_rules import RecordingRules, rule_groups, rules_problem
from simulator.prometheus import Prometheus
from tests.rightsizer.metrics import COPY, DAY, ENGINE, HOUR, POWER, UTIL, Metrics, idle, near, once, within
from tests.rightsizer.relay import Relay

ROOT = pathlib.Path(__file__).parents[3]
FILE = ROOT / "deploy/prometheus/recording-rules.yaml"
TRUSTED = RecordingRules.TRUSTED


def test_rule_file_has_the_rules_that_are_queried() -> None:
    """Both come from the same tables."""
    assert yaml.safe_load(FILE.read_text()) == {"groups": recording_rules.rule_groups()}


@pytest.mark.prometheus
def test_rules_record_the_expected_values_in_promtool() -> None:
    """Copies once, no series without a pod, scaled values, negative values only where there are any."""
    case = pathlib.Path(__file__).parent / "data/recording-rules-test.yaml"
    done = subprocess.run(
        ["promtool", "test", "rules", case.name], cwd=case.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def metrics(tmp_path: pathlib.Path) -> Iterator[Metrics]:
    """Series alone in a Prometheus: the rules know no label of a test's own."""
    with Prometheus(tmp_path / "own") as own:
        found = Metrics(own, mark=False)
        found.write(
            idle(**{UTIL: within(700, 600, 80), POWER: within(700, 600, 500, 118)}), pod="a", Hostname="n1"
        )
        found.write(idle(**{UTIL: within(7, 0, 60)}), pod="awake")
        found.write({**idle(), ENGINE: 0.3, COPY: once(-5, 2)}, pod="negative")
        found.write(idle(**{UTIL: once(math.nan)}), pod="nan")
        found.write(idle(**{UTIL: once(2_147_483_632.0)}), pod="blank")
        found.write({"DCGM_FI_DEV_GPU_UTIL_RATIO": 0.25, "DCGM_FI_DEV_BOARD_POWER_WATTS": 200}, pod="new")
        found.write(idle(), pod="whole")
        found.write(idle(), pod="gap", until=12 * HOUR)
        found.write(idle(), pod="gap", since=8 * HOUR)
        found.write(idle(), pod="gone", until=2 * HOUR)
        moved = {"exported_pod": "moved", "exported_namespace": found.space}
        found.write(idle(**{UTIL: 50}), moved, pod="exporter", namespace="monitoring")
        yield found


def _rounded(usage: Usage) -> tuple[object, ...]:
    """Up to the edges of slots, on which a sample more or less may lie."""
    values = {field.name: getattr(usage, field.name) for field in dataclasses.fields(usage)}
    values |= {"coverage": near(usage.coverage, abs=0.02), "holes": near(usage.holes, abs=1)}
    for name in ("activity_mean", "activity_floor", "power_mean_w"):
        if values[name] is not None:
            values[name] = near(values[name], abs=0.002 if name != "power_mean_w" else 1.0)
    values["samples_expected"] = near(usage.samples_expected or 0, rel=0.25)
    return tuple(sorted(values.items()))


@pytest.mark.prometheus
def test_usages_with_rules_equal_usages_without(metrics: Metrics) -> None:
    """Also invalid values, gaps, and samples after the last evaluation."""
    before = metrics.usages()
    metrics.record(DAY)
    with Relay(metrics.prometheus.url) as relay:
        after = metrics.signal(url=relay.url, recording=TRUSTED).usages(DAY, metrics.at)
        assert any("gpu_rightsizer:activity:max5m" in query for query in relay.asked)
        assert not any(f"{UTIL}{{" in query and "[1440m]" in query for query in relay.asked)
    assert before.keys() == after.keys()
    for pod, usages in before.items():
        assert [_rounded(usage) for usage in usages] == [_rounded(usage) for usage in after[pod]], pod
    assert {pod: usage.invalid for (_, pod), (usage,) in after.items() if usage.invalid} == {
        "negative": (COPY,),
        "nan": (UTIL,),
        "blank": (UTIL,),
    }
    ((awake,),) = (after[metrics.space, "awake"],)
    assert awake.activity_peak == near(0.6)


@pytest.mark.prometheus
def test_histories_with_rules_equal_histories_without(metrics: Metrics) -> None:
    """Slots are multiples of the rule interval."""
    pods = {(metrics.space, name): metrics.at - 2 * DAY for name in ("a", "gap", "gone", "moved")}
    before = metrics.signal().histories(pods, DAY, metrics.at, threshold=0.01)
    metrics.record(DAY)
    after = metrics.signal(recording=TRUSTED).histories(pods, DAY, metrics.at, threshold=0.01)
    assert set(before) == set(after) == set(pods)
    for pod, history in before.items():
        differing = sum(one != other for one, other in zip(history.slots, after[pod].slots, strict=True))
        assert differing <= 2, pod
    assert after[metrics.space, "gap"].slots.count(Slot.UNKNOWN) == near(48, abs=2)


@pytest.mark.covers("P18")
@pytest.mark.prometheus
@pytest.mark.parametrize("value", [math.nan, -5.0], ids=["no-number", "negative"])
@pytest.mark.parametrize("metric", [UTIL, COPY, POWER])
def test_usages_impossible_value_after_the_last_record_is_invalid(
    metrics: Metrics, metric: str, value: float
) -> None:
    """No rule has seen it yet, and a peak of the last minutes hides it."""
    last = datetime.timedelta(seconds=45)
    metrics.write(idle(), pod="a", until=2 * last)
    metrics.write({**idle(), metric: value}, pod="a", since=2 * last, until=last, step_s=45)
    metrics.write(idle(), pod="a", since=last, step_s=45)
    metrics.record(DAY, until=datetime.timedelta(minutes=5))
    assert metrics.usage("a", recording=TRUSTED).invalid == (metric,)


def test_usages_rules_younger_than_the_window_are_not_used(metrics: Metrics) -> None:
    """Raw samples cover more of the window."""
    metrics.record(6 * HOUR)
    assert metrics.usage("a", recording=TRUSTED).activity_peak == near(0.8)
    assert metrics.usage("a", recording=TRUSTED).coverage == 1.0


class _Cycles:
    """Consecutive cycles of one process."""

    def __init__(self, metrics: Metrics, relay: Relay) -> None:
        self.metrics, self._relay = metrics, relay
        self.recorded: RecordedWindows = {}

    def run(self, ago: int) -> tuple[Usages, int, bool]:
        """The usage at a moment, the number of queries for what is recorded, and whether recorded series were used."""
        self._relay.asked.clear()
        signal = self.metrics.signal(url=self._relay.url, recording=TRUSTED, recorded=self.recorded)
        found = signal.usages(DAY, self.metrics.at - datetime.timedelta(minutes=ago))
        counts = sum("(last_over_time(gpu_rightsizer:" in query for query in self._relay.asked)
        return found, counts, any("gpu_rightsizer:activity:max5m" in query for query in self._relay.asked)


@pytest.fixture
def cycles(tmp_path: pathlib.Path) -> Iterator[_Cycles]:
    """Of a Prometheus of their own, with one pod that worked some minutes ago."""
    with Prometheus(tmp_path / "own") as own, Relay(own.url) as relay:
        metrics = Metrics(own, mark=False)
        metrics.write(idle(**{UTIL: within(20, 16, 60)}), pod="a", since=DAY + 2 * HOUR)
        yield _Cycles(metrics, relay)


@pytest.mark.prometheus
def test_window_that_was_recorded_until_the_cycle_before_is_checked_at_its_end(cycles: _Cycles) -> None:
    """After other targets, or half a window, all of it is."""
    cycles.metrics.record(DAY + 2 * HOUR)
    assert [cycles.run(ago)[1:] for ago in (30, 15, 0)] == [(3, True), (1, True), (1, True)]
    for before in (
        ("other targets", cycles.metrics.at),
        (cycles.recorded[DAY][0], cycles.metrics.at - DAY / 2),
    ):
        cycles.recorded[DAY] = before
        assert cycles.run(0)[1:] == (3, True)


@pytest.mark.prometheus
def test_rules_removed_or_added_between_cycles_are_noticed(cycles: _Cycles) -> None:
    """Work that no rule recorded any more counts."""
    cycles.metrics.record(DAY + 2 * HOUR, until=HOUR / 2)
    assert cycles.run(30)[2]
    found, _, is_recorded = cycles.run(0)
    assert not is_recorded
    assert found[cycles.metrics.space, "a"][0].activity_peak == near(0.6)
    cycles.metrics.record(HOUR / 2)
    found, counts, is_recorded = cycles.run(0)
    assert (counts, is_recorded) == (3, True)
    assert found[cycles.metrics.space, "a"][0].activity_peak == near(0.6)


@pytest.mark.prometheus
def test_metric_that_appears_between_cycles_is_not_hidden_by_what_is_recorded(cycles: _Cycles) -> None:
    """As by an exporter with a metric that no rule records."""
    cycles.metrics.record(DAY + 2 * HOUR)
    assert cycles.run(30)[2]
    cycles.metrics.write({ENGINE: within(20, 16, 0.6)}, pod="new", since=HOUR / 2)
    found, _, is_recorded = cycles.run(0)
    assert not is_recorded
    assert found[cycles.metrics.space, "new"][0].activity_peak == near(0.6)


@pytest.mark.prometheus
def test_usages_of_some_pods_equal_those_of_all(metrics: Metrics) -> None:
    """Other pods are not queried."""
    metrics.record(DAY)
    pods = [
        (metrics.space, name) for name in ("a", "awake", "gap", "negative", "gone", "moved", "unheard-of")
    ]
    with Relay(metrics.prometheus.url) as relay:
        signal = metrics.signal(url=relay.url, recording=TRUSTED)
        signal.usages(6 * HOUR, metrics.at)
        relay.asked.clear()
        some = signal.usages(2 * HOUR, metrics.at, of=pods)
        assert not any("max5m" in query and 'pod=~"' not in query for query in relay.asked)
        everybody = signal.usages(2 * HOUR, metrics.at)
    assert some == {pod: usages for pod, usages in everybody.items() if pod in pods}
    assert {name for _, name in some} >= {"a", "awake", "gap", "negative", "moved"}


@pytest.mark.prometheus
def test_usages_shorter_window_asks_only_for_what_the_longer_one_returned(metrics: Metrics) -> None:
    """No impossible means, nor negative values, where there were none; and no samples again that were counted."""
    metrics.record(DAY)
    with Relay(metrics.prometheus.url) as relay:
        signal = metrics.signal(url=relay.url, recording=TRUSTED)
        signal.usages(18 * HOUR, metrics.at)
        relay.asked.clear()
        found = signal.usages(6 * HOUR, metrics.at)
        assert not any("clamp_max" in query for query in relay.asked)
        assert not any("sum_over_time(gpu_rightsizer:activity:count5m" in query for query in relay.asked)
    assert found == metrics.usages(6 * HOUR, recording=TRUSTED)


@pytest.mark.prometheus
def test_coverage_of_a_day_without_its_last_record_has_no_gap(tmp_path: pathlib.Path) -> None:
    """Pods that have one are found."""
    late = datetime.timedelta(minutes=2)
    with Prometheus(tmp_path / "own") as own:
        metrics = Metrics(own, mark=False)
        metrics.write(idle(), pod="whole", since=DAY + HOUR)
        metrics.write(idle(), pod="gap", since=DAY + HOUR, until=10 * HOUR)
        metrics.write(idle(), pod="gap", since=9 * HOUR)
        metrics.record(DAY + HOUR, 5 * late)
        found = metrics.signal(recording=TRUSTED).usages(DAY, metrics.at - late)
    (whole,), (gap,) = found[metrics.space, "whole"], found[metrics.space, "gap"]
    assert gap.holes == near(2.5, abs=1)
    assert (whole.holes, whole.is_fresh, whole.coverage) == (0, True, 1.0)


@pytest.mark.prometheus
def test_coverage_slot_of_a_late_record_is_a_gap(tmp_path: pathlib.Path) -> None:
    """In slots of one record there is nothing else that would show a burst."""
    with Prometheus(tmp_path / "own") as own:
        metrics = Metrics(own, mark=False)
        for number in range(3):
            metrics.write(idle(), pod=f"p-{number}", since=5 * HOUR, step_s=15)
        metrics.record(5 * HOUR, datetime.timedelta(minutes=10))
        late = metrics.at - datetime.timedelta(minutes=2)
        found = metrics.signal(recording=TRUSTED).usages(4 * HOUR, late)
    assert [(one.holes, one.is_fresh) for usages in found.values() for one in usages] == [(1, False)] * 3


def _forge(metrics: Metrics) -> None:
    """Idle records of a day, as any scraped target can expose them: of pods that exist, and junk to be enough."""
    for kind, values in {
        "activity": {UTIL: 0, ENGINE: 0},
        "traffic": {COPY: 0},
        "power": {POWER: 118},
    }.items():
        for metric, value in values.items():
            for pod in ("a", "awake", "gap", "negative", "nan", "blank", *map("junk-{}".format, range(40))):
                for statistic, written in {"mean": value, "max": value, "count": 5}.items():
                    record = {f"gpu_rightsizer:{kind}:{statistic}5m": written}
                    metrics.write(record, {"metric": metric}, pod=pod, job="forger", step_s=300)


@pytest.mark.prometheus
def test_usages_forged_records_without_rules_are_not_used(metrics: Metrics) -> None:
    """The server evaluates no rules, so a scraped target invented the series."""
    before = metrics.usages()
    _forge(metrics)
    assert metrics.usages() == before
    assert metrics.usage("a").activity_peak == near(0.8)


@pytest.mark.prometheus
def test_usages_forged_records_never_outvote_samples(metrics: Metrics) -> None:
    """Before a workload changes, the higher activity of records and samples counts."""
    _forge(metrics)
    signal = metrics.signal(recording=TRUSTED)
    recorded = signal.usages(DAY, metrics.at)
    pod = (metrics.space, "a")
    assert recorded[pod][0].activity_peak == 0
    sampled = signal.sampled(DAY, metrics.at, of=[pod])
    assert sampled.keys() == {pod}
    (usage,) = with_samples(recorded, sampled)[pod]
    assert usage.activity_peak == near(0.8)
    assert usage.coverage == recorded[pod][0].coverage


@pytest.mark.prometheus
def test_rules_problem_of_a_server_that_loaded_the_rules_is_none(tmp_path: pathlib.Path) -> None:
    """It prints expressions in its own form; a rule is healthy only after its first evaluation."""
    own = Prometheus(tmp_path / "own")
    own.rule_files = [FILE]
    with own:
        found = dict(Client(PrometheusSettings(url=own.url)).rules())
    assert rules_problem(found) in {"", "a rule fails, or was not evaluated yet"}
    for group in found["groups"]:
        for rule in group["rules"]:
            rule["health"] = "ok"
    assert not rules_problem(found)


def _told() -> dict[str, Any]:
    """What a server says that evaluates the rules."""
    groups = json.loads(json.dumps(rule_groups()))
    for group in groups:
        group["interval"] = 300
        for rule in group["rules"]:
            rule |= {"name": rule["record"], "query": rule["expr"], "type": "recording", "health": "ok"}
    return {"groups": groups}


def _other_rule(groups: list[dict[str, Any]]) -> None:
    rule = {**groups[0]["rules"][0], "query": "vector(0)"}
    groups.append({"name": "tenant", "interval": 300, "rules": [rule]})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(lambda _: None, "", id="as-shipped"),
        pytest.param(list.clear, "evaluates none", id="none"),
        pytest.param(list.pop, "missing or differ", id="group-missing"),
        pytest.param(
            lambda groups: groups[0]["rules"][1].update(query="vector(0)"),
            "missing or differ",
            id="other-expression",
        ),
        pytest.param(_other_rule, "missing or differ", id="second-rule-of-that-name"),
        pytest.param(
            lambda groups: groups[0]["rules"][0]["labels"].update(pod="web"),
            "missing or differ",
            id="more-labels",
        ),
        pytest.param(lambda groups: groups[0].update(interval=60), "every 300 s", id="other-interval"),
        pytest.param(
            lambda groups: groups[0]["rules"][0].update(health="err"), "a rule fails", id="unhealthy"
        ),
        pytest.param(
            lambda groups: groups[0]["rules"][0].update(health="unknown"),
            "not evaluated yet",
            id="not-evaluated",
        ),
        pytest.param(lambda groups: groups[0].update(rules=7), "cannot be read", id="other-shape"),
    ],
)
def test_rules_problem_unless_exactly_the_shipped_rules(
    change: Callable[[Any], object], problem: str
) -> None:
    """Any other rule could record anything."""
    told = _told()
    change(told["groups"])
    found = rules_problem(told)
    assert problem in found
    assert bool(found) == bool(problem)


_MINUTE = datetime.timedelta(minutes=1)
_WINDOW = 4 * HOUR
_BEFORE = _WINDOW + HOUR


def _gaps(chance: random.Random) -> list[tuple[datetime.timedelta, datetime.timedelta]]:
    """Of what stretches of the window there are samples: of most of the whole, of others until here, since then."""
    begin, end = sorted(chance.randint(0, 240) for _ in range(2))
    return chance.choice(
        [
            [(_BEFORE, end * _MINUTE), (begin * _MINUTE, 0 * _MINUTE)],
            [(_BEFORE, (begin + chance.randint(1, 7)) * _MINUTE), (begin * _MINUTE, 0 * _MINUTE)],
            [(_BEFORE, begin * _MINUTE)],
            [(end * _MINUTE, 0 * _MINUTE)],
        ]
    )


def _write_random(metrics: Metrics, chance: random.Random) -> None:
    """Pods of several jobs and scrape intervals, of which some have gaps and impossible values."""
    outage = chance.randint(20, 200) * _MINUTE
    for number in range(36):
        stretches = [(_BEFORE, 0 * _MINUTE)]
        if number % 3 == 1:
            stretches = _gaps(chance)
        elif number % 9 == 2:  # all at once, and no others
            stretches = [(_BEFORE, outage), (outage - 11 * _MINUTE, 0 * _MINUTE)]
        step = chance.choice((60, 60, 60, 120)) if number % 9 == 5 else 60
        for since, until in stretches:
            job = "dense" if number % 4 == 0 else "usual"
            values = idle() if number % 5 else idle(**{ENGINE: 0})
            if number % 8 == 3:
                odd = chance.choice((math.nan, -1.0, 250.0, 40.0))
                values[chance.choice((UTIL, COPY))] = within(*_span(chance), odd)
            if since > until:
                metrics.write(
                    values,
                    pod=f"p-{number}",
                    job=job,
                    since=since,
                    until=until,
                    step_s=30 if job == "dense" else step,
                )
                if number % 7 == 0:
                    metrics.write(idle(), pod=f"p-{number}", job="copy", since=since / 2, until=until)


def _span(chance: random.Random) -> tuple[float, float]:
    begin, end = sorted((chance.randint(0, 240) for _ in range(2)), reverse=True)
    return begin + 1, end


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.parametrize("seed", range(6))
def test_usages_after_a_longer_window_equal_those_from_scratch(tmp_path: pathlib.Path, seed: int) -> None:
    """What was asked for a longer window is not asked again, and changes nothing."""
    with Prometheus(tmp_path / "own") as own:
        metrics = Metrics(own, mark=False)
        _write_random(metrics, random.Random(seed))
        # Denser than the others, but with fewer samples in a longer window than they have.
        metrics.write(idle(), pod="denser", job="usual", since=HOUR + 5 * _MINUTE, step_s=17)
        metrics.record(_BEFORE)
        signal = metrics.signal(recording=TRUSTED)
        for window in (_WINDOW, 3 * HOUR, 2 * HOUR, HOUR):
            scratch = metrics.signal(recording=TRUSTED).usages(window, metrics.at)
            assert signal.usages(window, metrics.at) == scratch, window


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.parametrize("recording", [TRUSTED, RecordingRules.OFF])
@pytest.mark.parametrize("seed", range(3))
def test_coverage_is_as_the_samples_say(tmp_path: pathlib.Path, seed: int, recording: RecordingRules) -> None:
    """The longest time without samples, the share of minutes with some, and whether some are of late."""
    with Prometheus(tmp_path / "own") as own:
        metrics = Metrics(own, mark=False)
        _write_random(metrics, random.Random(seed))
        metrics.record(_BEFORE)
        found = metrics.signal(recording=recording).usages(_WINDOW, metrics.at)
        seen = _minutes_with_samples(metrics)
    for (_, pod), (usage,) in found.items():
        minutes = seen[pod]
        longest = max(map(len, "".join("x" if one in minutes else " " for one in range(240)).split("x")))
        # Slots are of 5 minutes of a job with 2 samples a minute, else of 20, or of 40 where few of it are dense.
        assert usage.holes >= (longest >= 80), pod
        assert not usage.holes or longest >= 4, pod
        assert usage.is_fresh or not set(range(40)) <= minutes, pod
        assert not usage.is_fresh or min(minutes) < 40, pod
        assert usage.coverage <= len(minutes) / 240 + 0.1 or number_of_gaps(minutes) > 60, pod


def number_of_gaps(minutes: set[int]) -> int:
    """How often a minute without samples follows one with some."""
    return sum(one + 1 not in minutes for one in minutes)


def _minutes_with_samples(metrics: Metrics) -> dict[str, set[int]]:
    """By pod the minutes of the window, counted from its end, in which there are samples of its device."""
    query = {"query": "{__name__=~'DCGM_FI_DEV_GPU_UTIL|DCGM_FI_PROF_GR_ENGINE_ACTIVE'}[4h]"}
    query["time"] = str(metrics.at.timestamp())
    address = f"{metrics.prometheus.url}/api/v1/query?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(address) as answer:
        tracks = json.load(answer)["data"]["result"]
    found: dict[str, set[int]] = {}
    for track in tracks:
        left = (metrics.at.timestamp() - instant for instant, _ in track["values"])
        found.setdefault(track["metric"]["pod"], set()).update(int(one / 60) for one in left)
    return found
