"""The closed sets of words that the stages share: verdicts, modes, actions, findings, results. Pure."""

import enum


class Verdict(enum.StrEnum):
    """What is said about a workload. Only ACT can lead to a write, and absence of data never leads to ACT."""

    ACT = "act"
    KEEP = "keep"
    PROTECTED = "protected"
    UNKNOWN = "unknown"


class Mode(enum.StrEnum):
    """What a policy rule wants done with the findings about the workloads that it matches."""

    PROTECT = "protect"
    ADVISE = "advise"
    ENFORCE = "enforce"


class Action(enum.StrEnum):
    """What can be done about a finding, from gentle to hard.

    `apply` gives notices, where the policy wants one first, and carries out the others on kinds that have a row in
    `rightsizer.kinds`; on all others they are proposed, with the command that does it.
    """

    NOTIFY = "notify"
    GROW = "grow"
    SHRINK = "shrink"
    RESLICE = "re-slice"
    SCALE_TO_ZERO = "scale-to-zero"
    SUSPEND = "suspend"
    EVICT = "evict"


class FindingName(enum.StrEnum):
    """What the measurements say about a workload."""

    # Something to give back, or to look into.
    IDLE = "idle"
    PARKED = "parked"
    FINISHED = "finished"
    UNDERUSED = "underused"
    TOO_MANY_GPUS = "too-many-gpus"
    SLICEABLE = "sliceable"
    TOO_MANY_REPLICAS = "too-many-replicas"
    TOO_FEW_REPLICAS = "too-few-replicas"
    STUCK = "stuck"
    STARVED = "starved"
    STRANDED = "stranded"
    # In order.
    BUSY = "busy"
    # The evidence does not suffice.
    NO_DATA = "no-data"
    PARTIAL_DATA = "partial-data"
    WINDOW_TOO_SHORT = "window-too-short"
    STALE_DATA = "stale-data"
    INVALID_DATA = "invalid-data"
    AMBIGUOUS_DATA = "ambiguous-data"
    CONFLICTING_SIGNALS = "conflicting-signals"
    UNMEASURABLE = "unmeasurable"
    TOO_YOUNG = "too-young"
    TOO_SOON = "too-soon"
    NOT_RUNNING = "not-running"


class Confidence(enum.StrEnum):
    """How far a finding can be relied upon; in its words stands why."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"


class Cause(enum.StrEnum):
    """What keeps an enforced change from being made now, though the evidence and the rule would have it."""

    BUDGET = "budget"
    DISRUPTION_BUDGET = "disruption-budget"
    WINDOW = "window"
    FREEZE = "freeze"
    NOTICE = "notice"
    COOLDOWN = "cooldown"
    MANAGED_ELSEWHERE = "managed-elsewhere"
    ON_DEMAND = "on-demand"
    NO_ROOM = "no-room"
    PAUSED = "paused"
    BREAKER = "breaker"


class TripCause(enum.StrEnum):
    """Why the breaker opens, so that nothing is done until a person closes it."""

    ERRORS = "errors"
    OUT_OF_POLICY = "out-of-policy"
    NODES = "nodes"
    SCOPE = "scope"
    UNREADABLE = "unreadable"


class End(enum.StrEnum):
    """How a change of ours came to its end: by whom, and by what means, it was taken back."""

    UNDONE = "undone"
    REVERTED = "reverted"
    PUT_BACK = "put-back"
    GROWN_BACK = "grown-back"
    REFUSED = "refused"
    """The API server refused the second half of it, so it goes on as it was."""


class Mending(enum.StrEnum):
    """What a repair does about what was found of an earlier change."""

    REMEMBER = "remember"
    PUT_BACK = "put-back"
    FINISH = "finish"
    SETTLE = "settle"
    DROP = "drop-manifest"


class Result(enum.StrEnum):
    """How an attempted change ended."""

    DONE = "done"
    GONE = "gone"
    CHANGED = "changed"
    BLOCKED = "blocked"
    REFUSED = "refused"
    UNKNOWN = "unknown"
    SKIPPED = "skipped"
