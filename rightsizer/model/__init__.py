"""The records that the stages hand on: Usage → Finding → Decision → Plan → Outcome.

Frozen values without behaviour beyond what follows from their fields; no clock, file, socket or logging here.
`names` are the closed sets of words, `usage` is what Prometheus said, `fleet` what the API server said, `judgement`
what was concluded.
"""

from rightsizer.model.fleet import (
    Change,
    Fleet,
    Manager,
    Node,
    ObjectRef,
    Pod,
    PriorityClass,
    Quota,
    Stranded,
    Workload,
    WorkloadKind,
)
from rightsizer.model.judgement import Autoscalers, Block, Decision, Finding, Outcome, Plan, Proposal, Veto
from rightsizer.model.names import Action, Cause, Confidence, FindingName, Mode, Result, Verdict
from rightsizer.model.usage import (
    ActivitySeries,
    Concurrency,
    Device,
    History,
    Measured,
    NodeSight,
    PodKey,
    Slot,
    Usage,
    Usages,
    UsagesByWindow,
    Waits,
    strongest,
)

__all__ = [
    "Action",
    "ActivitySeries",
    "Autoscalers",
    "Block",
    "Cause",
    "Change",
    "Concurrency",
    "Confidence",
    "Decision",
    "Device",
    "Finding",
    "FindingName",
    "Fleet",
    "History",
    "Manager",
    "Measured",
    "Mode",
    "Node",
    "NodeSight",
    "ObjectRef",
    "Outcome",
    "Plan",
    "Pod",
    "PodKey",
    "PriorityClass",
    "Proposal",
    "Quota",
    "Result",
    "Slot",
    "Stranded",
    "Usage",
    "Usages",
    "UsagesByWindow",
    "Verdict",
    "Veto",
    "Waits",
    "Workload",
    "WorkloadKind",
    "strongest",
]
