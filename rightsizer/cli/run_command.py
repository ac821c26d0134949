"""`gpu-rightsizer run`: plan on a schedule, with --yes apply, publish metrics, until SIGTERM."""

import contextlib
import dataclasses
import datetime
import gc
import logging
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from rightsizer.cli import state_file
from rightsizer.cli.connection import cluster_settings, span_of
from rightsizer.cli.crontab import Crontab, parse_schedule
from rightsizer.cli.cycle import ActingCycle, lease_of, run_context_of
from rightsizer.cli.flags import RunOptions
from rightsizer.cli.http_endpoint import serving
from rightsizer.cli.ledger_parts import CycleRecorder
from rightsizer.cli.messages import log_work
from rightsizer.cli.options import ScheduleOptions
from rightsizer.cli.pending_watch import PendingWatch
from rightsizer.cli.plan_session import KeptState, PlanSession
from rightsizer.cli.scheduler import MissedTicks, Soon, keep_running, longest_wait, trigger_of, zone_of
from rightsizer.config import InvalidDurationError, parse_duration
from rightsizer.errors import ClusterError, ConfigurationError, RightsizerError, UsageError
from rightsizer.evidence.slot_table import KeptTables
from rightsizer.execute.executor import NOT_MADE
from rightsizer.execute.reconcile import Reconciliation
from rightsizer.execute.run_context import Deadline, RunContext
from rightsizer.inventory.cluster_reader import KEPT
from rightsizer.inventory.demand_kinds import DEMAND_KINDS
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.kept_objects import VERIFIED_EVERY, KeptObjects
from rightsizer.kube.last_backtest import LastBacktestStore
from rightsizer.kube.lease import LeaderElector, Lease
from rightsizer.model import BlockerCode, Decision, ObjectRef, Outcome, Plan, Result
from rightsizer.planning.breaker import NOTHING
from rightsizer.planning.budget import Purse
from rightsizer.planning.cost_summary import cost_summary_of
from rightsizer.policy.policy_file import BUILT_IN
from rightsizer.prices import Prices
from rightsizer.report.metrics import Metrics
from rightsizer.report.outcomes import cycle_words
from rightsizer.text import count, span

log = logging.getLogger(__name__)
report = logging.getLogger("gpu-rightsizer")

ENDING = (signal.SIGINT, signal.SIGTERM)
_SHOWN = 300
_LEAST = datetime.timedelta(seconds=1)
"""More often than that no cycle is begun: even the smallest takes longer."""
_HUNG_S = 3600.0
"""A longer cycle hangs: a plan of 100,000 GPUs takes minutes."""
_SETTLE_S = 1.0
"""Pods of one workload become unschedulable one after another."""
_DEMAND_PAUSE_S = 5.0
"""Between the starts of two cycles that pending pods begin; twice as long after each that failed or served nobody."""
_LONGEST_PAUSE_S = 60.0
_REFUSED_S = 900.0
"""Time in seconds in which others go for pending pods before a workload whose change could not be made."""


def run(arguments: RunOptions) -> int:
    """Check all settings once, then run until SIGTERM."""
    log_work(sys.stdout, as_json=arguments.log_format == "json")
    schedule, zone, jitter = when(arguments)
    page = arguments.ledger_parts.page(arguments.ledger, is_shown=arguments.serve_report)
    session = PlanSession(arguments)  # reports invalid settings at start, not at the first cycle
    recorder = arguments.ledger_parts.recorder(arguments, session.cluster.name)
    session.close()
    metrics = Metrics(acts=arguments.yes)
    metrics.set("schedule_longest_interval_seconds", longest_wait(schedule, jitter=jitter).total_seconds())
    lease = lease_of(arguments, secrets.token_hex(4)) if arguments.yes else None
    ticks = MissedTicks(lease, time.monotonic, jitter.total_seconds() if jitter else 0.0) if lease else None

    def connect() -> Cluster:
        return Cluster(cluster_settings(arguments))

    every = 1 if arguments.verify_state else VERIFIED_EVERY
    watches = arguments.yes and not arguments.no_watch
    objects = KeptObjects(KEPT, connect, metrics.differed, verified_every=every) if watches else None

    def compared(rows: int, differing: int) -> None:
        metrics.differed(differing)
        if differing:
            log.error("%s of kept slots differed from a query of the whole day", count(differing, "row"))
        else:
            log.info("kept slots of %s are as in a query of the whole day", count(rows, "row"))

    def full() -> None:
        log.info("too many pods come and go for slots to be kept; whole windows are queried")

    tables = KeptTables(compared, full, verified_every=every)
    if arguments.state_file:
        with contextlib.closing(connect()) as cluster:
            state_file.restore(tables, arguments.state_file, cluster)
    kept = KeptState(objects, tables, {})
    cycles = _Cycles(arguments, metrics, lease, ticks, recorder, kept)
    with signals_held(), contextlib.ExitStack() as stack:
        served = serving(
            arguments.listen,
            metrics.registry,
            alive=lambda: cycles.hung,
            ready=lambda: cycles.wrong,
            report=page,
        )
        port = stack.enter_context(served)
        mode = "changes are made" if lease else "only planning: --yes lets it act"
        report.info("metrics on port %d; %s", port, mode)
        if lease is not None:
            stack.enter_context(LeaderElector(lease, is_optional=True, on_held=cycles.make_up))
            for row in DEMAND_KINDS:
                if row.is_watched:
                    stack.enter_context(PendingWatch(connect, cycles.wake, row, lambda: cycles.gates))
            if objects is not None:
                stack.enter_context(objects)
        trigger = trigger_of(schedule, zone, jitter=jitter)
        until, begun, skipped = cycles.until_told_to_end, cycles.may_begin, cycles.skip
        keep_running(cycles.one, trigger, until=until, begun=begun, skipped=skipped)
    report.info("ended")
    return 0


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Before any thread begins: a signal handler that sets an event can deadlock."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def when(
    arguments: ScheduleOptions,
) -> tuple[Crontab | datetime.timedelta, datetime.tzinfo, datetime.timedelta | None]:
    """The schedule as the flags have it.

    Raises:
        UsageError: One of them is invalid.
    """
    if arguments.schedule and arguments.every:
        raise UsageError("run takes --schedule or --every, not both")
    flag = "--schedule" if arguments.schedule else "--every"
    text = arguments.schedule or f"@every {arguments.every or '15m'}"
    schedule = _read(flag, text, parse_schedule)
    if isinstance(schedule, datetime.timedelta) and schedule < _LEAST:
        raise UsageError(
            f'{flag} "{text.removeprefix("@every ")}": a cycle asks the whole cluster; write 1s or more'
        )
    return (
        schedule,
        _read("--time-zone", arguments.time_zone, zone_of),
        _read("--jitter", arguments.jitter, parse_duration) if arguments.jitter else None,
    )


_T = TypeVar("_T")


def _read(flag: str, text: str, read: Callable[[str], _T]) -> _T:
    try:
        return read(text)
    except InvalidDurationError as error:
        raise UsageError(f'{flag} "{text.removeprefix("@every ")}": {error.problem}') from error
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error


class _Cycles:
    """One cycle after another, all in one thread; each reads all files again.

    Without writes, `lease` and `ticks` are None. `wrong` says why the last cycle failed; it is empty after a success.
    """

    def __init__(
        self,
        arguments: RunOptions,
        metrics: Metrics,
        lease: Lease | None,
        ticks: MissedTicks | None,
        recorder: CycleRecorder | None,
        kept: KeptState,
    ) -> None:
        self._arguments = arguments
        self._metrics = metrics
        self._lease = lease
        self._ticks = ticks
        self._recorder = recorder
        self._kept = kept
        self._soon: Soon | None = None
        self._is_asked = False
        self._end = threading.Event()
        self._verify_s = span_of("--verify-for", arguments.verify_for).total_seconds()
        self._began: float | None = None
        self._sizes_ended = False
        self._skipped = 0
        self._lends = False
        self._is_short = self._leaves_room = False
        self._run_began: datetime.datetime | None = None  # of the run that the next cycle goes on with
        self._next_why = ""  # of the cycle that begins soon, between those of the schedule
        self._woken_at = -_DEMAND_PAUSE_S
        self._pause_s = _DEMAND_PAUSE_S
        self._serves = False
        self._refused: dict[ObjectRef, float] = {}  # when a change of it could not be made
        self._policy = BUILT_IN.policy
        self._classes: Mapping[ObjectRef, str] = {}
        self._on_demand: Collection[ObjectRef] = ()
        self.outcomes: list[Outcome] = []  # of the last cycle
        self.gates: Collection[str] = ()
        self.wrong = "no cycle has ended yet"

    @property
    def hung(self) -> str:
        """Why the process is not alive: a cycle does not end."""
        began = self._began
        took = time.monotonic() - began if began is not None else 0.0
        return f"a cycle has run for {took:.0f} s" if took > _HUNG_S else ""

    def until_told_to_end(self) -> None:
        """Wait for SIGTERM or Ctrl-C; a second one ends the process at once."""
        signal.sigwait(ENDING)
        report.info("ending after the change in flight; once more to end at once")
        self._end.set()
        for number in ENDING:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)

    def may_begin(self, soon: Soon) -> None:
        """From now on a missed cycle can run."""
        self._soon = soon

    def make_up(self) -> None:
        """Begin the cycle that was missed while another replica held the Lease, unless one completed since."""
        if self._soon and self._ticks and self._ticks.is_due and not self._is_asked:
            self._is_asked = True
            self._soon(self._late, 0.0)

    def _late(self) -> None:
        self._is_asked = False
        if self._ticks and self._ticks.take():
            report.info(
                "became leader, and no cycle completed since the last tick: the missed cycle runs now"
            )
            self._run(acts=True)

    def one(self) -> None:
        """Plan, and act if this replica leads; an error never ends the schedule."""
        self._run(acts=self._ticks is not None and self._ticks.tick())

    def wake(self) -> None:
        """Begin a cycle soon for what waits for GPUs, if the last plan had changes that wait for that."""
        if self._lends:
            self._begin_soon("a pod waits for GPUs")

    def _begin_soon(self, why: str) -> None:
        if self._soon and not self._next_why:
            self._next_why = why
            self._soon(self._sooner, max(_SETTLE_S, self._woken_at + self._pause_s - time.monotonic()))

    def _sooner(self) -> None:
        why, self._next_why, self._woken_at = self._next_why, "", time.monotonic()
        if self._lease is not None and self._lease.is_held:
            report.info("%s: a cycle begins", why)
            self._serves = False
            self._run(acts=True)
            self._pause_s = _DEMAND_PAUSE_S if self._serves else min(2 * self._pause_s, _LONGEST_PAUSE_S)
            if self.wrong:
                self.wake()

    def skip(self) -> None:
        """Count a cycle that is due while another is running."""
        self._skipped += 1
        self._metrics.skipped()

    def _run(self, *, acts: bool) -> None:
        self._began = time.monotonic()
        try:
            self._cycle(acts=acts)
            self.wrong = ""
            if acts and self._lease is not None:
                self._lease.record_cycle()
        except RightsizerError as error:
            self.wrong = str(error)
        except Exception as error:
            log.debug("traceback", exc_info=True)
            self.wrong = f"internal error: {type(error).__name__}: {error}"
        if self.wrong:
            report.error("nothing was done: %s", self.wrong)
        took_s, self._began = time.monotonic() - self._began, None
        if skipped := self._skipped:
            self._skipped = 0
            report.warning("the cycle took %s: %s skipped meanwhile", span(took_s), count(skipped, "cycle"))
        self._metrics.ended(is_good=not self.wrong, took_s=took_s, at_s=time.time())
        gc.collect()  # what refers to itself would be kept for hundreds of cycles

    def _cycle(self, *, acts: bool) -> None:
        try:
            now = time.monotonic()
            self._refused = {one: at for one, at in self._refused.items() if now - at < _REFUSED_S}
            kept = dataclasses.replace(self._kept, began=self._run_began, refused=frozenset(self._refused))
            self._run_began = None
            session = PlanSession(self._arguments, kept=kept)
        except (ConfigurationError, UsageError):
            self._metrics.set("config_last_reload_successful", 0)
            raise
        self._metrics.set("config_last_reload_successful", 1)
        session.prometheus.ending = self._end
        self._policy = session.policy.policy
        self.gates = self._policy.queues.gates
        with contextlib.closing(session), contextlib.ExitStack() as stack:
            stack.callback(self._save, session.cluster)
            stack.callback(self._publish_breaker, session)
            stack.callback(self._publish_backtest, session)
            if self._lease is not None and acts:
                self._metrics.set("leader", 1)
                session.cluster.before_writing = self._lease.require_held
                self._act(session, run_context_of(session))
                return
            plan = session.observe()
            prices = session.prices(plan.at)
            self._publish(plan, prices)
            if self._lease is not None:  # who does not lead records nothing
                self._metrics.set("leader", 0)
                report.info("nothing is changed: %s holds the Lease", self._lease.holder or "nobody")
            elif self._recorder is not None:
                self._recorder.plan(plan, prices)

    def _save(self, cluster: Cluster) -> None:
        """Save the slots that were read, also by a cycle that failed later."""
        if self._arguments.state_file and self._kept.tables is not None:
            state_file.save(self._kept.tables, self._arguments.state_file, cluster)

    def _publish(self, plan: Plan, prices: Prices) -> None:
        blocks = {block.code for one in plan.decisions for block in one.blockers}
        self._lends = BlockerCode.ONLY_FOR_PENDING_PODS in blocks
        self._is_short = BlockerCode.BUDGET in blocks
        self._serves = any(one.wanted_by for one in plan.enforced)
        left = Purse(self._policy, plan.fleet, plan.at).left() if plan.fleet else ()
        self._metrics.observe(plan, cost_summary_of(plan, prices), left, currency=prices.currency)
        report.info("%s", cycle_words(plan))

    def _publish_breaker(self, session: PlanSession) -> None:
        """Publish whether the breaker is open, also after a failed cycle."""
        try:
            state, problems = session.state()
        except ClusterError:
            state, problems = NOTHING, ("not known",)
        trip = state.latch.trip
        if trip:
            words = "the breaker is open (%s), nothing is changed: %s"
            report.warning(words, trip.cause, trip.reason[:_SHOWN])
        self._metrics.breaker(trip.cause if trip else None, is_known=not problems)

    def _publish_backtest(self, session: PlanSession) -> None:
        """Publish the figures of the last backtest, also after a failed cycle."""
        store = LastBacktestStore(session.cluster, session.own)
        try:
            last = store.read()
        except (ClusterError, ValueError) as error:
            log.warning("%s: the last backtest is unknown: %s", store.place, error)
            last = None
        self._metrics.backtested(last)

    def _act(self, session: PlanSession, context: RunContext) -> None:
        """Reconcile, plan, carry out, verify."""
        began, self.outcomes = session.clock(), []
        cycle = ActingCycle(session, context, self, self._recorder, sizes_ended=self._sizes_ended)
        self._sizes_ended = cycle.run()
        if self._leaves_room:
            self._begin_soon("a refused change leaves room in budgets")
        if self._next_why and not NOT_MADE.isdisjoint(one.result for one in self.outcomes):
            self._run_began = session.began or began

    # --- who reads log and metrics is shown a cycle, and not asked

    def agrees(self, rollbacks: Sequence[Reconciliation]) -> bool:  # noqa: ARG002 - whatever they are
        """Yes: --yes was given."""
        return True

    def reconciled(self, outcomes: Iterable[Outcome]) -> None:
        """Count each; a process that is to end begins no other."""
        for outcome in outcomes:
            self._count(outcome)
            if self._end.is_set():
                raise RightsizerError("stopped while earlier changes were reconciled")

    def chosen(self, plan: Plan, prices: Prices) -> Sequence[Decision]:
        """All that rules enforce."""
        self._publish(plan, prices)
        self._classes = {one.workload.ref: one.workload.priority_class for one in plan.decisions}
        self._on_demand = {one.workload.ref for one in plan.decisions if one.wanted_by}
        return plan.enforced

    def changed(self, steps: Callable[[Deadline], Iterator[Outcome]], pending: list[Outcome]) -> None:  # noqa: ARG002 - the log ends where the process does
        """Count each; after a refusal the next plan chooses others in its place, as soon as all changes are made."""
        self._serves = self._leaves_room = False
        ends = self._end
        deadline = Deadline(
            self._verify_s, time.monotonic, ends.wait, ends.is_set, lambda: bool(self._next_why)
        )
        for outcome in steps(deadline):
            self._count(outcome, self._classes.get(outcome.ref, ""))
            self._note(outcome)

    def _count(self, outcome: Outcome, priority_class: str = "") -> None:
        self.outcomes.append(outcome)
        self._metrics.acted(outcome, priority_class)

    def _note(self, outcome: Outcome) -> None:
        """Note what a refusal leaves to others."""
        is_new, is_on_demand = outcome.ref not in self._refused, outcome.ref in self._on_demand
        if outcome.result in {*NOT_MADE, Result.REFUSED}:
            self._refused[outcome.ref] = time.monotonic()
        elif outcome.result is not Result.DONE:
            return
        if is_on_demand:
            self._serves |= is_new or outcome.result is Result.DONE
        if outcome.result not in NOT_MADE:
            return  # after an error the schedule is soon enough
        if is_on_demand:
            self.wake()
        else:
            self._leaves_room |= is_new and self._is_short
