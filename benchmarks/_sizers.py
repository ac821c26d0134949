"""Who sizes a fleet: the stages that `plan` runs once Prometheus has answered, and simple rules beside them."""

import dataclasses
import datetime
import itertools
import math
from collections.abc import Callable, Sequence

from benchmarks._judges import ENFORCING
from benchmarks._serving import DAY, Replica, Running, Sizer
from rightsizer.changes.memory import MOST
from rightsizer.changes.record_codec import UNDO_ANNOTATION, encode_record
from rightsizer.findings.autoscaling import STEP_PERCENT
from rightsizer.findings.replicas import counted_window, replica_need
from rightsizer.model import (
    Action,
    ChangeRecord,
    Concurrency,
    Device,
    Edit,
    FindingName,
    Fleet,
    FoundChange,
    Measured,
    ObjectRef,
    Pod,
    Usage,
    Workload,
)
from rightsizer.planning.budget import within_budgets
from rightsizer.planning.decide import decide
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.schema import Policy

EVERY = 15
"""Minutes between cycles, by default."""
_BEGIN = datetime.datetime(2026, 11, 16, tzinfo=datetime.UTC)
_REF = ObjectRef("apps/v1", "Deployment", "team", "svc", "uid")
_AT_WORK = Usage(
    Device("GPU", model="NVIDIA H100 80GB HBM3"),
    activity_mean=0.3,
    activity_peak=0.9,
    traffic_peak=0.5,
    memory_peak_bytes=6e10,
    power_mean_w=300.0,
    power_peak_w=600.0,
    coverage=1.0,
    is_fresh=True,
)
_SILENT = dataclasses.replace(_AT_WORK, is_fresh=False)
_PRIOR = ENFORCING.rules[0]
SIZED = ENFORCING.model_copy(
    update={
        "rules": (_PRIOR.model_copy(update={"findings": {FindingName.TOO_MANY_REPLICAS: "enforce"}}),),
    }
)
"""The built-in defaults, with too-many-replicas enforced."""


def _instant(minute: float) -> datetime.datetime:
    return _BEGIN + datetime.timedelta(minutes=minute)


@dataclasses.dataclass(slots=True)
class Ours:
    """The stages assess, decide and budgets, and of the preflight check that replicas which go are idle."""

    policy: Policy = SIZED
    pods: dict[tuple[str, int, bool], Pod] = dataclasses.field(default_factory=dict)
    past: list[ChangeRecord] = dataclasses.field(default_factory=list)

    def __call__(self, running: Running) -> int:
        """How many replicas there should be now."""
        at = _instant(running.now)
        workload = self._workload(running)
        changes = tuple(FoundChange(_REF, one) for one in self.past[-MOST:] if one.takes)
        evaluator = PolicyEvaluator(self.policy, Fleet((workload,), {}, {}, changes), at=at)
        criteria = evaluator.evaluate(workload).judged_by[0]
        minutes = counted_window(criteria.tooManyReplicas) // datetime.timedelta(minutes=1)
        usages = {
            ("team", one.name): (_SILENT if one.node in running.dark else _AT_WORK,)
            for one in running.replicas
        }
        measured = Measured(
            at,
            dict.fromkeys(criteria.windows, usages),
            concurrency={
                "uid": Concurrency(tuple(running.busy[-minutes:]), tuple(running.unseen[-minutes:]))
            },
        )
        (decision,) = within_budgets(decide(measured, evaluator), evaluator)
        proposal = decision.finding.proposal
        if not decision.is_enforced or proposal is None or proposal.replicas is None:
            return running.size
        idle = criteria.tooManyReplicas.idleBefore // datetime.timedelta(minutes=1)
        if decision.action is Action.SCALE_DOWN and running.active(idle) > proposal.replicas:
            return running.size
        assert decision.action is not None
        self.past.append(
            ChangeRecord(at, f"r{running.now}", decision.action.value, decision.frees, "gpu-rightsizer")
        )
        return proposal.replicas

    def _workload(self, running: Running) -> Workload:
        annotations = {}
        full = running.of.traits.replicas
        if running.size < full:
            last = self.past[-1]
            edit = Edit(("spec", "replicas"), full, running.size)
            annotations[UNDO_ANNOTATION] = encode_record(
                ChangeRecord(last.at, last.run, last.action, edits=(edit,))
            )
        return Workload(
            ref=_REF,
            generation=1,
            resource_version="1",
            pods=tuple(self._pod(one, running.now) for one in running.replicas),
            size=running.size,
            labels={},
            annotations=annotations,
            namespace_annotations={},
            budgets={},
            created=_instant(0),
            past=tuple(self.past[-MOST:]),
        )

    def _pod(self, one: Replica, now: int) -> Pod:
        key = (one.name, one.began, one.ready <= now)
        if key not in self.pods:
            self.pods[key] = Pod(
                ref=ObjectRef("v1", "Pod", "team", one.name, one.name),
                node=f"node-{one.node}",
                phase="Running",
                devices=1,
                is_shared=False,
                started=_instant(one.began),
                priority_class="",
                priority=0,
                is_ready=one.ready <= now,
                is_terminating=False,
                is_static=False,
                labels={},
                annotations={},
                created=_instant(one.began),
            )
        return self.pods[key]


def all_replicas(running: Running) -> int:
    """As its owner asks."""
    return running.of.traits.replicas


def oracle(running: Running) -> int:
    """What will be needed until those that could come next are ready."""
    of = running.of
    coming = of.need[running.now : running.now + EVERY + of.traits.start_min + 1]
    return min(of.traits.replicas, max(1, *coming))


def simple(running: Running) -> int:
    """The busiest of 20 minutes, and 10 % or the largest rise from one minute to the next of 3 hours."""
    lately = running.busy[-180:]
    jump = max(after - before for before, after in itertools.pairwise(lately))
    peak = max(lately[-20:])
    return min(running.of.traits.replicas, peak + max(math.ceil(peak / 10), jump, 1))


_WINDOW_AND_GRACE = 90


def before(running: Running) -> int:
    """As gpu-rightsizer did before: the busiest of an hour and of the coming one of 7 days, 20 %, once in a day."""
    now, full = len(running.busy), running.of.traits.replicas
    days = [max(running.busy[now - day * DAY : now - day * DAY + 60]) for day in range(1, 8)]

    def needed(busy: int) -> int:
        return min(full, busy + max(math.ceil(busy / 5), 1))

    least = needed(max(running.busy[-60:]))
    if running.size < full and least > running.size:
        return least
    most = needed(max(*days, *running.busy[-60:]))
    is_known = not any(running.unseen[-60:]) and not any(
        running.now - one.began < _WINDOW_AND_GRACE for one in running.replicas
    )
    is_cooling = any(running.now - at < DAY for at, _, _ in running.log)
    return most if most < running.size and is_known and not is_cooling else running.size


def autoscaler(running: Running) -> int:
    """The ScaledObject that a plan prints, asked each minute: those busy in it plus headroom, down after the window."""
    part = SIZED.defaults.tooManyReplicas
    window = part.window // datetime.timedelta(minutes=1)
    most = running.of.traits.replicas
    step = math.ceil(most * STEP_PERCENT / 100)
    if not running.memo:  # printed once, with the jump of then
        minutes = counted_window(part) // datetime.timedelta(minutes=1)
        busy = running.busy[-minutes:]
        running.memo.append(replica_need(part, busy, busy).jump)

    def needed(busy: int) -> int:
        headroom = max(math.ceil(busy * part.headroomPercent / 100), part.minHeadroom, running.memo[0])
        return math.ceil((busy + headroom) / step) * step

    wanted: Sequence[int] = [needed(busy) for busy in running.busy[-window:]]
    highest = max(wanted)
    now = wanted[-1] if wanted[-1] > running.size else min(running.size, highest)
    return min(most, max(1, now))


SIZERS: dict[str, tuple[Callable[[], Sizer], int]] = {
    "gpu-rightsizer": (Ours, EVERY),
    "gpu-rightsizer, before": (lambda: before, EVERY),
    "busiest of 20 min + 10 % or the largest rise of 3 h": (lambda: simple, EVERY),
    "the printed ScaledObject": (lambda: autoscaler, 1),
    "oracle": (lambda: oracle, EVERY),
}
"""By name: who sizes, and how often."""
