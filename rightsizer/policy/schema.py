"""The schema of a policy file: every field with its unit and default. Pure.

`policy_file` adds line numbers. Parts of the schema are in `match`, `rule`, `thresholds`, `limits` and `values`.
"""

import datetime
import ipaddress
import re
import urllib.parse
from typing import Annotated, Final, Literal, Self

import pydantic

from rightsizer.inventory.demand_kinds import NamedQueues
from rightsizer.inventory.pods import KUEUE_GATES
from rightsizer.model import Mode
from rightsizer.policy.do_not_disrupt import ALL_MARKS, MANAGERS, Mark
from rightsizer.policy.limits import (
    DEFAULT_BUDGETS,
    Breaker,
    Budget,
    Freeze,
    MaintenanceWindow,
    with_defaults,
)
from rightsizer.policy.match import Key, Labels, Match, Sharing
from rightsizer.policy.rule import ACTIONS, Rule, yaml_off
from rightsizer.policy.thresholds import Sections, Thresholds
from rightsizer.policy.values import Classes, Duration, Kinds, Name, Names, Part, one_of

OCCASIONS: Final = ("notice", "change", "rollback", "failure", "backtest", "digest")
Occasion = Literal["notice", "change", "rollback", "failure", "backtest", "digest"]

_METADATA_HOSTS = frozenset({"metadata.google.internal", "metadata", "instance-data"})


def _address(url: str) -> str:
    """An address that a notice may go to.

    Raises:
        ValueError: It is none; the message says why.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        message = "must be an address such as https://hooks.example.com/gpu"
        raise ValueError(message)
    if parts.username or parts.password:
        message = "contains credentials; put the address into a file and set urlFile"
        raise ValueError(message)
    if parts.hostname.lower().rstrip(".") in _METADATA_HOSTS or _is_link_local(parts.hostname):
        message = "is a cloud's metadata service; messages are not sent there"
        raise ValueError(message)
    return url


def _is_link_local(host: str) -> bool:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return found.is_link_local or found == ipaddress.ip_address("fd00:ec2::254")


def checked_address(text: str) -> str:
    """The address in a file.

    Raises:
        ValueError: The value is invalid.
    """
    if not re.fullmatch(r"[!-~]{1,2000}", text):
        message = "must be one line of ASCII text: an address such as https://hooks.example.com/gpu"
        raise ValueError(message)
    return _address(text)


_Address = Annotated[
    str,
    pydantic.AfterValidator(checked_address),
    pydantic.WithJsonSchema({"type": "string", "pattern": "^https?://[!-?A-~]+$"}),
]


_OF_WORKLOAD = re.compile(r"\{(?:namespace|kind|name)\}")


def _answer_template(template: str) -> str:
    """An address in which fields of a workload are named, but not in its host, which a tenant could then choose.

    Raises:
        ValueError: It is none; the message says why.
    """
    address = _OF_WORKLOAD.sub("x", template)
    if set("{}|<>") & set(address) or "{" in urllib.parse.urlsplit(template).netloc:
        message = "must be an address, with {namespace}, {kind} and {name} as the only fields, after its host"
        raise ValueError(message)
    checked_address(address)
    return template


_BY_APPRISE = {
    "email": "mailtos://USER:PASSWORD@HOST:587?from=SENDER&to=RECIPIENT,RECIPIENT (port 465: with &mode=ssl)",
    "teams": "the workflow's address, or workflows://HOST/WORKFLOW/SIGNATURE",
}
"""Types of before, and the URL that the file has in their place."""


def _type(kind: object) -> object:
    if isinstance(kind, str) and (url := _BY_APPRISE.get(kind)):
        message = (
            f'"{kind}" is now sent by Apprise: write type: apprise, and urlFile with a file that holds {url}'
        )
        raise ValueError(message)
    return kind


class Target(Part):
    """One receiver of messages."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={"oneOf": [{"required": [field]} for field in ("url", "urlFile")]}
    )

    type: Annotated[Literal["webhook", "slack", "apprise"], pydantic.BeforeValidator(_type)] = pydantic.Field(
        description="webhook: a JSON document of kind Notification; slack: a text for Slack and Mattermost; apprise: a "
        "text for email, Microsoft Teams or another service of Apprise."
    )
    url: _Address | None = pydantic.Field(None, description="Address, if it is not secret.")
    urlFile: str | None = pydantic.Field(
        None,
        min_length=1,
        description="File with the address (apprise: a URL of https://appriseit.com/services), read for each message.",
    )
    tokenFile: str | None = pydantic.Field(
        None, min_length=1, description="File with a bearer token, read for each message."
    )
    namespaces: Names | None = pydantic.Field(
        None,
        description="Only workloads in these namespaces, with wildcards, and no backtests; default: all.",
    )
    owners: Labels | None = pydantic.Field(
        None,
        description="Only workloads with these labels or annotations, of their own or else of their namespace, and no "
        "backtests and digests. Values may have wildcards.",
    )
    occasions: tuple[Occasion, ...] = pydantic.Field(
        OCCASIONS,
        strict=False,
        min_length=1,
        json_schema_extra={"uniqueItems": True},
        description="notice: a change is planned; change: it was made; rollback: it was rolled back; failure: an "
        "error, or the breaker opened; backtest: `backtest --notify` ended; digest: `history --notify` ran.",
    )
    answerURL: Annotated[str, pydantic.AfterValidator(_answer_template)] | None = pydantic.Field(
        None,
        description="In chats: link of a notice to where its owner answers, such as a portal; with {namespace}, {kind} "
        "and {name}.",
    )

    @pydantic.model_validator(mode="after")
    def _one_address(self) -> Self:
        if (self.url is None) == (self.urlFile is None):
            message = "write either url, or urlFile if the address is secret"
            raise ValueError(message)
        if self.type == "apprise" and (self.url or self.tokenFile):
            message = "a URL for Apprise holds secrets; write it into a file, and urlFile in place of url and tokenFile"
            raise ValueError(message)
        if self.answerURL is not None and self.type == "webhook":
            message = "answerURL is for chats; a webhook has namespace, kind and name of each item"
            raise ValueError(message)
        return self


API_VERSION: Final = "gpu-rightsizer.io/v1alpha1"


class KindDefaults(Part):
    """Idle thresholds for some kinds."""

    kinds: Kinds = pydantic.Field(description="Workload kinds, with wildcards.")
    onlyNotebooks: bool = pydantic.Field(
        False,  # noqa: FBT003 - pydantic's default
        description="Only those that are notebooks by their labels, name or image.",
    )
    onlyWoken: bool = pydantic.Field(
        False,  # noqa: FBT003 - pydantic's default
        description="Only those that a request starts again after a stop.",
    )
    onlyPriorityClasses: Classes | None = pydantic.Field(
        None,
        description='Only those whose pods all have these PriorityClasses, with wildcards; "" means pods without one.',
    )
    idle: Thresholds | None = pydantic.Field(
        None, description="Replaces defaults.idle completely for these kinds."
    )
    notifyBefore: Duration | None = pydantic.Field(
        None, description="Shortest time from the notice to the change, unless the rule sets one."
    )


_HOUR = datetime.timedelta(hours=1)
# A long weekend begins on Friday evening and ends on Tuesday morning: 87 hours. A notebook may also be made before it.
_NOTEBOOK = Thresholds(window=24 * _HOUR, minIdleTime=96 * _HOUR, unusedWindow=72 * _HOUR)
DEFAULT_KINDS = (
    # Scaled to zero, the next request wakes it: a mistake costs one cold start, whatever its pauses were.
    KindDefaults(
        kinds=(
            *("Service.serving.knative.dev", "InferenceService", "Deployment", "StatefulSet", "ReplicaSet"),
            *("Rollout", "LeaderWorkerSet"),
        ),
        onlyWoken=True,
        idle=Thresholds(window=2 * _HOUR / 3, unusedWindow=2 * _HOUR / 3, idleFactor=0.0),
    ),
    # Loses no state, but somebody has to start it again.
    KindDefaults(
        kinds=(
            *("InferenceService", "LLMInferenceService", "NIMService", "DynamoGraphDeployment", "Revision"),
        ),
        idle=Thresholds(window=4 * _HOUR),
    ),
    # What is in a notebook's memory is gone, and a long weekend looks like the end: work voids the notice, and the
    # owner may release it sooner. Hubs make StatefulSets, Deployments and bare pods of notebooks.
    KindDefaults(kinds=("Notebook", "Workspace", "Pod"), idle=_NOTEBOOK, notifyBefore=12 * _HOUR),
    KindDefaults(
        kinds=("StatefulSet", "Deployment"), onlyNotebooks=True, idle=_NOTEBOOK, notifyBefore=12 * _HOUR
    ),
    # Hours since the last checkpoint are lost: the evidence must be nearly whole, and the pause beyond all others. Some
    # jobs are workbenches: a night from half past five to half past nine is no end.
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
        idle=Thresholds(window=16 * _HOUR, unusedWindow=16 * _HOUR, minCoverage=0.95, idleFactor=3.0),
    ),
)
"""Everything else waits as defaults.idle says. There are few windows, since
each is a set of queries of its own."""


class Defaults(Sections):
    """Defaults for all rules."""

    idle: Thresholds = pydantic.Field(
        default_factory=Thresholds,
        description="When a workload is idle or finished. Without kinds, for all kinds; built-in notices stay "
        "unless kinds: [] is written.",
    )
    kinds: tuple[KindDefaults, ...] = pydantic.Field(
        DEFAULT_KINDS,
        strict=False,
        description="Idle thresholds by kind; the first match applies. Replaces the built-in rows.",
    )

    @pydantic.model_validator(mode="before")
    @classmethod
    def _idle_is_for_all(cls, value: object) -> object:
        """defaults.idle applies to all kinds, also to Jobs; the built-in notices stay."""
        if isinstance(value, dict) and "idle" in value and "kinds" not in value:
            asked = (row for row in DEFAULT_KINDS if row.notifyBefore)
            return {**value, "kinds": tuple(row.model_copy(update={"idle": None}) for row in asked)}
        return value


_ManagerName = Annotated[str, pydantic.BeforeValidator(one_of(MANAGERS, "unknown controller"))]

ClassAnnotations = Annotated[
    Literal["file-first", "class-first", "off"],
    pydantic.BeforeValidator(yaml_off),
    pydantic.WithJsonSchema({"enum": ["file-first", "class-first", "off", False]}),
]


class DemandSettings(Part):
    """Queues whose work is pending, and times."""

    schedulingGates: tuple[Key, ...] = pydantic.Field(
        (),
        strict=False,
        description="Scheduling gates of queues; pods behind only these count as pending.",
    )
    suspendedJobs: tuple[Key, ...] = pydantic.Field(
        (),
        strict=False,
        description="Queues that suspend Jobs: keys of labels, or values of spec.managedBy.",
    )
    bindWithin: Duration = pydantic.Field(
        datetime.timedelta(minutes=15),
        ge=datetime.timedelta(minutes=1),
        description="Time for a pending pod to be bound after changes for it.",
    )
    retryAfter: Duration = pydantic.Field(
        datetime.timedelta(hours=1),
        description="Time until others change for it; doubled each time, up to 7d.",
    )

    @pydantic.field_validator("schedulingGates", mode="after")
    @classmethod
    def _not_kueue(cls, gates: tuple[str, ...]) -> tuple[str, ...]:
        if known := sorted(KUEUE_GATES.intersection(gates)):
            message = f"remove {', '.join(known)}: Kueue's Workloads tell what their pods wait for"
            raise ValueError(message)
        return gates


class Policy(Part):
    """A policy: the first matching rule applies; workloads without one get only advice."""

    apiVersion: Literal["gpu-rightsizer.io/v1alpha1"] = pydantic.Field(
        description="Version of the format: gpu-rightsizer.io/v1alpha1."
    )
    kind: Literal["Policy"] = pydantic.Field(description="Policy.")
    defaults: Defaults = pydantic.Field(default_factory=Defaults, description="Defaults for all rules.")
    classAnnotations: ClassAnnotations = pydantic.Field(
        "file-first",
        description="Whether annotations of PriorityClasses make rules, and which count first: file-first, "
        "class-first or 'off'.",
    )
    respectOptOut: bool = pydantic.Field(
        True,  # noqa: FBT003 - pydantic's default
        description="Whether users may opt out by annotation.",
    )
    respectDoNotDisrupt: tuple[Annotated[Mark, pydantic.Field(strict=False)], ...] = pydantic.Field(
        ALL_MARKS,
        strict=False,
        description="Tools whose do-not-disrupt annotations count; such workloads get only advice.",
    )
    otherControllers: dict[_ManagerName, Annotated[Mode, pydantic.Field(strict=False)]] = pydantic.Field(
        default_factory=dict,
        json_schema_extra={"propertyNames": {"enum": list(MANAGERS)}},
        description="How to treat workloads that another controller manages: protect, advise or enforce. "
        "Default: advise if it reverts changes, else enforce.",
    )
    protectedNamespaces: tuple[Name, ...] = pydantic.Field(
        (), strict=False, description="Additional protected namespaces, with wildcards."
    )
    gangLabels: tuple[Key, ...] = pydantic.Field(
        (),
        strict=False,
        description="Labels of pods without a controller: the same value in a namespace makes one gang.",
    )
    sharing: Sharing = pydantic.Field(default_factory=Sharing)
    demand: DemandSettings = pydantic.Field(default_factory=DemandSettings)
    budgets: tuple[Budget, ...] = pydantic.Field(
        DEFAULT_BUDGETS,
        strict=False,
        description="Limits of changes; each replaces the default of the same scope, per and actions.",
    )
    maintenanceWindows: tuple[MaintenanceWindow, ...] = pydantic.Field(
        (), strict=False, description="When changes may be made; without any, always."
    )
    freezes: tuple[Freeze, ...] = pydantic.Field((), strict=False, description="Days without changes.")
    maxSnooze: Duration = pydantic.Field(
        datetime.timedelta(days=7),
        description="Longest delay by gpu-rightsizer.io/snooze-until, from the notice to the change.",
    )
    keepSizes: Duration | None = pydantic.Field(
        None,
        description="How long a workload keeps its GPUs per pod after a resize, even if it comes back with an older "
        "manifest (Kubernetes 1.36); without it, never.",
    )
    notifications: tuple[Target, ...] = pydantic.Field(
        (), strict=False, description="Receivers of messages about notices and changes, once per run."
    )
    breaker: Breaker = pydantic.Field(
        default_factory=Breaker,
        description="Conditions that stop all changes until an operator resets the breaker.",
    )
    rules: tuple[Rule, ...] = pydantic.Field(
        strict=False,
        json_schema_extra={"minItems": 1},
        description="The first matching rule applies.",
    )

    @property
    def queues(self) -> NamedQueues:
        """The named queues and gangs."""
        named = (self.demand.schedulingGates, self.demand.suspendedJobs, self.gangLabels)
        return NamedQueues(*map(frozenset, named))

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
            message = "rules must contain at least one rule"
            raise ValueError(message)
        seen: set[str] = set()
        for rule in self.rules:
            if rule.name in seen:
                message = f"two rules have the name {rule.name!r}"
                raise ValueError(message)
            seen.add(rule.name)
        return self


ADVISE_ONLY = Policy(
    apiVersion=API_VERSION,
    kind="Policy",
    rules=(Rule(name="advise-only", match=Match(everything=True), mode=Mode.ADVISE, actions=ACTIONS),),
)
"""Policy where no file is given: everything is judged, nothing is touched."""
