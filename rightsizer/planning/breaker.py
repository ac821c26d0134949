"""The breaker, pauses and the accepted scope, which stop changes everywhere or in one namespace. Pure.

An open breaker stays open until an operator resets it. State that cannot be read stops all changes.
"""

import collections
import dataclasses
import datetime
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, TypeVar

import msgspec

from rightsizer.model import Action, Blocker, BlockerCode, Decision, Fleet, Mode, Result, Verdict
from rightsizer.model.change_record import Instant
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import Breaker
from rightsizer.text import decoded, instant, require_ours

T = TypeVar("T")

_OF_THE_FLEET = frozenset({BlockerCode.NODES, BlockerCode.GROWTH})
"""Causes of an open breaker that are no reason to keep what was taken."""

FEWEST_NODES = 3
"""Minimum number of unready nodes that opens the breaker, whatever the share."""


class _Timed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    at: Instant

    def __post_init__(self) -> None:
        require_ours(self.at)


class BreakerTrip(_Timed, frozen=True):
    """Time, reason and run of an opening of the breaker."""

    cause: BlockerCode
    reason: str
    run: str = ""


class Cleared(_Timed, frozen=True):
    """Time and reason of a reset by an operator."""

    reason: str


class Latch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The breaker: open if `trip` is set; `errors` counts consecutive errors over all runs."""

    trip: BreakerTrip | None = None
    errors: Annotated[int, msgspec.Meta(ge=0)] = 0
    cleared: Cleared | None = None


class Pause(_Timed, frozen=True):
    """An operator's order to make no changes, in one namespace or everywhere."""

    reason: str
    namespace: str = ""
    until: Instant | None = None

    def __post_init__(self) -> None:
        require_ours(self.at, self.until)

    @property
    def words(self) -> str:
        """State the namespace, start, end and reason."""
        where = f"namespace {self.namespace}" if self.namespace else "everything"
        until = f" until {instant(self.until)}" if self.until else ""
        return f"{where} is paused{until} since {instant(self.at)}: {self.reason}"


_Counts = dict[str, Annotated[int, msgspec.Meta(ge=0)]]


class AcceptedScope(_Timed, frozen=True):
    """The number of eligible workloads per rule that an operator accepted.

    Attributes:
        rules: The accepted numbers. They follow users, who create and delete workloads, but no change of the rules.
        seen: The numbers in the last run.
        digest: What decided in the last run which workloads are eligible, as in Scope; empty if unknown.
    """

    rules: _Counts
    seen: _Counts = {}
    digest: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """Breaker, pauses and accepted scope, as read."""

    latch: Latch = dataclasses.field(default_factory=Latch)
    pauses: tuple[Pause, ...] = ()
    scope: AcceptedScope | None = None


NOTHING = State()
"""State before anything was kept."""


_LONGEST_STATE = 256 << 10
"""Maximum size of one document, in bytes: hundreds of pauses fit."""
_UNKNOWN_TIME = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


def parse_state(texts: Mapping[str, str]) -> State:
    """Parse the three documents; one that cannot be read becomes a state that stops all changes."""
    try:
        latch = _decoded(texts.get("breaker.json"), Latch) or Latch()
    except ValueError as error:
        latch = Latch(BreakerTrip(_UNKNOWN_TIME, BlockerCode.UNKNOWN, f"breaker.json {error}"))
    try:
        pauses = tuple(_decoded(texts.get("pauses.json"), list[Pause]) or ())
    except ValueError as error:
        pauses = (Pause(_UNKNOWN_TIME, f"pauses.json {error}"),)
    try:
        scope = _decoded(texts.get("scope.json"), AcceptedScope)
    except ValueError:
        scope = AcceptedScope(_UNKNOWN_TIME, {})
    return State(latch, pauses, scope)


def _decoded(text: str | None, kind: type[T]) -> T | None:
    return None if text is None else decoded(text, kind, longest=_LONGEST_STATE)


def state_texts(state: State) -> dict[str, str | None]:
    """The three documents; None deletes one."""
    return {
        "breaker.json": msgspec.json.encode(state.latch).decode(),
        "pauses.json": msgspec.json.encode(state.pauses).decode() if state.pauses else None,
        "scope.json": msgspec.json.encode(state.scope).decode() if state.scope else None,
    }


def is_over(pause: Pause, at: datetime.datetime) -> bool:
    """Whether a pause has ended by itself."""
    return pause.until is not None and at >= pause.until


def paused(state: State, namespace: str, at: datetime.datetime) -> list[Pause]:
    """The pauses in effect in a namespace; cluster-wide ones first."""
    holding = [pause for pause in state.pauses if not is_over(pause, at)]
    in_effect = [pause for pause in holding if pause.namespace in {"", namespace}]
    return sorted(in_effect, key=lambda pause: pause.namespace)


def stop_reason(
    state: State, namespace: str, at: datetime.datetime, action: Action | None = None
) -> Blocker | None:
    """Why nothing may be changed in a namespace; None if changes, or this action, are allowed.

    A scale-up gives back replicas that were taken: only doubts about writes themselves stop it.
    """
    is_return = action is Action.SCALE_UP
    if not is_return and (pauses := paused(state, namespace, at)):
        return Blocker(BlockerCode.PAUSED, "; ".join(pause.words for pause in pauses))
    trip = state.latch.trip
    if trip is not None and not (is_return and trip.cause in _OF_THE_FLEET):
        since = f" since {instant(trip.at)}" if trip.cause is not BlockerCode.UNKNOWN else ""
        words = f"the breaker is open{since}: {trip.reason}; to resume, run gpu-rightsizer breaker reset"
        return Blocker(BlockerCode.PAUSED, words)
    return None


def held(
    decisions: Sequence[Decision], state: State, opening: Iterable[Blocker], at: datetime.datetime
) -> tuple[Decision, ...]:
    """Block enforced decisions while paused, while the breaker is open, or if the plan would open it."""
    first = next(iter(opening), None)
    would_open = (
        Blocker(BlockerCode.PAUSED, f"this plan would open the breaker: {first.message}") if first else None
    )

    def blocked(decision: Decision) -> Decision:
        is_wanted = decision.verdict is Verdict.ACT and decision.mode is Mode.ENFORCE and decision.action
        block = stop_reason(state, decision.workload.ref.namespace, at, decision.action)
        block = block or (None if decision.action is Action.SCALE_UP else would_open)
        if not is_wanted or block is None:
            return decision
        return dataclasses.replace(decision, blockers=(block, *decision.blockers))

    return tuple(map(blocked, decisions))


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """The number of workloads that each rule may change, whatever their findings, and what decides that.

    Attributes:
        digest: Of the policy and the PriorityClasses, which only administrators write; then the program's version,
            which they install.
    """

    rules: Mapping[str, int]
    digest: str


def scope_of(evaluator: PolicyEvaluator, policy_hash: str, version: str) -> Scope:
    """The scope of a policy now, as this version of the program reads it."""
    rulings = (evaluator.evaluate(workload) for workload in evaluator.fleet.workloads)
    counts = collections.Counter(ruling.rule for ruling in rulings if ruling.mode is Mode.ENFORCE)
    rules = {rule.name: 0 for rule in evaluator.policy.rules if rule.mode is Mode.ENFORCE} | counts
    classes = sorted(
        (cls.name, cls.value, sorted(cls.annotations.items())) for cls in evaluator.fleet.classes.values()
    )
    deciding = msgspec.json.encode((policy_hash, classes))
    return Scope(dict(sorted(rules.items())), f"{hashlib.sha256(deciding).hexdigest()}/{version}")


def trips(
    settings: Breaker, fleet: Fleet, *, now: Scope, accepted: AcceptedScope | None
) -> Iterator[Blocker]:
    """Reasons that open the breaker: too many unready nodes, or rules that match many more workloads than accepted.

    New workloads of users never open it. A rule that is gone makes up for one that takes its place. A new version of
    the program may make more workloads eligible under the same policy; the reason names it.
    """
    away = sorted(node.name for node in fleet.nodes.values() if not node.is_ready)
    if len(away) >= FEWEST_NODES and len(away) * 100 > settings.maxNodesNotReady * len(fleet.nodes):
        share = f"{len(away)} of {len(fleet.nodes)} GPU nodes are not ready"
        yield Blocker(
            BlockerCode.NODES, f"{share}, among them {', '.join(away[:3])}; see breaker.maxNodesNotReady"
        )
    if accepted is None or accepted.digest == now.digest:
        return
    grown = {rule: count - accepted.rules.get(rule, 0) for rule, count in now.rules.items()}
    gone = sum(count for rule, count in accepted.rules.items() if rule not in now.rules)
    fresh = sum(count for count in grown.values() if count > 0) - gone
    before = sum(accepted.rules.values())
    few, share_of_few = settings.maxNewlyEligible.workloads, settings.maxNewlyEligible.share
    if fresh > few and fresh * 100 > share_of_few * before:
        rules = ", ".join(f"{rule} {count:+}" for rule, count in sorted(grown.items()) if count > 0)
        words = f"{fresh} more workloads are eligible than the {before} accepted on {instant(accepted.at)}"
        remedy = f"{_remedy(accepted.digest, now.digest)}, or run gpu-rightsizer breaker accept-growth"
        yield Blocker(BlockerCode.GROWTH, f"{words} ({rules}){remedy}")


def _remedy(before: str, now: str) -> str:
    """State why more workloads are eligible, by the two digests, and what an operator can do about it."""
    (old, _, earlier), (new, _, version) = before.partition("/"), now.partition("/")
    if old != new:
        return "; fix the policy"
    return f" since the upgrade to {version}, under the same policy; go back to {earlier or 'the version before'}"


def opened(latch: Latch, opening: BreakerTrip) -> Latch:
    """Open the breaker; the first reason stays."""
    return latch if latch.trip else msgspec.structs.replace(latch, trip=opening)


def counted(latch: Latch, result: Result, settings: Breaker, opening: BreakerTrip) -> Latch:
    """Count consecutive errors; a successful change resets the count, `opening` is for one error too many."""
    match result:
        case Result.DONE:
            return msgspec.structs.replace(latch, errors=0)
        case Result.REFUSED | Result.UNKNOWN:
            latch = msgspec.structs.replace(latch, errors=latch.errors + 1)
            return opened(latch, opening) if latch.errors >= settings.maxErrors else latch
        case _:
            return latch


def closed(latch: Latch, at: datetime.datetime, reason: str) -> Latch:
    """Reset the breaker."""
    return Latch(cleared=Cleared(at, reason)) if latch.trip or latch.errors else latch


def accepted(state: State, scope: AcceptedScope) -> State:
    """Accept a scope; a breaker that opened because of growth closes."""
    latch = state.latch
    if latch.trip and latch.trip.cause is BlockerCode.GROWTH:
        latch = closed(latch, scope.at, "the scope was accepted")
    return State(latch, state.pauses, scope)


def followed(state: State, now: Scope) -> State:
    """The accepted scope after a run within it: what users created or deleted since the last run is accepted."""
    scope = state.scope
    if scope is None:
        return state
    rules = dict(scope.rules)
    if scope.digest == now.digest:
        for rule in {*now.rules, *scope.seen}:
            rules[rule] = max(rules.get(rule, 0) + now.rules.get(rule, 0) - scope.seen.get(rule, 0), 0)
    kept = msgspec.structs.replace(scope, rules=rules, seen=dict(now.rules), digest=now.digest)
    return dataclasses.replace(state, scope=kept)


def accepted_scope(now: Scope, at: datetime.datetime) -> AcceptedScope:
    """A scope as it is accepted."""
    return AcceptedScope(at.replace(microsecond=0), dict(now.rules), dict(now.rules), now.digest)


def with_pause(state: State, pause: Pause) -> State:
    """Add a pause. It never shortens an existing one; a repeated one replaces the shorter."""

    def is_needed(old: Pause) -> bool:
        if (old.namespace, old.reason) != (pause.namespace, pause.reason):
            return not is_over(old, pause.at)
        return pause.until is not None and (old.until is None or old.until > pause.until)

    return dataclasses.replace(state, pauses=(*filter(is_needed, state.pauses), pause))


def without_pause(state: State, namespace: str) -> State:
    """Remove the pauses of one namespace, or the cluster-wide ones."""
    kept = tuple(pause for pause in state.pauses if pause.namespace != namespace)
    return dataclasses.replace(state, pauses=kept)
