"""Checks of the policy against the cluster. Pure."""

import datetime
import math
from collections.abc import Iterator

from rightsizer.doctor.diagnosis import Diagnosis, Facts, Failure, Message, Status, check, known, some
from rightsizer.errors import PolicyError
from rightsizer.model import Action, Mode
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.limits import Budget, BudgetScope, closed_reason, next_opening
from rightsizer.policy.policy_file import (
    BUILT_IN,
    class_problems,
    namespace_problems,
    require_classes,
    workloads_by_rule,
)
from rightsizer.text import count

FAR = datetime.timedelta(days=31)


def _evaluator(facts: Facts) -> PolicyEvaluator:
    loaded = known(facts.policy)
    return PolicyEvaluator(loaded.policy, known(facts.fleet), at=facts.at, own=facts.own)


READ = Message(Status.OK, "{source}: {rules}")
NONE_GIVEN = Message(
    Status.OK,
    "none: every workload gets only advice, and nothing is changed",
    "to start, write a policy for this cluster's PriorityClasses:",
    "gpu-rightsizer policy init > policy.yaml",
)
UNREADABLE = Message(
    Status.ERROR, "{why}", "fix it, and check again:", "gpu-rightsizer policy check --offline FILE"
)


@check("policy", "file", "The file is valid, and every rule is reachable.")
def _file(facts: Facts) -> Iterator[Diagnosis]:
    loaded = facts.policy
    if isinstance(loaded, Failure):
        yield UNREADABLE(why=loaded.words)
    elif loaded is BUILT_IN:
        yield NONE_GIVEN()
    else:
        yield READ(source=loaded.source, rules=count(len(loaded.policy.rules), "rule"))


CLASSES = Message(Status.OK, "all PriorityClasses that it names exist")
NO_CLASS = Message(Status.ERROR, "{why}", "fix the name; existing classes:", "kubectl get priorityclasses")
CLASS_PROBLEM = Message(
    Status.WARNING,
    "{why}",
    "fix the annotations of the class (docs/policy.md):",
    "kubectl get priorityclasses -o yaml",
)


@check("policy", "classes", "PriorityClasses that it names, and their annotations.")
def _classes(facts: Facts) -> Iterator[Diagnosis]:
    loaded, fleet = known(facts.policy), known(facts.fleet)
    problems = list(class_problems(_evaluator(facts)))
    try:
        require_classes(loaded, fleet.classes.keys())
    except PolicyError as error:
        for problem in error.problems:
            yield NO_CLASS(why=str(problem))
    else:
        if not problems:
            yield CLASSES()
    for why in problems:
        yield CLASS_PROBLEM(why=why)


MATCHES = Message(Status.OK, "workloads by rule: {rows}")
MATCHES_NOTHING = Message(
    Status.WARNING,
    "rules without workloads: {names}",
    "see which rule applies to a workload, and why:",
    "gpu-rightsizer policy explain --policy FILE NAMESPACE/KIND/NAME",
)
NO_NAMESPACE = Message(
    Status.WARNING, "{why}", "fix the name, or create it; existing namespaces:", "kubectl get namespaces"
)


@check("policy", "rules", "Workloads that each rule matches.")
def _rules(facts: Facts) -> Iterator[Diagnosis]:
    rows, _ = workloads_by_rule(_evaluator(facts))
    idle = [name for name, _, workloads, _ in rows if not workloads]
    if any(workloads for _, _, workloads, _ in rows):
        yield MATCHES(rows=some((f"{name} {workloads}" for name, _, workloads, _ in rows if workloads), 6))
    if idle:
        yield MATCHES_NOTHING(names=some(idle, 6))
    for why in namespace_problems(known(facts.policy), known(facts.fleet).namespaces):
        yield NO_NAMESPACE(why=why)


BUDGETS_ALLOW = Message(Status.OK, "every budget allows changes")
NOT_USED = Message(Status.OK, "no rule enforces, so no budget is used")
BUDGET_ZERO = Message(
    Status.WARNING,
    "budget {title} is {amount}: apply changes nothing that it covers",
    "raise or remove it, or use mode: advise in the rules",
)
BUDGET_TOO_SMALL = Message(
    Status.WARNING,
    "budget {title} allows {gpus}, but the smallest enforced workload holds {least}: apply stops none",
    "set gpus: {least} or more, or a larger share",
)


@check("policy", "budgets", "Budgets that prevent every change.")
def _budgets(facts: Facts) -> Iterator[Diagnosis]:
    book = _evaluator(facts)
    holders = (workload for workload in book.fleet.workloads if workload.gpus)
    enforced = [workload for workload in holders if book.evaluate(workload).mode is Mode.ENFORCE]
    if not any(rule.mode is Mode.ENFORCE for rule in book.policy.rules):
        yield NOT_USED()
        return
    held = sum(workload.gpus for workload in book.fleet.workloads)
    least = min((workload.gpus for workload in enforced), default=0)
    found = [problem for budget in book.policy.budgets for problem in _budget_problems(budget, held, least)]
    yield from found or [BUDGETS_ALLOW()]


def _budget_problems(budget: Budget, held: float, least: float) -> Iterator[Diagnosis]:
    """Problems of a budget; for a budget per namespace or owner, only problems that all of them have."""
    if budget.workloads == 0 or budget.gpus == 0:
        amount = "workloads: 0" if budget.workloads == 0 else "gpus: 0"
        yield BUDGET_ZERO(title=budget.title, amount=amount)
        return
    if not budget.counts(Action.SCALE_TO_ZERO):
        return  # replicas go one by one
    gpus = budget.gpus_of(held) if budget.scope is BudgetScope.CLUSTER else budget.gpus
    if gpus is not None and gpus < least:
        yield BUDGET_TOO_SMALL(title=budget.title, gpus=count(gpus), least=math.ceil(least))


OPEN = Message(Status.OK, "changes are allowed now")
CLOSED = Message(Status.OK, "no changes now: {why}")
FAR_OFF = Message(
    Status.WARNING,
    "no changes in the next {days} days: {why}",
    "check maintenanceWindows and freezes of the policy",
)


@check("policy", "calendar", "Maintenance windows and freezes.")
def _calendar(facts: Facts) -> Iterator[Diagnosis]:
    policy = known(facts.policy).policy
    block = closed_reason(policy, facts.at)
    if block is None:
        yield OPEN()
    else:
        opening = next_opening(policy, facts.at)
        is_far = opening is None or opening - facts.at > FAR
        yield (FAR_OFF if is_far else CLOSED)(why=block.message, days=FAR.days)
