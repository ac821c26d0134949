"""What a workload is judged by: a rule's own thresholds, or else the defaults' for its kind. Pure."""

import dataclasses
import datetime
import fnmatch
from collections.abc import Iterator

from rightsizer.model import Workload
from rightsizer.policy.document import (
    Policy,
    Rule,
    Sliceable,
    Starved,
    Stranded,
    Stuck,
    Thresholds,
    TooManyGpus,
    TooManyReplicas,
    Underused,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Criteria:
    """The thresholds of every finding, as they hold for one workload."""

    idle: Thresholds
    underused: Underused
    too_many_gpus: TooManyGpus
    too_many_replicas: TooManyReplicas
    sliceable: Sliceable
    stuck: Stuck
    starved: Starved
    stranded: Stranded

    @property
    def windows(self) -> frozenset[datetime.timedelta]:
        """Every window over which usage is asked for."""
        parts = (self.idle, self.underused, self.too_many_gpus, self.sliceable, self.stuck, self.starved)
        return frozenset(part.window for part in parts)


def criteria_for(rule: Rule, workload: Workload, policy: Policy) -> Criteria:
    """What a rule judges this workload by."""
    return _criteria(rule, policy, rule.idle or _idle_of(workload, policy))


def all_criteria(policy: Policy) -> Iterator[Criteria]:
    """Everything that some workload could be judged by."""
    kinds = [policy.defaults.idle, *(kind.idle for kind in policy.defaults.kinds)]
    for rule in policy.rules:
        for idle in [rule.idle] if rule.idle else kinds:
            yield _criteria(rule, policy, idle)
    for idle in kinds:
        yield _criteria(None, policy, idle)


def _idle_of(workload: Workload, policy: Policy) -> Thresholds:
    for row in policy.defaults.kinds:
        names = (workload.ref.kind, workload.ref.full_kind)
        if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in row.kinds):
            return row.idle
    return policy.defaults.idle


def _criteria(rule: Rule | None, policy: Policy, idle: Thresholds) -> Criteria:
    defaults = policy.defaults
    return Criteria(
        idle=idle,
        underused=(rule and rule.underused) or defaults.underused,
        too_many_gpus=(rule and rule.tooManyGpus) or defaults.tooManyGpus,
        too_many_replicas=(rule and rule.tooManyReplicas) or defaults.tooManyReplicas,
        sliceable=(rule and rule.sliceable) or defaults.sliceable,
        stuck=(rule and rule.stuck) or defaults.stuck,
        starved=(rule and rule.starved) or defaults.starved,
        stranded=(rule and rule.stranded) or defaults.stranded,
    )
