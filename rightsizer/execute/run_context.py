"""Context that one run needs to act, and the signals that end it."""

import contextlib
import dataclasses
import datetime
import http
import logging
from collections.abc import Callable, Iterator, Mapping

import msgspec

from rightsizer.changes.memory import MemoryStore
from rightsizer.errors import ClusterError, ClusterUnreachable, RequestRefused
from rightsizer.execute.control_state import ActionGate
from rightsizer.execute.preflight import UseSincePlan
from rightsizer.kube.cluster import Cluster
from rightsizer.model import ChangeRecord, Decision, Fleet, ObjectRef, Outcome, Result
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.schema import Policy
from rightsizer.report.events import ChangeEvent
from rightsizer.text import tidy

_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 2.0
PAUSE_S = 120.0
"""Maximum time to wait until the pods of a suspended workload are gone: by default they get 30 s to terminate.
After that, the change is left to the next run."""


@dataclasses.dataclass(frozen=True, slots=True)
class Deadline:
    """Limit of a run's wait for the effect of its changes: `span_s`, less if it is stopped or has something to do."""

    span_s: float
    monotonic: Callable[[], float]
    sleep: Callable[[float], object]
    is_stopped: Callable[[], bool]
    is_wanted: Callable[[], bool] = lambda: False

    def rounds(self) -> Iterator[float]:
        """The seconds waited so far, before each check; the caller ends the loop."""
        began, wait_s = self.monotonic(), _FIRST_WAIT_S
        while True:
            yield self.monotonic() - began
            self.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class RunContext:
    """Context of every write of a run, also of reconciliations and verification.

    Attributes:
        state_namespace: The namespace of gpu-rightsizer, with the manifests of evicted pods.
        instance: Unique name of this gpu-rightsizer among those on the cluster.
        clock: The time now, aware, for records, Events and pauses; use is never judged by it.
        evicts: Whether the policy allows evictions, so that there may be manifests.
        bind_within: The policy's `demand.bindWithin`.
    """

    cluster: Cluster
    run: str
    state_namespace: str
    instance: str
    clock: Callable[[], datetime.datetime]
    evicts: bool
    bind_within: datetime.timedelta

    def publish(self, event: ChangeEvent, ref: ObjectRef, what: str, *, run: str) -> None:
        """Create an Event about the change of a run; a failure is only logged."""
        with log_cluster_error(f"no Event on {ref}"):
            self.cluster.create(*event.of(ref, what, run=run, at=self.clock()))


@dataclasses.dataclass(frozen=True, slots=True)
class ApplySession(RunContext):
    """Context of one run that acts.

    Attributes:
        watch: The fleet's use since the plan, by Prometheus's clock.
        gate: Breaker and pauses, which may block any write.
        memory: Recent changes, also of objects that were deleted or lost their annotations.
        rates: The price of a GPU of each workload for an hour in `currency`, where it is known.
        is_dry_run: Whether the server only tries changes; no write follows.
    """

    watch: UseSincePlan
    policy: Policy
    gate: ActionGate
    memory: MemoryStore
    rates: Mapping[ObjectRef, float]
    currency: str
    is_dry_run: bool = False

    def priced(self, record: ChangeRecord, decision: Decision) -> ChangeRecord:
        """The record of a decision with the price of its GPUs, if that is known."""
        rate = self.rates.get(decision.workload.ref)
        if rate is None:
            return record
        cost = round(record.gpus * rate, 4)
        return msgspec.structs.replace(record, cost_per_hour=cost, currency=self.currency)

    def outcome(self, decision: Decision, result: Result, detail: str) -> Outcome:
        """The outcome of a decision."""
        return Outcome(
            ref=decision.workload.ref,
            action=decision.action.value if decision.action else "",
            result=result,
            detail=detail,
            gpus=tidy(abs(decision.frees)),
            at=self.clock(),
        )

    def evaluator(self, fleet: Fleet, at: datetime.datetime) -> PolicyEvaluator:
        """The policy, applied to the cluster as it is now."""
        return PolicyEvaluator(self.policy, fleet, at=at, own=self.state_namespace, instance=self.instance)


class AbortRun(Exception):  # noqa: N818 - a signal, not an error
    """Prometheus or the API server throttles, rejects the credentials or is unreachable: nothing more is sent."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        self.outcome = outcome
        self.reason = reason
        super().__init__(reason)


class WriteResultUnknown(Exception):  # noqa: N818 - a signal, not an error
    """The request that makes a change was sent, and its result is unknown."""


@contextlib.contextmanager
def mutating_request() -> Iterator[None]:
    """Marks the one request that makes the change: only its lost answer leaves the result unknown."""
    try:
        yield
    except ClusterUnreachable as error:
        raise WriteResultUnknown(str(error)) from error
    except RequestRefused as refused:
        if _is_no_answer(refused):
            raise WriteResultUnknown(str(refused)) from refused
        raise


def _is_no_answer(refused: RequestRefused) -> bool:
    """Whether it is a time-out of a proxy, the API server or etcd: the change may still be made."""
    # 500 for two budgets over one pod is an answer, as is that for an object too large for etcd.
    is_answer = "PodDisruptionBudget" in refused.detail or refused.is_about_object
    return refused.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR and not is_answer


@contextlib.contextmanager
def log_cluster_error(what: str) -> Iterator[None]:
    """Log a failure that leaves the change in effect."""
    try:
        yield
    except ClusterError as error:
        log.warning("%s: %s", what, error)
