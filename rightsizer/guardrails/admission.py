"""ValidatingAdmissionPolicies for what a policy file forbids, and what they cannot check. Pure.

Each kind that the policy allows gets one: changes only of the fields that actions change, never in a protected
namespace, never if a pod template names a protected PriorityClass. An eviction or a command object shows no class.
https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from rightsizer.changes.record_codec import MANIFEST_LABEL, MANIFEST_NAME, UNDO_ANNOTATION
from rightsizer.config import PREFIX
from rightsizer.guardrails import cel
from rightsizer.guardrails.cel import Variables
from rightsizer.guardrails.rbac import Enabled
from rightsizer.inventory.gpu_requests import CLASS_PREFIX, GPU_RESOURCES, WHOLE_GPU_RESOURCES
from rightsizer.kinds import CONTROL_OBJECT_KINDS
from rightsizer.kinds.core import POD
from rightsizer.kinds.edits import Path, shown
from rightsizer.kinds.fields import Value
from rightsizer.kinds.kind import Kind, Stop
from rightsizer.kinds.patches import MANIFEST_TYPE
from rightsizer.kube.owner_kinds import KEDA
from rightsizer.model import Mode
from rightsizer.planning.victims import COST_ANNOTATION
from rightsizer.policy.classes import title_of
from rightsizer.policy.protections import SYSTEM_NAMESPACES, SYSTEM_PRIORITY
from rightsizer.policy.rule import Rule
from rightsizer.policy.schema import Policy

_KEPT = ("labels", "finalizers", "ownerReferences")
_METADATA: Path = ("metadata",)
_ANNOTATIONS: Path = ("metadata", "annotations")
Object = dict[str, Any]


def admission_policies(
    policy: Policy, *, account: str, own: str, classes: Sequence[str] = ()
) -> list[Object]:
    """The policies and their bindings, as `kubectl apply` takes them.

    Args:
        policy: The file.
        account: Our service account.
        own: Its namespace, ours.
        classes: PriorityClasses whose own annotations protect their pods.
    """
    enabled = Enabled(policy)
    specs: dict[str, Object] = {}
    for row in enabled.kinds:
        known = Variables()
        validations = [
            *_where(policy, own),
            *_of_fields(row, known),
            *_of_growth(row, known),
            *_of_classes(row, policy, known, classes),
        ]
        rule = _rule(row.group, ["UPDATE"], row.of.plural)
        specs[name_of(row.group, row.of.plural)] = _spec(rule, validations, known)
        if row.stop is not None and row.stop.orders is not None:
            orders, group = row.stop.orders, orders_group(row.stop)
            validations = [*_where(policy, own), *_of_orders(row.stop)]
            specs[name_of(group, orders.plural)] = _spec(_rule(group, ["CREATE"], orders.plural), validations)
    if enabled.evicts:
        validations = [*_where(policy, own), *_of_eviction()]
        specs[EVICTIONS] = _spec(_rule(POD.group, ["CREATE"], "pods/eviction"), validations)
        specs[MANIFESTS] = _spec(
            _rule("", ["CREATE", "UPDATE", "DELETE"], "secrets"), list(_of_manifests(own))
        )
    condition = _condition(account, own)
    return [
        one for name, spec in specs.items() for one in _policy(name, {**spec, "matchConditions": condition})
    ]


EVICTIONS, MANIFESTS = "evictions", "secrets"


def name_of(group: str, plural: str) -> str:
    """What objects of a kind are called in names of policies and of files."""
    return f"{plural}.{group}" if group else plural


def orders_group(stop: Stop) -> str:
    """The API group of the objects by which a stop is ordered; empty where it is not."""
    return stop.orders.api_version.partition("/")[0] if stop.orders else ""


def _condition(account: str, own: str) -> list[Object]:
    who = f"system:serviceaccount:{own}:{account}"
    return [{"name": "ours", "expression": f"request.userInfo.username == {cel.text(who)}"}]


def _rule(group: str, operations: list[str], resource: str) -> Object:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": operations,
        "resources": [resource],
    }


def _spec(rule: Object, validations: Sequence[Object], known: Variables | None = None) -> Object:
    variables = known.rendered() if known else []
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        **({"variables": variables} if variables else {}),
        "validations": list(validations),
    }


def _policy(called: str, spec: Object) -> list[Object]:
    version, name = "admissionregistration.k8s.io/v1", f"gpu-rightsizer-{called}"
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": part}
        for kind, part in (("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", binding))
    ]


def _validation(expression: str, message: str) -> Object:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def _where(policy: Policy, own: str) -> Iterator[Object]:
    names = sorted(SYSTEM_NAMESPACES) + ([own] if own not in SYSTEM_NAMESPACES else [])
    yield _validation(
        f"!(request.namespace in {cel.listed(names)})", "the namespace is the system's, or our own"
    )
    for pattern in policy.protectedNamespaces:
        yield _validation(
            f"!request.namespace.matches({cel.text(_regex(pattern))})",
            f"the policy protects namespaces {pattern}",
        )


def _regex(pattern: str) -> str:
    """A glob as RE2 has it, for the whole of a text: of what means something to RE2 patterns hold only . and +.

    Python's own translation uses what RE2 does not know.
    """
    plain = re.sub("([.+])", r"[\1]", pattern)
    return f"^{plain.replace('*', '.*').replace('?', '.')}$"


_SLICES = "|".join(
    _regex(one.pattern)
    for one in GPU_RESOURCES
    if one.pattern not in WHOLE_GPU_RESOURCES and not one.pattern.startswith(CLASS_PREFIX)
)


def _of_fields(row: Kind, known: Variables) -> Iterator[Object]:
    known.named(cel.OURS, f"{cel.text(UNDO_ANNOTATION)} in {known.at(_ANNOTATIONS)}[1]")
    if row.changeable:
        known.named(cel.SLICES, cel.text(_SLICES))
    changed = [field.path for field in row.fields()]
    in_spec = [path[1:] for path in changed if path[0] == "spec"]
    names = ", ".join(sorted({shown(("spec", *path)) for path in in_spec}))
    only = f"of the spec only {names} is ours to change" if names else "the spec is not ours to change"
    yield _validation(cel.same_but(known, ("spec",), in_spec), only)
    yield _validation(cel.same(known, _METADATA, _KEPT), "labels, finalizers and owners stay as they are")
    free = [path[-1] for path in changed if path[:2] == _ANNOTATIONS]
    free += [COST_ANNOTATION] if row is POD else []
    own = f"k.startsWith({cel.text(PREFIX)})" + (f" || k in {cel.listed(free)}" if free else "")
    yield _validation(
        cel.others_same(known.at(_ANNOTATIONS), own), "other annotations than ours stay as they are"
    )


def _of_growth(row: Kind, known: Variables) -> Iterator[Object]:
    """Replicas are only given back: how many there were says our record, which no expression can read."""
    stopped = row.stop.field if row.stop and str(row.stop.to).isdecimal() else None
    numbers = {one.path: one for one in row.fields() if one.value is Value.COUNT or one is stopped}
    if numbers:
        each = (
            cel.no_more(known, path, is_text=one.value is Value.TEXT) for path, one in sorted(numbers.items())
        )
        yield _validation(
            f"variables.{cel.OURS} || ({' && '.join(each)})",
            "there are more replicas only where our record says of fewer",
        )


def _of_classes(row: Kind, policy: Policy, known: Variables, protected: Sequence[str]) -> Iterator[Object]:
    """What the policy protects by class alone, before anything is enforced that could be about it."""
    if not row.classes:
        return
    classes = known.named("classes", cel.values(known, row.classes, row.class_of_all))
    yield _validation(
        f'!{classes}.exists(c, c.startsWith("system-"))', "pods of a system class are not ours to change"
    )
    if row is POD:
        yield from _of_priority(policy, known)
    by_rules = [
        (rule.name, pattern) for rule in protecting(policy) for pattern in rule.match.priorityClasses or ()
    ]
    by_themselves = [(title_of(name), name) for name in protected if heeds_classes(policy)]
    for name, pattern in (*by_rules, *by_themselves):
        yield _validation(
            f"!{classes}.exists(c, c.matches({cel.text(_regex(pattern))}))",
            f"rule {name} protects pods of class {pattern or '(none)'}",
        )


def _of_priority(policy: Policy, known: Variables) -> Iterator[Object]:
    """What only pods themselves say: what their class came to."""
    priority = known.named("priority", cel.child(f"{known.at(('spec',))}[0]", "priority", "0"))
    yield _validation(
        f"!({priority} > {SYSTEM_PRIORITY})", "pods of a system priority are not ours to change"
    )
    for rule in protecting(policy, "priority"):
        wanted = rule.match.priority
        if wanted is not None:
            yield _validation(
                f"!({priority} >= {wanted.min} && {priority} <= {wanted.max})",
                f"rule {rule.name} protects pods of priority {wanted.min} to {wanted.max}",
            )


def protecting(policy: Policy, condition: str = "priorityClasses") -> Iterator[Rule]:
    """The rules that protect by one condition whatever else holds: naming nothing else, and before any that act."""
    for rule in policy.rules:
        if rule.mode is Mode.ENFORCE:
            return
        if rule.mode is Mode.PROTECT and set(rule.match.model_dump(exclude_none=True)) == {condition}:
            yield rule


def heeds_classes(policy: Policy) -> bool:
    """Whether a PriorityClass that protects does so whatever else holds: no rule of the file that acts comes before."""
    acts = any(rule.mode is Mode.ENFORCE for rule in policy.rules)
    return policy.classAnnotations == "class-first" or (policy.asks_classes and not acts)


def _of_orders(stop: Stop) -> Iterator[Object]:
    """Of orders only those that we give: the stop, and what takes it back."""
    given = sorted({str(stop.to), stop.orders.back if stop.orders else ""})
    yield _validation(
        f"{cel.child('object', 'action', cel.text(''))} in {cel.listed(given)}",
        f"only {' and '.join(given)} are ours to order",
    )


def _of_eviction() -> Iterator[Object]:
    known = cel.child("object", "deleteOptions")
    uid = f'[{known}].all(d, [{cel.child("d", "preconditions")}].all(p, "uid" in p && p["uid"] != ""))'
    yield _validation(uid, "an eviction names the UID of its pod")
    yield _validation(f'!("gracePeriodSeconds" in {known})', "an eviction leaves the pod its own time to end")


def _of_manifests(own: str) -> Iterator[Object]:
    """Of Secrets only those that keep manifests: none that gets another account's token, and no release of Helm's."""
    both = "[object, oldObject].filter(o, o != null)"
    kind = f"{cel.child('o', 'type', cel.text(''))} == {cel.text(MANIFEST_TYPE)}"
    metadata = cel.child("o", "metadata")
    name = f"{cel.child('m', 'name', cel.text(''))}.matches({cel.text(MANIFEST_NAME)})"
    label = f"{cel.text(MANIFEST_LABEL)} in {cel.child('m', 'labels')}"
    yield _validation(f"request.namespace == {cel.text(own)}", "Secrets of other namespaces are not ours")
    yield _validation(f"{both}.all(o, {kind})", f"only Secrets of type {MANIFEST_TYPE} are ours")
    yield _validation(
        f"{both}.map(o, {metadata}).all(m, {name} && {label})",
        f"a Secret of ours is called after its pod and the first digits of its UID, and has the label {MANIFEST_LABEL}",
    )


def admission_gaps(policy: Policy, classes: Sequence[str] = ()) -> Iterator[str]:
    """What the API server lets our service account do all the same; `classes` are those that protect by themselves."""
    enabled = Enabled(policy)
    if not enabled.acts:
        return
    yield from _class_gaps(policy, classes)
    yield (
        "numbers: without our record none grows (replicas, GPUs of a container), but how many are taken, what is given "
        "back where a record stands, and how much of parts of GPUs comes in place of GPUs is not checked, nor whether "
        "GPUs are concerned at all"
    )
    yield from _kind_gaps(enabled)
    checked, of_pods = list(protecting(policy)), list(protecting(policy, "priority"))
    for rule in policy.rules:
        if rule in of_pods:
            yield f"rule {rule.name}: of priorities only bare pods tell; elsewhere it is not checked"
        elif rule.mode is Mode.PROTECT and rule not in checked:
            yield f"rule {rule.name}: protects by more than classes, or after a rule that enforces; it is not checked"
    if checked:
        yield "templates without a class: the cluster's globalDefault, or what a webhook sets, is not known there"


def _class_gaps(policy: Policy, classes: Sequence[str]) -> Iterator[str]:
    if policy.asks_classes and not classes:
        yield "what PriorityClasses say of themselves is not known here; name those that protect by --protected-class"
    elif classes and not heeds_classes(policy):
        yield f"{', '.join(classes)}: not asked, or asked after a rule that enforces, so these are not checked"


def _kind_gaps(enabled: Enabled) -> Iterator[str]:
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
