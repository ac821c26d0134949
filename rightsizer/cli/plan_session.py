"""What the commands share: connections, the plan, confirmation by a person, and interrupts."""

import dataclasses
import datetime
import functools
import http
import importlib.metadata
import logging
import pathlib
import secrets
import signal
import sys
import types
from collections.abc import Callable
from typing import Any, Self

from rightsizer import prices
from rightsizer.changes.memory import ChangeMemory, MemoryStore
from rightsizer.cli.connection import cluster_settings, instance_of, prometheus_settings, signal_terms
from rightsizer.cli.messages import note
from rightsizer.cli.options import AskingOptions, ClusterNameOptions, PolicyOptions, SessionOptions
from rightsizer.errors import EvidenceIncomplete, PrometheusError, RequestRefused, UsageError
from rightsizer.evidence.slot_table import KeptTables
from rightsizer.execute.control_state import ControlStateStore
from rightsizer.guardrails.rbac import Enabled
from rightsizer.inventory.cluster_reader import read_cluster
from rightsizer.inventory.objects_file import read_file
from rightsizer.inventory.workload_builder import ClusterState
from rightsizer.kinds import RECORDABLE_KINDS
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.kept_objects import KeptObjects
from rightsizer.model import ClusterName, Fleet, ObjectRef, Plan
from rightsizer.planning.breaker import NOTHING, State
from rightsizer.planning.cost_summary import CostSummary, cost_summary_of
from rightsizer.planning.plan import Cycle, make_plan
from rightsizer.policy.policy_file import BUILT_IN, LoadedPolicy, load
from rightsizer.policy.protections import OWN_NAMESPACE
from rightsizer.prices import Prices
from rightsizer.prometheus.discovery import connect
from rightsizer.prometheus.query_api import Prometheus
from rightsizer.text import safe_lines
from rightsizer.usage.optional_metrics import node_prices
from rightsizer.usage.querier import RecordedWindows
from rightsizer.usage.usage_source import PrometheusUsage

log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Look:
    """A past moment, or a file of Kubernetes objects, that a plan is about instead of the live cluster."""

    at: datetime.datetime | None = None
    objects: pathlib.Path | None = None

    @property
    def why(self) -> str:
        """Why such a plan cannot be applied; empty if it can."""
        reasons = []
        if self.at is not None:
            reasons.append(f"it is about a past moment, {_second(self.at)}")
        if self.objects is not None:
            reasons.append(f"its objects are from the file {self.objects}")
        return "; ".join(reasons)


NOW = Look()


def _second(at: datetime.datetime) -> str:
    """A moment in words, to the second."""
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"


@dataclasses.dataclass(frozen=True, slots=True)
class KeptState:
    """What a process keeps from one plan for the next; None where it asks for everything.

    Attributes:
        began: As a Cycle's, and so is `refused`.
    """

    objects: KeptObjects | None = None
    tables: KeptTables | None = None
    recorded: RecordedWindows | None = None
    began: datetime.datetime | None = None
    refused: frozenset[ObjectRef] = frozenset()


NO_STATE = KeptState()


class PlanSession:
    """The connections and the policy of one command; `machine` is the local clock, aware, `kept` of earlier plans.

    Raises:
        UsageError, ConfigurationError: Invalid flags or files, before any request. Without --prometheus-url it lists
            the cluster's services.
    """

    def __init__(
        self,
        arguments: SessionOptions,
        look: Look = NOW,
        *,
        machine: Callable[[], datetime.datetime] | None = None,
        kept: KeptState = NO_STATE,
    ) -> None:
        self._kept = kept
        self._machine = machine or utc_now
        self._ahead: datetime.timedelta | None = None
        self.fleet: Fleet | None = None
        settings = prometheus_settings(arguments)
        self.policy = policy_of(arguments)
        self._labels = settings.labels
        self.own = arguments.state_namespace or OWN_NAMESPACE
        self.instance = instance_of(arguments) or self.own
        self._cluster_name = arguments.cluster_name if isinstance(arguments, ClusterNameOptions) else None
        self._prices = prices.load(arguments.prices)
        self._terms = signal_terms(arguments, settings.labels)
        self._settings = cluster_settings(arguments)
        self._look = look
        if look.objects is None:
            _ = self.cluster  # report an invalid kubeconfig before any request
        self.prometheus = Prometheus(settings) if settings.url else connect(settings, self.cluster)
        if settings.url is None:
            note(f"no --prometheus-url; found {self.prometheus.where}")
        self.signal = PrometheusUsage(self.prometheus, self._terms, kept.tables, kept.recorded)
        self.run, self.began = new_run(self._machine()), kept.began

    @functools.cached_property
    def evicts(self) -> bool:
        """Whether the policy lets pods be evicted."""
        return Enabled(self.policy.policy).evicts

    @functools.cached_property
    def cluster_name(self) -> str:
        """What messages call the cluster."""
        return self._cluster_name or self.cluster.name.words

    @functools.cached_property
    def store(self) -> ControlStateStore:
        """The store of breaker, pauses and accepted scope."""
        return ControlStateStore(self.cluster, self.own)

    @functools.cached_property
    def memory(self) -> MemoryStore:
        """The store of recent changes."""
        return MemoryStore(self.cluster, self.own)

    @functools.cached_property
    def cluster(self) -> Cluster:
        """The API server; created on first use, since a plan of a file needs no kubeconfig."""
        return Cluster(self._settings)

    def observe(self) -> Plan:
        """A plan as of now, by Prometheus's clock, or of a past moment or a file.

        Raises:
            UsageError: The moment is in the future.
        """
        now = self._ask_the_time()
        at = self._look.at or now
        if at > now:
            raise UsageError(
                f'--at "{_second(at)}": that is yet to come: Prometheus\'s clock says {_second(now)}'
            )
        state, problems = (NOTHING, ()) if self._look.why else self.state()
        remembered, unknown = (None, ()) if self._look.why else self._remembered()
        cycle = Cycle(
            self.policy,
            at,
            self.run,
            own=self.own,
            instance=self.instance,
            version=program_version(),
            hypothetical=self._look.why,
            state=state,
            problems=(*problems, *unknown),
            remembered=remembered,
            began=self.began,
            refused=self._kept.refused,
            cluster=self.cluster.name if self._look.objects is None else None,
        )
        try:
            plan = make_plan(self._objects(), self.signal, cycle)
        except EvidenceIncomplete as error:
            if self._look.at is None:
                raise
            raise EvidenceIncomplete(
                f'--at "{_second(at)}": {self._when_it_begins(at, now) or error}'
            ) from error
        self.fleet = plan.fleet
        return plan

    def observe_to_act(self) -> Plan:
        """A plan by which something may be changed: one that would is made again, and all evidence asked for.

        What earlier plans read may lack samples that came late. If it would have changed more, it is forgotten.
        """
        tables = self._kept.tables or None  # of earlier plans; this one keeps some, too
        plan = self.observe()
        if not plan.enforced or tables is None:
            return plan
        log.info("something would be changed: all evidence is asked for again")
        self.signal = PrometheusUsage(self.prometheus, self._terms)
        whole = self.observe()
        if {one.workload.ref for one in plan.enforced} - {one.workload.ref for one in whole.enforced}:
            log.warning("kept evidence would have changed more than all evidence does; it is forgotten")
            tables.forget()
        return whole

    def clock(self) -> datetime.datetime:
        """The time by Prometheus's clock, or by the local one if Prometheus cannot be read.

        Plans use Prometheus's clock, so records for later plans must use it as well.
        """
        if self._ahead is None:
            try:
                self._ask_the_time()
            except PrometheusError as error:
                log.warning("the time is this machine's, not Prometheus's: %s", error)
        return self._machine() + (self._ahead or datetime.timedelta())

    def _ask_the_time(self) -> datetime.datetime:
        now = self.prometheus.now()
        self._ahead = now - self._machine()
        return now

    def _objects(self) -> ClusterState:
        queues = self.policy.policy.queues
        if self._look.objects is None:
            # Without evictions there are no saved manifests, so no right to list Secrets is needed.
            state_namespace = self.own if self.evicts else ""
            return read_cluster(
                self.cluster,
                RECORDABLE_KINDS,
                state_namespace=state_namespace,
                kept=self._kept.objects,
                queues=queues,
            )
        return read_file(self._look.objects, RECORDABLE_KINDS, self._settings.gpu_resources, queues)

    def state(self) -> tuple[State, tuple[str, ...]]:
        """Breaker, pauses and scope, and why they are unknown; the plan is made without them."""
        try:
            return self.store.read(), ()
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.FORBIDDEN:
                raise
            return NOTHING, (f"whether it is paused is not known: {refused}",)

    def _remembered(self) -> tuple[ChangeMemory | None, tuple[str, ...]]:
        """Recent changes, and why they are unknown beyond the records on objects."""
        try:
            return self.memory.read(), ()
        except RequestRefused as refused:
            if refused.code != http.HTTPStatus.FORBIDDEN:
                raise
            words = "what was changed lately is not known where objects do not tell of it"
            return None, (f"{words}: {refused}",)

    def _when_it_begins(self, at: datetime.datetime, now: datetime.datetime) -> str:
        """Says that the record begins after that moment; empty if it does not."""
        try:
            begins = self.signal.begins(now - at, now)
        except PrometheusError:
            return ""
        return f"Prometheus's record of GPUs begins later, {_second(begins)}" if begins else ""

    def close(self) -> None:
        """Close the connections."""
        if "cluster" in self.__dict__:
            self.cluster.close()

    def with_profiles(self, plan: Plan) -> Plan:
        """The plan with the activity lines of the HTML report."""
        measured = plan.measured
        if measured is None or not measured.usages:
            return plan
        window = max(measured.usages)
        workloads = plan.fleet.workloads if plan.fleet else ()
        pods = [pod for workload in workloads for pod in workload.pods]
        shared = {(pod.ref.namespace, pod.ref.name) for pod in pods if pod.is_shared}
        profiles = self.signal.profiles(window, plan.at, usages=measured.usages[window], shared=shared)
        return dataclasses.replace(plan, measured=dataclasses.replace(measured, profiles=profiles))

    def account(self, plan: Plan) -> tuple[CostSummary, Prices]:
        """The plan's totals and their prices."""
        prices = self.prices(plan.at)
        return cost_summary_of(plan, prices), prices

    def prices(self, at: datetime.datetime) -> Prices:
        """OpenCost's if Prometheus has them, otherwise those of the price table."""
        try:
            nodes = node_prices(self.prometheus, at, self._labels)
        except PrometheusError as error:
            log.warning("prices of nodes: %s; the price table holds for all", error)
            nodes = {}
        return dataclasses.replace(self._prices, nodes=nodes)


class Interrupts:
    """While entered, Ctrl-C and SIGTERM let the write in flight complete; a second one raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.happened = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        """Install the handlers."""
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        """Restore the handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: types.FrameType | None) -> None:  # noqa: ARG002 - Python's signature
        if self.happened:
            raise KeyboardInterrupt
        self.happened = True
        note("stopping after the change in flight; once more to stop at once")


def utc_now() -> datetime.datetime:
    """The wall clock."""
    return datetime.datetime.now(datetime.UTC)


def program_version() -> str:
    """The version of the installed program."""
    return importlib.metadata.version("gpu-rightsizer")


def new_run(at: datetime.datetime) -> str:
    """A unique id of a run that begins now."""
    return f"{at:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}"


def policy_of(arguments: PolicyOptions) -> LoadedPolicy:
    """The policy file, or without one the built-in policy."""
    return load(arguments.policy) if arguments.policy else BUILT_IN


def require_answer(arguments: AskingOptions) -> None:
    """Refuse early, with a UsageError, if there is neither a terminal nor --yes."""
    if not arguments.yes and not sys.stdin.isatty():
        raise UsageError(
            f"{arguments.command} asks before it changes anything, but there is no terminal; for scripts: --yes"
        )


def confirmed(arguments: AskingOptions, cluster: ClusterName, question: str) -> bool:
    """Whether the person agrees; anything but yes is no."""
    if arguments.yes:
        return True
    sys.stderr.write(safe_lines(f"Cluster: {cluster.words}\n{question} [y/N] "))
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in {"y", "yes"}
