"""The shape of a policy file: every field with its unit and default. The schema and the documentation follow from it.

Values are checked here as far as they can be without a cluster; positions in the file are `reading`'s business.
"""

import datetime
import difflib
import fnmatch
from collections.abc import Iterator
from typing import Annotated, Final, Literal, Self

import pydantic

from rightsizer.config import parse_duration
from rightsizer.model import Action, Mode

API_VERSION: Final = "gpu-rightsizer.io/v1alpha1"

LOWEST_PRIORITY = -2_147_483_648
HIGHEST_USER_PRIORITY = 1_000_000_000
"""Kubernetes reserves what lies above for system classes (PriorityClass v1)."""

IDLE_POWER_W: Final = {
    "*H100*": 160.0,
    "*H200*": 170.0,
    "*A100*": 110.0,
    "*L40S*": 110.0,
    "*L4": 40.0,
    "*T4": 40.0,
}
"""An H100 draws about 70 W without a context and 116 to 123 W with a model loaded and idle (measured on serving
fleets); the other rows keep the same distance to their card's idle draw. Models without a row are judged by memory
traffic."""

MIN_WINDOW = datetime.timedelta(minutes=5)
MAX_WINDOW = datetime.timedelta(days=366)
"""Nobody keeps samples of every pod for longer; Prometheus itself refuses ranges of centuries."""

KINDS: Final = (
    # apps/v1, batch/v1, v1, and OpenShift's
    *("CronJob", "DaemonSet", "Deployment", "Job", "Node", "Pod", "ReplicaSet", "ReplicationController"),
    *("StatefulSet", "DeploymentConfig"),
    # Argo, CodeFlare, JobSet, KEDA, KServe, Knative, KubeVirt
    *("Rollout", "CronWorkflow", "Workflow", "AppWrapper", "JobSet", "ScaledJob", "InferenceService"),
    *("LLMInferenceService", "Revision", "Service", "VirtualMachine", "VirtualMachineInstance"),
    # Kubeflow, with Katib and Kaito
    *("JAXJob", "MPIJob", "Notebook", "PaddleJob", "PyTorchJob", "TFJob", "TrainJob", "XGBoostJob"),
    *("Experiment", "Trial", "Workspace"),
    # Dask, Dynamo, Grove, LeaderWorkerSet, NIM, OpenKruise, Ray, Seldon, Spark
    *("DaskCluster", "DynamoGraphDeployment", "PodClique", "PodCliqueSet", "LeaderWorkerSet", "NIMService"),
    *("CloneSet", "RayCluster", "RayJob", "RayService", "SeldonDeployment", "SparkApplication"),
)
"""Kinds under which pods are found. Others are written with their API group, so that a slip is not taken for one."""


def _duration(value: object) -> object:
    """Accept Prometheus's notation, and nothing else: 24 alone could be seconds or hours."""
    if isinstance(value, datetime.timedelta):
        return value
    if not isinstance(value, str):
        message = "write a duration as text with a unit, such as 30m, 24h or 7d"
        raise ValueError(message)  # noqa: TRY004 - pydantic turns ValueErrors into problems
    return parse_duration(value)


Duration = Annotated[
    datetime.timedelta,
    pydantic.BeforeValidator(_duration),
    pydantic.WithJsonSchema({"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h|d|w))+$"}),
]


def _known_kind(value: str) -> str:
    """A rule about a kind that nothing is of would protect nobody, silently."""
    if "." in value or any(fnmatch.fnmatchcase(kind, value) for kind in KINDS):
        return value
    close = difflib.get_close_matches(value, KINDS, n=1, cutoff=0.0)
    hint = f"did you mean {close[0]}? One of your own is written {value}.GROUP"
    message = f"no workload's kind is known as {value}; {hint}"
    raise ValueError(message)


class _Part(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class PriorityRange(_Part):
    """An inclusive range of pod priorities."""

    min: int = pydantic.Field(LOWEST_PRIORITY, ge=LOWEST_PRIORITY, le=HIGHEST_USER_PRIORITY)
    max: int = pydantic.Field(HIGHEST_USER_PRIORITY, ge=LOWEST_PRIORITY, le=HIGHEST_USER_PRIORITY)

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min > self.max:
            message = f"min {self.min} lies above max {self.max}"
            raise ValueError(message)
        return self


Pattern = Annotated[str, pydantic.Field(max_length=253)]
Kind = Annotated[Pattern, pydantic.AfterValidator(_known_kind)]
Patterns = Annotated[tuple[Pattern, ...], pydantic.Field(min_length=1, strict=False)]


class Match(_Part):
    """Which workloads a rule is about; all conditions that are given must hold."""

    priorityClasses: Patterns | None = pydantic.Field(
        None,
        description="Names of PriorityClasses, with * and ? as wildcards, each of which must match one that exists; "
        '"" means pods without a class.',
    )
    priority: PriorityRange | None = pydantic.Field(None, description="Range of the pods' resolved priority.")
    namespaces: Patterns | None = pydantic.Field(None, description="Names of namespaces, with wildcards.")
    kinds: Annotated[tuple[Kind, ...], pydantic.Field(min_length=1, strict=False)] | None = pydantic.Field(
        None,
        description="Kinds of workloads, such as Deployment, with wildcards; of one's own with the API group, such as "
        "TrainingRun.example.com.",
    )
    everything: Literal[True] | None = pydantic.Field(
        None,
        description="Matches all workloads; stands alone, so that nobody matches everything by accident.",
    )

    @pydantic.model_validator(mode="after")
    def _not_empty(self) -> Self:
        conditions = [self.priorityClasses, self.priority, self.namespaces, self.kinds]
        given = [condition for condition in conditions if condition is not None]
        if self.everything and given:
            message = "everything: true stands alone; remove it or the other conditions"
            raise ValueError(message)
        if not self.everything and not given:
            message = "an empty match would match everything; give a condition, or write everything: true"
            raise ValueError(message)
        return self


class Judging(_Part):
    """What every finding needs to say."""

    window: Duration = pydantic.Field(
        datetime.timedelta(hours=24), description="How far back is looked; nothing younger is touched."
    )
    grace: Duration = pydantic.Field(
        datetime.timedelta(minutes=30), description="Added to the window before anything new is touched."
    )
    minCoverage: float = pydantic.Field(
        0.9, gt=0.0, le=1.0, strict=False, description="Least share of the window with samples, 0 to 1."
    )

    @pydantic.model_validator(mode="after")
    def _window_is_judgeable(self) -> Self:
        if self.window < MIN_WINDOW:
            message = "window must be at least 5m: less says nothing about a workload"
            raise ValueError(message)
        if self.window > MAX_WINDOW:
            message = "window must be at most 366d: nobody keeps samples for longer"
            raise ValueError(message)
        return self


class Thresholds(Judging):
    """When a workload counts as idle."""

    maxUtilizationPercent: float = pydantic.Field(
        1.0,
        ge=0.0,
        lt=100.0,
        strict=False,
        description="A device whose highest sample is not above this is idle.",
    )
    maxMemoryTrafficPercent: float = pydantic.Field(
        1.0, ge=0.0, lt=100.0, strict=False, description="The same for memory traffic, the second signal."
    )
    idlePowerWatts: dict[str, Annotated[float, pydantic.Field(gt=0.0, strict=False)]] = pydantic.Field(
        default_factory=lambda: dict(IDLE_POWER_W),
        description="Highest board power of an idle GPU with a model loaded, by pattern of the model's name.",
    )

    history: Duration = pydantic.Field(
        datetime.timedelta(days=14),
        description="How far back is looked for the pauses from which it came back.",
    )
    returnFactor: float = pydantic.Field(
        2.0,
        ge=0.0,
        le=100.0,
        strict=False,
        description="It must have been idle for this many times the longest pause from which it ever came back; 0: "
        "pauses do not matter.",
    )

    def idle_power_w(self, model: str) -> float | None:
        """Highest board power in watts at which a GPU of this model may count as idle; None where none is known."""
        for pattern, watts in self.idlePowerWatts.items():
            if fnmatch.fnmatchcase(model, pattern):
                return watts
        return None


class Underused(Judging):
    """When a workload that works counts as using far less than it holds."""

    maxMeanPercent: float = pydantic.Field(
        20.0, ge=0.0, le=100.0, strict=False, description="Highest mean utilization of each of its GPUs."
    )


class TooManyGpus(Judging):
    """When some of the GPUs of each pod count as never used, while others are."""

    maxUtilizationPercent: float = pydantic.Field(
        1.0,
        ge=0.0,
        lt=100.0,
        strict=False,
        description="A GPU whose highest sample is not above this is not used.",
    )


class TooManyReplicas(Judging):
    """How many replicas are enough: the most at work in one minute, and headroom."""

    window: Duration = pydantic.Field(
        datetime.timedelta(hours=1), description="The trailing window in which the busiest minute is sought."
    )
    days: int = pydantic.Field(
        7,
        ge=0,
        le=31,
        description="On how many days before the coming hour is looked at as well; 0: on none.",
    )
    busyPercent: float = pydantic.Field(
        1.0, ge=0.0, lt=100.0, strict=False, description="Above this a replica counts as at work in a minute."
    )
    headroomPercent: float = pydantic.Field(
        20.0, ge=0.0, le=1000.0, strict=False, description="Added to the busiest minute, rounded up."
    )
    minHeadroom: int = pydantic.Field(1, ge=0, description="At least so many replicas are added to it.")


class Sliceable(Judging):
    """When a MIG profile or a share of a GPU would do."""

    memoryMarginPercent: float = pydantic.Field(
        20.0, ge=0.0, le=1000.0, strict=False, description="Added to the highest memory use."
    )
    activityMarginPercent: float = pydantic.Field(
        20.0, ge=0.0, le=1000.0, strict=False, description="Added to the highest utilization."
    )


class Stuck(Judging):
    """When full utilization is no work: at an idle board's power, without memory traffic."""

    window: Duration = pydantic.Field(
        datetime.timedelta(hours=2), description="How long it must have looked so."
    )
    minMeanPercent: float = pydantic.Field(
        95.0, gt=0.0, le=100.0, strict=False, description="Least mean utilization."
    )


class Starved(Judging):
    """When a workload waits for something else than its GPUs."""

    maxMeanPercent: float = pydantic.Field(
        50.0, ge=0.0, le=100.0, strict=False, description="Highest mean utilization."
    )
    minWaitPercent: float = pydantic.Field(
        25.0,
        gt=0.0,
        le=100.0,
        strict=False,
        description="Least share of the time in which it is throttled, or waits for CPU, disk or network.",
    )


class Stranded(_Part):
    """When GPUs that are held do nobody any good: by pods that do not run."""

    after: Duration = pydantic.Field(
        datetime.timedelta(minutes=30), description="How long a pod may hold GPUs without running."
    )


_INSTEAD = "Instead of the defaults', as a whole."


class Rule(_Part):
    """One rule: whom it is about, and what is to be done with findings about them."""

    name: str = pydantic.Field(
        min_length=1, max_length=63, description="Stands in plans, events and undo records."
    )
    match: Match
    mode: Mode = pydantic.Field(strict=False, description="protect, advise or enforce.")
    actions: tuple[Annotated[Action, pydantic.Field(strict=False)], ...] = pydantic.Field(
        (Action.SCALE_TO_ZERO, Action.SUSPEND),
        strict=False,
        description="What enforce may do and advise may propose; evict destroys a bare pod, so it must be named.",
    )
    idle: Thresholds | None = pydantic.Field(
        None, description="Instead of the defaults' thresholds, as a whole."
    )
    underused: Underused | None = pydantic.Field(None, description=_INSTEAD)
    tooManyGpus: TooManyGpus | None = pydantic.Field(None, description=_INSTEAD)
    tooManyReplicas: TooManyReplicas | None = pydantic.Field(None, description=_INSTEAD)
    sliceable: Sliceable | None = pydantic.Field(None, description=_INSTEAD)
    stuck: Stuck | None = pydantic.Field(None, description=_INSTEAD)
    starved: Starved | None = pydantic.Field(None, description=_INSTEAD)
    stranded: Stranded | None = pydantic.Field(None, description=_INSTEAD)

    @pydantic.model_validator(mode="after")
    def _acts_somehow(self) -> Self:
        if self.mode is not Mode.PROTECT and not self.actions:
            message = f"mode {self.mode.value} needs an action; name one, or write mode: protect"
            raise ValueError(message)
        return self


class KindDefaults(_Part):
    """Idle thresholds for some kinds: how long to wait follows from what a mistake costs."""

    kinds: Annotated[tuple[Kind, ...], pydantic.Field(min_length=1, strict=False)] = pydantic.Field(
        description="Kinds of workloads, with wildcards."
    )
    idle: Thresholds = pydantic.Field(description="Instead of defaults.idle, as a whole.")


class Defaults(_Part):
    """What holds for every rule that does not say otherwise."""

    idle: Thresholds = pydantic.Field(default_factory=Thresholds)
    kinds: tuple[KindDefaults, ...] = pydantic.Field(
        (), strict=False, description="Other idle thresholds by kind; the first that matches holds."
    )
    underused: Underused = pydantic.Field(default_factory=Underused)
    tooManyGpus: TooManyGpus = pydantic.Field(default_factory=TooManyGpus)
    tooManyReplicas: TooManyReplicas = pydantic.Field(default_factory=TooManyReplicas)
    sliceable: Sliceable = pydantic.Field(default_factory=Sliceable)
    stuck: Stuck = pydantic.Field(default_factory=Stuck)
    starved: Starved = pydantic.Field(default_factory=Starved)
    stranded: Stranded = pydantic.Field(default_factory=Stranded)


class Policy(_Part):
    """A policy: ordered rules, first match wins; what none matches is only advised on."""

    apiVersion: Literal["gpu-rightsizer.io/v1alpha1"]
    kind: Literal["Policy"]
    defaults: Defaults = pydantic.Field(default_factory=Defaults)
    honourOptOut: bool = pydantic.Field(
        True,  # noqa: FBT003 - pydantic's default
        description="Whether users may take their workloads out by annotation.",
    )
    protectedNamespaces: tuple[Pattern, ...] = pydantic.Field(
        (), strict=False, description="Namespaces protected in addition to the built-in ones, with wildcards."
    )
    rules: Annotated[tuple[Rule, ...], pydantic.Field(strict=False)]

    @pydantic.model_validator(mode="after")
    def _distinct_rules(self) -> Self:
        if not self.rules:
            message = "rules must hold at least one rule"
            raise ValueError(message)
        seen: set[str] = set()
        for rule in self.rules:
            if rule.name in seen:
                message = f"two rules are called {rule.name!r}"
                raise ValueError(message)
            seen.add(rule.name)
        return self


def _parts(part: type[_Part]) -> Iterator[type[_Part]]:
    yield part
    for below in part.__subclasses__():
        yield from _parts(below)


FIELDS = sorted({field for part in _parts(_Part) for field in part.model_fields})
"""Every name that may stand in a policy file, to suggest the nearest one."""

ADVISE_ONLY = Policy(
    apiVersion=API_VERSION,
    kind="Policy",
    rules=(Rule(name="advise-only", match=Match(everything=True), mode=Mode.ADVISE, actions=tuple(Action)),),
)
"""What holds where no policy file is given: everything is judged, nothing is touched."""
