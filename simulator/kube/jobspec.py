"""Whether a Job or CronJob can be, and what of a Job may still change (kubernetes/pkg/apis/batch/validation). Pure."""

from collections.abc import Iterable, Mapping
from typing import Any

from simulator.kube.errors import FieldError
from simulator.kube.objects import Object, holds
from simulator.kube.podspec import not_negative, pod_spec_problems

_IMMUTABLE = "field is immutable"
_COUNTS = ("parallelism", "completions", "backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished")
_FAILURE_ACTIONS = ("Count", "FailIndex", "FailJob", "Ignore")
_EXIT_OPERATORS = ("In", "NotIn")
_SCHEDULING_DIRECTIVES = ("affinity", "nodeSelector", "schedulingGates", "tolerations")
_MUTABLE_RESOURCES_SINCE = 36
"""MutablePodResourcesForSuspendedJobs (KEP-5440) is on from 1.36, and lets scheduling directives change again, too."""


def job_problems(obj: Object) -> list[FieldError]:
    """What is wrong with a Job."""
    return _spec_problems(obj["spec"], "spec")


def cron_job_problems(obj: Object) -> list[FieldError]:
    """What is wrong with a CronJob."""
    spec = obj["spec"]
    problems = [] if spec.get("schedule") else [FieldError.required("spec.schedule")]
    problems += _one_of(spec, "concurrencyPolicy", ("Allow", "Forbid", "Replace"), "spec")
    return problems + _spec_problems(spec["jobTemplate"]["spec"], "spec.jobTemplate.spec")


def _spec_problems(spec: Object, at: str) -> list[FieldError]:
    problems = not_negative(spec, _COUNTS, at)
    pod_spec = spec["template"]["spec"]
    if pod_spec["restartPolicy"] == "Always":
        problems.append(
            FieldError.required(f"{at}.template.spec.restartPolicy", 'valid values: "OnFailure", "Never"')
        )
    problems += _one_of(spec, "completionMode", ("NonIndexed", "Indexed"), at)
    if spec.get("completionMode") == "Indexed" and "completions" not in spec:
        problems.append(FieldError.required(f"{at}.completions", "when completion mode is Indexed"))
    if "podFailurePolicy" in spec:
        problems += _failure_policy_problems(spec, at)
        problems += _one_of(spec, "podReplacementPolicy", ("Failed",), at)
    else:
        problems += _one_of(spec, "podReplacementPolicy", ("Failed", "TerminatingOrFailed"), at)
    return problems + pod_spec_problems(pod_spec, f"{at}.template.spec")


def _one_of(spec: Mapping[str, Any], field: str, known: Iterable[str], at: str) -> list[FieldError]:
    value = spec.get(field)
    return [] if value is None or value in known else [FieldError.unsupported(f"{at}.{field}", value, known)]


def _failure_policy_problems(spec: Mapping[str, Any], at: str) -> list[FieldError]:
    problems = []
    policy = spec["template"]["spec"]["restartPolicy"]
    if policy != "Never":
        problems.append(
            FieldError.invalid(
                f"{at}.template.spec.restartPolicy",
                policy,
                'only "Never" is supported when podFailurePolicy is specified',
            )
        )
    for index, rule in enumerate(spec["podFailurePolicy"].get("rules") or ()):
        problems += _failure_rule_problems(rule, f"{at}.podFailurePolicy.rules[{index}]")
    return problems


def _failure_rule_problems(rule: Mapping[str, Any], at: str) -> list[FieldError]:
    problems = []
    if rule.get("action") not in _FAILURE_ACTIONS:
        problems.append(FieldError.unsupported(f"{at}.action", rule.get("action"), _FAILURE_ACTIONS))
    codes, patterns = rule.get("onExitCodes"), rule.get("onPodConditions")
    if codes and patterns:
        words = "specifying both OnExitCodes and OnPodConditions is not supported"
        problems.append(FieldError("FieldValueInvalid", at, f"Invalid value: {words}"))
    if not codes and not patterns:
        words = "specifying one of OnExitCodes and OnPodConditions is required"
        problems.append(FieldError("FieldValueInvalid", at, f"Invalid value: {words}"))
    if codes:
        problems += _one_of(codes, "operator", _EXIT_OPERATORS, f"{at}.onExitCodes")
        problems += [
            FieldError.invalid(f"{at}.onExitCodes.values[{index}]", 0, "must not be 0 for the In operator")
            for index, value in enumerate(codes.get("values") or ())
            if value == 0 and codes.get("operator") == "In"
        ]
    return problems


def job_change_problems(old: Mapping[str, Any], new: Object, minor: int) -> list[FieldError]:
    """What is wrong with changing one Job into another, to Kubernetes 1.minor."""
    before, after = old["spec"], new["spec"]
    fixed = ["selector", "completionMode", "podFailurePolicy"]
    elastic = before.get("completionMode") == "Indexed" and after.get("completions") == after.get(
        "parallelism"
    )
    if not elastic:
        fixed.append("completions")
    problems = [
        FieldError.invalid(f"spec.{field}", after.get(field), _IMMUTABLE)
        for field in fixed
        if before.get(field) != after.get(field)
    ]
    return problems + _template_problems(old, new, minor)


def _template_problems(old: Mapping[str, Any], new: Mapping[str, Any], minor: int) -> list[FieldError]:
    """A template is fixed; while its Job waits, where its pods may run and what they ask for are not.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/#mutable-scheduling-directives
    """
    before, after = old["spec"]["template"], new["spec"]["template"]
    is_new = minor >= _MUTABLE_RESOURCES_SINCE
    if not _is_waiting(old, is_new=is_new):
        return [] if before == after else [FieldError.invalid("spec.template", after, _IMMUTABLE)]
    if _fixed(before["spec"], is_new=is_new) == _fixed(after["spec"], is_new=is_new):
        return []
    field, value = ("spec.template.spec", after["spec"]) if is_new else ("spec.template", after)
    return [FieldError.invalid(field, value, _IMMUTABLE)]


def _is_waiting(job: Mapping[str, Any], *, is_new: bool) -> bool:
    """Whether some of the template may change: before it has run and, in newer versions, once no pod is active."""
    status = job.get("status", {})
    is_unstarted = "startTime" not in status
    if not job["spec"].get("suspend"):
        return False
    if not is_new:
        return is_unstarted
    return (is_unstarted or holds(job, "Suspended")) and not status.get("active")


def _fixed(spec: Mapping[str, Any], *, is_new: bool) -> Object:
    shown = {key: value for key, value in spec.items() if key not in _SCHEDULING_DIRECTIVES}
    for group in ("containers", "initContainers"):
        if group in shown and is_new:
            shown[group] = [{**container, "resources": None} for container in shown[group]]
    return shown
