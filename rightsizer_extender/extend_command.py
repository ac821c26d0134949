"""`gpu-rightsizer extend`: answer kube-scheduler's questions about victims from the last plan, until SIGTERM.

Each plan is made by a process of its own: it would keep questions waiting for Python's lock, and leave its memory.
"""

import contextlib
import dataclasses
import gc
import logging
import multiprocessing
import multiprocessing.connection
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable

from rightsizer.cli import prepare
from rightsizer.cli.connection import cluster_settings, gpu_resources
from rightsizer.cli.http_endpoint import serving
from rightsizer.cli.messages import log_to_stderr, log_work
from rightsizer.cli.plan_session import PlanSession, utc_now
from rightsizer.cli.run_command import ENDING, signals_held, when
from rightsizer.cli.scheduler import keep_running, longest_wait, trigger_of
from rightsizer.errors import ClusterError, RightsizerError, UsageError
from rightsizer.execute.control_state import ControlStateStore
from rightsizer.inventory.cluster_reader import resource_table
from rightsizer.kinds.core import POD
from rightsizer.kube.cluster import Cluster
from rightsizer.report.events import NAMED
from rightsizer.report.metrics import Metrics
from rightsizer.report.outcomes import cycle_words
from rightsizer.text import count, gpus
from rightsizer_extender import ExtendOptions
from rightsizer_extender.extender_endpoint import STALE, Extender
from rightsizer_extender.preemption import Preemptible, Preemptor, VictimChoice, candidates_of
from rightsizer_extender.preemption_state import PreemptionState
from rightsizer_extender.question_server import TlsFiles, answering
from rightsizer_extender.victim_charges import VictimCharges, parse_charges, read_charges

log = logging.getLogger(__name__)
report = logging.getLogger("gpu-rightsizer")

_CYCLES = 2
"""Number of cycles after which a plan answers for nobody."""
TURN_S = 0.0005
"""Switch interval of threads: a question must not wait for a watch."""
_FOLLOWED_S = 5.0
"""Seconds between two readings of breaker and pauses."""
_CHARGE_S = 1.0
"""Seconds after which a request that charges is given up: questions wait meanwhile."""


def run(arguments: ExtendOptions) -> int:
    """Check all settings once, then answer until SIGTERM."""
    log_work(sys.stdout, as_json=arguments.log_format == "json")
    schedule, zone, jitter = when(arguments)
    tls = _tls(arguments)
    session = PlanSession(arguments)  # reports invalid settings at start, not at the first cycle
    session.close()
    sys.setswitchinterval(TURN_S)
    metrics = Metrics(acts=False)
    interval_s = longest_wait(schedule, jitter=jitter).total_seconds()
    metrics.set("schedule_longest_interval_seconds", interval_s)

    def connect() -> Cluster:
        return Cluster(cluster_settings(arguments))

    def connect_to_charge() -> Cluster:
        return Cluster(dataclasses.replace(cluster_settings(arguments), timeout_s=_CHARGE_S))

    charges = VictimCharges(connect_to_charge, session.own, utc_now)
    state = PreemptionState(connect, resource_table(gpu_resources(arguments)), _CYCLES * interval_s, charges)
    plans = _Plans(arguments, metrics, state)
    with signals_held(), contextlib.ExitStack() as stack:
        extender = Extender(state, plans.told)
        ready = state.stale_reason
        port = stack.enter_context(serving(arguments.listen, metrics.registry, alive=str, ready=ready))
        asked = stack.enter_context(answering(arguments.extender_listen, extender.routes, tls))
        report.info("metrics on port %d; questions of kube-scheduler on port %d", port, asked)
        stack.enter_context(state)
        threading.Thread(target=plans.record, args=(connect,), name="events", daemon=True).start()
        followed = (state, connect, session.own)
        threading.Thread(target=_follow, args=followed, name="pauses", daemon=True).start()
        keep_running(plans.one, trigger_of(schedule, zone, jitter=jitter), until=plans.until_told_to_end)
    report.info("ended")
    return 0


def _follow(state: PreemptionState, connect: Callable[[], Cluster], own: str) -> None:
    """Read breaker and pauses every few seconds, for as long as the process runs; log each failure once."""
    known = ""
    while True:
        try:
            with contextlib.closing(connect()) as cluster:
                store = ControlStateStore(cluster, own)
                while True:
                    state.controlled(store.read())
                    known = ""
                    time.sleep(_FOLLOWED_S)
        except RightsizerError as error:
            state.controlled(None)
            if str(error) != known:
                log.warning("breaker and pauses cannot be read, so nobody is named: %s", error)
            known = str(error)
        except Exception:
            state.controlled(None)
            log.exception("breaker and pauses cannot be read: a bug in gpu-rightsizer")
        time.sleep(_FOLLOWED_S)


def _tls(arguments: ExtendOptions) -> TlsFiles | None:
    """The files of the flags.

    Raises:
        UsageError: One lacks another.
    """
    certificate, key, authority = arguments.tls_cert_file, arguments.tls_key_file, arguments.client_ca_file
    if not certificate and not key and not authority:
        return None
    if not certificate or not key:
        raise UsageError("--tls-cert-file and --tls-key-file need each other; --client-ca-file needs both")
    return TlsFiles(certificate, key, authority)


def settle() -> None:
    """Let the garbage collector leave out what is there for long: looking through it would keep questions waiting."""
    gc.collect()
    gc.freeze()


@dataclasses.dataclass(frozen=True, slots=True)
class _Planned:
    """Result of a plan in another process."""

    run: str
    candidates: tuple[Preemptible, ...]
    charged: str
    words: str


class _Plans:
    """One plan after another, and the record of what was named."""

    def __init__(self, arguments: ExtendOptions, metrics: Metrics, state: PreemptionState) -> None:
        self._arguments = arguments
        self._metrics = metrics
        self._state = state
        self._run = ""
        self._process: multiprocessing.process.BaseProcess | None = None
        self._to_record: queue.SimpleQueue[tuple[Preemptor, VictimChoice]] = queue.SimpleQueue()

    def one(self) -> None:
        """Plan; an error never ends the schedule."""
        began = time.monotonic()
        found = self._planned_elsewhere()
        if isinstance(found, _Planned):
            self._run = found.run
            self._state.planned(found.candidates, began_at=began, run=found.run, charged=found.charged)
            pods = sum(len(unit.pods) for unit in found.candidates)
            report.info("%s; %s may be named to kube-scheduler", found.words, count(pods, "pod"))
            settle()
        else:
            report.error("the plan before stays in use, until it is too old: %s", found)
        is_good = isinstance(found, _Planned)
        self._metrics.ended(is_good=is_good, took_s=time.monotonic() - began, at_s=time.time())

    def _planned_elsewhere(self) -> _Planned | str:
        """Plan in a new process; returns its result, or why there is none."""
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_plan, args=(sender, self._arguments), daemon=True)
        with receiver:
            self._process = process
            process.start()
            sender.close()
            try:
                found: _Planned | str = receiver.recv()
            except EOFError:
                found = "the process that plans ended"
            process.join()
        return found

    def until_told_to_end(self) -> None:
        """Wait for SIGTERM or Ctrl-C, then end a plan in progress."""
        signal.sigwait(ENDING)
        if self._process is not None and self._process.is_alive():
            self._process.kill()

    def told(self, verb: str, preemptor: Preemptor, choice: VictimChoice | None) -> None:
        """Count an answer, and leave it to be recorded."""
        self._metrics.asked(choice.answer.value if choice else STALE)
        if choice is not None and choice.named:
            self._to_record.put((preemptor, choice))
        log.debug("%s for %s: %s", verb, preemptor, choice.answer if choice else STALE)

    def record(self, connect: Callable[[], Cluster]) -> None:
        """Record what was named, for as long as the process runs."""
        while True:
            preemptor, choice = self._to_record.get()
            for unit in choice.named:
                try:
                    with contextlib.closing(connect()) as cluster:
                        self._record(unit, preemptor, cluster)
                except RightsizerError as error:
                    log.warning("no Event on %s: %s", unit.decision.workload.ref, error)
                except Exception:
                    log.exception("no Event on %s: a bug in gpu-rightsizer", unit.decision.workload.ref)

    def _record(self, unit: Preemptible, preemptor: Preemptor, cluster: Cluster) -> None:
        decision = unit.decision
        workload, finding, at = decision.workload, decision.finding, utc_now()
        names = ", ".join(pod.ref.name for pod in unit.pods)
        back = "undo recreates it" if workload.ref.kind == POD.kind else "its controller creates pods again"
        held_gpus = sum(pod.gpus for pod in unit.pods)
        why = f"({finding.name}; rule {decision.rule}): {'; '.join(finding.words)}"
        what = f"{names} ({gpus(held_gpus)}) for {preemptor}, instead of busy pods; {back} {why}"
        self._metrics.named(finding.name.value, workload.priority_class, len(unit.pods))
        report.info("%s: named to kube-scheduler: %s", workload.ref, what)
        try:
            cluster.create(*NAMED.of(workload.ref, what, run=self._run, at=at))
        except ClusterError as error:
            log.warning("no Event on %s: %s", workload.ref, error)


def _plan(sender: multiprocessing.connection.Connection, arguments: ExtendOptions) -> None:
    """Plan in a process of its own, and send what came of it."""
    prepare()
    log_to_stderr(arguments.log_level, as_json=arguments.log_format == "json")
    try:
        with contextlib.closing(PlanSession(arguments)) as session:
            plan = session.observe()
            policy, own, instance = session.policy.policy, session.own, session.instance
            charged = read_charges(session.cluster, own)  # last: what is named later ends the naming
            named = parse_charges(charged).values()
            found = candidates_of(plan, policy, own=own, instance=instance, named=named)
            sender.send(_Planned(plan.run, found, charged, cycle_words(plan)))
    except RightsizerError as error:
        sender.send(str(error))
    except Exception as error:
        log.debug("traceback", exc_info=True)
        sender.send(f"internal error: {type(error).__name__}: {error}")
