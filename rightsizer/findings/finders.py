"""What there is to find, in order. Pure.

To add a finding is to add a file and a row.
"""

import dataclasses
import math
from collections.abc import Callable

from rightsizer.findings.evidence import Case
from rightsizer.findings.idle import find_idle
from rightsizer.findings.input_bound import find_input_bound
from rightsizer.findings.not_starting import find_not_starting
from rightsizer.findings.oversized_gpu import find_oversized_gpu
from rightsizer.findings.replicas import find_too_few_replicas, find_too_many_replicas
from rightsizer.findings.stuck import find_stuck
from rightsizer.findings.too_many_gpus import find_too_many_gpus
from rightsizer.findings.underutilized import find_busy, find_underutilized
from rightsizer.model import Finding, FindingName, Fleet, Measured, Verdict, Workload
from rightsizer.policy.criteria import Criteria

FINDERS: tuple[Callable[[Case], Finding | None], ...] = (
    # Of several that call for something, the one that frees most decides; otherwise, and where that is equal, the
    # first of these: what gives all back, what gives some back (the gentlest first: replicas go without a restart),
    # what takes some back, what somebody should look into, and what is in order.
    find_stuck,
    find_not_starting,
    find_idle,
    find_too_many_replicas,
    find_too_many_gpus,
    find_oversized_gpu,
    find_too_few_replicas,
    find_input_bound,
    find_underutilized,
    find_busy,
)


def assess(workload: Workload, measured: Measured, criteria: Criteria, fleet: Fleet) -> tuple[Finding, ...]:
    """Everything that the measurements say about a workload; the first finding decides, and there is always one.

    Only a finding whose verdict is ACT calls for something: its proposal, or all GPUs where it has none. Policy has no
    say here.
    """
    case = Case(workload, measured, criteria, fleet)
    found = [finding for finding in (find(case) for find in FINDERS) if finding is not None]
    is_else_said = len(found) > 1
    if is_else_said and found[-1].name is FindingName.BUSY:
        found.pop()
    if found[0].name is FindingName.STUCK:
        # That signals contradict each other is what stuck is.
        found = [finding for finding in found if finding.name is not FindingName.CONFLICTING_SIGNALS]
    told = [_with_shortfall(finding, case) for finding in found]
    return tuple(sorted(told, key=lambda finding: -freed(finding, workload)))


def _with_shortfall(finding: Finding, case: Case) -> Finding:
    """What calls for something says where it could look back less far than it was to."""
    return (
        dataclasses.replace(finding, shortfall=case.shortfall) if finding.verdict is Verdict.ACT else finding
    )


def freed(finding: Finding, workload: Workload) -> float:
    """GPUs that a finding would free, negative where it takes some back; those that call for nothing come last."""
    if finding.verdict is not Verdict.ACT:
        return -math.inf
    return float(workload.gpus) if finding.proposal is None else finding.proposal.frees
