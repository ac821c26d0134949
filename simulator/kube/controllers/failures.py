"""What a Job's podFailurePolicy says of a pod that failed. Pure.

https://kubernetes.io/docs/concepts/workloads/controllers/job/#pod-failure-policy
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.kube.objects import condition, name_of, namespace_of


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a failure: `action` is Count, Ignore or FailJob; `message` is for the Job's condition."""

    action: str
    message: str = ""


def judge(pod: Mapping[str, Any], job: Mapping[str, Any]) -> Verdict:
    """The first rule that fits decides; without one, the failure counts."""
    for index, rule in enumerate(job["spec"].get("podFailurePolicy", {}).get("rules", ())):
        found = next(itertools.chain(_by_exit_code(pod, rule), _by_condition(pod, rule)), None)
        if found is not None:
            return Verdict(rule["action"], f"{found} matching {rule['action']} rule at index {index}")
    return Verdict("Count")


def _by_condition(pod: Mapping[str, Any], rule: Mapping[str, Any]) -> Iterator[str]:
    for pattern in rule.get("onPodConditions") or ():
        entry = condition(pod, pattern["type"])
        if entry is not None and entry["status"] == pattern.get("status", "True"):
            yield f"Pod {namespace_of(pod)}/{name_of(pod)} has condition {pattern['type']}"


def _by_exit_code(pod: Mapping[str, Any], rule: Mapping[str, Any]) -> Iterator[str]:
    wanted = rule.get("onExitCodes") or {}
    for status in pod.get("status", {}).get("containerStatuses", ()) if wanted else ():
        code = status.get("state", {}).get("terminated", {}).get("exitCode", 0)
        named = wanted.get("containerName") in {None, "", status["name"]}
        if code and named and (code in wanted["values"]) == (wanted["operator"] == "In"):
            place = f"{namespace_of(pod)}/{name_of(pod)}"
            yield f"Container {status['name']} for pod {place} failed with exit code {code}"
