"""Whether a ValidatingAdmissionPolicy, or its binding, can be. Pure."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from simulator.kube.errors import FieldError
from simulator.kube.selectors import selector_problems

_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_RULE_LISTS = ("operations", "apiGroups", "apiVersions", "resources")
_FAILURE_POLICIES = ("Fail", "Ignore")
_ACTIONS = ("Audit", "Deny", "Warn")
_NO_VALIDATION = "validations or auditAnnotations must contain at least one item"


def policy_problems(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """What is wrong with a policy. Unlike the real server, expressions are not type-checked."""
    spec = obj["spec"]
    if spec.get("paramKind"):
        yield FieldError.forbidden("spec.paramKind", "parameters are not served by the simulator")
    if spec["failurePolicy"] not in _FAILURE_POLICIES:
        yield FieldError.unsupported("spec.failurePolicy", spec["failurePolicy"], _FAILURE_POLICIES)
    if "matchConstraints" not in spec:
        yield FieldError.required("spec.matchConstraints")
    else:
        yield from _place_problems(spec["matchConstraints"], "spec.matchConstraints", needs_rules=True)
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        yield from [
            FieldError.required(f"spec.{field}", _NO_VALIDATION)
            for field in ("validations", "auditAnnotations")
        ]
    for field in ("variables", "matchConditions", "validations"):
        for index, entry in enumerate(spec.get(field, ())):
            yield from _expression_problems(entry.get("expression", ""), f"spec.{field}[{index}].expression")


def binding_problems(obj: Mapping[str, Any]) -> Iterator[FieldError]:
    """What is wrong with a binding: no policy, no actions, or such as exclude each other."""
    spec = obj["spec"]
    if not spec.get("policyName"):
        yield FieldError.required("spec.policyName")
    actions = spec.get("validationActions") or []
    if not actions:
        yield FieldError.required("spec.validationActions", "at least one validation action is required")
    for index, action in enumerate(actions):
        field = f"spec.validationActions[{index}]"
        if action not in _ACTIONS:
            yield FieldError.unsupported(field, action, _ACTIONS)
        if action in actions[:index]:
            yield FieldError.duplicate(field, action)
    if {"Deny", "Warn"} <= set(actions):
        why = (
            "must not contain both Deny and Warn (repeating the same validation failure information in the API "
            "response and headers serves no purpose)"
        )
        yield FieldError.invalid("spec.validationActions", actions, why)
    yield from _place_problems(spec.get("matchResources", {}), "spec.matchResources", needs_rules=False)


def _place_problems(place: Mapping[str, Any], at: str, *, needs_rules: bool) -> Iterator[FieldError]:
    if needs_rules and not place.get("resourceRules"):
        yield FieldError.required(f"{at}.resourceRules")
    for rules in ("resourceRules", "excludeResourceRules"):
        for index, rule in enumerate(place.get(rules, ())):
            yield from _rule_problems(rule, f"{at}.{rules}[{index}]")
    for selector in ("namespaceSelector", "objectSelector"):
        yield from selector_problems(place.get(selector), f"{at}.{selector}")


def _rule_problems(rule: Mapping[str, Any], at: str) -> Iterator[FieldError]:
    for field in _RULE_LISTS:
        if not rule.get(field):
            yield FieldError.required(f"{at}.{field}")
    for index, operation in enumerate(rule.get("operations", ())):
        if operation not in _OPERATIONS:
            yield FieldError.unsupported(f"{at}.operations[{index}]", operation, _OPERATIONS)


def _expression_problems(expression: str, field: str) -> Iterator[FieldError]:
    if not expression.strip():
        yield FieldError.required(field, "expression is not specified")
        return
    import cel  # noqa: PLC0415 - imports a terminal toolkit, a third of what the simulator imports

    compile_: Callable[[str], object] = cel.compile
    try:
        compile_(expression)
    except ValueError as error:
        why = str(error).splitlines()[0]
        yield FieldError.invalid(field, expression, f"compilation failed: {why}")
