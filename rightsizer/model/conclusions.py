"""Conclusions from measurements: Finding → Decision → Plan → Outcome. Pure."""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from rightsizer.model.cluster_objects import ObjectRef, Pod
from rightsizer.model.fleet import Fleet, WaitingPod, Workload
from rightsizer.model.measurements import Measured
from rightsizer.model.names import Action, BlockerCode, Confidence, FindingName, Mode, Result, Verdict
from rightsizer.model.offers import Asks


@dataclasses.dataclass(frozen=True, slots=True)
class Proposal:
    """A change that a finding calls for.

    Attributes:
        replicas: Of a SCALE_DOWN or SCALE_UP: how many should be left; None where it is not about replicas.
        gpus_per_pod: Of a RESIZE: how many GPUs each pod needs; None where it is not about that.
        asks: Of a RESLICE: what each pod asks for instead, by name: a MIG profile, a share, or amounts of a GPU.
        pods: Which of the pods can go, or are concerned; names.
        role: Of a SCALE_DOWN or SCALE_UP: the only role that it is about, such as prefill; empty without roles.
        of_other_roles: How many pods that hold GPUs have other roles; they stay.
        model: Of a RESLICE: of which GPUs, as the metrics name it.
        frees: GPUs that would be free; negative for a scale-up.
        words: For people: the change and its margin.
    """

    action: Action
    frees: float
    words: str
    replicas: int | None = None
    gpus_per_pod: int | None = None
    asks: Asks = ()
    pods: tuple[str, ...] = ()
    model: str = ""
    role: str = ""
    of_other_roles: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """A statement of the measurements about a workload, with the evidence in numbers and in words.

    Attributes:
        verdict: ACT where the evidence would justify it, KEEP or UNKNOWN; policy has not spoken yet.
        busy_gpus: Devices with activity above the threshold; None where that cannot be said.
        coverage: The lowest coverage among its devices, 0 to 1.
        words: The evidence as sentences.
        idle_s: Seconds since it last worked, as far as was looked; None where that cannot be said.
        longest_return_s: The longest pause on record from which it came back, in seconds; None without history.
        required_idle_s: How long it must be idle to count as idle, in seconds; None where that cannot be said.
        is_noticeable: Whether it has been idle for long enough for a notice.
        counts_from: When it counts as idle if it stays idle; None where it does already, or that cannot be said.
        proposal: The wanted size; None for no change, or to free all GPUs by the stop of its kind.
        window: The window whose numbers these are.
        first_token_s: Mean time to the first token of its slowest inference server lately, in seconds.
    """

    name: FindingName
    verdict: Verdict
    words: tuple[str, ...]
    coverage: float
    busy_gpus: int | None = None
    activity_mean: float | None = None
    activity_peak: float | None = None
    memory_peak_bytes: float | None = None
    power_mean_w: float | None = None
    power_peak_w: float | None = None
    idle_s: float | None = None
    longest_return_s: float | None = None
    required_idle_s: float | None = None
    counts_from: datetime.datetime | None = None
    is_noticeable: bool = False
    confidence: Confidence = Confidence.MEDIUM
    proposal: Proposal | None = None
    window: datetime.timedelta | None = None
    first_token_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class DataIssue:
    """Why the data is insufficient for a verdict."""

    code: FindingName
    message: str


@dataclasses.dataclass(frozen=True, slots=True)
class Blocker:
    """Why a change may not be made, or not now; the message is for people.

    Attributes:
        source: The rule, protection or opt-out that it comes from; empty where there is none.
        until: When it ends by itself; None where that is not known.
    """

    code: BlockerCode
    message: str
    source: str = ""
    until: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Autoscalers:
    """A KEDA ScaledObject and a HorizontalPodAutoscaler, either of which would follow the need of replicas.

    Never both: each would undo what the other does.

    Attributes:
        lowest: The headroom: replicas without demand.
        highest: Replicas at most: those that there are, or what the busiest minute needed, with headroom.
        scaled_object: The manifest, as plain values, and so is `hpa`; None where the other one replaces what there is.
        replaces: The autoscaler that the manifest replaces, such as "HorizontalPodAutoscaler web"; empty for none.
    """

    lowest: int
    highest: int
    scaled_object: Mapping[str, Any] | None
    hpa: Mapping[str, Any] | None
    replaces: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """The action that policy allows or forbids on a workload, and the rule.

    Attributes:
        finding: The applied one.
        also: Other findings about the same workload, which this run does not act on.
        mode: What the matching rule wants; only ENFORCE leads to a write.
        action: The advised (ADVISE) or planned (ENFORCE) action; None if none.
        restrictions: Permanent blockers.
        blockers: Temporary blockers, such as budgets, windows and notices.
        command: The command for doing it by hand; empty without an action or a known way.
        frees: GPUs that acting on the finding would free, even if the rule does not allow it.
        autoscalers: Advised autoscalers, with measured bounds; None if none is advised.
        lost: What a stop destroys or nothing restores, for people; empty if nothing is stopped.
        gpu_hours_at_risk: GPU-hours since its last checkpoint, or since its pods started; 0 if a stop destroys none,
            or that is unknown.
        gpu_hours_lost: The same, and those until it works again after a stop; None if unknown, 0 if it is not stopped.
        along: Objects stopped with it, such as the CronJob that would start the next one.
        announced: For a NOTICE, the announced action; carried out at `due` if nothing changes.
        wanted_by: The pending pods, or objects of queues, that need these GPUs, with `onlyForPendingPods`.
        serves: The same, but gangs in place of their pods: each is served whole or not at all.
        going: By replica that goes, the most needed first: for which pending pod, its pods, and its GPUs. Empty if all
            goes at once.
        whole: What the finding calls for, if the pending pods need only the proposed replicas; None if it is all.
        healthy_within: Time to become healthy again, if it keeps some GPUs.
    """

    workload: Workload
    finding: Finding
    verdict: Verdict
    rule: str
    mode: Mode
    action: Action | None
    restrictions: tuple[Blocker, ...] = ()
    also: tuple[Finding, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    command: str = ""
    frees: float = 0.0
    autoscalers: Autoscalers | None = None
    announced: Action | None = None
    due: datetime.datetime | None = None
    wanted_by: tuple[ObjectRef, ...] = ()
    serves: tuple[ObjectRef, ...] = ()
    going: tuple[tuple[WaitingPod, tuple[Pod, ...], float], ...] = ()
    whole: "Decision | None" = None
    lost: str = ""
    gpu_hours_at_risk: float = 0.0
    gpu_hours_lost: float | None = 0.0
    along: tuple[ObjectRef, ...] = ()
    healthy_within: datetime.timedelta = datetime.timedelta()

    @property
    def is_enforced(self) -> bool:
        """Whether applying the plan writes to this workload."""
        wanted = self.verdict is Verdict.ACT and self.mode is Mode.ENFORCE and self.action is not None
        return wanted and not self.blockers

    @property
    def reclaimable(self) -> float:
        """GPUs that acting on the finding would free, also if a notice comes first; 0 if it calls for nothing yet."""
        if self.verdict is not Verdict.ACT or self.finding.counts_from:
            return 0.0
        if self.action is not Action.NOTICE:
            return self.frees
        proposal = self.finding.proposal
        return proposal.frees if proposal else float(self.workload.gpus)

    @property
    def is_blocked(self) -> bool:
        """Whether a rule enforces it, and something else keeps it from being written now."""
        return self.verdict is Verdict.ACT and self.mode is Mode.ENFORCE and bool(self.blockers)

    @property
    def pods_each(self) -> int:
        """Number of pods with GPUs in each replica: several of a group."""
        size, held = self.workload.size, len(self.workload.holding)
        return max(held // size, 1) if size and not isinstance(size, bool) else 1

    @property
    def pods_left(self) -> int:
        """Number of pods with GPUs after it is carried out: fewer, others in their place, or none."""
        proposal, held = self.finding.proposal, len(self.workload.holding)
        if proposal is None or proposal.replicas is None:
            return held if proposal else 0
        return min(proposal.of_other_roles + proposal.replicas * self.pods_each, held)

    @property
    def pods_going(self) -> int:
        """Number of pods with GPUs that it ends: all of them, if a changed template replaces them."""
        proposal, held = self.finding.proposal, len(self.workload.holding)
        is_of_number = proposal is not None and proposal.replicas is not None
        return held - self.pods_left if is_of_number else held


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterName:
    """A cluster, named by the context of the kubeconfig and the API server.

    Attributes:
        context: Empty in a pod, or where the kubeconfig names none.
        server: URL of the API server, without credentials.
        is_inside: Whether the program runs in a pod of the cluster, as its service account.
    """

    context: str
    server: str
    is_inside: bool = False

    @property
    def words(self) -> str:
        """Text with the context, if any, and the server."""
        if self.is_inside:
            return f"in-cluster ({self.server})"
        return f"context {self.context} ({self.server})" if self.context else self.server


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Every GPU workload of the cluster exactly once, in the order in which it would be acted upon.

    Attributes:
        at: The instant for which it holds, by Prometheus's clock.
        policy_source: Where the policy came from; `policy_hash` is the SHA-256 of its bytes.
        hypothetical: Why it must not be applied (objects from a file, a past moment); empty where it may be.
        problems: What could not be read, but does not make the plan wrong, for people.
        eligible: How many workloads each rule may act upon, whatever is found about them.
        scope_digest: Of the policy and the PriorityClasses, which decide that.
        opening: What opens the breaker if this is applied: why, in words.
        cluster: None where the objects are from a file.
        filter: What the decisions were chosen by, for people; empty if they are all.
        left_out: How many were not.
    """

    at: datetime.datetime
    run: str
    policy_source: str
    policy_hash: str
    decisions: tuple[Decision, ...]
    fleet: Fleet | None = None
    measured: Measured | None = None
    hypothetical: str = ""
    problems: tuple[str, ...] = ()
    eligible: Mapping[str, int] = dataclasses.field(default_factory=dict)
    scope_digest: str = ""
    opening: tuple[Blocker, ...] = ()
    cluster: ClusterName | None = None
    filter: str = ""
    left_out: int = 0

    @property
    def enforced(self) -> tuple[Decision, ...]:
        """The decisions that applying carries out."""
        return tuple(decision for decision in self.decisions if decision.is_enforced)


@dataclasses.dataclass(frozen=True, slots=True)
class Effect:
    """The verified effect of a change: on its pods, their GPUs, and the rest of the workload.

    Attributes:
        gone: Pods that are away, of those that had to go; `left` are those that are not yet.
        free: GPUs of theirs that nobody has now.
        used_by: New pods with GPUs on the same nodes.
        nodes_gone: Nodes that are not there any more.
        is_deallocating: Whether ResourceClaims of theirs are allocated, though no pod uses them.
        health: Of what goes on with less: healthy, waiting, or rolled-back; empty where nothing goes on.
        has_begun: Whether any of the pods is gone or terminating, or that is not known.
        words: For people.
    """

    gone: int
    left: int
    free: float
    used_by: tuple[ObjectRef, ...] = ()
    nodes_gone: tuple[str, ...] = ()
    is_deallocating: bool = False
    health: str = ""
    has_begun: bool = True
    words: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """The result of one decision, of one undo, or of one reconciliation.

    Attributes:
        detail: For people: what was changed, or why not.
        gpus: GPUs that the change frees (or, for undo, asks for again).
        effect: What it came to, once that was looked at.
        is_out_of_policy: Whether the API server's own copy of the policy refused it.
        is_reconciliation: Whether it is about what an earlier change left.
    """

    ref: ObjectRef
    action: str
    result: Result
    detail: str
    gpus: float
    at: datetime.datetime
    effect: Effect | None = None
    is_out_of_policy: bool = False
    is_reconciliation: bool = False
