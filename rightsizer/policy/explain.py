"""Explains step by step what a policy decides about one workload. Pure."""

import datetime
import textwrap
from collections.abc import Iterator, Sequence

from rightsizer.model import FindingName, Mode, Pod, Workload
from rightsizer.policy.do_not_disrupt import marks_on
from rightsizer.policy.effective import Criteria, EffectivePolicy, OrderedRule, PolicyEvaluator
from rightsizer.policy.limits import Budget, BudgetScope, Per, closed_reason
from rightsizer.policy.match import MatchInput, answers_of, shown_value, subject_of
from rightsizer.policy.protections import opt_outs, protections
from rightsizer.policy.rule import SWITCHABLE, Rule
from rightsizer.text import count, span

_ANSWERS = {True: "yes", False: "no", None: "unknown"}
_SHOWN = 3
_WIDTH = 80


def explain(workload: Workload, book: PolicyEvaluator) -> str:
    """Each rule with its answer, then protections, opt-outs, thresholds, calendar and budgets."""
    effective = book.evaluate(workload)
    lines = [
        f"{workload.ref}: {count(len(workload.pods), 'pod')}, {count(workload.gpus, 'GPU')}",
        *_rules(workload, book),
        f"  so {effective.rule}: {effective.mode.value}",
        "",
        *_against(workload, book),
        "",
        *_doing(effective),
        "",
        *_judging(effective),
        "",
        *_limits(workload, book),
    ]
    return "\n".join(map(_wrapped, lines)) + "\n"


def _wrapped(line: str) -> str:
    indent = " " * (len(line) - len(line.lstrip()) + 4)
    return textwrap.fill(
        line, _WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def _rules(workload: Workload, book: PolicyEvaluator) -> Iterator[str]:
    """Each rule in order of evaluation, once for all pods that rules cannot distinguish."""
    alike: dict[tuple[str, ...], list[Pod]] = {}
    for pod in workload.pods:
        alike.setdefault(tuple(_walk(subject_of(workload, pod, book.fleet), book)), []).append(pod)
    for lines, pods in alike.items():
        yield ""
        if len(alike) > 1:
            names = ", ".join(pod.ref.name for pod in pods[:_SHOWN])
            more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
            yield f"rules, for {count(len(pods), 'pod')} ({names}{more})"
        else:
            yield "rules"
        yield from lines


def _walk(subject: MatchInput, book: PolicyEvaluator) -> Iterator[str]:
    ordered = book.class_rule(subject.pod)
    is_first = ordered is not None and ordered.place < 0
    if ordered and is_first:
        yield from _of_class(ordered)
        return
    for number, rule in enumerate(book.policy.rules, start=1):
        answers = answers_of(rule.match, subject)
        results = [answer for _, answer in answers]
        yield f"  {number} {rule.name} ({rule.mode.value}): {_result(results)}"
        for name, answer in answers:
            seen = f"{_ANSWERS[answer]}, {shown_value(name, subject)}"
            yield f"      {name} {_wanted(rule, name)}: {seen}"
        if all(results):
            return
    if ordered:
        yield from _of_class(ordered)
    else:
        yield "  no rule matches: only advice"


def _of_class(ordered: OrderedRule) -> Iterator[str]:
    yield f"  {ordered.rule.name}: applies, by annotations of its PriorityClass ({ordered.rule.mode.value})"
    if ordered.why:
        yield f"      {ordered.why}"


def _result(results: Sequence[bool | None]) -> str:
    if not results:
        return "applies: it matches everything"
    if False in results:
        return "does not match"
    return "may match, so later rules count too" if None in results else "applies"


def _wanted(rule: Rule, condition: str) -> str:
    wanted = getattr(rule.match, condition)
    match wanted:
        case tuple():
            return ", ".join(pattern or '""' for pattern in wanted)
        case dict():
            return ", ".join(f"{key}={pattern}" for key, pattern in wanted.items())
        case _:
            return f"{wanted.min} to {wanted.max}"


def _against(workload: Workload, book: PolicyEvaluator) -> Iterator[str]:
    policy = book.policy
    protected = [blocker.message for blocker in protections(workload, policy, book.own)]
    opted_out = [opt_out.blocker.message for opt_out in opt_outs(workload, book.at)]
    marks = [blocker.message for blocker in marks_on(workload, policy.respectDoNotDisrupt, book.at)]
    yield from _list("protections", protected)
    yield from _list(
        "opt-outs" if policy.respectOptOut else "opt-outs (ignored: respectOptOut is false)", opted_out
    )
    yield from _list("do-not-disrupt annotations (advise at most)", marks)
    yield f"begins to share a GPU: {_sharing(workload, book)}"


def _sharing(workload: Workload, book: PolicyEvaluator) -> str:
    sharing, namespace = book.policy.sharing, workload.ref.namespace
    domain = sharing.domain_of(workload, book.fleet)
    if domain is None:
        is_untrusted = sharing.is_untrusted(workload, book.fleet)
        why = "it is untrusted" if is_untrusted else f"namespace {namespace} has no label {sharing.label}"
        return f"never: {why}"
    others = {"namespace": f"namespace {namespace}", "label": f"namespaces with {sharing.label}={domain}"}
    return f"only with pods of {others.get(sharing.within, 'the cluster that are not untrusted')}"


def _list(title: str, items: Sequence[str]) -> Iterator[str]:
    yield f"{title}: {'none' if not items else ''}".rstrip()
    yield from (f"  {line}" for line in dict.fromkeys(items))


def _doing(effective: EffectivePolicy) -> Iterator[str]:
    yield "modes"
    by_mode: dict[str, list[str]] = {}
    for name in SWITCHABLE:
        by_mode.setdefault(_mode_words(effective, name), []).append(name.value)
    for words, names in by_mode.items():
        yield f"  {words}: {', '.join(names)}"
    if effective.mode is Mode.PROTECT:
        return
    yield f"  actions: {', '.join(effective.actions) or 'none'}"
    kept = [
        count(n, noun) for n, noun in ((effective.min_replicas, "replica"), (effective.min_gpus, "GPU")) if n
    ]
    yield f"  minimum kept: {', '.join(kept) or 'none'}"
    notice = "none"
    if effective.notify_before:
        after = span(min(criteria.idle.noticeAfter for criteria in effective.judged_by))
        notice = (
            f"after {after} idle or half of the required idle time, "
            f"{span(effective.notify_before)} or more before the change"
        )
    yield f"  notice: {notice}; cooldown: {span(effective.cooldown)}"
    yield f"  at most {effective.max_changes} changes in 30 days, not counting replicas"


def _mode_words(effective: EffectivePolicy, name: FindingName) -> str:
    return "off" if effective.is_off(name) else effective.mode_for(name).value


def _judging(effective: EffectivePolicy) -> Iterator[str]:
    for number, criteria in enumerate(effective.judged_by):
        if criteria in effective.judged_by[:number]:
            continue
        yield "thresholds"
        yield from (f"  {line}" for line in _thresholds(criteria))


def _thresholds(criteria: Criteria) -> Iterator[str]:
    idle, few, slice_ = criteria.idle, criteria.tooManyReplicas, criteria.oversizedGpu
    stuck = criteria.stuck
    yield (
        f"idle: no sample above {idle.maxUtilizationPercent:g}% in {span(idle.window)} "
        f"with {idle.minCoverage:.0%} coverage"
    )
    yield f"      pods older than {span(idle.window + idle.grace)}"
    longer = f" and {idle.idleFactor:g} times the longest pause of the last {span(idle.history)}"
    if idle.rarePausePercent:
        longer += f", less if under {idle.rarePausePercent:g}% of its pauses are as long"
    shortest = span(datetime.timedelta(seconds=idle.shortest_s))
    yield f"      required idle time: {shortest}{longer if idle.idleFactor else ''}"
    unused = min(idle.unusedWindow, idle.minIdleTime or idle.window)
    yield f"      {span(unused)} if it never worked, or no process holds memory on its GPUs"
    yield f"      MIG instances without utilization: by their board, up to {idle.maxBoardPowerPercent:g}% of idle power"
    unasked = criteria.noRequests
    yield (
        f"no-requests: no request to its inference server in {span(unasked.window)}, and mean activity at most "
        f"{unasked.maxMeanPercent:g}%"
    )
    under = criteria.underutilized
    yield f"underutilized: mean below {under.maxMeanPercent:g}% in {span(under.window)}"
    yield (
        f"too-many-gpus: some never above {criteria.tooManyGpus.maxUtilizationPercent:g}% "
        f"in {span(criteria.tooManyGpus.window)}"
    )
    yield (
        f"too-many-replicas: {few.minSavingPercent:g}% more than the busiest minute of the last {span(few.window)}, "
        f"plus {few.headroomPercent:g}% (at least {few.minHeadroom})"
    )
    yield f"      or plus the largest jump in {span(few.leadTime)} of the last {span(few.jumpHistory)}"
    yield (
        f"oversized-gpu: peak memory plus {slice_.memoryMarginPercent:g}% and peak activity plus "
        f"{slice_.activityMarginPercent:g}% in {span(slice_.window)} fit into less"
    )
    yield (
        f"stuck: mean above {stuck.minMeanPercent:g}% in {span(stuck.window)}, no memory traffic, and idle power (up "
        f"to {stuck.maxIdlePowerPercent:g}% of the lowest)"
    )
    if stuck.maxWorkPowerPercent:
        yield (
            f"      or up to {stuck.maxWorkPowerPercent:g}% of its power at work, and no memory traffic for "
            f"{span(stuck.withoutTraffic)} and {idle.idleFactor:g} times its longest earlier time without"
        )
    yield (
        f"input-bound: mean below {criteria.inputBound.maxMeanPercent:g}%, waiting for "
        f"{criteria.inputBound.minWaitPercent:g}% of {span(criteria.inputBound.window)}"
    )
    yield f"not-starting: holds GPUs without running for {span(criteria.notStarting.after)}"


def _limits(workload: Workload, book: PolicyEvaluator) -> Iterator[str]:
    block = closed_reason(book.policy, book.at)
    yield f"calendar: {block.message if block else 'open now'}"
    yield "budgets"
    for budget in book.policy.budgets:
        yield f"  {budget.title}: {_budget(budget, workload, book)}"


_PER = {Per.RUN: "in a run", Per.HOUR: "in an hour", Per.DAY: "in a day"}


def _budget(budget: Budget, workload: Workload, book: PolicyEvaluator) -> str:
    amounts = []
    if budget.workloads is not None:
        amounts.append(count(budget.workloads, "workload"))
    if budget.gpus is not None:
        amounts.append(count(budget.gpus, "GPU"))
    if budget.share is not None:
        least = f" or {count(budget.atLeastGPUs)}" if budget.atLeastGPUs > 1 else ""
        amounts.append(f"{budget.share}% of the GPUs held{least}")
    counted = f" ({budget.counted})" if budget.counted != "all" else ""
    return f"at most {' and '.join(amounts)} {_PER[budget.per]}, {_of(budget.scope, workload, book)}{counted}"


def _of(scope: BudgetScope, workload: Workload, book: PolicyEvaluator) -> str:
    match scope:
        case BudgetScope.CLUSTER:
            return "over the cluster"
        case BudgetScope.NAMESPACE:
            return f"over namespace {workload.ref.namespace}"
        case BudgetScope.OWNER:
            return f"of {workload.ref.kind} {workload.ref.name}"
        case BudgetScope.NODE_POOL:
            nodes = (book.fleet.nodes.get(pod.node) for pod in workload.pods)
            pools = sorted({node.pool for node in nodes if node and node.pool})
            return f"over node pool {', '.join(pools) or '(unknown)'}"
