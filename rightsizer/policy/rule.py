"""One rule of a policy file: its conditions, mode, actions and thresholds. Pure."""

import datetime
import re
from typing import Annotated, Literal, Self

import pydantic
from pydantic_core import PydanticKnownError

from rightsizer.model import Action, FindingName, Mode
from rightsizer.policy import thresholds
from rightsizer.policy.match import Match
from rightsizer.policy.thresholds import Delay
from rightsizer.policy.values import Part, one_of

COOLDOWN = datetime.timedelta(hours=24)
"""A workload that was resumed and becomes idle again is left alone for a day."""

MAX_COOLDOWN = datetime.timedelta(days=7)
"""An owner who takes a workload back each day is asked again after a week."""

HEALTHY_WITHIN = datetime.timedelta(minutes=15)
"""Pulling an image and loading a model takes minutes, rarely a quarter of an hour."""

SAFE_ACTIONS = (
    Action.SCALE_UP,
    Action.SCALE_DOWN,
    Action.RESIZE,
    Action.RESLICE,
    Action.SCALE_TO_ZERO,
    Action.SUSPEND,
)
"""Actions other than evict, which destroys a bare pod."""

ACTIONS = (*SAFE_ACTIONS, Action.EVICT)
"""Actions that a rule may name; notifyBefore adds a notice."""

IDLENESS = (FindingName.IDLE, FindingName.FINISHED)
"""Findings that a rule's mode applies to, unless `findings` says otherwise."""

UNUSED = (*IDLENESS, FindingName.NO_REQUESTS)
"""Findings that free all GPUs of a workload, or those that it need not keep."""

SWITCHABLE = (
    *UNUSED,
    FindingName.UNDERUTILIZED,
    FindingName.TOO_MANY_GPUS,
    FindingName.OVERSIZED_GPU,
    FindingName.TOO_MANY_REPLICAS,
    FindingName.TOO_FEW_REPLICAS,
    FindingName.STUCK,
    FindingName.INPUT_BOUND,
    FindingName.NOT_STARTING,
    FindingName.UNUSABLE_GPUS,
    FindingName.WRONG_GPU,
)
"""Findings whose mode a rule may set: those with an action or advice."""

CALLS_FOR = {
    FindingName.TOO_MANY_GPUS: (Action.RESIZE,),
    FindingName.TOO_MANY_REPLICAS: (Action.SCALE_DOWN, Action.SCALE_UP),
    FindingName.TOO_FEW_REPLICAS: (Action.SCALE_UP,),
    FindingName.OVERSIZED_GPU: (Action.RESLICE,),
}
"""Actions without which enforcing a finding would do nothing, or only half."""

ADVICE_ONLY = (
    FindingName.UNDERUTILIZED,
    FindingName.INPUT_BOUND,
    FindingName.NOT_STARTING,
    FindingName.UNUSABLE_GPUS,
    FindingName.WRONG_GPU,
)
"""Reported, never acted upon: no action of gpu-rightsizer helps."""

FindingMode = Literal["advise", "enforce", "off"]


def yaml_off(value: object) -> object:
    """YAML 1.1 reads a plain off as false."""
    return "off" if value is False else value


_Switch = Annotated[
    FindingMode,
    pydantic.BeforeValidator(yaml_off),
    pydantic.WithJsonSchema({"enum": ["advise", "enforce", "off", False]}),
]


_Switchable = Annotated[
    FindingName,
    pydantic.Field(strict=False),
    pydantic.BeforeValidator(
        one_of([name.value for name in SWITCHABLE], "not a finding that a rule can set")
    ),
]


def _nameable(value: object) -> object:
    if value in ACTIONS:
        return value
    *names, last = [f"'{action.value}'" for action in ACTIONS]
    raise PydanticKnownError("enum", {"expected": f"{', '.join(names)} or {last}"})


NamedAction = Annotated[
    Action,
    pydantic.Field(strict=False),
    pydantic.BeforeValidator(_nameable),
    pydantic.WithJsonSchema({"type": "string", "enum": [action.value for action in ACTIONS]}),
]


_INSTEAD = "Replaces the defaults completely."


_NAME = r"^[A-Za-z0-9]([-A-Za-z0-9_. ]*[A-Za-z0-9])?$"


class Rule(Part):
    """One rule: the workloads that it matches, and the modes of their findings."""

    name: str = pydantic.Field(
        min_length=1,
        max_length=63,
        json_schema_extra={"pattern": _NAME},
        description="Name in plans, events and undo records: letters and digits, with spaces and -_. between them.",
    )
    match: Match = pydantic.Field(description="Workloads that the rule matches; all conditions must hold.")
    mode: Mode = pydantic.Field(
        strict=False, description="Highest mode of the rule: protect, advise or enforce."
    )
    findings: dict[_Switchable, _Switch] = pydantic.Field(
        default_factory=dict,
        json_schema_extra={
            "propertyNames": {"enum": [name.value for name in SWITCHABLE]},
            "properties": {name.value: {"enum": ["advise", "off", False]} for name in ADVICE_ONLY},
        },
        description="Mode per finding: advise, enforce or off. Default: mode for idle and finished, as "
        "too-many-replicas for too-few-replicas, else advise.",
    )
    actions: tuple[NamedAction, ...] = pydantic.Field(
        SAFE_ACTIONS,
        strict=False,
        json_schema_extra={"uniqueItems": True},
        description="Allowed actions, in any order. evict destroys bare pods, so it must be listed.",
    )
    onlyForPendingPods: tuple[NamedAction, ...] = pydantic.Field(
        (),
        strict=False,
        json_schema_extra={"uniqueItems": True},
        description="Actions that are taken only while pods of higher priority wait for the freed GPUs.",
    )
    minReplicas: int = pydantic.Field(
        0,
        ge=0,
        le=1_000_000,
        description="Replicas to keep. With 1 or more, the workload is only scaled down, never stopped. Scaling "
        "down always keeps one.",
    )
    minGPUs: int = pydantic.Field(
        0,
        ge=0,
        le=1_000_000,
        description="GPUs, shares or MIG instances to keep; an idle workload keeps the replicas that hold them.",
    )
    notifyBefore: Delay | None = pydantic.Field(
        None,
        description="Shortest time from the notice to the change; too-many-replicas needs none. Default: that of the "
        "kind.",
    )
    cooldown: Delay = pydantic.Field(
        COOLDOWN,
        description="Time without changes after a change, or after its revert; doubled for each revert. A change of "
        "replicas that held starts none.",
    )
    maxCooldown: Delay = pydantic.Field(
        MAX_COOLDOWN,
        description="Longest cooldown by doubling, unless cooldown is longer.",
    )
    maxChanges: int = pydantic.Field(
        2,
        ge=0,
        le=1_000_000,
        description="Maximum number of changes in 30 days; those of replicas that held do not count.",
    )
    healthyWithin: Delay = pydantic.Field(
        HEALTHY_WITHIN,
        description="Time to become healthy after scale-down, resize or reslice; else the change is rolled back.",
    )
    restartTime: Delay | None = pydantic.Field(
        None,
        description="Time from the end of a stop to useful work; lost when a pending pod's victims are chosen. Default "
        "by kind: 2m; servers 5m, training 10m, notebooks 30m.",
    )
    idle: thresholds.Thresholds | None = pydantic.Field(None, description="Replaces the defaults completely.")
    noRequests: thresholds.NoRequests | None = pydantic.Field(None, description=_INSTEAD)
    underutilized: thresholds.Underutilized | None = pydantic.Field(None, description=_INSTEAD)
    tooManyGpus: thresholds.TooManyGpus | None = pydantic.Field(None, description=_INSTEAD)
    tooManyReplicas: thresholds.TooManyReplicas | None = pydantic.Field(None, description=_INSTEAD)
    oversizedGpu: thresholds.OversizedGpu | None = pydantic.Field(None, description=_INSTEAD)
    stuck: thresholds.Stuck | None = pydantic.Field(None, description=_INSTEAD)
    inputBound: thresholds.InputBound | None = pydantic.Field(None, description=_INSTEAD)
    notStarting: thresholds.NotStarting | None = pydantic.Field(None, description=_INSTEAD)

    @pydantic.field_validator("name", mode="after")
    @classmethod
    def _is_name(cls, name: str) -> str:
        if not re.match(_NAME, name) or name.endswith("\n"):
            message = (
                f"{name!r} is not a valid name: use letters and digits, with spaces and -_. between them"
            )
            raise ValueError(message)
        return name

    @pydantic.field_validator("actions", "onlyForPendingPods", mode="after")
    @classmethod
    def _each_once(cls, actions: tuple[Action, ...]) -> tuple[Action, ...]:
        for action in actions:
            if actions.count(action) > 1:
                message = f"{action.value} is listed twice; list it once"
                raise ValueError(message)
        return actions

    @pydantic.model_validator(mode="after")
    def _means_something(self) -> Self:
        for problem in (self._without_actions, self._above_its_mode, self._impossible):
            message = problem()
            if message:
                raise ValueError(message)
        return self

    def _without_actions(self) -> str | None:
        if self.mode is not Mode.PROTECT and not self.actions:
            return f"mode {self.mode.value} needs an action; name one, or write mode: protect"
        for action in self.onlyForPendingPods:
            if action not in self.actions:
                return f"onlyForPendingPods names {action.value}, which actions lacks; add it there or remove it here"
            if action is Action.SCALE_UP:
                return "onlyForPendingPods names scale-up, which frees nothing; remove it"
        return None

    def _above_its_mode(self) -> str | None:
        if self.mode is Mode.PROTECT and self.findings:
            return "a rule with mode: protect judges nothing; remove findings, or write mode: advise"
        for name, treatment in self.findings.items():
            if treatment != "enforce":
                continue
            if self.mode is not Mode.ENFORCE:
                return f"findings.{name.value} is enforce, but the rule's mode is lower; write mode: enforce"
            if name in ADVICE_ONLY:
                return f"findings.{name.value} can only give advice; write advise or off"
        return None

    def _impossible(self) -> str | None:
        """The reason for which an enforced finding could never be acted upon."""
        if self.mode is not Mode.ENFORCE:
            return None
        for name, needed in CALLS_FOR.items():
            missing = [action.value for action in needed if action not in self.actions]
            if self.findings.get(name) == "enforce" and missing:
                return f"findings.{name.value} is enforce, but actions lacks {' and '.join(missing)}; add it"
        if self.minReplicas and Action.SCALE_DOWN not in self.actions:
            return f"minReplicas {self.minReplicas} forbids every stop, and actions lacks scale-down; add it"
        scales_down = self.findings.get(FindingName.TOO_MANY_REPLICAS) == "enforce"
        if scales_down and self.findings.get(FindingName.TOO_FEW_REPLICAS, "enforce") != "enforce":
            return "too-few-replicas reverses too-many-replicas; enforce both or neither"
        return None

    def mode_for(self, name: FindingName) -> Mode:
        """The mode for one finding; PROTECT where it is switched off."""
        treatment = self.findings.get(name)
        if treatment is None and name is FindingName.TOO_FEW_REPLICAS:
            treatment = self.findings.get(FindingName.TOO_MANY_REPLICAS)
        if treatment is None:
            return self.mode if name in IDLENESS or self.mode is not Mode.ENFORCE else Mode.ADVISE
        return Mode.PROTECT if treatment == "off" else Mode(treatment)
