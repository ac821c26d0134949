"""What a policy file says that RBAC and admission policies do not hold our service account to, in words. Pure."""

from collections.abc import Iterator, Sequence

from rightsizer.guardrails.admission import heeds_classes, protecting
from rightsizer.guardrails.permitted import Enabled
from rightsizer.kinds import CONTROL_OBJECT_KINDS
from rightsizer.kube.owner_kinds import KEDA
from rightsizer.model import Mode
from rightsizer.policy.schema import Policy


def admission_gaps(policy: Policy, classes: Sequence[str] = ()) -> Iterator[str]:
    """What the API server lets our service account do all the same; `classes` are those that protect by themselves."""
    enabled = Enabled(policy)
    if not enabled.acts:
        return
    yield from _of_classes(policy, classes)
    yield (
        "numbers: without our record none grows (replicas, GPUs of a container), but how many are taken, what is given "
        "back where a record stands, and how much of parts of GPUs comes in place of GPUs is not checked, nor whether "
        "GPUs are concerned at all"
    )
    yield from _of_kinds(enabled)
    told, of_pods = list(protecting(policy)), list(protecting(policy, "priority"))
    for rule in policy.rules:
        if rule in of_pods:
            yield f"rule {rule.name}: of priorities only bare pods tell; elsewhere it is not checked"
        elif rule.mode is Mode.PROTECT and rule not in told:
            yield f"rule {rule.name}: protects by more than classes, or after a rule that enforces; it is not checked"
    if told:
        yield "templates without a class: the cluster's globalDefault, or what a webhook sets, is not known there"


def _of_classes(policy: Policy, classes: Sequence[str]) -> Iterator[str]:
    if policy.asks_classes and not classes:
        yield "what PriorityClasses say of themselves is not known here; name those that protect by --protected-class"
    elif classes and not heeds_classes(policy):
        yield f"{', '.join(classes)}: not asked, or asked after a rule that enforces, so these are not checked"


def _of_kinds(enabled: Enabled) -> Iterator[str]:
    nameless = [row.kind for row in enabled.kinds if not row.classes]
    if nameless:
        yield f"{', '.join(nameless)}: these do not name the PriorityClass of their pods, so it is not checked"
    if any(row.kind == "AppWrapper" for row in enabled.kinds):
        yield "AppWrapper: classes are found only in pods, and in what has a template as a Job has it, inside of it"
    if enabled.evicts:
        yield "evictions: they do not show their pod, so its class is not checked"
    for row in enabled.kinds:
        if row.stop is not None and row.stop.orders is not None:
            order = row.stop.orders.kind
            yield f"{order}: it does not show the {row.kind} that it is about, so its class is not checked"


def grant_gaps(policy: Policy) -> Iterator[str]:
    """Why more is granted than the policy's rules alone would take."""
    enabled = Enabled(policy)
    if policy.asks_classes:
        yield (
            f"classAnnotations: {policy.classAnnotations}: annotations of PriorityClasses may enforce anything, so "
            "every change of every kind in every namespace is granted; with 'off' only what the rules take is"
        )
        return
    for row in CONTROL_OBJECT_KINDS:
        if row in enabled.kinds:
            by = "scales" if row.group == KEDA.group else "queues"
            yield f"{row.kind}.{row.group}: no rule names it, but it may be what {by} those that rules are about"
