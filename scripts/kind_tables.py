"""What docs/kinds.md says of each kind, from the rows by which it is stopped, shrunk and put back."""

from collections.abc import Iterable, Iterator

from rightsizer.model import Action
from rightsizer.workloads import KINDS, LEVERS
from rightsizer.workloads.core import POD
from rightsizer.workloads.edits import shown
from rightsizer.workloads.fields import NOW, SET, Guard
from rightsizer.workloads.kind import Kind, Rolls, Steering, Stop
from scripts.tables import table

_HEAD = (
    "kind",
    "written from",
    "stopped by",
    "fewer replicas by",
    "GPUs per pod, or another resource, in",
    "resumed by",
    "lost",
    "needs",
)
_STEERED = {
    Steering.NONE: "",
    Steering.DELETION_COST: "; the idle ones by `pod-deletion-cost`",
    Steering.TAIL: "; the highest index goes first",
    Steering.NAMED: "; the idle ones by name",
}


def kinds() -> str:
    """Each kind that is changed itself."""
    return table(_HEAD, map(_row, KINDS))


def levers() -> str:
    """Each kind that is changed in another's place."""
    return table(_HEAD, map(_row, LEVERS))


def _row(row: Kind) -> tuple[str, ...]:
    return (
        f"`{row.kind}`" + (f" ({row.group})" if row.group else ""),
        row.source,
        _stop(row.stop) if row.stop else "",
        _replicas(row),
        _containers(row),
        _resumed(row),
        row.lost,
        ", ".join(_rights(row)),
    )


def _stop(stop: Stop) -> str:
    if stop.field is None:
        return f"{stop.action}: its eviction"
    if stop.orders is not None:
        return f"{stop.action}: a `{stop.orders.kind}` ({stop.orders.api_version}) of `{stop.to}`"
    value = "the time" if stop.to == NOW else f"`{_json(stop.to)}`"
    return f"{stop.action}: `{shown(stop.field.path)}` to {value}{_unless(stop.unless)}"


def _replicas(row: Kind) -> str:
    if row.groups is not None:
        field = f"`{shown((*row.groups.each, 'replicas'))}`"
    elif row.replicas is not None:
        field = f"`{shown(row.replicas.path)}`"
    else:
        return ""
    needs = f", with `{shown(row.needs)}`" if row.needs else ""
    return field + needs + _unless(row.unless) + _STEERED[row.steering]


def _containers(row: Kind) -> str:
    named = ", ".join(f"`{shown(path)}`" for path in row.changeable)
    if row.pause is None:
        return "; ".join((named, *map(_rolls, row.rolls)))
    return f"{named}: GPUs per pod, suspended meanwhile, from Kubernetes 1.{row.pause.since} on"


def _rolls(one: Rolls) -> str:
    values = " or ".join("absent" if value is None else f"`{_json(value)}`" for value in one.when)
    return f"{'another resource ' if one.is_for_parts else ''}only where `{shown(one.path)}` is {values}"


def _unless(guards: Iterable[Guard]) -> str:
    words = " or ".join(f"`{shown(guard.path)}` is {_guarded(guard.value)}" for guard in guards)
    return f", unless {words}" if words else ""


def _guarded(value: object) -> str:
    if value is None or value is SET:
        return "set" if value else "not set"
    return f"`{_json(value)}`"


def _resumed(row: Kind) -> str:
    stop = row.stop
    if stop is None or stop.is_final:
        return "nothing"
    if stop.field is None:
        return "its saved manifest, created anew"
    if stop.orders is not None:
        return f"a `{stop.orders.kind}` of `{stop.orders.back}`"
    return "the former value" if stop.action is Action.SCALE_TO_ZERO else "the former value, or none"


def _rights(row: Kind) -> Iterator[str]:
    """Verbs beyond reading, by resource."""
    named = f"{row.of.plural}.{row.group}".rstrip(".")
    if row is POD:
        yield "create `pods/eviction`, and Secrets in our own namespace"
        return
    yield f"get, list, patch `{named}`"
    if row.stop is not None and row.stop.orders is not None:
        yield f"create `{row.stop.orders.plural}.{row.stop.orders.api_version.partition('/')[0]}`"


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
