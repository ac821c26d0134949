"""Metrics of `run` for Prometheus: verdicts, actions, freed GPUs and the last cycle.

One time series for each class, verdict or outcome; none for each workload, of which there may be thousands. A gauge
that has no value any more disappears: it never stays at what it was.
https://prometheus.io/docs/instrumenting/writing_exporters/
"""

import dataclasses
import datetime
import importlib.metadata
from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge

from rightsizer.kinds.health import is_verified
from rightsizer.kube.last_backtest import LastBacktest
from rightsizer.model import (
    OPENS_BREAKER,
    Action,
    BlockerCode,
    Fleet,
    FoundChange,
    Outcome,
    Plan,
    ReconcileAction,
    Result,
    Verdict,
)
from rightsizer.planning.budget import Left
from rightsizer.planning.cost_summary import NO_CLASS, UNKNOWN_CLASS, CostSummary

PREFIX = "gpu_rightsizer_"
_HOUR_S = 3600.0


@dataclasses.dataclass(frozen=True, slots=True)
class OwnMetric:
    """One metric: name without prefix, help text and labels; counters get the suffix _total."""

    name: str
    words: str
    labels: tuple[str, ...] = ()
    is_counter: bool = False

    @property
    def full_name(self) -> str:
        """Name in the exposition."""
        return f"{PREFIX}{self.name}{'_total' if self.is_counter else ''}"


_CLASS = ("priority_class",)
_PRICED = (*_CLASS, "currency")
_BY = ("verdict", "finding", *_CLASS)
_RUN = ("success", "failure")
_POLICY = ("policy",)
_OF_BACKTEST = (
    OwnMetric(
        "backtest_freed_gpus",
        "Mean GPUs that the policy would have freed in the last backtest",
        _POLICY,
    ),
    OwnMetric("backtest_saved_cost_per_hour", "Known hourly price of these GPUs, less restarts", _POLICY),
    OwnMetric("backtest_stops", "Stops by the policy in the last backtest", _POLICY),
    OwnMetric("backtest_returned_stops", "Stops whose workload worked again in it", _POLICY),
    OwnMetric("backtest_replayed_seconds", "Time that the last backtest replayed", _POLICY),
    OwnMetric("backtest_timestamp_seconds", "End of that time, as a Unix time", _POLICY),
)
_NOT_OF_A_PLAN = {"build_info", "breaker_open", *(row.name for row in _OF_BACKTEST)}
METRICS = (
    OwnMetric("build_info", "1, labelled with the running version", ("version",)),
    OwnMetric("enforcing", "1 if changes are made, 0 if they are only planned"),
    OwnMetric("leader", "1 if this instance is the leader; 0 without enforcement"),
    OwnMetric("workloads", "GPU workloads by verdict and finding", _BY),
    OwnMetric("gpus", "GPUs held by workloads, by verdict and finding", _BY),
    OwnMetric("held_whole_gpus", "GPUs held, with shares and MIG instances counted as fractions", _CLASS),
    OwnMetric("held_cost_per_hour", "Hourly price of the held GPUs with a known price", _PRICED),
    OwnMetric("waiting_gpus", "GPUs requested by pods that the scheduler cannot place", _CLASS),
    OwnMetric("reclaimable_gpus", "GPUs that acting on the findings would free", _CLASS),
    OwnMetric("enforced_gpus", "Reclaimable GPUs that rules and budgets allow the next run to free", _CLASS),
    OwnMetric("wasted_cost_per_hour", "Hourly price of held but unused GPUs with a known price", _PRICED),
    OwnMetric("blocked_workloads", "Workloads with a change that this blocker prevents", ("cause",)),
    OwnMetric("evidence_coverage_ratio", "Share of the held GPUs with enough data for a verdict, 0 to 1"),
    OwnMetric("ignored_series", "GPU series that are ignored because they do not come from an exporter"),
    OwnMetric(
        "budget_remaining",
        "Rest of each budget, in workloads or gpus; the lowest of several namespaces, owners or node pools",
        ("scope", "per", "unit"),
    ),
    OwnMetric("freed_gpus", "GPUs kept free by changes of the last 30 days", _CLASS),
    OwnMetric(
        "freed_gpu_seconds",
        "GPU-seconds that changes have kept free",
        _CLASS,
        is_counter=True,
    ),
    OwnMetric("actions", "Changes by outcome", ("action", "result", *_CLASS), is_counter=True),
    OwnMetric(
        "actions_freed_gpus", "GPUs verified as free after changes", ("action", *_CLASS), is_counter=True
    ),
    OwnMetric(
        "reconciliations",
        "Reconciled earlier changes by outcome",
        ("action", "result"),
        is_counter=True,
    ),
    OwnMetric(
        "scheduler_questions",
        "Questions of kube-scheduler about victims, by answer",
        ("answer",),
        is_counter=True,
    ),
    OwnMetric(
        "scheduler_victims",
        "Pods named to kube-scheduler in place of busy ones",
        ("finding", *_CLASS),
        is_counter=True,
    ),
    OwnMetric("breaker_open", "1 if the breaker is open for this cause, else 0", ("cause",)),
    OwnMetric("runs", "Cycles by result: success or failure", ("result",), is_counter=True),
    OwnMetric("skipped_cycles", "Cycles skipped because the one before was still running", is_counter=True),
    OwnMetric(
        "kept_state_differences",
        "Watched objects and kept slots that differed from a list or query",
        is_counter=True,
    ),
    OwnMetric("last_run_duration_seconds", "Duration of the last cycle"),
    OwnMetric("last_run_timestamp_seconds", "End of the last cycle, as a Unix time"),
    OwnMetric(
        "schedule_longest_interval_seconds",
        "Longest time between the starts of two scheduled cycles",
    ),
    OwnMetric("last_success_timestamp_seconds", "End of the last successful cycle, as a Unix time"),
    OwnMetric(
        "config_last_reload_successful",
        "1 if flags and policy were valid in the last cycle, else 0",
    ),
    *_OF_BACKTEST,
)


class Metrics:
    """The metrics of one process, and the registry that is scraped; `acts` is whether it makes changes."""

    def __init__(self, *, acts: bool) -> None:
        self.registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        for row in METRICS:
            name = PREFIX + row.name
            if row.is_counter:
                self._counters[row.name] = Counter(name, row.words, row.labels, registry=self.registry)
            else:
                self._gauges[row.name] = Gauge(name, row.words, row.labels, registry=self.registry)
        self._stood: tuple[datetime.datetime, dict[str, float]] | None = None
        self._gauges["build_info"].labels(importlib.metadata.version("gpu-rightsizer")).set(1)
        # A counter whose first value is 1 has not increased, as Prometheus sees it: these are asked about by alerts.
        for result in _RUN:
            self._counters["runs"].labels(result)
        for action in ReconcileAction:
            self._counters["reconciliations"].labels(action.value, Result.DONE.value)
        self.set("enforcing", acts)

    def set(self, name: str, value: float) -> None:
        """Set a gauge that has no labels."""
        self._gauges[name].set(value)

    def observe(self, plan: Plan, accounts: CostSummary, left: Iterable[Left], *, currency: str) -> None:
        """Publish a plan, its prices in this currency, and the rest of the budgets."""
        for row in METRICS:
            if row.labels and not row.is_counter and row.name not in _NOT_OF_A_PLAN:
                self._gauges[row.name].clear()
        for decision in plan.decisions:
            name = decision.workload.priority_class or NO_CLASS
            labels = (decision.verdict.value, decision.finding.name.value, name)
            self._gauges["workloads"].labels(*labels).inc()
            self._gauges["gpus"].labels(*labels).inc(decision.workload.gpus)
            for block in decision.blockers:
                self._gauges["blocked_workloads"].labels(block.code.value).inc()
        for name, account in accounts.by_class.items():
            self._gauges["held_whole_gpus"].labels(name).set(account.gpus)
            self._gauges["held_cost_per_hour"].labels(name, currency).set(account.cost_per_hour)
            self._gauges["reclaimable_gpus"].labels(name).set(account.reclaimable)
            self._gauges["enforced_gpus"].labels(name).set(account.enforced)
            self._gauges["wasted_cost_per_hour"].labels(name, currency).set(account.wasted_per_hour)
        self._count_waiting(plan)
        if plan.measured is not None:
            self._gauges["ignored_series"].set(plan.measured.ignored.series)
        held = sum(decision.workload.gpus for decision in plan.decisions)
        undecided = (decision for decision in plan.decisions if decision.verdict is Verdict.UNKNOWN)
        unknown = sum(decision.workload.gpus for decision in undecided)
        self._gauges["evidence_coverage_ratio"].set(1.0 - unknown / held if held else 1.0)
        for budget in left:
            labels = (budget.scope.value, budget.per.value, budget.unit)
            self._gauges["budget_remaining"].labels(*labels).set(budget.amount)
        self._count_freed(plan, accounts.by_class)

    def _count_waiting(self, plan: Plan) -> None:
        """GPUs of waiting pods; 0 for a class that holds GPUs and has none waiting."""
        names = {decision.workload.priority_class or NO_CLASS for decision in plan.decisions}
        waiting = dict.fromkeys(names, 0)
        for pod in plan.fleet.waiting if plan.fleet else ():
            name = pod.priority_class or NO_CLASS
            waiting[name] = waiting.get(name, 0) + sum(pod.resources.values()) * pod.is_created
        for name, gpus in waiting.items():
            self._gauges["waiting_gpus"].labels(name).set(gpus)

    def _count_freed(self, plan: Plan, classes: Iterable[str]) -> None:
        """The GPUs that changes in effect keep free, and for how long since the last plan."""
        now: dict[str, float] = dict.fromkeys(classes, 0.0)
        if plan.fleet is not None:
            for change in plan.fleet.changes:
                if change.is_in_effect:
                    name = _class_of(change, plan.fleet)
                    now[name] = now.get(name, 0.0) + change.record.gpus
        at, before = self._stood or (plan.at, now)
        for name, gpus in now.items():
            stood = max((plan.at - at).total_seconds(), 0.0) * min(before.get(name, 0.0), gpus)
            self._counters["freed_gpu_seconds"].labels(name).inc(stood)
            self._gauges["freed_gpus"].labels(name).set(gpus)
        self._stood = (plan.at, now)

    def breaker(self, cause: BlockerCode | None, *, is_known: bool = True) -> None:
        """Publish the cause for which the breaker is open, if any; nothing if that is unknown."""
        self._gauges["breaker_open"].clear()
        for code in OPENS_BREAKER if is_known else ():
            self._gauges["breaker_open"].labels(code.value).set(code is cause)

    def backtested(self, last: LastBacktest | None) -> None:
        """Publish the figures of the last backtest; none if they are unknown."""
        for row in _OF_BACKTEST:
            self._gauges[row.name].clear()
        if last is None:
            return
        for policy in last.policies:
            values = {
                "backtest_freed_gpus": policy.freed_gpu_hours / last.replayed_hours,
                "backtest_saved_cost_per_hour": None
                if policy.saved is None
                else policy.saved / last.replayed_hours,
                "backtest_stops": policy.stops,
                "backtest_returned_stops": policy.returned,
                "backtest_replayed_seconds": last.replayed_hours * _HOUR_S,
                "backtest_timestamp_seconds": last.at.timestamp(),
            }
            for name, value in values.items():
                if value is not None:
                    self._gauges[name].labels(policy.name).set(value)

    def acted(self, outcome: Outcome, priority_class: str) -> None:
        """Count the outcome of a change or of a reconciliation; once it is verified, the GPUs that it freed."""
        name = priority_class or NO_CLASS
        if outcome.is_reconciliation:
            self._counters["reconciliations"].labels(outcome.action, outcome.result.value).inc()
        elif outcome.effect is None or outcome.result is Result.NO_EFFECT:
            self._counters["actions"].labels(outcome.action, outcome.result.value, name).inc()
        elif is_verified(outcome) and outcome.action != Action.SCALE_UP:
            self._counters["actions_freed_gpus"].labels(outcome.action, name).inc(outcome.gpus)

    def asked(self, answer: str) -> None:
        """Count a question of kube-scheduler about victims."""
        self._counters["scheduler_questions"].labels(answer).inc()

    def named(self, finding: str, priority_class: str, pods: int) -> None:
        """Count pods that were named to it."""
        self._counters["scheduler_victims"].labels(finding, priority_class or NO_CLASS).inc(pods)

    def skipped(self) -> None:
        """Count a cycle that was due while another was running."""
        self._counters["skipped_cycles"].inc()

    def differed(self, number: int) -> None:
        """Count what was kept and differed from a list or a query."""
        self._counters["kept_state_differences"].inc(number)

    def ended(self, *, is_good: bool, took_s: float, at_s: float) -> None:
        """Count a cycle that took `took_s` and ended at `at_s`, Unix time."""
        self._counters["runs"].labels(_RUN[not is_good]).inc()
        self._gauges["last_run_duration_seconds"].set(took_s)
        self._gauges["last_run_timestamp_seconds"].set(at_s)
        if is_good:
            self._gauges["last_success_timestamp_seconds"].set(at_s)


def _class_of(change: FoundChange, fleet: Fleet) -> str:
    """The class in its record, which anyone may edit: unknown if the cluster has no such class."""
    name = change.record.priority_class
    if not name:
        return UNKNOWN_CLASS if name is None else NO_CLASS
    return name if name in fleet.classes else UNKNOWN_CLASS
