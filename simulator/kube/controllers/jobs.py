"""Jobs: pods until enough of them succeeded; none while suspended."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from simulator.kube.controllers.context import Context, Key, child_pod, is_kind, is_of, own_key
from simulator.kube.errors import ApiError
from simulator.kube.objects import (
    Object,
    annotations_of,
    condition,
    controller_of,
    holds,
    is_active,
    is_ready,
    is_terminating,
    name_of,
    namespace_of,
    parse_time,
    phase,
    set_condition,
    without_zeroes,
)
from simulator.kube.resources import by_kind
from simulator.kube.store import Event, Record


@dataclasses.dataclass(frozen=True, slots=True)
class FailureAction:
    """What becomes of a failure: `action` is Count, Ignore or FailJob; `message` is for the Job's condition."""

    action: str
    message: str = ""


def failure_action(pod: Mapping[str, Any], job: Mapping[str, Any]) -> FailureAction:
    """The first rule that fits decides; without one, the failure counts."""
    for index, rule in enumerate(job["spec"].get("podFailurePolicy", {}).get("rules", ())):
        found = next(itertools.chain(_by_exit_code(pod, rule), _by_condition(pod, rule)), None)
        if found is not None:
            return FailureAction(rule["action"], f"{found} matching {rule['action']} rule at index {index}")
    return FailureAction("Count")


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


_COMPONENT = "job-controller"
_MANAGER = "kubernetes.io/job-controller"
_ALWAYS_SHOWN = ("ready", "terminating", "uncountedTerminatedPods")
_SHORTEST_WAIT_S = 0.1
_TRACKING = "batch.kubernetes.io/job-tracking"  # keeps a pod until the Job has counted it
_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclasses.dataclass(slots=True)
class _Tally:
    """How the pods of a Job stand after counting."""

    active: list[Record]
    succeeded: int
    failed: int
    done: set[int]
    failure: str = ""
    """Why a rule of the Job's podFailurePolicy ends it, if one does."""


class Jobs:
    """The Job controller."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def keys(self, event: Event) -> Iterator[Key]:
        """Jobs, and pods that are or were theirs."""
        if is_kind(event, "Job"):
            yield (*own_key(event.record.obj)[:2], event.record.obj["metadata"]["uid"])
        elif event.record.resource.kind in {"PriorityClass", "ResourceQuota"}:
            for row in self._context.rows("Job"):
                yield (*own_key(row.obj)[:2], row.obj["metadata"]["uid"])
        elif is_kind(event, "Pod"):
            owner = controller_of(event.record.obj)
            if owner is not None and is_of(owner, "Job"):
                yield (event.record.namespace, owner["name"], owner["uid"])
            elif event.type != "DELETED" and _is_tracked(event.record):
                yield (event.record.namespace, event.record.name, "")

    def reconcile(self, key: Key) -> None:
        """Count what has ended, create or delete pods, say how the Job stands."""
        namespace, name, uid = key
        job = self._context.find("Job", namespace, name) if uid else None
        if job is None or job.obj["metadata"]["uid"] != uid or is_terminating(job.obj):
            self._let_go(namespace, name, uid)
            return
        if job.obj["spec"].get("managedBy", _MANAGER) != _MANAGER:
            return
        tally = self._count(job)
        status = self._status(job, tally)
        if not _is_over(status):
            status = self._run(job, tally, status)
        active = [row for row in self._pods(job) if is_active(row.obj)]
        terminating = [row for row in self._pods(job) if is_terminating(row.obj)]
        status |= {
            "active": len(active),
            "ready": sum(is_ready(row.obj) for row in active),
            "terminating": len(terminating),
        }
        self._context.set_status(job, without_zeroes(status, keep=_ALWAYS_SHOWN))
        self._watch_deadline(key, job, status)

    def _watch_deadline(self, key: Key, job: Record, status: Mapping[str, Any]) -> None:
        """Look again when the deadline is due."""
        left_s = _left_s(job.obj["spec"], status, self._context.registry.now())
        if left_s is not None and not _is_over(status):
            self._context.later(max(left_s, _SHORTEST_WAIT_S), self, key)

    def _pods(self, job: Record) -> list[Record]:
        return self._context.children(job, "Pod")

    def _let_go(self, namespace: str, name: str, uid: str) -> None:
        """Remove the tracking finalizer from the pods of a deleted Job."""
        rows = self._context.registry.store.dependents(uid) if uid else []
        orphan = self._context.find("Pod", namespace, name) if not uid else None
        for row in [*rows, *([orphan] if orphan else [])]:
            if row.resource.kind == "Pod" and _is_tracked(row):
                self._untrack(row)

    def _untrack(self, row: Record) -> None:
        kept = [entry for entry in row.obj["metadata"]["finalizers"] if entry != _TRACKING]
        self._context.change(row, lambda obj: obj["metadata"].update(finalizers=kept))

    def _count(self, job: Record) -> _Tally:
        """Count each ended pod once, and let it go."""
        status = job.obj.get("status", {})
        tally = _Tally([], status.get("succeeded", 0), status.get("failed", 0), _indexes(status))
        for row in self._pods(job):
            ended = phase(row.obj) in {"Succeeded", "Failed"} or is_terminating(row.obj)
            if not ended:
                tally.active.append(row)
            elif _is_tracked(row):
                _add(tally, row, job)
                self._untrack(row)
        return tally

    def _status(self, job: Record, tally: _Tally) -> Object:
        """The status after counting, with the conditions that follow from it."""
        status: Object = {**job.obj.get("status", {}), "succeeded": tally.succeeded, "failed": tally.failed}
        status["conditions"] = [dict(entry) for entry in status.get("conditions", ())]
        status["uncountedTerminatedPods"] = {}
        if tally.done:
            status["completedIndexes"] = _shown(tally.done)
        spec, now = job.obj["spec"], self._context.registry.now()
        if _is_over(status):
            return status
        enough = spec.get("completions")
        complete = (
            tally.succeeded >= enough if enough is not None else tally.succeeded > 0 and not tally.active
        )
        failure = _failure(job, tally, now)
        if failure:
            self._finish(status, ("FailureTarget", "Failed"), failure, tally)
        elif complete:
            entry = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
            self._finish(status, ("SuccessCriteriaMet", "Complete"), entry, tally)
            status["completionTime"] = now
        return status

    def _finish(
        self, status: Object, kinds: tuple[str, ...], entry: Mapping[str, str], tally: _Tally
    ) -> None:
        for kind in kinds:
            set_condition(status, {"type": kind, "status": "True", **entry}, self._context.registry.now())
        for row in tally.active:
            self._remove(row)

    def _remove(self, row: Record) -> None:
        """Delete a pod by the Job's own decision: it counts as nothing."""
        if _is_tracked(row):
            self._untrack(row)
        self._context.delete(row)

    def _run(self, job: Record, tally: _Tally, status: Object) -> Object:
        """Suspend, resume or go on."""
        now = self._context.registry.now()
        suspended = holds({"status": status}, "Suspended")
        if job.obj["spec"]["suspend"]:
            for row in tally.active:
                self._remove(row)
            status.pop("startTime", None)
            entry = {
                "type": "Suspended",
                "status": "True",
                "reason": "JobSuspended",
                "message": "Job suspended",
            }
            set_condition(status, entry, now)
            if not suspended:
                self._context.record_event(job, "Normal", "Suspended", "Job suspended", component=_COMPONENT)
            return status
        if suspended:
            entry = {"type": "Suspended", "status": "False", "reason": "JobResumed", "message": "Job resumed"}
            set_condition(status, entry, now)
            self._context.record_event(job, "Normal", "Resumed", "Job resumed", component=_COMPONENT)
        status.setdefault("startTime", now)
        self._scale(job, tally)
        return status

    def _scale(self, job: Record, tally: _Tally) -> None:
        spec = job.obj["spec"]
        wanted = spec["parallelism"]
        if "completions" in spec:
            wanted = min(wanted, spec["completions"] - tally.succeeded)
        elif tally.succeeded:
            wanted = min(wanted, len(tally.active))  # a work queue that someone finished takes no new workers
        waiting = len([row for row in self._pods(job) if is_terminating(row.obj)])
        late = waiting if spec["podReplacementPolicy"] == "Failed" else 0
        for row in tally.active[max(wanted, 0) :]:
            self._remove(row)
        free = iter(_free_indexes(spec, tally))
        for _ in range(wanted - len(tally.active) - late):
            if not self._create(job, next(free, None)):
                return

    def _create(self, job: Record, index: int | None) -> bool:
        pod = child_pod(job, job.obj["spec"]["template"], by_kind("Job"))
        metadata = pod["metadata"]
        metadata["finalizers"].append(_TRACKING)
        metadata["generateName"] = f"{job.name}-"
        if index is not None:
            metadata["generateName"] = f"{job.name}-{index}-"
            metadata["annotations"][_INDEX] = str(index)
            metadata["labels"][_INDEX] = str(index)
        try:
            self._context.create("Pod", job.namespace, pod)
        except ApiError as error:  # retried when the Job, its pods, PriorityClasses or quotas change
            words = f"Error creating: {error.message}"
            self._context.record_event(job, "Warning", "FailedCreate", words, component=_COMPONENT)
            return False
        return True


def _is_tracked(row: Record) -> bool:
    return _TRACKING in row.obj["metadata"].get("finalizers", ())


def _is_over(status: Mapping[str, Any]) -> bool:
    return holds({"status": status}, "Complete") or holds({"status": status}, "Failed")


def _failure(job: Record, tally: _Tally, now: str) -> Mapping[str, str] | None:
    """Reason and message where the Job has failed."""
    if tally.failure:
        return {"reason": "PodFailurePolicy", "message": tally.failure}
    if tally.failed > job.obj["spec"]["backoffLimit"]:
        words = "Job has reached the specified backoff limit"
        return {"reason": "BackoffLimitExceeded", "message": words}
    left_s = _left_s(job.obj["spec"], job.obj.get("status", {}), now)
    if left_s is not None and left_s <= 0:
        words = "Job was active longer than specified deadline"
        return {"reason": "DeadlineExceeded", "message": words}
    return None


def _left_s(spec: Mapping[str, Any], status: Mapping[str, Any], now: str) -> float | None:
    """Seconds until the deadline, which a suspended Job, or one without a deadline, has not."""
    deadline_s, started = spec.get("activeDeadlineSeconds"), status.get("startTime")
    if deadline_s is None or started is None or spec["suspend"]:
        return None
    return float(deadline_s) - (parse_time(now) - parse_time(started)).total_seconds()


def _add(tally: _Tally, row: Record, job: Record) -> None:
    """Count one pod; what others ended counts as failed, unless a rule of the Job says otherwise."""
    if phase(row.obj) == "Succeeded":
        tally.succeeded += 1
        index = annotations_of(row.obj).get(_INDEX)
        if index is not None:
            tally.done.add(int(index))
    elif not job.obj["spec"]["suspend"]:
        decision = failure_action(row.obj, job.obj)
        tally.failed += decision.action != "Ignore"
        if decision.action == "FailJob":
            tally.failure = decision.message


def _free_indexes(spec: Mapping[str, Any], tally: _Tally) -> list[int]:
    if spec.get("completionMode") != "Indexed":
        return []
    busy = {int(annotations_of(row.obj)[_INDEX]) for row in tally.active}
    return [index for index in range(spec["completions"]) if index not in tally.done | busy]


def _indexes(status: Mapping[str, Any]) -> set[int]:
    """From the form "0-2,5"."""
    found: set[int] = set()
    for part in filter(None, str(status.get("completedIndexes", "")).split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _shown(indexes: set[int]) -> str:
    """In the form "0-2,5"."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
