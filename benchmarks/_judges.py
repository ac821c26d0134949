"""Who is asked at each step which workloads should give their GPUs back: our own judgement, and plain rules.

Ours are the very stages that `plan` runs after Prometheus has answered; here the answers are read off a Record.
"""

import dataclasses
import enum
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from benchmarks._answers import Sight, Standing, instant, step, uid, workload
from benchmarks._fleet import JOBS, Fleet, Member
from benchmarks._records import SCRAPE_S, STEP_S
from rightsizer import model
from rightsizer.kinds.notices import notice_patch
from rightsizer.model import Action, Decision, FindingName, Mode, Verdict
from rightsizer.planning.decide import decide
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.match import Match
from rightsizer.policy.rule import ACTIONS, Rule
from rightsizer.policy.schema import API_VERSION, Policy
from simulator.workloads.draws import HOUR_S

ENFORCING = Policy(
    apiVersion=API_VERSION,
    kind="Policy",
    rules=(
        Rule(
            name="everything",
            match=Match(everything=True),
            mode=Mode.ENFORCE,
            findings={FindingName.STUCK: "enforce", FindingName.TOO_MANY_GPUS: "enforce"},
            actions=ACTIONS,
        ),
    ),
)
"""The built-in defaults, enforced on everything: so the judgement is measured, and nothing that stands before it."""

MINOR = 36
"""Of a Kubernetes in which a running Job can be resized."""
STOPS = frozenset({Action.SCALE_TO_ZERO, Action.SUSPEND, Action.EVICT})


class Step(enum.Enum):
    """What a judge has done about a workload."""

    NOTICE = enum.auto()
    STOP = enum.auto()
    RESIZE = enum.auto()
    ADVICE = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """What a judge says of a workload.

    Attributes:
        finding: By which; empty where a plain rule says it.
        window_s: The window that it looked at.
        idle_s: For how long it had been idle by then.
        kept: Of a RESIZE how many GPUs each pod keeps; of ADVICE how many replicas.
        annotations: Of a NOTICE: what it writes on the object.
        due_s: Of a NOTICE: when the change follows.
    """

    standing: Standing
    step: Step
    finding: str = ""
    window_s: float = 0.0
    idle_s: float = 0.0
    kept: int = 0
    annotations: Mapping[str, str] = dataclasses.field(default_factory=dict)
    due_s: float = 0.0


class Judge(Protocol):
    """Someone who says which workloads should give their GPUs back."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    @property
    def answers(self) -> float:
        """The share of owners who answer its notices."""
        ...

    def judge(self, fleet: Fleet, standings: Sequence[Standing], at_s: int) -> Iterator[Word]:
        """Its word on those of the workloads on which it has one."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Plain:
    """Highest utilization 0 over a window: of any GPU (then one is enough to condemn all), or of all.

    Attributes:
        grace_s: How much longer than the window pods must have run.
    """

    name: str
    window_s: int
    grace_s: int
    is_any: bool
    answers: float = 0.0

    def judge(self, fleet: Fleet, standings: Sequence[Standing], at_s: int) -> Iterator[Word]:  # noqa: ARG002 - a Judge's
        """Its word."""
        for one in standings:
            if at_s - one.since_s < self.window_s + self.grace_s:
                continue
            stop = step(one.member, at_s)
            start = stop - self.window_s // STEP_S
            idle = (not any(record.activity[start:stop]) for record in itertools.chain(*one.member.records))
            if (any if self.is_any else all)(idle):
                yield Word(one, Step.STOP, window_s=self.window_s)


@dataclasses.dataclass(frozen=True, slots=True)
class TwiceTheGap:
    """All GPUs idle for longer than twice the longest gap between two samples of work, and than a floor by kind."""

    name: str = "twice the longest gap"
    answers: float = 0.0

    def judge(self, fleet: Fleet, standings: Sequence[Standing], at_s: int) -> Iterator[Word]:  # noqa: ARG002 - a Judge's
        """Its word."""
        for one in standings:
            floor_s, stop = _floor_s(one.member), step(one.member, at_s)
            if at_s - one.since_s < floor_s:
                continue
            rows = {id(record): record.activity[:stop] for record in itertools.chain(*one.member.records)}
            active = bytes(map(max, *rows.values())) if len(rows) > 1 else next(iter(rows.values()))
            *before, now = (len(part) for part in active.translate(_ACTIVE).split(b"\1"))
            longest_s = max(max(before, default=0) * STEP_S, one.came_back_s)
            if min(now * STEP_S, at_s - one.since_s) >= max(floor_s, 2 * longest_s):
                yield Word(one, Step.STOP, window_s=floor_s, idle_s=now * STEP_S)


_ACTIVE = bytes([0]) + bytes([1]) * 255


def _floor_s(member: Member) -> float:
    if member.kind in {"Deployment", "InferenceService", "Service"}:
        return HOUR_S
    return (4 if member.kind in JOBS else 12) * HOUR_S


PLAIN: tuple[Judge, ...] = (
    Plain("idle for 24 h, all GPUs", 86400, 0, is_any=False),
    TwiceTheGap(),
    Plain("idle for 30 min, any GPU", 1800, 1800, is_any=True),
)
"""The last is gpu-pruner's, whose grace of 300 s ends by the next time that is judged."""


@dataclasses.dataclass(frozen=True, slots=True)
class Ours:
    """The stages assess and decide, under a policy.

    Attributes:
        answers: The share of owners who answer notices.
    """

    answers: float = 0.0
    policy: Policy = ENFORCING

    @property
    def name(self) -> str:
        """With who answers."""
        if not self.answers:
            return "gpu-rightsizer, nobody answers"
        return f"gpu-rightsizer, {f'{self.answers:.0%} of' if self.answers < 1 else 'all'} owners answer"

    def judge(self, fleet: Fleet, standings: Sequence[Standing], at_s: int) -> Iterator[Word]:
        """What a run would do, and its advice about replicas."""
        at = instant(at_s)
        workloads = tuple(workload(one, at_s) for one in standings)
        evaluator = PolicyEvaluator(self.policy, model.Fleet(workloads, {}, {}, minor=MINOR), at=at)
        by_uid = {uid(one.member): one for one in standings}
        for decision in decide(Sight(fleet, standings, at_s).measured(evaluator), evaluator):
            standing = by_uid[decision.workload.ref.uid]
            if decision.is_enforced:
                yield _enforced(standing, decision, at_s)
            yield from _advice(standing, decision)


def _enforced(standing: Standing, decision: Decision, at_s: int) -> Word:
    finding = decision.finding
    window_s = finding.window.total_seconds() if finding.window else 0.0
    if decision.action is Action.NOTICE:
        patch = notice_patch(decision, decision.workload, run="replay", at=instant(at_s))
        notes = patch["metadata"]["annotations"]
        due_s = decision.due.timestamp() if decision.due else at_s
        return Word(standing, Step.NOTICE, finding.name, annotations=notes, due_s=due_s)
    if decision.action in STOPS:
        return Word(standing, Step.STOP, finding.name, window_s, idle_s=finding.idle_s or 0.0)
    kept = finding.proposal.gpus_per_pod if finding.proposal else None
    if decision.action is Action.RESIZE and kept:
        return Word(standing, Step.RESIZE, finding.name, window_s, kept=kept)
    return Word(standing, Step.ADVICE, finding.name)


def _advice(standing: Standing, decision: Decision) -> Iterator[Word]:
    for finding in (decision.finding, *decision.also):
        wanted = finding.proposal.replicas if finding.proposal else None
        if finding.name is FindingName.TOO_MANY_REPLICAS and finding.verdict is Verdict.ACT and wanted:
            yield Word(standing, Step.ADVICE, finding.name, kept=wanted)


def sampled_lately(one: Standing, at_s: int) -> bool:
    """Whether a sample of the last step shows a kernel on all of its pods' GPUs that are ever used."""
    stop = step(one.member, at_s)
    return stop > 0 and any(record.activity[stop - 1] > 1 for record in itertools.chain(*one.member.records))


assert STEP_S % SCRAPE_S == 0
