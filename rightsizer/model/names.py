"""The closed sets of words that the stages share: verdicts, modes, actions, findings, results. Pure."""

import enum


class Verdict(enum.StrEnum):
    """Judgement of a workload. Only ACT can lead to a write, and absence of data never leads to ACT."""

    ACT = "act"
    KEEP = "keep"
    PROTECTED = "protected"
    UNKNOWN = "unknown"


class Mode(enum.StrEnum):
    """Effect of a policy rule on findings about the workloads that it matches."""

    PROTECT = "protect"
    ADVISE = "advise"
    ENFORCE = "enforce"


class Action(enum.StrEnum):
    """Action on a finding, from gentle to hard.

    `apply` gives notices, where the policy wants one first, and carries out the others on kinds that have a row in
    `rightsizer.kinds`; on all others they are proposed, with the command that does it.
    """

    NOTICE = "notice"
    SCALE_UP = "scale-up"
    SCALE_DOWN = "scale-down"
    RESIZE = "resize"
    RESLICE = "reslice"
    SCALE_TO_ZERO = "scale-to-zero"
    SUSPEND = "suspend"
    EVICT = "evict"


class FindingName(enum.StrEnum):
    """Name of a finding about a workload."""

    # Something to give back, or to look into.
    IDLE = "idle"
    FINISHED = "finished"
    NO_REQUESTS = "no-requests"
    UNDERUTILIZED = "underutilized"
    TOO_MANY_GPUS = "too-many-gpus"
    OVERSIZED_GPU = "oversized-gpu"
    TOO_MANY_REPLICAS = "too-many-replicas"
    TOO_FEW_REPLICAS = "too-few-replicas"
    STUCK = "stuck"
    INPUT_BOUND = "input-bound"
    NOT_STARTING = "not-starting"
    UNUSABLE_GPUS = "unusable-gpus"
    WRONG_GPU = "wrong-gpu"
    # In order.
    BUSY = "busy"
    # The evidence does not suffice.
    NO_DATA = "no-data"
    PARTIAL_DATA = "partial-data"
    STALE_DATA = "stale-data"
    INVALID_DATA = "invalid-data"
    CONFLICTING_SIGNALS = "conflicting-signals"
    TOO_YOUNG = "too-young"
    IDLE_TOO_BRIEFLY = "idle-too-briefly"
    NOT_RUNNING = "not-running"


class Confidence(enum.StrEnum):
    """Reliability of a finding; its words say why."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class NodeAutoscaler(enum.StrEnum):
    """Program that removes nodes."""

    KARPENTER = "karpenter"
    CLUSTER_AUTOSCALER = "cluster-autoscaler"


class BlockerCode(enum.StrEnum):
    """Why a change may not be made, or not now."""

    # Not, as long as the policy, the cluster or the workload stays as it is.
    PROTECTED = "protected"
    UNSUPPORTED = "unsupported"
    # Not now.
    BUDGET = "budget"
    DISRUPTION_BUDGET = "disruption-budget"
    CALENDAR = "calendar"
    NOTICE = "notice"
    COOLDOWN = "cooldown"
    OTHER_CONTROLLER = "other-controller"
    ONLY_FOR_PENDING_PODS = "only-for-pending-pods"
    NO_CAPACITY = "no-capacity"
    PAUSED = "paused"
    # Not any more: found by the preflight check.
    CHANGED = "changed"
    BUSY = "busy"
    NO_DATA = "no-data"
    # Opens the breaker: nothing is changed until a person resets it.
    REFUSED = "refused"
    NODES = "nodes"
    GROWTH = "growth"
    UNKNOWN = "unknown"


OPENS_BREAKER = (
    BlockerCode.REFUSED,
    BlockerCode.NODES,
    BlockerCode.GROWTH,
    BlockerCode.UNKNOWN,
)
"""Codes of the blockers that open the breaker."""


class ChangeOutcome(enum.StrEnum):
    """End of an earlier change."""

    UNDONE = "undone"
    REVERTED = "reverted"
    ROLLBACK = "rollback"
    SCALE_UP = "scale-up"
    NO_EFFECT = "no-effect"
    """The change removed no pod, so it was taken back."""
    REFUSED = "refused"
    """The API server refused its second step, so the workload was resumed without it."""
    REJECTED = "rejected"
    """The object allows no such write, so nothing was changed; only the memory keeps this."""

    @property
    def returns(self) -> bool:
        """Whether the workload got its GPUs back."""
        return self not in {ChangeOutcome.SCALE_UP, ChangeOutcome.REFUSED, ChangeOutcome.REJECTED}


class ReconcileAction(enum.StrEnum):
    """Step that reconciles an earlier change."""

    RECORD_REVERT = "record-revert"
    ROLLBACK = "rollback"
    COMPLETE = "complete"
    CONFIRM = "confirm"
    DELETE_MANIFEST = "delete-manifest"


class Result(enum.StrEnum):
    """Result of an attempted change."""

    DONE = "done"
    NO_EFFECT = "no-effect"
    CHANGED = "changed"
    BLOCKED = "blocked"
    REFUSED = "refused"
    UNTRUSTED = "untrusted"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"
