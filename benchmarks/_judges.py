"""Who is asked at each step which workloads should give their GPUs back: our own judgement, and plain rules.

Ours are the very stages that `plan` runs after Prometheus has answered; here the answers are read off a Record.
"""

import dataclasses
import datetime
import itertools
from collections.abc import Iterator, Sequence
from typing import Protocol

from benchmarks._answers import Sight, Standing, instant, step, uid, workload
from benchmarks._records import STEP_S
from rightsizer.model import Action, ChangeRecord, Decision, FindingName, Fleet, FoundChange, Mode, Verdict
from rightsizer.planning.decide import decide
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.match import Match
from rightsizer.policy.rule import IDLENESS, Rule
from rightsizer.policy.schema import API_VERSION, Policy

ENFORCING = Policy(
    apiVersion=API_VERSION,
    kind="Policy",
    rules=(
        Rule(
            name="everything",
            match=Match(everything=True),
            mode=Mode.ENFORCE,
            findings={FindingName.STUCK: "enforce"},
            actions=tuple(action for action in Action if action is not Action.NOTICE),
        ),
    ),
)
"""The built-in defaults, enforced on everything: so the judgement is measured, and nothing that stands before it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Word:
    """What a judge says of a workload.

    Attributes:
        finding: By which it condemns it; empty where it only advises.
        window_s: The window that it looked at.
        notice: What it gives notice of; empty where it does not.
        idle_s: For how long it had been idle by then.
        replicas: How many it would leave; None where all.
        frees: GPUs that its advice would free of those of each pod.
    """

    standing: Standing
    finding: str
    window_s: float
    notice: str = ""
    idle_s: float = 0.0
    replicas: int | None = None
    frees: float = 0.0


class Judge(Protocol):
    """Someone who says which workloads should give their GPUs back."""

    @property
    def name(self) -> str:
        """In tables."""
        ...

    def judge(self, standings: Sequence[Standing], at_s: int) -> Iterator[Word]:
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

    def judge(self, standings: Sequence[Standing], at_s: int) -> Iterator[Word]:
        """Its word."""
        for one in standings:
            if at_s - one.since_s < self.window_s + self.grace_s:
                continue
            stop = step(one.member, at_s)
            start = stop - self.window_s // STEP_S
            idle = (not any(record.activity[start:stop]) for record in itertools.chain(*one.member.records))
            if (any if self.is_any else all)(idle):
                yield Word(one, "idle", self.window_s)


@dataclasses.dataclass(frozen=True, slots=True)
class Ours:
    """The stages assess and decide, under a policy.

    Attributes:
        has_counters: Whether our exporter's counters are there, or gauges alone, as of dcgm-exporter.
    """

    name: str = "gpu-rightsizer"
    policy: Policy = ENFORCING
    has_counters: bool = False

    def judge(self, standings: Sequence[Standing], at_s: int) -> Iterator[Word]:
        """What would be enforced, and of advice what is about replicas and GPUs of each pod."""
        at = instant(at_s)
        workloads = {uid(one.member): workload(one) for one in standings}
        changes = tuple(
            FoundChange(
                workloads[uid(one.member)].ref, ChangeRecord(instant(one.changed_s), "", "", one.member.gpus)
            )
            for one in standings
            if one.changed_s is not None
        )
        evaluator = PolicyEvaluator(self.policy, Fleet(tuple(workloads.values()), {}, {}, changes), at=at)
        sight = Sight(standings, at_s, has_counters=self.has_counters)
        by_uid = {uid(one.member): one for one in standings}
        for decision in decide(sight.measured(evaluator), evaluator):
            standing = by_uid[decision.workload.ref.uid]
            if decision.announced:
                yield Word(standing, "", 0.0, notice=decision.announced)
            elif _condemns(decision):
                window = decision.finding.window or datetime.timedelta()
                yield Word(
                    standing,
                    decision.finding.name,
                    window.total_seconds(),
                    idle_s=decision.finding.idle_s or 0.0,
                )
            else:
                yield from _advice(standing, decision)


def _condemns(decision: Decision) -> bool:
    """Whether all is to be given back; of a kind that cannot be stopped yet, whether it would be."""
    is_whole = decision.finding.name in {*IDLENESS, FindingName.STUCK}
    if decision.finding.verdict is not Verdict.ACT or not is_whole or decision.blockers:
        return False
    return all(veto.source == "kind" for veto in decision.restrictions)


def _advice(standing: Standing, decision: Decision) -> Iterator[Word]:
    for finding in (decision.finding, *decision.also):
        if finding.proposal is None or finding.verdict is not Verdict.ACT:
            continue
        if finding.name is FindingName.TOO_MANY_REPLICAS:
            yield Word(standing, "", 0.0, replicas=finding.proposal.replicas)
        elif finding.name is FindingName.TOO_MANY_GPUS:
            yield Word(standing, "", 0.0, frees=finding.proposal.frees)
