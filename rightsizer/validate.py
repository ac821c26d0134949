"""A decision + the world as it is right now → what has come to stand against it. Pure.

Called right before each write, with the workload as read a moment ago.
"""

import datetime
from collections.abc import Iterator

from rightsizer.assess import Evidence
from rightsizer.decide import UsagesByWindow, decide_one
from rightsizer.model import Decision, Usages, Veto, Workload
from rightsizer.policy.document import Policy
from rightsizer.policy.rules import rule_on

RECENT = datetime.timedelta(minutes=10)
"""The last look at activity before a write covers at least a few scrapes of any usual interval."""


def objections(
    decision: Decision,
    fresh: Workload,
    *,
    usages: UsagesByWindow,
    recent: Usages,
    policy: Policy,
    at: datetime.datetime,
) -> Iterator[Veto]:
    """All reasons why a decision no longer holds; none where it still does.

    Args:
        decision: As planned, and as a person may have approved it.
        fresh: The same workload, read now.
        usages: What the plan was made from.
        recent: Activity in the last minutes.
        policy: The same policy, asked about the fresh workload.
        at: Now.
    """
    planned = decision.workload
    if fresh.ref.uid != planned.ref.uid:
        yield Veto("changed", f"{planned.ref} was replaced by another object of that name")
    if fresh.generation != planned.generation or fresh.size != planned.size:
        yield Veto("changed", f"{planned.ref} was changed since the plan was made")
    if {pod.ref.uid for pod in fresh.pods} != {pod.ref.uid for pod in planned.pods}:
        yield Veto("changed", f"the pods of {planned.ref} are not those of the plan")
    again = decide_one(fresh, usages, policy, at)
    if not again.is_enforced or again.action is not decision.action or again.rule != decision.rule:
        reasons = "; ".join(veto.reason for veto in again.vetoes) or f"the verdict is now {again.verdict}"
        yield Veto("decided-anew", reasons)
    evidence = Evidence(fresh, (), rule_on(fresh, policy).thresholds, at)
    for pod in fresh.pods:
        latest = recent.get((pod.ref.namespace, pod.ref.name), ())
        if not latest:
            yield Veto("no-data", f"pod {pod.ref.name} has no samples in the last minutes")
        if any(usage.invalid or evidence.is_busy(usage) for usage in latest):
            yield Veto("busy", f"pod {pod.ref.name} was at work in the last minutes")
