"""What a workload is judged by: a rule's own thresholds, or else the defaults' for its kind. Pure."""

import dataclasses
import datetime
import fnmatch
from collections.abc import Iterator, Mapping

from rightsizer.model import Workload
from rightsizer.policy.schema import (
    InputBound,
    KindDefaults,
    NotStarting,
    OversizedGpu,
    Policy,
    Rule,
    Stuck,
    Thresholds,
    TooManyGpus,
    TooManyReplicas,
    Underutilized,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Criteria:
    """The thresholds of every finding, as they hold for one workload."""

    idle: Thresholds
    underutilized: Underutilized
    too_many_gpus: TooManyGpus
    too_many_replicas: TooManyReplicas
    oversized_gpu: OversizedGpu
    stuck: Stuck
    input_bound: InputBound
    not_starting: NotStarting

    @property
    def wide_windows(self) -> frozenset[datetime.timedelta]:
        """Those over which everybody's usage is asked for; over others only that of few (assess/narrow.py)."""
        parts = (self.idle, self.underutilized, self.too_many_gpus, self.oversized_gpu, self.input_bound)
        return frozenset(part.window for part in parts)

    @property
    def windows(self) -> frozenset[datetime.timedelta]:
        """Every window over which usage is asked for."""
        return self.wide_windows | {self.stuck.window}


def criteria_for(
    rule: Rule, workload: Workload, policy: Policy, changes: Mapping[str, object] | None = None
) -> Criteria:
    """What a rule judges this workload by; `changes` are fields of idle that it gives instead of the defaults'."""
    kind = kind_defaults(workload, policy)
    idle = rule.idle or (kind and kind.idle) or policy.defaults.idle
    return _criteria(rule, policy, idle.model_copy(update=changes))


def all_criteria(rule: Rule, policy: Policy, changes: Mapping[str, object]) -> Iterator[Criteria]:
    """Everything that a rule could judge some workload by."""
    kinds = [policy.defaults.idle, *(kind.idle for kind in policy.defaults.kinds if kind.idle)]
    for idle in [rule.idle] if rule.idle else kinds:
        yield _criteria(rule, policy, idle.model_copy(update=changes))


def kind_defaults(workload: Workload, policy: Policy) -> KindDefaults | None:
    """The row of the defaults that is about the workload's kind; None where none is."""
    names = (workload.ref.kind, workload.ref.full_kind)
    for row in policy.defaults.kinds:
        if any(fnmatch.fnmatchcase(name, pattern) for name in names for pattern in row.kinds):
            return row
    return None


def _criteria(rule: Rule, policy: Policy, idle: Thresholds) -> Criteria:
    defaults = policy.defaults
    return Criteria(
        idle=idle,
        underutilized=rule.underutilized or defaults.underutilized,
        too_many_gpus=rule.tooManyGpus or defaults.tooManyGpus,
        too_many_replicas=rule.tooManyReplicas or defaults.tooManyReplicas,
        oversized_gpu=rule.oversizedGpu or defaults.oversizedGpu,
        stuck=rule.stuck or defaults.stuck,
        input_bound=rule.inputBound or defaults.inputBound,
        not_starting=rule.notStarting or defaults.notStarting,
    )
