"""What one run needs to act, and the signals by which its parts end each other."""

import contextlib
import dataclasses
import datetime
import http
import logging
from collections.abc import Callable, Iterator

from rightsizer.changes.memory import MemoryStore
from rightsizer.errors import ClusterError, ClusterUnreachable, RequestRefused
from rightsizer.execute.control_state import ActionGate
from rightsizer.execute.journal import Journal
from rightsizer.execute.preflight import UseSincePlan
from rightsizer.kube.cluster import Cluster
from rightsizer.model import Decision, Fleet, Outcome, Result
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.schema import Policy
from rightsizer.text import tidy

_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 2.0
PAUSE_S = 120.0
"""So long is waited, whatever else, for pods without which what was stopped goes on: they get 30 s to end, unless they
ask for more. What is not gone then is left to the next run."""


@dataclasses.dataclass(frozen=True, slots=True)
class Deadline:
    """How long is waited for what was changed to come to rest.

    Attributes:
        span_s: In all, in seconds.
        monotonic: A clock that only goes on, in seconds.
        sleep: Waits, in seconds.
        is_stopped: Asked between two looks; once true, nothing is waited for any more.
    """

    span_s: float
    monotonic: Callable[[], float]
    sleep: Callable[[float], object]
    is_stopped: Callable[[], bool]

    def rounds(self) -> Iterator[float]:
        """Seconds that have been waited, before each look; whoever looks says when to end by not asking for more."""
        began, wait_s = self.monotonic(), _FIRST_WAIT_S
        while True:
            yield self.monotonic() - began
            self.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)


log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class RunContext:
    """What every write of a run needs, also those that repair and verify.

    Attributes:
        state_namespace: Our own namespace; manifests of evicted pods are kept there.
        instance: What tells us from another gpu-rightsizer that acts on the same cluster.
        clock: The time now, aware, for records, Events and pauses; use is never judged by it.
        evicts: Whether the policy lets pods be evicted, so that there may be manifests to look after.
        journal: Where every step is written down, if anywhere.
    """

    cluster: Cluster
    run: str
    state_namespace: str
    instance: str
    clock: Callable[[], datetime.datetime]
    evicts: bool
    journal: Journal | None


@dataclasses.dataclass(frozen=True, slots=True)
class ApplySession(RunContext):
    """All that one run needs to act.

    Attributes:
        watch: The fleet's use since the plan, by Prometheus's clock.
        gate: What may stand against any write: breaker and pauses.
        memory: What was taken lately, also from what does not tell of it any more.
    """

    watch: UseSincePlan
    policy: Policy
    gate: ActionGate
    memory: MemoryStore

    def outcome(self, decision: Decision, result: Result, detail: str) -> Outcome:
        """What became of a decision."""
        return Outcome(
            ref=decision.workload.ref,
            action=decision.action.value if decision.action else "",
            result=result,
            detail=detail,
            gpus=tidy(abs(decision.frees)),
            at=self.clock(),
        )

    def rulebook(self, fleet: Fleet, at: datetime.datetime) -> PolicyEvaluator:
        """The policy beside the cluster as it is now."""
        return PolicyEvaluator(self.policy, fleet, at=at, own=self.state_namespace, instance=self.instance)


class AbortRun(Exception):  # noqa: N818 - a signal, not an error
    """Prometheus or the API server asks for quiet, knows us no longer, or cannot be reached: nothing more is sent."""

    def __init__(self, outcome: Outcome, reason: str) -> None:
        self.outcome = outcome
        self.reason = reason
        super().__init__(reason)


class WriteResultUnknown(Exception):  # noqa: N818 - a signal, not an error
    """The one request that makes a change was sent, and what became of it is not known."""


@contextlib.contextmanager
def mutating_request() -> Iterator[None]:
    """Around the one request that makes the change: only after this one a lost answer leaves anything in doubt."""
    try:
        yield
    except ClusterUnreachable as error:
        raise WriteResultUnknown(str(error)) from error
    except RequestRefused as refused:
        if _is_no_answer(refused):
            raise WriteResultUnknown(str(refused)) from refused
        raise


def _is_no_answer(refused: RequestRefused) -> bool:
    """Whether a time-out of a proxy, the API server or etcd speaks, and the change may be on its way all the same."""
    is_answer = "PodDisruptionBudget" in refused.detail  # of two budgets over one pod: 500, and meant so
    return refused.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR and not is_answer


@contextlib.contextmanager
def log_cluster_error(what: str) -> Iterator[None]:
    """The change stands, whether or not it could be announced."""
    try:
        yield
    except ClusterError as error:
        log.warning("%s: %s", what, error)
