"""What docs/kinds.md says of each kind, and docs/signals.md of each inference server, from the rows of both."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

from rightsizer.kinds import CONTROL_OBJECT_KINDS, KINDS
from rightsizer.kinds.edits import ANY, shown
from rightsizer.kinds.kind import NOW, SET, BlockingField, Kind, RolloutPrecondition, Steering, Stop
from rightsizer.usage.serving_metrics import ENGINES, Engine
from scripts.tables import table

_HEAD = ("kind", "API", "stopped by", "fewer replicas by", "GPU requests in")
_STEERED = {
    Steering.NONE: "",
    Steering.DELETION_COST: "; idle pods first",
    Steering.TAIL: "; highest ordinal first",
    Steering.NAMED: "; idle pods by name",
}


def kinds() -> str:
    """Each kind that is changed itself."""
    return table(_HEAD, map(_row, KINDS))


def control_objects() -> str:
    """Each kind that is changed in place of another."""
    return table(_HEAD, map(_row, CONTROL_OBJECT_KINDS))


def losses() -> str:
    """What a stop destroys, and the minutes that a restart counts for."""
    by_loss: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in KINDS:
        by_loss[row.lost, f"{row.restart_s // 60}m"].append(f"`{row.kind}`")
    for row in CONTROL_OBJECT_KINDS:
        by_loss[row.lost, ""].append(f"`{row.kind}`")
    return table(
        ("lost by a stop", "restart", "kinds"),
        ((lost, restart, ", ".join(named)) for (lost, restart), named in by_loss.items()),
    )


def conditions() -> str:
    """What must hold for GPU requests to be changed."""
    rows = ((row.kind, "; ".join(map(_condition, row.preconditions))) for row in KINDS if row.preconditions)
    return "".join(f"- {kind}: {conditions}\n" for kind, conditions in rows)


def servers() -> str:
    """The metrics of each inference server."""
    head = ("server", "requests", "running", "queue", "KV cache", "time to first token")
    return table(head, ((one.name, *_names(one)) for one in ENGINES))


def _names(one: Engine) -> Iterator[str]:
    first = (one.first_token,) if one.first_token else ()
    for names in (one.served, one.running, one.queued, one.cache, first):
        yield ", ".join(f"`{name}`" for name in names)


def _row(row: Kind) -> tuple[str, ...]:
    return (
        f"`{row.kind}`",
        _api(row),
        "; ".join(_stops(row)),
        _replicas(row),
        _containers(row),
    )


def _stops(row: Kind) -> Iterator[str]:
    """The usual way, and those of other states."""
    if row.stop is not None:
        yield _stop(row.stop)
    if row.on_knative is not None:
        yield f"on Knative {_stop(row.on_knative)}"
    for state in row.states:
        if state.stop is None and state.names:
            yield f"{state.called}: none"
        elif state.stop is not None and state.stop.owned:
            yield f"{state.called}: its {state.stop.owned}"
        elif state.stop is not None and state.stop != row.stop:
            yield f"{state.called}: {_stop(state.stop).partition(': ')[2]}"


def _api(row: Kind) -> str:
    versions = " and ".join(row.of.versions)
    return f"{row.group}/{versions}" if row.group else versions


def _stop(stop: Stop) -> str:
    if stop.field is None:
        return f"{stop.action}: the eviction API"
    if stop.command is not None:
        return f"{stop.action}: a `{stop.command.kind}` of `{stop.to}` (`{stop.command.undo_verb}` to undo)"
    value = "the time" if stop.to == NOW else f"`{_json(stop.to)}`"
    end = "; final" if stop.is_final else ""
    return f"{stop.action}: `{shown(stop.field.path)}` to {value}{_unless(stop.unless)}{end}"


def _replicas(row: Kind) -> str:
    if row.groups is not None:
        field = f"`{shown((*row.groups.pattern, 'replicas'))}`"
    elif row.replicas is not None:
        field = f"`{shown(row.replicas.path)}`"
    else:
        return ""
    is_as_stop = bool(row.unless) and row.stop is not None and row.unless == row.stop.unless
    unless = ", on the same condition" if is_as_stop else _unless(row.unless)
    return field + unless + _STEERED[row.steering]


def _containers(row: Kind) -> str:
    named = ", ".join(f"`{shown(path)}`" for path in row.changeable)
    return named if row.pause is None else f"{named}, while suspended (Kubernetes 1.{row.pause.since}+)"


def _condition(one: RolloutPrecondition) -> str:
    values = " or ".join("absent" if value is None else f"`{_json(value)}`" for value in one.allowed)
    return f"`{shown(one.path)}` is {values}{' (another resource)' if one.only_for_slices else ''}"


def _unless(guards: Iterable[BlockingField]) -> str:
    by_path: dict[str, list[str]] = defaultdict(list)
    for guard in guards:
        last = max((at for at, step in enumerate(guard.path, 1) if step == ANY), default=0)
        words = f"a `{shown(guard.path[last:])}`" if last else f"`{shown(guard.path)}`"
        by_path[words].append(_guarded(guard.value))
    words = " or ".join(f"{path} is {' or '.join(values)}" for path, values in by_path.items())
    return f", unless {words}" if words else ""


def _guarded(value: object) -> str:
    if value is None or value is SET:
        return "set" if value else "not set"
    return f"`{_json(value)}`"


def _json(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
