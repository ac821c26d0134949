"""The shape of a policy file: every field with its unit and default. The schema and the documentation follow from it.

Values are checked here as far as they can be without a cluster; positions in the file are `reading`'s business. The
parts stand beside it: `match`, `thresholds`, `limits`, and in `values` the small ones.
"""

import datetime
import difflib
from typing import Annotated, Final, Literal, Self

import pydantic

from rightsizer.model import Mode
from rightsizer.policy.do_not_disrupt import ALL_MARKS, Mark
from rightsizer.policy.limits import (
    DEFAULT_BUDGETS,
    Breaker,
    Budget,
    Freeze,
    MaintenanceWindow,
    NewlyEligible,
    with_defaults,
)
from rightsizer.policy.match import Match, PriorityRange
from rightsizer.policy.notification_targets import Target
from rightsizer.policy.other_controllers import MANAGERS, Word
from rightsizer.policy.rule import ACTIONS, FindingMode, Rule, yaml_off
from rightsizer.policy.thresholds import (
    IDLE_POWER_W,
    InputBound,
    Judging,
    NotStarting,
    OversizedGpu,
    Stuck,
    Thresholds,
    TooManyGpus,
    TooManyReplicas,
    Underutilized,
)
from rightsizer.policy.values import Duration, Kinds, Name, Part

__all__ = [
    "ADVISE_ONLY",
    "API_VERSION",
    "IDLE_POWER_W",
    "Breaker",
    "Budget",
    "Defaults",
    "FindingMode",
    "Freeze",
    "InputBound",
    "Judging",
    "KindDefaults",
    "MaintenanceWindow",
    "Match",
    "NewlyEligible",
    "NotStarting",
    "OversizedGpu",
    "Policy",
    "PriorityRange",
    "Rule",
    "Stuck",
    "Thresholds",
    "TooManyGpus",
    "TooManyReplicas",
    "Underutilized",
]

API_VERSION: Final = "gpu-rightsizer.io/v1alpha1"


class KindDefaults(Part):
    """Idle thresholds for some kinds: how long to wait follows from what a mistake costs."""

    kinds: Kinds = pydantic.Field(description="Kinds of workloads, with wildcards.")
    idle: Thresholds | None = pydantic.Field(
        None, description="Instead of defaults.idle, as a whole; where it is left out, that holds."
    )
    notifyBefore: Duration | None = pydantic.Field(
        None, description="Duration from a notice to the change, where the rule does not say one."
    )


_HOUR = datetime.timedelta(hours=1)
DEFAULT_KINDS = (
    # Comes back by itself in about a minute when it is asked for: a mistake costs that minute.
    KindDefaults(
        kinds=("InferenceService", "LLMInferenceService", "NIMService", "Revision", "Service"),
        idle=Thresholds(window=4 * _HOUR),
    ),
    # What is in a notebook's memory is gone, and a first long night looks like the end: only asking finds out. Without
    # a notice half of what is stopped comes back, with it 4 % (docs/judgement.md). Hubs make StatefulSets and bare pods
    # of notebooks.
    KindDefaults(
        kinds=("Notebook", "Workspace", "StatefulSet", "Pod"),
        idle=Thresholds(window=24 * _HOUR, idleFactor=2.0),
        notifyBefore=24 * _HOUR,
    ),
    # Hours since the last checkpoint are lost: the evidence must be nearly whole, and the pause beyond all others.
    KindDefaults(
        kinds=(
            "*Job",
            "Workflow",
            "CronWorkflow",
            "AppWrapper",
            "SparkApplication",
            "RayCluster",
            "PodGroup",
        ),
        idle=Thresholds(window=24 * _HOUR, minCoverage=0.95, idleFactor=3.0),
    ),
)
"""Everything else (a Deployment may be a person's workbench) waits as defaults.idle says. All
windows but one are equal, since each is a set of queries of its own."""


class Defaults(Part):
    """What holds for every rule that does not say otherwise."""

    idle: Thresholds = pydantic.Field(
        default_factory=Thresholds,
        description="When a workload counts as idle or finished. Without kinds beside it, of all kinds; the "
        "notices of the built-in kinds stay, unless kinds: [] is written.",
    )
    kinds: tuple[KindDefaults, ...] = pydantic.Field(
        DEFAULT_KINDS,
        strict=False,
        description="Other idle thresholds by kind; the first that matches holds. Replaces the built-in rows.",
    )
    underutilized: Underutilized = pydantic.Field(default_factory=Underutilized)
    tooManyGpus: TooManyGpus = pydantic.Field(default_factory=TooManyGpus)
    tooManyReplicas: TooManyReplicas = pydantic.Field(default_factory=TooManyReplicas)
    oversizedGpu: OversizedGpu = pydantic.Field(default_factory=OversizedGpu)
    stuck: Stuck = pydantic.Field(default_factory=Stuck)
    inputBound: InputBound = pydantic.Field(default_factory=InputBound)
    notStarting: NotStarting = pydantic.Field(default_factory=NotStarting)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _idle_is_for_all(cls, value: object) -> object:
        """Who writes a window of a week does not mean a day for Jobs; nor, that nobody is to be asked before."""
        if isinstance(value, dict) and "idle" in value and "kinds" not in value:
            asked = (row for row in DEFAULT_KINDS if row.notifyBefore)
            return {**value, "kinds": tuple(row.model_copy(update={"idle": None}) for row in asked)}
        return value


def _is_manager(value: object) -> object:
    if value in MANAGERS:
        return value
    close = difflib.get_close_matches(str(value), MANAGERS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(MANAGERS)}"
    message = f"no manager is called so; {hint}"
    raise ValueError(message)


_ManagerName = Annotated[str, pydantic.BeforeValidator(_is_manager)]

ClassAnnotations = Annotated[
    Literal["file-first", "class-first", "off"],
    pydantic.BeforeValidator(yaml_off),
    pydantic.WithJsonSchema({"enum": ["file-first", "class-first", "off", False]}),
]


class Policy(Part):
    """A policy: ordered rules, first match wins; what none matches is only advised on."""

    apiVersion: Literal["gpu-rightsizer.io/v1alpha1"] = pydantic.Field(
        description="Version of this format: gpu-rightsizer.io/v1alpha1."
    )
    kind: Literal["Policy"] = pydantic.Field(description="Policy.")
    defaults: Defaults = pydantic.Field(
        default_factory=Defaults, description="What holds for every rule that does not say otherwise."
    )
    classAnnotations: ClassAnnotations = pydantic.Field(
        "file-first",
        description="Whether annotations of PriorityClasses make rules, and who is asked first: file-first, "
        "class-first or 'off'.",
    )
    respectOptOut: bool = pydantic.Field(
        True,  # noqa: FBT003 - pydantic's default
        description="Whether users may take their workloads out by annotation.",
    )
    respectDoNotDisrupt: tuple[Annotated[Mark, pydantic.Field(strict=False)], ...] = pydantic.Field(
        ALL_MARKS,
        strict=False,
        description="Whose marks not to disturb something are obeyed; what carries one is only advised on.",
    )
    otherControllers: dict[_ManagerName, Word] = pydantic.Field(
        default_factory=dict,
        json_schema_extra={"propertyNames": {"enum": list(MANAGERS)}},
        description="By who else decides about a workload (argo-cd, field-manager, flux, helm, "
        "horizontalpodautoscaler, keda, kueue, verticalpodautoscaler): skip leaves it alone, advise lets the plan say "
        "what could be done, act does it all the same. Without a word, those that put back what is changed are advised "
        "on, the others acted upon.",
    )
    protectedNamespaces: tuple[Name, ...] = pydantic.Field(
        (), strict=False, description="Namespaces protected in addition to the built-in ones, with wildcards."
    )
    budgets: tuple[Budget, ...] = pydantic.Field(
        DEFAULT_BUDGETS,
        strict=False,
        description="How much may be changed. One that is written stands instead of the default of the same scope and "
        "per; the other defaults stay.",
    )
    maintenanceWindows: tuple[MaintenanceWindow, ...] = pydantic.Field(
        (), strict=False, description="When changes may be made; without any, always."
    )
    freezes: tuple[Freeze, ...] = pydantic.Field(
        (), strict=False, description="Days on which nothing is changed."
    )
    maxSnooze: Duration = pydantic.Field(
        datetime.timedelta(days=7),
        description="Longest duration from a notice to the change for which a workload's people can put it off by "
        "gpu-rightsizer.io/snooze-until.",
    )
    notifications: tuple[Target, ...] = pydantic.Field(
        (), strict=False, description="Who is told of notices and changes besides by Events, once per run."
    )
    breaker: Breaker = pydantic.Field(
        default_factory=Breaker,
        description="What opens the breaker, after which nothing is done until a person closes it.",
    )
    rules: tuple[Rule, ...] = pydantic.Field(
        strict=False,
        json_schema_extra={"minItems": 1},
        description="Asked in order; the first that matches holds.",
    )

    @property
    def asks_classes(self) -> bool:
        """Whether annotations of PriorityClasses can decide anything: not after a rule that matches everything."""
        is_reached = not any(rule.match.everything for rule in self.rules)
        return self.classAnnotations == "class-first" or (
            self.classAnnotations == "file-first" and is_reached
        )

    @pydantic.field_validator("budgets", mode="after")
    @classmethod
    def _with_defaults(cls, budgets: tuple[Budget, ...]) -> tuple[Budget, ...]:
        return with_defaults(budgets)

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


ADVISE_ONLY = Policy(
    apiVersion=API_VERSION,
    kind="Policy",
    rules=(Rule(name="advise-only", match=Match(everything=True), mode=Mode.ADVISE, actions=ACTIONS),),
)
"""What holds where no policy file is given: everything is judged, nothing is touched."""
