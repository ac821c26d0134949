"""ValidatingAdmissionPolicies for what a policy file forbids, and what they cannot check. Pure.

Each kind that the policy allows gets one: changes only of the fields that actions change, never in a protected
namespace, never if a pod template names a protected PriorityClass. An eviction or a command object shows no class.
https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/
"""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from rightsizer.changes.record_codec import (
    CAME_BACK_ANNOTATION,
    HISTORY_ANNOTATION,
    LONGEST_NOTE,
    MANIFEST_LABEL,
    MANIFEST_NAME,
    MANIFEST_TYPE,
    NOTICE_ANNOTATION,
    RELEASE_ANNOTATION,
    RESUMED_ANNOTATION,
    UNDO_ANNOTATION,
    VICTIM_ANNOTATION,
)
from rightsizer.config import FIELD_MANAGER, PREFIX
from rightsizer.doctor.rights import STATE_MAPS
from rightsizer.guardrails import cel
from rightsizer.guardrails.cel import Variables
from rightsizer.guardrails.rbac import Enabled
from rightsizer.guardrails.resize_admission import resize_admission
from rightsizer.guardrails.template_admission import NAME_RULE, PARAM_KIND, PARAM_REF, SIZE_RULE
from rightsizer.inventory.gpu_requests import CLASS_PREFIX, GPU_RESOURCES, WHOLE_GPU_RESOURCES, ResourceUnit
from rightsizer.inventory.resource_claims import TEMPLATES
from rightsizer.kinds import CONTROL_OBJECT_KINDS
from rightsizer.kinds.core import POD
from rightsizer.kinds.edits import Path, shown
from rightsizer.kinds.kind import CommandObject, Kind, Stop, Value
from rightsizer.kube.lease import LEASE_NAME
from rightsizer.kube.owner_kinds import KEDA
from rightsizer.model import Mode
from rightsizer.planning.victims import COST_ANNOTATION
from rightsizer.policy.classes import title_of
from rightsizer.policy.protections import SYSTEM_NAMESPACES, SYSTEM_PRIORITY
from rightsizer.policy.rule import Rule
from rightsizer.policy.schema import Policy
from rightsizer.report.events import REASONS

_KEPT = ("labels", "finalizers", "ownerReferences")
_WRITTEN = (
    UNDO_ANNOTATION,
    HISTORY_ANNOTATION,
    CAME_BACK_ANNOTATION,
    RESUMED_ANNOTATION,
    NOTICE_ANNOTATION,
)
"""Annotations of any workload that changes and notices write; the answer to a notice is only removed."""
_METADATA: Path = ("metadata",)
_ANNOTATIONS: Path = ("metadata", "annotations")
Object = dict[str, Any]


def admission_policies(
    policy: Policy, *, account: str, own: str, classes: Sequence[str] = ()
) -> list[Object]:
    """Policies and bindings for an account in the namespace `own`; `classes` protect their pods by annotation."""
    enabled = Enabled(policy)
    specs: dict[str, Object] = {}
    for row in enabled.kinds:
        known = Variables()
        validations = [
            *_where(policy, own),
            *_of_fields(row, known),
            *_of_records(row, known),
            *_of_classes(row, policy, known, classes),
        ]
        rule = _rule(row.group, ["UPDATE"], row.of.plural)
        specs[name_of(row.group, row.of.plural)] = _spec(rule, validations, known)
        if row.stop is not None and row.stop.command is not None:
            command, group = row.stop.command, command_group(row.stop.command)
            validations = [*_where(policy, own), *_of_commands(row, row.stop, command)]
            specs[name_of(group, command.plural)] = _spec(
                _rule(group, ["CREATE"], command.plural), validations
            )
    if enabled.evicts:
        validations = [*_where(policy, own), *_of_eviction()]
        specs[EVICTIONS] = _spec(_rule(POD.group, ["CREATE"], "pods/eviction"), validations)
        secrets = _rule("", ["CREATE", "UPDATE", "DELETE"], MANIFESTS)
        specs[MANIFESTS] = _spec(secrets, [*_of_manifests(own), *_of_notes()])
    if enabled.acts:
        validations = [*_where(policy, own), *_of_events(), *_of_notes()]
        specs[EVENTS] = _spec(_rule("", ["CREATE", "UPDATE"], EVENTS), validations)
        for (group, plural), names in OWN_OBJECTS.items():
            validations = [*_of_names(own, names), *_of_notes()]
            specs[name_of(group, plural)] = _spec(_rule(group, ["CREATE", "UPDATE"], plural), validations)
        # Where this version is not served, the rules must match nothing: an unknown paramKind refuses everybody.
        rule = {**_rule(TEMPLATES.group, ["CREATE"], TEMPLATES.plural), "apiVersions": [*TEMPLATES.versions]}
        validations = [*_where(policy, own), _validation(*NAME_RULE), *_of_notes()]
        specs[CLAIM_TEMPLATES] = _spec(rule, validations)
        specs[TEMPLATE_SIZES] = {**_spec(rule, [_validation(*SIZE_RULE)]), "paramKind": PARAM_KIND}
    condition = _condition(account, own)
    found = [
        part for name, spec in specs.items() for part in _policy(name, {**spec, "matchConditions": condition})
    ]
    return [*found, *(resize_admission(own) if policy.keepSizes and enabled.acts else ())]


EVICTIONS, MANIFESTS, EVENTS = "evictions", "secrets", "events"
CLAIM_TEMPLATES, TEMPLATE_SIZES = f"{TEMPLATES.plural}.{TEMPLATES.group}", "template-sizes"
OWN_OBJECTS = {("", "configmaps"): STATE_MAPS, ("coordination.k8s.io", "leases"): (LEASE_NAME,)}
"""Names of the objects in its own namespace that gpu-rightsizer creates, by group and plural."""


def name_of(group: str, plural: str) -> str:
    """The name of a kind's objects in names of policies and of files."""
    return f"{plural}.{group}" if group else plural


def command_group(command: CommandObject) -> str:
    """The API group of the objects by which a stop is ordered."""
    return command.api_version.partition("/")[0]


def _condition(account: str, own: str) -> list[Object]:
    who = f"system:serviceaccount:{own}:{account}"
    return [{"name": "acting-service-account", "expression": f"request.userInfo.username == {cel.text(who)}"}]


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
    binding: Object = {"policyName": name, "validationActions": ["Deny"]}
    if "paramKind" in spec:
        binding["paramRef"] = PARAM_REF
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": part}
        for kind, part in (("ValidatingAdmissionPolicy", spec), ("ValidatingAdmissionPolicyBinding", binding))
    ]


def _validation(expression: str, message: str, reason: str = "Forbidden") -> Object:
    """Reason Invalid is for what the object's owner wrote: such a refusal opens no breaker."""
    return {"expression": expression, "message": message, "reason": reason}


def _where(policy: Policy, own: str) -> Iterator[Object]:
    names = sorted(SYSTEM_NAMESPACES) + ([own] if own not in SYSTEM_NAMESPACES else [])
    yield _validation(
        f"!(request.namespace in {cel.listed(names)})",
        "system namespaces and gpu-rightsizer's own may not be changed",
    )
    for pattern in policy.protectedNamespaces:
        yield _validation(
            f"!request.namespace.matches({cel.text(_regex(pattern))})",
            f"the policy protects namespaces {pattern}",
        )


def _regex(pattern: str) -> str:
    """A glob as a regular expression of RE2 for the whole text; `.` and `+` are the only special characters in globs.

    Python's own translation uses syntax that RE2 does not have.
    """
    plain = re.sub("([.+])", r"[\1]", pattern)
    return f"^{plain.replace('*', '.*').replace('?', '.')}$"


def _patterns(*units: ResourceUnit) -> str:
    names = [resource.pattern for resource in GPU_RESOURCES if resource.unit in units]
    others = (name for name in names if name not in WHOLE_GPU_RESOURCES and not name.startswith(CLASS_PREFIX))
    return "|".join(map(_regex, others))


_SLICES = _patterns(ResourceUnit.DEVICES, ResourceUnit.SHARES, ResourceUnit.AMOUNT)
_PARTS = _patterns(ResourceUnit.PART)


def _of_fields(row: Kind, known: Variables) -> Iterator[Object]:
    cel.read_records(known, UNDO_ANNOTATION)
    if row.changeable:
        known.named(cel.SLICES, cel.text(_SLICES))
        known.named(cel.PARTS, cel.text(_PARTS))
    changed = [field.path for field in row.fields()]
    in_spec = [path[1:] for path in changed if path[0] == "spec"]
    names = ", ".join(sorted({shown(("spec", *path)) for path in in_spec}))
    only = f"of the spec only {names} may change" if names else "the spec may not change"
    yield _validation(cel.same_but(known, ("spec",), in_spec), only)
    yield _validation(cel.same(known, _METADATA, _KEPT), "labels, finalizers and owners may not change")
    free = [path[-1] for path in changed if path[:2] == _ANNOTATIONS]
    free += [COST_ANNOTATION, VICTIM_ANNOTATION] if row is POD else []
    written = f"k in {cel.listed([*_WRITTEN, *free])}"
    yield _validation(
        cel.others_same(
            known.at(_ANNOTATIONS),
            f"{written} || k == {cel.text(RELEASE_ANNOTATION)}",
            f"({written} && size(l[0][k]) <= {LONGEST_NOTE})",
        ),
        "other annotations than those of gpu-rightsizer may not change, and its own not be long",
    )
    yield _validation(
        f'"fieldManager" in request.options && request.options["fieldManager"] == {cel.text(FIELD_MANAGER)}',
        f"the field manager must be {FIELD_MANAGER}",
    )
    managers = [
        cel.child(cel.child(side, "metadata"), "managedFields", "[]") for side in ("object", "oldObject")
    ]
    yield _validation(
        f"size({managers[0]}) > 0 || size({managers[1]}) == 0", "managedFields may not be removed"
    )
    changes = [f"!({cel.same(known, _ANNOTATIONS, free)})"] if free else []
    changes += [f"{known.at(('spec',))}[0] != {known.at(('spec',))}[1]"] if in_spec else []
    yield _validation(
        " || ".join([*cel.no_new_record(), *changes]),
        "an undo record may only be written with its change",
    )


def _of_records(row: Kind, known: Variables) -> Iterator[Object]:
    """Numbers rise, and workloads resume, only as an earlier record says; and that record was true when written."""
    to = {
        stop.field: json.dumps(stop.to) if isinstance(stop.to, bool) else str(stop.to) for stop in row.stops
    }
    fields = [field for field in row.fields() if field.value not in {Value.QUANTITY, Value.NAMES}]
    stopped = {field: to.get(field, "") for field in fields}
    for expression in cel.fields_true(known, stopped):
        yield _validation(expression, "the undo record does not allow this value, or is not true")


def _of_classes(row: Kind, policy: Policy, known: Variables, protected: Sequence[str]) -> Iterator[Object]:
    """Conditions for classes that the policy protects by class alone, before any rule enforces.

    A pod's class never changes. That of a template may differ from those of its pods, which the program goes by.
    """
    if not row.classes:
        return
    reason = "Forbidden" if row is POD else "Invalid"
    classes = known.named("classes", cel.values(known, row.classes, row.class_of_all))
    yield _validation(
        f'!{classes}.exists(c, c.startsWith("system-"))', "pods of a system class may not be changed", reason
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
            reason,
        )


def _of_priority(policy: Policy, known: Variables) -> Iterator[Object]:
    """Rules about the resolved priority, which only pods have."""
    priority = known.named("priority", cel.child(f"{known.at(('spec',))}[0]", "priority", "0"))
    yield _validation(f"!({priority} > {SYSTEM_PRIORITY})", "pods of a system priority may not be changed")
    for rule in protecting(policy, "priority"):
        wanted = rule.match.priority
        if wanted is not None:
            yield _validation(
                f"!({priority} >= {wanted.min} && {priority} <= {wanted.max})",
                f"rule {rule.name} protects pods of priority {wanted.min} to {wanted.max}",
            )


def protecting(policy: Policy, condition: str = "priorityClasses") -> Iterator[Rule]:
    """The rules that protect by this condition alone, and precede all rules that enforce."""
    for rule in policy.rules:
        if rule.mode is Mode.ENFORCE:
            return
        if rule.mode is Mode.PROTECT and set(rule.match.model_dump(exclude_none=True)) == {condition}:
            yield rule


def heeds_classes(policy: Policy) -> bool:
    """Whether a PriorityClass that protects always does: no rule that enforces precedes it."""
    acts = any(rule.mode is Mode.ENFORCE for rule in policy.rules)
    return policy.classAnnotations == "class-first" or (policy.asks_classes and not acts)


def _of_commands(row: Kind, stop: Stop, command: CommandObject) -> Iterator[Object]:
    """Conditions for commands: only those that stop and resume, for workloads of this kind that own the command."""
    given = sorted({str(stop.to), command.undo_verb})
    yield _validation(
        f"{cel.child('object', 'action', cel.text(''))} in {cel.listed(given)}",
        f"only the commands {' and '.join(given)} are allowed",
    )
    for field in ("labels", "annotations"):
        yield _validation(cel.nothing_added(field, "false"), f"{field} may not be added")
    yield _validation(cel.unlisted("finalizers"), "finalizers may not be added")
    owners = cel.child(cel.child("object", "metadata"), "ownerReferences", "[]")
    is_target = 't["uid"] == r["uid"] && t["name"] == r["name"] && t["kind"] == r["kind"]'
    its_kind = f't["kind"] == {cel.text(row.kind)} && t["apiVersion"].startsWith({cel.text(row.group + "/")})'
    yield _validation(
        f"size({owners}) == 1 && [{cel.child('object', 'target')}].all(t, {its_kind} && "
        f"{owners}.exists(r, {is_target}))",
        f"the command is for a {row.kind} that owns it",
    )


def _of_eviction() -> Iterator[Object]:
    known = cel.child("object", "deleteOptions")
    uid = f'[{known}].all(d, [{cel.child("d", "preconditions")}].all(p, "uid" in p && p["uid"] != ""))'
    yield _validation(uid, "an eviction names the UID of its pod")
    allowed = cel.listed(["apiVersion", "dryRun", "kind", "preconditions"])
    yield _validation(f"{known}.all(k, k in {allowed})", "an eviction leaves the pod its own time to end")


def _of_manifests(own: str) -> Iterator[Object]:
    """Conditions for Secrets: only manifests; none that gets another account's token, and no release of Helm."""
    both = "[object, oldObject].filter(o, o != null)"
    kind = f"{cel.child('o', 'type', cel.text(''))} == {cel.text(MANIFEST_TYPE)}"
    metadata = cel.child("o", "metadata")
    name = f"{cel.child('m', 'name', cel.text(''))}.matches({cel.text(MANIFEST_NAME)})"
    label = f"{cel.text(MANIFEST_LABEL)} in {cel.child('m', 'labels')}"
    yield _validation(f"request.namespace == {cel.text(own)}", "Secrets of other namespaces are not allowed")
    yield _validation(f"{both}.all(o, {kind})", f"only Secrets of type {MANIFEST_TYPE} are allowed")
    yield _validation(
        f"{both}.map(o, {metadata}).all(m, {name} && {label})",
        f"the Secret needs a name of its pod and UID, and the label {MANIFEST_LABEL}",
    )


def _of_names(own: str, names: Sequence[str]) -> Iterator[Object]:
    name = cel.child(cel.child("object", "metadata"), "name", cel.text(""))
    yield _validation(
        f"request.namespace == {cel.text(own)} && {name} in {cel.listed(names)}",
        f"only {', '.join(names)} in the state namespace may be written",
    )


def _of_notes() -> Iterator[Object]:
    """Own labels and annotations only; nothing that lets controllers load, copy, expose, keep or delete an object."""
    free = f"k.startsWith({cel.text(PREFIX)})"
    for field in ("labels", "annotations"):
        yield _validation(cel.nothing_added(field, free), f"other {field} than {PREFIX}* may not be added")
    for field in ("finalizers", "ownerReferences"):
        yield _validation(cel.unlisted(field), f"{field} may not be added")
    yield _validation('object == null || !("immutable" in object)', "the object may not be immutable")


def _of_events() -> Iterator[Object]:
    reason = cel.child("object", "reason", cel.text(""))
    yield _validation(
        f"{reason} in {cel.listed(sorted(REASONS))}", "the Event has a reason of another program"
    )
    component = cel.child(cel.child("object", "source"), "component", cel.text(""))
    reporting = cel.child("object", "reportingComponent", cel.text(""))
    yield _validation(
        f"[{component}, {reporting}].all(c, c == {cel.text(FIELD_MANAGER)})",
        "the Event names another program",
    )
    about = cel.child("object", "involvedObject")
    yield _validation(
        f"{cel.child(about, 'namespace', cel.text(''))} == request.namespace && "
        f'{cel.child(about, "kind", cel.text(""))} != "Node" && !("related" in object)',
        "the Event is about another namespace, or a Node",
    )


def admission_gaps(policy: Policy, classes: Sequence[str] = ()) -> Iterator[str]:
    """Sentences about what the guardrails do not check; `classes` are those that protect by annotation."""
    enabled = Enabled(policy)
    if not enabled.acts:
        return
    yield from _class_gaps(policy, classes)
    yield (
        "numbers: none can exceed the valid undo record; not checked: how far they decrease, and whether the "
        "workload has GPUs"
    )
    yield from _kind_gaps(enabled)
    checked, of_pods = list(protecting(policy)), list(protecting(policy, "priority"))
    for rule in policy.rules:
        if rule in of_pods:
            yield f"rule {rule.name}: only checked on bare pods, because other objects do not show a priority"
        elif rule.mode is Mode.PROTECT and rule not in checked:
            yield f"rule {rule.name}: not checked: it protects by more than classes, or follows a rule that enforces"
    if checked:
        yield "templates without a class: not checked, because the cluster's globalDefault or a webhook sets it later"


def _class_gaps(policy: Policy, classes: Sequence[str]) -> Iterator[str]:
    if policy.asks_classes and not classes:
        yield "annotations of PriorityClasses are not checked; name the classes that protect with --protected-class"
    elif classes and not heeds_classes(policy):
        yield f"{', '.join(classes)}: not checked, because the policy ignores classes, or a rule that enforces precedes"


def _kind_gaps(enabled: Enabled) -> Iterator[str]:
    nameless = [row.kind for row in enabled.kinds if not row.classes]
    if nameless:
        yield f"{', '.join(nameless)}: not checked, because they do not name the PriorityClass of their pods"
    if any(row.kind == "AppWrapper" for row in enabled.kinds):
        yield "AppWrapper: only checks the classes of contained pods, and of objects with a pod template like a Job's"
    if enabled.evicts:
        yield "evictions: the class is not checked, because an Eviction does not show its pod"
    for row in enabled.kinds:
        if row.stop is not None and row.stop.command is not None:
            order = row.stop.command.kind
            yield f"{order}: the class is not checked, because a {order} does not show its {row.kind}"


def grant_gaps(policy: Policy) -> Iterator[str]:
    """Why more is granted than the policy's rules alone need."""
    enabled = Enabled(policy)
    if policy.asks_classes:
        yield (
            f"classAnnotations: {policy.classAnnotations}: annotations of PriorityClasses may enforce anything, so "
            "every change of every kind in every namespace is granted; with 'off', only what the rules need"
        )
        return
    for row in CONTROL_OBJECT_KINDS:
        if row in enabled.kinds:
            by = "scales" if row.group == KEDA.group else "queues"
            yield f"{row.kind}.{row.group}: no rule names it, but it may be the object that {by} workloads of the rules"
