"""What docs/policy.md says about fields, defaults, annotations and marks, from where they are defined."""

import datetime
import decimal
import enum
import json
from collections.abc import Iterator, Mapping
from typing import Any

import pydantic

from rightsizer.inventory.demand_kinds import DEMAND_KINDS
from rightsizer.policy.classes import ANNOTATIONS
from rightsizer.policy.do_not_disrupt import ROWS
from rightsizer.policy.limits import (
    DEFAULT_BUDGETS,
    Breaker,
    Budget,
    Freeze,
    MaintenanceWindow,
    NewlyEligible,
)
from rightsizer.policy.match import Match, PriorityRange, Sharing
from rightsizer.policy.protections import OPT_OUTS
from rightsizer.policy.rule import Rule
from rightsizer.policy.schema import Defaults, DemandSettings, KindDefaults, Policy
from rightsizer.policy.thresholds import Judging, Sections
from rightsizer.policy.values import duration_text
from scripts.tables import table

_MODELS: Mapping[str, type[pydantic.BaseModel]] = {
    "": Policy,
    "defaults.": Defaults,
    "defaults.kinds[].": KindDefaults,
    "sharing.": Sharing,
    "demand.": DemandSettings,
    "budgets[].": Budget,
    "maintenanceWindows[].": MaintenanceWindow,
    "freezes[].": Freeze,
    "breaker.": Breaker,
    "breaker.maxNewlyEligible.": NewlyEligible,
    "rules[].": Rule,
    "rules[].match.": Match,
    "rules[].match.priority.": PriorityRange,
    "….": Judging,
    **{f"…{name}.": type(part) for name, part in Sections()},
}
"""Thresholds stand below `defaults` and below each rule."""


def fields() -> str:
    """Every field that may stand in the file; neighbours of which the same is to be said share a row."""
    rows: dict[tuple[str, str, str], list[str]] = {}
    for prefix, model in _MODELS.items():
        for name, field in model.model_fields.items():
            told = (prefix, _default(field), field.description or _about(field))
            if model is Judging or ("….", *told[1:]) not in rows:
                rows.setdefault(told, []).append(field.alias or name)
    return table(("field", "default", "meaning"), (_row(*told, names) for told, names in rows.items()))


def _row(prefix: str, default: str, meaning: str, names: list[str]) -> tuple[str, str, str]:
    first, *others = names
    return ", ".join((f"`{prefix}{first}`", *(f"`{name}`" for name in others))), default, meaning


def _about(field: Any) -> str:
    """Where a field has no words of its own, its type's have to do."""
    annotation = field.annotation
    return str(annotation.__doc__ or "").splitlines()[0] if isinstance(annotation, type) else ""


_ELSEWHERE = (KindDefaults, Budget)
"""Whose defaults have tables of their own."""


def _default(field: Any) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    match value:
        case None | pydantic.BaseModel():
            text = ""
        case datetime.timedelta():
            text = f"`{duration_text(value)}`"
        case tuple() if value and isinstance(value[0], _ELSEWHERE):
            text = "see above"
        case tuple() if value == tuple(range(7)):
            text = "every day"
        case decimal.Decimal():
            text = f"`{value}%`"
        case enum.StrEnum():
            text = f"`{value.value}`"
        case _:
            text = f"`{json.dumps(value)}`"
    return text


def kinds() -> str:
    """How long is waited for which kind."""
    defaults = Defaults()
    rows = [(row, row.idle or defaults.idle) for row in defaults.kinds]
    rows.append((KindDefaults(kinds=("Deployment",)), defaults.idle))
    cells = (
        (
            "everything else" if row is rows[-1][0] else _kinds(row),
            f"`{duration_text(idle.window)}`",
            f"`{duration_text(idle.minIdleTime or idle.window)}`",
            f"`{duration_text(min(idle.unusedWindow, idle.minIdleTime or idle.window))}`",
            f"`{idle.minCoverage:g}`",
            f"`{idle.idleFactor:g}`",
            f"`{duration_text(row.notifyBefore)}`" if row.notifyBefore else "",
        )
        for row, idle in rows
    )
    return table(
        ("kinds", "window", "minIdleTime", "unusedWindow", "minCoverage", "idleFactor", "notifyBefore"), cells
    )


def _kinds(row: KindDefaults) -> str:
    words = ", ".join(f"`{kind}`" for kind in row.kinds)
    return words + " if a notebook" * row.onlyNotebooks + " that a request starts again" * row.onlyWoken


def budgets() -> str:
    """The budgets that hold where the file does not speak of them."""
    return table(
        ("scope", "per", "actions", "at most"),
        ((f"`{row.scope}`", f"`{row.per}`", row.counted, _amounts(row)) for row in DEFAULT_BUDGETS),
    )


def _amounts(row: Budget) -> str:
    return ", ".join(_amount(row))


def _amount(row: Budget) -> Iterator[str]:
    if row.workloads is not None:
        yield f"{row.workloads} workload{'s' if row.workloads > 1 else ''}"
    if row.gpus is not None:
        yield f"{row.gpus} GPUs"
    if row.share is not None:
        least = f" or {row.atLeastGPUs} GPUs" if row.atLeastGPUs > 1 else ""
        yield f"{row.share} % of the GPUs held{least}"


def class_annotations() -> str:
    """The annotations of a PriorityClass."""
    rows = ((f"`{row.key}`", f"`{row.example}`", f"`{'.'.join(row.field)}`") for row in ANNOTATIONS)
    return table(("annotation", "for example", "field of a rule"), rows)


def opt_outs() -> str:
    """What users can ask for."""
    return table(("annotation", "means"), ((f"`{key}`", words) for key, words in OPT_OUTS.items()))


def marks() -> str:
    """Whose marks are obeyed."""
    rows = ((f"`{row.mark.value}`", f"`{row.key}`", row.words) for row in ROWS)
    return table(("name", "annotation or label", "obeyed where it is"), rows)


def demand() -> str:
    """What counts as demand, and how it is read."""
    return table(
        ("kind", "what waits"),
        ((f"`{row.of.resource}`", row.words) for row in DEMAND_KINDS),
    )
