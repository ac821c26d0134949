"""What keeps the whole of gpu-rightsizer, or all of it in one namespace, from acting: breaker, pauses, scope. Pure.

The breaker is latched: once open, only a person closes it. What is said here is kept by `act.state`. What cannot be
read of it keeps everything from being done.
"""

import collections
import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec

from rightsizer.model import Blocker, BlockerCode, Decision, Fleet, Mode, Result, Verdict
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import Breaker
from rightsizer.text import Instant, decoded, require_ours

T = TypeVar("T")

FEWEST_NODES = 3
"""Of fewer nodes that are not ready nothing is concluded, however small the cluster."""


class Opening(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That the breaker opened: when, why, and in which run."""

    at: Instant
    cause: BlockerCode
    reason: str
    run: str = ""

    def __post_init__(self) -> None:
        require_ours(self.at)


class Cleared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That a person closed it, and why that was right."""

    at: Instant
    reason: str

    def __post_init__(self) -> None:
        require_ours(self.at)


class Latch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The breaker: open where there is a trip; `errors` is how many there were in a row, over all runs."""

    trip: Opening | None = None
    errors: Annotated[int, msgspec.Meta(ge=0)] = 0
    cleared: Cleared | None = None


class Pause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """That a person wants nothing to be done in a namespace, or anywhere where none is named."""

    at: Instant
    reason: str
    namespace: str = ""
    until: Instant | None = None

    def __post_init__(self) -> None:
        require_ours(self.at, self.until)

    @property
    def words(self) -> str:
        """For people."""
        where = f"namespace {self.namespace}" if self.namespace else "everything"
        until = f" until {_clock(self.until)}" if self.until else ""
        return f"{where} is paused{until} since {_clock(self.at)}: {self.reason}"


class Scope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many workloads each rule may act upon, as a person accepted it."""

    at: Instant
    rules: dict[str, Annotated[int, msgspec.Meta(ge=0)]]

    def __post_init__(self) -> None:
        require_ours(self.at)


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """What is no object's: all of it, as it was read."""

    latch: Latch = dataclasses.field(default_factory=Latch)
    pauses: tuple[Pause, ...] = ()
    scope: Scope | None = None


NOTHING = State()
"""Nothing was ever kept."""


_LONGEST_STATE = 256 << 10
"""Of one of our documents: whoever may write there pauses namespaces by the hundred."""
_UNKNOWN_TIME = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


def parse_state(texts: Mapping[str, str]) -> State:
    """A state from its three documents; in place of one that cannot be read stands what lets nothing be done."""
    try:
        latch = _decoded(texts.get("breaker.json"), Latch) or Latch()
    except ValueError as error:
        latch = Latch(Opening(_UNKNOWN_TIME, BlockerCode.UNREADABLE, f"breaker.json {error}"))
    try:
        pauses = tuple(_decoded(texts.get("pauses.json"), list[Pause]) or ())
    except ValueError as error:
        pauses = (Pause(_UNKNOWN_TIME, f"pauses.json {error}"),)
    try:
        scope = _decoded(texts.get("scope.json"), Scope)
    except ValueError:
        scope = Scope(_UNKNOWN_TIME, {})
    return State(latch, pauses, scope)


def _decoded(text: str | None, kind: type[T]) -> T | None:
    return None if text is None else decoded(text, kind, longest=_LONGEST_STATE)


def state_texts(state: State) -> dict[str, str | None]:
    """The documents of a state; None for one that is not needed."""
    return {
        "breaker.json": msgspec.json.encode(state.latch).decode(),
        "pauses.json": msgspec.json.encode(state.pauses).decode() if state.pauses else None,
        "scope.json": msgspec.json.encode(state.scope).decode() if state.scope else None,
    }


def is_over(pause: Pause, at: datetime.datetime) -> bool:
    """Whether a pause has ended by itself."""
    return pause.until is not None and at >= pause.until


def paused(state: State, namespace: str, at: datetime.datetime) -> list[Pause]:
    """The pauses that hold in a namespace; those of everything first."""
    holding = [pause for pause in state.pauses if not is_over(pause, at)]
    in_effect = [pause for pause in holding if pause.namespace in {"", namespace}]
    return sorted(in_effect, key=lambda pause: pause.namespace)


def against(state: State, namespace: str, at: datetime.datetime) -> Blocker | None:
    """What keeps everything in a namespace from being done."""
    if pauses := paused(state, namespace, at):
        return Blocker(BlockerCode.PAUSED, "; ".join(pause.words for pause in pauses))
    if (trip := state.latch.trip) is not None:
        since = f" since {_clock(trip.at)}" if trip.cause is not BlockerCode.UNREADABLE else ""
        words = f"open{since}: {trip.reason}; a person closes it by gpu-rightsizer breaker reset"
        return Blocker(BlockerCode.BREAKER, words)
    return None


def held(
    decisions: Sequence[Decision], state: State, opening: Iterable[Blocker], at: datetime.datetime
) -> tuple[Decision, ...]:
    """The decisions, of which none is enforced where a pause, the breaker, or what would open it, stands against it."""
    first = next(iter(opening), None)
    would_open = Blocker(BlockerCode.BREAKER, f"this opens it: {first.message}") if first else None

    def blocked(decision: Decision) -> Decision:
        is_wanted = decision.verdict is Verdict.ACT and decision.mode is Mode.ENFORCE and decision.action
        block = against(state, decision.workload.ref.namespace, at) or would_open
        if not is_wanted or block is None:
            return decision
        return dataclasses.replace(decision, blockers=(block, *decision.blockers))

    return tuple(map(blocked, decisions))


def eligible(rulebook: PolicyEvaluator) -> dict[str, int]:
    """How many workloads each rule may act upon, whatever is found about them."""
    rulings = (rulebook.evaluate(workload) for workload in rulebook.fleet.workloads)
    return dict(sorted(collections.Counter(one.rule for one in rulings if one.mode is Mode.ENFORCE).items()))


def trips(
    settings: Breaker, fleet: Fleet, *, now: Mapping[str, int], accepted: Scope | None
) -> Iterator[Blocker]:
    """What opens the breaker: too many nodes away, or many more workloads eligible than a person accepted.

    Args:
        settings: The policy's.
        fleet: Its nodes.
        now: Workloads eligible by rule.
        accepted: The scope; None where none was accepted yet, as before the first run.
    """
    away = sorted(node.name for node in fleet.nodes.values() if not node.is_ready)
    if len(away) >= FEWEST_NODES and len(away) * 100 > settings.maxNodesNotReady * len(fleet.nodes):
        share = f"{len(away)} of {len(fleet.nodes)} GPU nodes are not ready"
        yield Blocker(
            BlockerCode.NODES, f"{share}, among them {', '.join(away[:3])}; see breaker.maxNodesNotReady"
        )
    if accepted is None:
        return
    grown = {rule: count - accepted.rules.get(rule, 0) for rule, count in now.items()}
    fresh = sum(count for count in grown.values() if count > 0)
    before = sum(accepted.rules.values())
    few, share_of_few = settings.maxNewlyEligible.workloads, settings.maxNewlyEligible.share
    if fresh > few and fresh * 100 > share_of_few * before:
        rules = ", ".join(f"{rule} {count:+}" for rule, count in sorted(grown.items()) if count > 0)
        words = (
            f"{fresh} workloads more than the {before} accepted on {_clock(accepted.at)} may be acted upon"
        )
        yield Blocker(
            BlockerCode.GROWTH, f"{words} ({rules}); mend the policy, or gpu-rightsizer breaker accept-growth"
        )


def opened(latch: Latch, opening: Opening) -> Latch:
    """The breaker once something tripped it; the first reason stays."""
    return latch if latch.trip else msgspec.structs.replace(latch, trip=opening)


def counted(latch: Latch, result: Result, settings: Breaker, opening: Opening) -> Latch:
    """The breaker after an outcome: errors in a row count, anything done ends the row.

    Args:
        latch: Before.
        result: How an attempt ended.
        settings: The policy's.
        opening: With which it opens, should this be one error too many.
    """
    match result:
        case Result.DONE:
            return msgspec.structs.replace(latch, errors=0)
        case Result.REFUSED | Result.UNKNOWN:
            latch = msgspec.structs.replace(latch, errors=latch.errors + 1)
            return opened(latch, opening) if latch.errors >= settings.maxErrors else latch
        case _:
            return latch


def closed(latch: Latch, at: datetime.datetime, reason: str) -> Latch:
    """The breaker once a person closed it."""
    return Latch(cleared=Cleared(at, reason)) if latch.trip or latch.errors else latch


def accepted(state: State, scope: Scope) -> State:
    """The state once a person accepted a scope; a breaker that is open for that reason closes."""
    latch = state.latch
    if latch.trip and latch.trip.cause is BlockerCode.GROWTH:
        latch = closed(latch, scope.at, "the scope was accepted")
    return State(latch, state.pauses, scope)


def with_pause(state: State, pause: Pause) -> State:
    """The state with one pause more; none that stands ends any sooner, whoever gave it, and the same is kept once."""

    def is_needed(one: Pause) -> bool:
        if (one.namespace, one.reason) != (pause.namespace, pause.reason):
            return not is_over(one, pause.at)
        return pause.until is not None and (one.until is None or one.until > pause.until)

    return dataclasses.replace(state, pauses=(*filter(is_needed, state.pauses), pause))


def without_pause(state: State, namespace: str) -> State:
    """The state without the pauses of a namespace, or of everything; those of other namespaces stay."""
    return dataclasses.replace(state, pauses=tuple(one for one in state.pauses if one.namespace != namespace))


def _clock(at: datetime.datetime) -> str:
    return at.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
