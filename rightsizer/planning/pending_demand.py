"""Limits `onlyForPendingPods` actions to what pending pods need. Pure.

Victims are chosen by lowest priority, then by what they lose. Each pending pod is served on one node: the one whose
victims lose least. Nobody is stopped for a pod that would still not fit. Where it is known which replicas a scale-down
removes, only those go that are needed. A gang is served whole or not. The victims of each are charged to the budgets
before the next is served. In place of what budgets refuse others are tried; a demand that is not served leaves its
victims to the next. A workload that has to get a notice first is a victim only of what nobody serves who can go now.
"""

import bisect
import collections
import dataclasses
import itertools
import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence

from rightsizer.inventory.pod_groups import connected
from rightsizer.kinds import pause_for
from rightsizer.model import (
    Action,
    Blocker,
    BlockerCode,
    Decision,
    Node,
    ObjectRef,
    QueueOption,
    QuotaKey,
    WaitingPod,
)
from rightsizer.planning.budget import BudgetAccount
from rightsizer.planning.placement import Placement, Places, TriesByNamespace, best_place, new_tries
from rightsizer.planning.victims import (
    GOES_AFTER,
    Victim,
    cost_of,
    gone_victims,
    most_going,
    standing,
    victims_of,
    whole_victim,
    with_replicas,
    without_demands,
)
from rightsizer.policy.effective import PolicyEvaluator


@dataclasses.dataclass(frozen=True, slots=True)
class Limited:
    """Decisions after pending demand was considered.

    Attributes:
        cut_short: What waits, by namespace, of which not every place was tried: there were too many.
    """

    decisions: tuple[Decision, ...]
    cut_short: Mapping[str, ObjectRef]


@dataclasses.dataclass(frozen=True, slots=True)
class EarlierRounds:
    """What a run has done before demand is matched again.

    Attributes:
        made: What they free is there for pending pods.
        started: What is not pending anymore.
        tries: What is left of them.
    """

    made: Sequence[Decision] = ()
    started: Collection[ObjectRef] = ()
    tries: TriesByNamespace = dataclasses.field(default_factory=new_tries)


def limit_to_pending_demand(
    decisions: Sequence[Decision],
    evaluator: PolicyEvaluator,
    account: BudgetAccount,
    earlier: EarlierRounds | None = None,
) -> Limited:
    """Block changes of onlyForPendingPods that no pending pod needs; name the pending pods for the others.

    Those are charged to the account.
    """
    candidates = {one.workload.ref: one for one in decisions if is_on_demand(one, evaluator)}
    if not candidates:
        return Limited(tuple(decisions), {})
    announced = [one for one in decisions if _has_notice(one, evaluator)]
    matching = _Matching(candidates.values(), announced, evaluator, account, earlier or EarlierRounds())
    limited = (
        _with(one, matching.wanted[one.workload.ref], matching.blocks.get(one.workload.ref, ()))
        if one.workload.ref in candidates
        else one
        for one in decisions
    )
    return Limited(tuple(limited), matching.cut_short)


def without_demand(decision: Decision) -> Decision:
    """A change as it was before pending demand and budgets were considered."""
    codes = (BlockerCode.ONLY_FOR_PENDING_PODS, BlockerCode.BUDGET)
    left = tuple(one for one in decision.blockers if one.code not in codes)
    whole = decision.whole or decision
    return dataclasses.replace(whole, blockers=left, wanted_by=(), serves=(), going=())


def _victims(decision: Decision, evaluator: PolicyEvaluator) -> tuple[Victim, ...]:
    """What may go of a workload, one by one; all of it if its queue gets back its quota only then."""
    held = evaluator.fleet.queues.held
    workload = decision.workload
    uids = (workload.ref.uid, *(pod.ref.uid for pod in workload.pods))
    if any(f"{workload.ref.namespace}/{uid}" in held for uid in uids):
        return (whole_victim(decision),)
    return victims_of(decision, evaluator)


def served_together(decisions: Sequence[Decision]) -> Mapping[ObjectRef, Sequence[Decision]]:
    """By workload, all decisions that free GPUs for the same pending pods or gangs, or share such through others."""
    by_ref = {one.workload.ref: one for one in decisions if one.wanted_by}
    groups = connected((ref, {*one.serves}) for ref, one in by_ref.items())
    return {ref: [by_ref[each] for each in group] for group in groups for ref in group}


def still_served(
    decisions: Iterable[Decision], failed: Mapping[ObjectRef, str]
) -> Mapping[ObjectRef, Decision | str]:
    """By workload, what goes without these pending pods and gangs, which are not served for a reason; or that reason.

    Each is served whole or not. A change that others need, too, is made for them alone.
    """
    by_ref = {one.workload.ref: one for one in decisions}
    kept: dict[ObjectRef, Decision | None] = {**by_ref}
    needed: dict[ObjectRef, list[ObjectRef]] = collections.defaultdict(list)
    for ref, one in by_ref.items():
        for demand in one.serves:
            needed[demand].append(ref)
    why: dict[ObjectRef, str] = {}
    fresh = {**failed}
    while fresh:
        why |= fresh
        concerned = dict.fromkeys(ref for demand in fresh for ref in needed.get(demand, ()))
        fresh = {}
        for ref in concerned:
            kept[ref] = after = without_demands(by_ref[ref], why)
            lost = {*by_ref[ref].serves} - {*(after.serves if after else ())} - why.keys()
            fresh |= {demand: f"{demand} also needs {ref}: {GOES_AFTER}" for demand in sorted(lost)}
    return {ref: one or why[by_ref[ref].serves[0]] for ref, one in kept.items()}


def unserved_demand(evaluator: PolicyEvaluator, cut_short: Mapping[str, ObjectRef]) -> Iterator[str]:
    """Why no GPUs are freed for some of what waits, each reason once; nothing if no rule frees any on demand."""
    fleet = evaluator.fleet
    if not any(evaluator.evaluate(workload).only_for_pending_pods for workload in fleet.workloads):
        return
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for one in fleet.unserved:
        by_reason[one.why].append(one.what)
    for namespace, first in cut_short.items():
        by_reason[f"what waits in namespace {namespace} has too many ways to be placed"].append(str(first))
    for why, whats in by_reason.items():
        more = f" and {len(whats) - 1} more" if len(whats) > 1 else ""
        yield f"{whats[0]}{more}: no GPUs are freed for it: {why}"


def is_on_demand(decision: Decision, evaluator: PolicyEvaluator) -> bool:
    """Whether it is only made for pending pods."""
    if not decision.is_enforced:
        return False
    actions = {decision.announced or decision.action}
    if pause_for(decision.workload, decision.finding.proposal) is not None:
        actions.add(Action.SUSPEND)
    return not actions.isdisjoint(evaluator.evaluate(decision.workload).only_for_pending_pods)


def _has_notice(decision: Decision, evaluator: PolicyEvaluator) -> bool:
    """Whether it follows on demand at the end of a notice, no later than after one that is given now."""
    wait = evaluator.evaluate(decision.workload).notify_before
    if not (wait and decision.blockers):
        return False
    latest = max(evaluator.at + wait, decision.finding.counts_from or evaluator.at)
    is_notice = all(
        one.code is BlockerCode.NOTICE and one.until is not None and one.until <= latest
        for one in decision.blockers
    )
    return is_notice and is_on_demand(dataclasses.replace(decision, blockers=()), evaluator)


def _with(decision: Decision, wanted: Mapping[Victim, WaitingPod], blocks: tuple[Blocker, ...]) -> Decision:
    """A decision about the victims that pending pods need; a notice announces all that may follow.

    If they need none, it is blocked: by what the budgets refuse, if they would have needed some.
    """
    if wanted:
        wanted = dict(sorted(wanted.items(), key=lambda item: item[0].place))
        made = dataclasses.replace(
            decision,
            wanted_by=tuple(dict.fromkeys(pod.ref for pod in wanted.values())),
            serves=tuple(dict.fromkeys(pod.demand for pod in wanted.values())),
        )
        if decision.action is Action.NOTICE or not next(iter(wanted)).is_replica:
            return made
        return with_replicas(made, [(pod, one.pods, one.frees) for one, pod in wanted.items()])
    action = decision.announced or decision.action
    words = (
        f"rule {decision.rule} allows {action.value if action else 'nothing'} only for pending pods of a higher "
        "priority; none needs its GPUs"
    )
    blocks = blocks or (Blocker(BlockerCode.ONLY_FOR_PENDING_PODS, words),)
    return dataclasses.replace(decision, blockers=(*decision.blockers, *blocks))


class _ChangeOnDemand:
    """What goes of a workload for pending pods.

    Attributes:
        charged: What the budgets count of it; None if nothing goes.
    """

    def __init__(self, decision: Decision) -> None:
        self.charged: Decision | None = None
        self._decision = decision
        self._victims: list[Victim] = []

    def also(self, victims: Sequence[Victim], pod: WaitingPod) -> Decision:
        """What the budgets would count if these went, too; parts differ only in GPUs, as far as budgets count."""
        if self._decision.action is Action.NOTICE or not victims[0].is_replica:
            return self._decision
        before = self.charged
        if before is None or len(self._victims) + len(victims) == most_going(self._decision):
            going = [(pod, one.pods, one.frees) for one in (*self._victims, *victims)]
            return with_replicas(self._decision, going)
        return dataclasses.replace(before, frees=before.frees + sum(one.frees for one in victims))

    def add(self, victims: Sequence[Victim], charged: Decision) -> None:
        """Let these go, too."""
        self._victims += victims
        self.charged = charged


@dataclasses.dataclass(frozen=True, slots=True)
class _Refusal:
    """Why the victims of a demand do not go.

    Attributes:
        ref: The workload whose change budgets or capacity refuse.
        before: The victims that were charged before it.
        spared: What these leave no room for.
    """

    ref: ObjectRef
    blocks: tuple[Blocker, ...]
    before: frozenset[Victim]
    spared: frozenset[Victim]


class _Matching:
    """The victims of what waits, the most urgent first, each charged before those of the next are chosen.

    Attributes:
        wanted: By workload, the pending pod that each victim serves.
        blocks: By workload, why budgets or capacity refuse the most urgent demand that needed it.
        cut_short: As Limited has it.
    """

    def __init__(
        self,
        decisions: Collection[Decision],
        announced: Collection[Decision],
        evaluator: PolicyEvaluator,
        account: BudgetAccount,
        earlier: EarlierRounds,
    ) -> None:
        self.wanted: dict[ObjectRef, dict[Victim, WaitingPod]] = collections.defaultdict(dict)
        self.blocks: dict[ObjectRef, tuple[Blocker, ...]] = {}
        self.cut_short: dict[str, ObjectRef] = {}
        self._account = account
        self._changes = {one.workload.ref: _ChangeOnDemand(one) for one in decisions}
        self._is_dropped, self._is_now = False, True
        waiting = [one for one in evaluator.fleet.waiting if one.ref not in earlier.started]
        if not waiting:
            return
        made = [one for one in earlier.made if one.serves]
        announced = [*announced, *(one for one in made if one.action is Action.NOTICE)]
        self._victims = {one.workload.ref: _victims(one, evaluator) for one in (*decisions, *announced)}
        gone = tuple(one for each in made if each.action is not Action.NOTICE for one in gone_victims(each))
        candidates = [*itertools.chain(*self._victims.values()), *gone]
        self._places = Places(evaluator.fleet, sorted(candidates, key=standing), earlier.tries)
        self._places.free_what_terminates(evaluator.at)
        self._places.do(Placement(waiting[0], "", gone))  # on no node: only what the victims free counts
        self._drop_unaffordable(waiting[0])
        fresh = self._victims_of(one for one in decisions if one.action is Action.NOTICE)
        self._later = fresh | self._victims_of(announced)
        left: Sequence[Sequence[WaitingPod]] = _together(waiting)
        # Who can go now serves all that it can. For the rest notices run, and only then others are given.
        for spared in dict.fromkeys((self._later, fresh, frozenset[Victim]())):
            self._is_now = spared == self._later
            left = self._serve_all(left, spared)

    def _victims_of(self, decisions: Iterable[Decision]) -> frozenset[Victim]:
        return frozenset(one for each in decisions for one in self._victims[each.workload.ref])

    def _serve_all(
        self, demands: Sequence[Sequence[WaitingPod]], spared: frozenset[Victim]
    ) -> list[Sequence[WaitingPod]]:
        """Serve what these do not have to go for, and return the rest."""
        left: list[Sequence[WaitingPod]] = []
        lowest = min((one.priority for one in self._places.candidates), default=math.inf)
        # Thousands of pods or gangs may ask alike: what was not served is not served either while nothing is placed.
        in_vain: set[Hashable] = set()
        for pods in demands:
            shape, first = _shape(pods), pods[0]
            if max(pod.priority for pod in pods) <= lowest or shape in in_vain:  # nobody could go for them
                left.append(pods)
            elif self._serve(pods, spared):
                in_vain.clear()
            else:
                left.append(pods)
                if self._places.tries[first.ref.namespace].left > 0:
                    in_vain.add(shape)
                else:
                    self.cut_short.setdefault(first.ref.namespace, first.demand)
        return left

    def _serve(self, pods: Sequence[WaitingPod], spared: frozenset[Victim]) -> bool:
        """Choose and charge victims; if budgets have no room for some, others in place of these.

        If there are none, once in place of those that left them no room.
        """
        first: tuple[list[Placement], _Refusal] | None = None
        instead: frozenset[Victim] | None = None
        while (placed := _place_cheapest(pods, self._places, spared)) is not None or instead:
            if placed is None:
                spared, instead = instead or spared, frozenset()
                continue
            if not (refused := self._charge(placed)):
                self._want(placed)
                return True
            _undo(placed, self._places)
            if self._drop_unaffordable(pods[0]):
                continue
            first = first or (placed, refused)
            if instead is None and refused.before:
                instead = spared | refused.before
            spared |= refused.spared
        if first is not None:
            self._note_refusal(pods[0].demand, *first)
        return False

    def _drop_unaffordable(self, pod: WaitingPod) -> bool:
        """Let nothing go of workloads of which the budgets allow no more, and return whether there are new ones.

        Budgets are charged only where a demand is served, so that otherwise there are none.
        """
        if self._is_dropped:
            return False
        self._is_dropped = True
        dropped: list[Victim] = []
        for ref, left, blocks in tuple(self._unaffordable(self._changes, pod)):
            self.blocks.setdefault(ref, blocks)
            dropped += left
            del self._changes[ref]
        self._places.drop(dropped)
        return bool(dropped)

    def _unaffordable(
        self, refs: Iterable[ObjectRef], pod: WaitingPod
    ) -> Iterator[tuple[ObjectRef, list[Victim], tuple[Blocker, ...]]]:
        """The workloads of which the budgets allow no more, what could go of each, and why it does not."""
        for ref in refs:
            change = self._changes[ref]
            left = [one for one in self._victims[ref] if one not in self._places.victims]
            if left and (blocks := self._account.against(change.also(left[:1], pod), change.charged)):
                yield ref, left, blocks

    def _charge(self, placed: Sequence[Placement]) -> _Refusal | None:
        """Charge all victims of a demand, or none."""
        needed = _by_workload(placed)
        self._account.begin()
        parts: dict[ObjectRef, Decision] = {}
        for ref, victims in needed.items():
            change = self._changes.get(ref)
            if change is None:  # it has a notice: nothing goes yet
                continue
            part = change.also(victims, placed[0].pod)
            if blocks := self._account.take(part, change.charged):
                before = frozenset(one for each in parts for one in needed[each])
                spared = self._refused_beside(placed, parts, ref, victims)
                self._account.end(is_made=False)
                return _Refusal(ref, blocks, before, spared)
            parts[ref] = part
        self._account.end(is_made=self._is_now)
        for ref, part in parts.items() if self._is_now else ():
            self._changes[ref].add(needed[ref], part)
            self._is_dropped = False
        return None

    def _want(self, placed: Sequence[Placement]) -> None:
        """Note for whom victims go, or get a notice; before its end, nobody goes for a pod that would not fit yet."""
        for pod, victim in ((one.pod, victim) for one in placed for victim in one.victims):
            ref, is_notice = victim.decision.workload.ref, victim.decision.action is Action.NOTICE
            if self._is_now or (is_notice and ref in self._changes):
                self.wanted[ref][victim] = pod
            elif victim not in self._later:
                words = f"{pod.demand} also needs GPUs of a workload whose notice has to end first"
                self.blocks.setdefault(ref, (Blocker(BlockerCode.ONLY_FOR_PENDING_PODS, words),))

    def _refused_beside(
        self, placed: Sequence[Placement], made: Collection[ObjectRef], ref: ObjectRef, victims: list[Victim]
    ) -> frozenset[Victim]:
        """What the budgets allow no more of beside what is charged, of this workload and of others near the pods."""
        pod, change = placed[0].pod, self._changes[ref]
        victims = sorted(victims, key=lambda one: one.place)
        allowed = bisect.bisect_left(
            range(1, len(victims)),
            1,
            key=lambda number: len(self._account.against(change.also(victims[:number], pod), change.charged)),
        )
        nodes = frozenset[str]().union(*(one.pod.nodes for one in placed))
        near = {one.decision.workload.ref for node in nodes for one in self._places.lower(pod, node)}
        others = self._unaffordable(sorted((near & self._changes.keys()) - {ref, *made}), pod)
        return frozenset(victims[allowed:]).union(*(left for _, left, _ in others))

    def _note_refusal(self, demand: ObjectRef, placed: Sequence[Placement], refused: _Refusal) -> None:
        """Note why a demand is not served: it needs a change of this workload, which is not possible."""
        why = refused.blocks
        words = f"{demand} also needs {refused.ref}: {why[0].message}"
        for each in _by_workload(placed):
            told = why if each == refused.ref else (Blocker(why[0].code, words),)
            self.blocks.setdefault(each, told)


def _by_workload(placed: Iterable[Placement]) -> dict[ObjectRef, list[Victim]]:
    """The victims of placements."""
    found: dict[ObjectRef, list[Victim]] = collections.defaultdict(list)
    for victim in (victim for one in placed for victim in one.victims):
        found[victim.decision.workload.ref].append(victim)
    return found


def _shape(pods: Sequence[WaitingPod]) -> Hashable:
    """Equal for pods and gangs that fit alike; those of a lower priority come later, and have fewer victims."""
    first, gang = pods[0], pods[0].gang
    options = [(one.nodes, *sorted(one.amounts.items())) for one in gang.options] if gang else ()
    each = (
        (
            first.priority - pod.priority,
            pod.nodes,
            pod.claims,
            tuple(sorted(pod.resources.items())),
            tuple(sorted(pod.needs.items())),
        )
        for pod in pods
    )
    alike = tuple((shape, len(list(same))) for shape, same in itertools.groupby(each))
    return alike, gang and gang.needs, gang and gang.topology, tuple(options)


def _together(waiting: Iterable[WaitingPod]) -> list[list[WaitingPod]]:
    """The pods that start together: those of a gang, in the place of its first; each other pod alone."""
    found: dict[ObjectRef, list[WaitingPod]] = {}
    for pod in waiting:
        found.setdefault(pod.demand, []).append(pod)
    return [pods for pods in found.values() if pods[0].gang is None or len(pods) >= pods[0].gang.needs]


@dataclasses.dataclass(frozen=True, slots=True)
class _Attempt:
    """One way to place pods that start together.

    Attributes:
        takes: The quota that they take together.
        spared: Those that must not go.
    """

    pods: Sequence[WaitingPod]
    takes: Mapping[QuotaKey, float]
    spared: frozenset[Victim] = frozenset()


def _place_cheapest(
    pods: Sequence[WaitingPod], places: Places, spared: frozenset[Victim]
) -> list[Placement] | None:
    """Place pods in the cheapest way, whole or not at all; None if they have no place."""
    tries = places.tries[pods[0].ref.namespace]
    if tries.left <= 0:
        return None
    attempts = (dataclasses.replace(one, spared=spared) for one in _attempts(pods, places))
    first = [*itertools.islice(attempts, 2)]
    if len(first) == 1 and not first[0].takes:
        return _place_all(first[0], places)
    best: tuple[tuple[float, float, int, int], _Attempt] | None = None
    for one in itertools.takewhile(lambda _: tries.left > 0, itertools.chain(first, attempts)):
        cost = _try(one, places)
        if cost is not None and (best is None or cost < best[0]):
            best = (cost, one)
    if best is None:
        return None
    cost, attempt = best
    if attempt.takes:
        # A victim for the quota and another for the place may be one too many. Half of the tries are kept for others.
        least = tries.left // 2
        for victim in itertools.takewhile(lambda _: tries.left > least, _victims_at(attempt, places)):
            fewer = dataclasses.replace(attempt, spared=attempt.spared | {victim})
            without = _try(fewer, places)
            if without is not None and without < cost:
                cost, attempt = without, fewer
    return _place_all(attempt, places)


def _attempts(pods: Sequence[WaitingPod], places: Places) -> Iterator[_Attempt]:
    """Each option of its queue for which there may be quota, in each domain of its topology."""
    gang = pods[0].gang
    if gang is None:
        yield _Attempt(pods, {})
        return
    least = min(pods, key=lambda one: one.priority)
    options = gang.options or (QueueOption(None, {}),)
    possible = [one for one in options if places.may_return(least, one.amounts)]
    domains = _domains(pods, gang.topology, places.nodes) if possible else ()
    places.charge(least, sum(map(len, domains)))
    for option in possible:
        for domain in domains:
            allowed = domain if option.nodes is None else domain & option.nodes
            limited = [dataclasses.replace(pod, nodes=pod.nodes & allowed) for pod in pods]
            yield _Attempt(limited, option.amounts)


def _domains(
    pods: Sequence[WaitingPod], topology: str, nodes: Mapping[str, Node]
) -> Sequence[frozenset[str]]:
    """The nodes that the pods could use, by the value of a label; all together without a label."""
    usable = frozenset[str]().union(*{pod.nodes for pod in pods})
    if not topology:
        return [usable]
    by_value: dict[str, set[str]] = collections.defaultdict(set)
    for name in usable:
        if value := nodes[name].labels.get(topology) if name in nodes else None:
            by_value[value].add(name)
    return [frozenset(by_value[value]) for value in sorted(by_value)]


def _try(attempt: _Attempt, places: Places) -> tuple[float, float, int, int] | None:
    """What an attempt would cost; None if it fails."""
    placed = _place_all(attempt, places)
    if placed is None:
        return None
    cost = cost_of([victim for one in placed for victim in one.victims])
    _undo(placed, places)
    return cost


def _victims_at(attempt: _Attempt, places: Places) -> list[Victim]:
    """Who would go, the most costly first."""
    placed = _place_all(attempt, places) or []
    _undo(placed, places)
    victims = [victim for one in placed for victim in one.victims]
    return sorted(victims, key=standing, reverse=True)


def _undo(placed: Sequence[Placement], places: Places) -> None:
    for one in reversed(placed):
        places.undo(one)


def _place_all(attempt: _Attempt, places: Places) -> list[Placement] | None:
    """Place as many pods as their gang needs, and those beyond that fit; undone and None if they do not."""
    places.spare(attempt.spared)
    places.tries[attempt.pods[0].ref.namespace].left -= len(attempt.pods)
    placed: list[Placement] = []
    gang = attempt.pods[0].gang
    spare = len(attempt.pods) - (gang.needs if gang else 1)
    reserved = _reserve(attempt, places)
    if reserved is not None:
        placed.append(reserved)
        places.do(reserved)
        for pod in attempt.pods:
            found = best_place(pod, places)
            if found is not None:
                places.do(found)
                placed.append(found)
            elif spare == 0:
                break
            else:
                spare -= 1
        else:
            return placed
    _undo(placed, places)
    return None


def _reserve(attempt: _Attempt, places: Places) -> Placement | None:
    """The victims whose quota is missing, first those on nodes that the pods could use; None if it is not enough."""
    pod, missing = min(attempt.pods, key=lambda one: one.priority), dict(attempt.takes)
    usable = frozenset[str]().union(*{one.nodes for one in attempt.pods})
    victims: list[Victim] = []

    found = itertools.takewhile(
        lambda _: places.lacking(missing), places.in_quotas(pod, attempt.takes, usable)
    )
    helping = (one for one in found if any(key in places.freed(one) for key in places.lacking(missing)))
    for victim in places.allowed(helping):
        victims.append(victim)
        for key in missing:
            missing[key] -= places.freed(victim).get(key, 0.0)
    if places.lacking(missing):
        return None
    return Placement(pod, "", tuple(victims), takes=attempt.takes)
