"""All findings, in order. Pure.

To add a finding, add a function and a row.
"""

import math
from collections.abc import Callable

from rightsizer.findings.evidence import Candidate
from rightsizer.findings.idle import find_idle
from rightsizer.findings.no_requests import find_no_requests
from rightsizer.findings.oversized_gpu import find_oversized_gpu
from rightsizer.findings.replicas import find_too_few_replicas, find_too_many_replicas
from rightsizer.findings.stuck import find_not_starting, find_stuck
from rightsizer.findings.too_many_gpus import find_too_many_gpus
from rightsizer.findings.underutilized import (
    find_busy,
    find_input_bound,
    find_underutilized,
    find_unusable_gpus,
    find_wrong_gpu,
)
from rightsizer.model import Finding, FindingName, Fleet, Measured, Verdict, Workload
from rightsizer.policy.effective import Criteria

FINDERS: tuple[Callable[[Candidate], Finding | None], ...] = (
    # Of several findings that propose a change, the one that frees most comes first; on a tie the first of these:
    # free all GPUs, free some (without restarts first), scale up, report only.
    find_stuck,
    find_not_starting,
    find_wrong_gpu,
    find_idle,
    find_no_requests,
    find_too_many_replicas,
    find_too_many_gpus,
    find_oversized_gpu,
    find_too_few_replicas,
    find_unusable_gpus,
    find_input_bound,
    find_underutilized,
    find_busy,
)


def assess(workload: Workload, measured: Measured, criteria: Criteria, fleet: Fleet) -> tuple[Finding, ...]:
    """All findings about a workload, at least one; the first that is enforced is applied.

    Only a finding with verdict ACT calls for a change: its proposal, or freeing all GPUs if it has none.
    """
    candidate = Candidate(workload, measured, criteria, fleet)
    found = [finding for finding in (find(candidate) for find in FINDERS) if finding is not None]
    if len(found) > 1 and found[-1].name is FindingName.BUSY:
        found.pop()
    if found[0].name is FindingName.STUCK:
        # Stuck already means that the signals conflict.
        found = [finding for finding in found if finding.name is not FindingName.CONFLICTING_SIGNALS]
    return tuple(sorted(found, key=lambda finding: -freed(finding, workload)))


def freed(finding: Finding, workload: Workload) -> float:
    """GPUs that a finding would free: negative for scale-up, -inf if it calls for no change."""
    if finding.verdict is not Verdict.ACT:
        return -math.inf
    return float(workload.gpus) if finding.proposal is None else finding.proposal.frees
