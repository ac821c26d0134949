"""ValidatingAdmissionPolicies, without parameters (paramKind) and authorizer.

https://kubernetes.io/docs/reference/access-authn-authz/validating-admission-policy/
"""

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from simulator.kube.decoding import Write
from simulator.kube.errors import ApiError
from simulator.kube.objects import Object, labels_of, name_of, namespace_of
from simulator.kube.quantity import parse_quantity
from simulator.kube.resources import Resource, by_kind
from simulator.kube.selectors import from_object
from simulator.kube.store import Record, Store

_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}
_OWN_GROUP = "admissionregistration.k8s.io"


class _ExpressionError(Exception):
    """An expression could not be computed."""


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """A write that policies are asked about; `obj` is None where something is deleted, `old` where it is created."""

    write: Write
    resource: Resource
    operation: str
    obj: Mapping[str, Any] | None
    old: Mapping[str, Any] | None = None
    subresource: str = ""

    @property
    def subject(self) -> Mapping[str, Any]:
        """The object as it would be, or was."""
        return self.obj or self.old or {}


def enforce(store: Store, attempt: Attempt) -> None:
    """Refuse what a policy forbids, and add warnings to the attempt's write."""
    if attempt.resource.group == _OWN_GROUP:  # policies do not apply to policies
        return
    for binding in store.rows(by_kind("ValidatingAdmissionPolicyBinding")):
        policy = store.get(by_kind("ValidatingAdmissionPolicy"), "", binding.obj["spec"]["policyName"])
        if policy is None:
            continue
        places = (policy.obj["spec"].get("matchConstraints"), binding.obj["spec"].get("matchResources"))
        if all(_covers(store, place or {}, attempt) for place in places):
            for told in _failures(store, policy.obj["spec"], attempt):
                _act(policy, binding, attempt, told)


@dataclasses.dataclass(frozen=True, slots=True)
class _Failure:
    message: str
    reason: str = "Invalid"


def _act(policy: Record, binding: Record, attempt: Attempt, failure: _Failure) -> None:
    named = f"ValidatingAdmissionPolicy '{policy.name}' with binding '{binding.name}'"
    actions = binding.obj["spec"].get("validationActions", ())
    if "Warn" in actions:
        attempt.write.warnings.append(f"Validation failed for {named}: {failure.message}")
    if "Deny" in actions:
        subject = f'{attempt.resource.qualified} "{name_of(attempt.subject)}"'
        resource = attempt.resource
        about = {"name": name_of(attempt.subject), "group": resource.group, "kind": resource.plural}
        details: Object = {key: value for key, value in about.items() if value}
        raise ApiError(
            _CODES[failure.reason],
            failure.reason,
            f"{subject} is forbidden: {named} denied request: {failure.message}",
            details={**details, "causes": [{"message": failure.message}]},
        )


# --- which attempts it covers


def _covers(store: Store, place: Mapping[str, Any], attempt: Attempt) -> bool:
    rules = place.get("resourceRules")
    return (
        (rules is None or any(_names(rule, attempt) for rule in rules))
        and not any(_names(rule, attempt) for rule in place.get("excludeResourceRules", ()))
        and _selects(place.get("namespaceSelector"), _namespace(store, attempt))
        and _selects(place.get("objectSelector"), attempt.subject)
    )


def _names(rule: Mapping[str, Any], attempt: Attempt) -> bool:
    return (
        _among(rule["apiGroups"], attempt.resource.group)
        and _among(rule["apiVersions"], attempt.resource.version)
        and _among(rule["operations"], attempt.operation)
        and any(_is_resource(wanted, attempt) for wanted in rule["resources"])
        and _among(rule.get("resourceNames") or ["*"], name_of(attempt.subject))
    )


def _is_resource(wanted: str, attempt: Attempt) -> bool:
    plural, _, subresource = wanted.partition("/")
    if wanted == "*":
        return not attempt.subresource
    return _among([plural], attempt.resource.plural) and _among([subresource], attempt.subresource)


def _among(known: Sequence[str], value: str) -> bool:
    return "*" in known or value in known


def _selects(selector: Mapping[str, Any] | None, obj: Mapping[str, Any] | None) -> bool:
    parsed = from_object(selector or {})
    return not parsed or (obj is not None and parsed.matches(labels_of(obj)))


def _namespace(store: Store, attempt: Attempt) -> Mapping[str, Any] | None:
    record = store.get(by_kind("Namespace"), "", namespace_of(attempt.subject))
    return record.obj if record else None


# --- what it says


def _failures(store: Store, spec: Mapping[str, Any], attempt: Attempt) -> Iterator[_Failure]:
    """The first failed validation; an expression that fails counts, or not, as the failure policy says."""
    try:
        known = _context(store, attempt)
        if all(_holds(entry["expression"], known) for entry in spec.get("matchConditions", ())):
            for variable in spec.get("variables", ()):  # conditions do not know them
                known["variables"][variable["name"]] = _value(variable["expression"], known)
            for validation in spec.get("validations", ()):
                if not _holds(validation["expression"], known):
                    yield _Failure(_message(validation, known), validation.get("reason", "Invalid"))
                    return
    except _ExpressionError as error:
        if spec.get("failurePolicy", "Fail") == "Fail":
            yield _Failure(str(error))


def _context(store: Store, attempt: Attempt) -> Object:
    user = attempt.write.user
    request = {
        "operation": attempt.operation,
        "name": name_of(attempt.subject),
        "namespace": namespace_of(attempt.subject),
        "dryRun": attempt.write.dry_run,
        "options": {"fieldManager": attempt.write.manager},
        "subResource": attempt.subresource,
        "kind": {
            "group": attempt.resource.group,
            "version": attempt.resource.version,
            "kind": attempt.resource.kind,
        },
        "resource": {
            "group": attempt.resource.group,
            "version": attempt.resource.version,
            "resource": attempt.resource.plural,
        },
        "userInfo": {"username": user.name, "groups": list(user.groups)},
    }
    return {
        "object": attempt.obj,
        "oldObject": attempt.old,
        "request": request,
        "namespaceObject": _namespace(store, attempt),
        "variables": {},
    }


def _message(validation: Mapping[str, Any], known: Object) -> str:
    computed = validation.get("messageExpression")
    if computed:
        try:
            return str(_value(computed, known))
        except _ExpressionError:
            pass  # the plain message stands in, as in the real server
    return str(validation.get("message") or f"failed expression: {validation['expression']}")


def _holds(expression: str, known: Object) -> bool:
    return _value(expression, known) is True


_EXTENSIONS: Mapping[str, Callable[..., Any]] = {
    "find": lambda text, pattern: (re.search(pattern, text) or [""])[0],
    "replace": lambda text, old, new: text.replace(old, new),
    "split": lambda text, separator: text.split(separator),
    "quantity": lambda text: float(parse_quantity(text)),
    "compareTo": lambda one, other: (one > other) - (one < other),
}
"""Functions of strings and quantities that Kubernetes adds: https://kubernetes.io/docs/reference/using-api/cel/#cel-options-language-features-and-libraries"""


def _value(expression: str, known: Object) -> Any:  # noqa: ANN401 - whatever the expression yields
    import cel  # noqa: PLC0415 - imports a terminal toolkit, a third of what the simulator imports

    context = cel.Context(known)
    for name, function in _EXTENSIONS.items():
        context.add_function(name, function)
    try:
        return cel.evaluate(expression, context)
    except KeyError as error:
        why = f"no such key: {error.args[0]}"
    except (ValueError, TypeError, RuntimeError) as error:
        why = str(error)
    raise _ExpressionError(f"expression '{expression}' resulted in error: {why}")
