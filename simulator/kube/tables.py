"""Objects as tables, as `kubectl get` prints them: a real API server's columns, for kinds that people look at. Pure."""

import datetime
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from simulator.kube.objects import (
    holds,
    is_ready,
    is_terminating,
    labels_of,
    name_of,
    parse_time,
    phase,
)

META_V1: Final = "meta.k8s.io/v1"
_NONE: Final = "<none>"
_MINUTE, _HOUR, _DAY, _YEAR = 60, 3600, 86400, 365 * 86400
_UNITS: Final = (
    (2 * _MINUTE, 1, "s", 0, ""),
    (10 * _MINUTE, _MINUTE, "m", 1, "s"),
    (3 * _HOUR, _MINUTE, "m", 0, ""),
    (8 * _HOUR, _HOUR, "h", _MINUTE, "m"),
    (2 * _DAY, _HOUR, "h", 0, ""),
    (8 * _DAY, _DAY, "d", _HOUR, "h"),
    (2 * _YEAR, _DAY, "d", 0, ""),
    (8 * _YEAR, _YEAR, "y", _DAY, "d"),
)
"""Upper limit in seconds, length and letter of the unit, and those of the smaller unit that is also written."""
_Read = Mapping[str, Any]
_Cell = Callable[[_Read, datetime.datetime], object]


def _at(*path: str, default: object = _NONE) -> _Cell:
    def cell(obj: _Read, _: datetime.datetime) -> object:
        found: Any = obj
        for key in path:
            found = found.get(key) if isinstance(found, Mapping) else None
        return default if found is None else found

    return cell


def _of(many: Sequence[str], all_: Sequence[str]) -> _Cell:
    part, whole = _at(*many, default=0), _at(*all_, default=1)
    return lambda obj, now: f"{part(obj, now)}/{whole(obj, now)}"


def duration(seconds: float) -> str:
    """As kubectl writes it (apimachinery, util/duration: HumanDuration): 45s, 3m12s, 7h5m, 2d4h, 30d, 2y5d."""
    left = max(0, int(seconds))
    for below, size, unit, smaller, small_unit in _UNITS:
        if left < below:
            more = left % size // smaller if smaller else 0
            return f"{left // size}{unit}" + (f"{more}{small_unit}" if more else "")
    return f"{left // _YEAR}y"


def _since(*path: str) -> _Cell:
    found = _at(*path, default="")

    def cell(obj: _Read, now: datetime.datetime) -> object:
        text = str(found(obj, now))
        return duration((now - parse_time(text)).total_seconds()) if text else _NONE

    return cell


def _pod_ready(pod: _Read, _: datetime.datetime) -> str:
    number = len(pod["spec"].get("containers", ()))
    return f"{number if is_ready(pod) else 0}/{number}"


def _pod_status(pod: _Read, _: datetime.datetime) -> str:
    return "Terminating" if is_terminating(pod) else {"Succeeded": "Completed"}.get(phase(pod), phase(pod))


def _restarts(pod: _Read, _: datetime.datetime) -> int:
    return sum(each.get("restartCount", 0) for each in pod.get("status", {}).get("containerStatuses", ()))


def _node_status(node: _Read, _: datetime.datetime) -> str:
    cordoned = ",SchedulingDisabled" if node["spec"].get("unschedulable") else ""
    return ("Ready" if holds(node, "Ready") else "NotReady") + cordoned


def _roles(node: _Read, _: datetime.datetime) -> str:
    start = "node-role.kubernetes.io/"
    return ",".join(sorted(key[len(start) :] for key in labels_of(node) if key.startswith(start))) or _NONE


def _job_status(job: _Read, _: datetime.datetime) -> str:
    kinds = (("Complete", "Complete"), ("Failed", "Failed"), ("Suspended", "Suspended"))
    return next((words for kind, words in kinds if holds(job, kind)), "Running")


def _job_took(job: _Read, now: datetime.datetime) -> str:
    status = job.get("status", {})
    if "startTime" not in status:
        return ""
    end = parse_time(status["completionTime"]) if "completionTime" in status else now
    return duration((end - parse_time(status["startTime"])).total_seconds())


def _is_suspended(cron: _Read, _: datetime.datetime) -> str:
    return str(bool(cron["spec"].get("suspend")))


def _active(cron: _Read, _: datetime.datetime) -> int:
    return len(cron.get("status", {}).get("active") or ())


def _subject(event: _Read, _: datetime.datetime) -> str:
    about = event.get("regarding") or event.get("involvedObject") or {}
    return f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}"


def _message(event: _Read, _: datetime.datetime) -> str:
    return str(event.get("note") or event.get("message") or "")


def _size(obj: _Read, _: datetime.datetime) -> int:
    return len(obj.get("data") or {})


def _name(obj: _Read, _: datetime.datetime) -> str:
    return name_of(obj)


_AGE = ("Age", _since("metadata", "creationTimestamp"))
_READY = ("Ready", _of(("status", "readyReplicas"), ("spec", "replicas")))
_COLUMNS: Final[Mapping[str, Sequence[tuple[str, _Cell]]]] = {
    "Pod": (
        ("Ready", _pod_ready),
        ("Status", _pod_status),
        ("Restarts", _restarts),
        _AGE,
        ("*IP", _at("status", "podIP")),
        ("*Node", _at("spec", "nodeName")),
    ),
    "Deployment": (
        _READY,
        ("Up-to-date", _at("status", "updatedReplicas", default=0)),
        ("Available", _at("status", "availableReplicas", default=0)),
        _AGE,
    ),
    "StatefulSet": (_READY, _AGE),
    "ReplicaSet": (
        ("Desired", _at("spec", "replicas", default=1)),
        ("Current", _at("status", "replicas", default=0)),
        ("Ready", _at("status", "readyReplicas", default=0)),
        _AGE,
    ),
    "Job": (
        ("Status", _job_status),
        ("Completions", _of(("status", "succeeded"), ("spec", "completions"))),
        ("Duration", _job_took),
        _AGE,
    ),
    "CronJob": (
        ("Schedule", _at("spec", "schedule")),
        ("Suspend", _is_suspended),
        ("Active", _active),
        ("Last Schedule", _since("status", "lastScheduleTime")),
        _AGE,
    ),
    "Node": (
        ("Status", _node_status),
        ("Roles", _roles),
        _AGE,
        ("Version", _at("status", "nodeInfo", "kubeletVersion", default="")),
    ),
    "Namespace": (("Status", _at("status", "phase")), _AGE),
    "Event": (
        ("Last Seen", _since("metadata", "creationTimestamp")),
        ("Type", _at("type")),
        ("Reason", _at("reason")),
        ("Object", _subject),
        ("Message", _message),
        ("*Name", _name),
    ),
    "PriorityClass": (
        ("Value", _at("value")),
        ("Global-Default", _at("globalDefault", default=False)),
        _AGE,
    ),
    "ConfigMap": (("Data", _size), _AGE),
    "Secret": (("Type", _at("type", default="Opaque")), ("Data", _size), _AGE),
}
"""Columns beside the name, by kind; those with `*` only with `-o wide`. An Event has its name last, as in kubectl."""


def has_table(kind: str) -> bool:
    """Whether a list of this kind is served as a table; others keep kubectl's own columns, name and age."""
    return kind in _COLUMNS


def table(kind: str, metadata: _Read, objects: Iterable[_Read], now: datetime.datetime) -> bytes:
    """The JSON of a meta.k8s.io/v1 Table."""
    named = () if kind == "Event" else (("Name", _name),)
    columns = (*named, *_COLUMNS[kind])
    return json.dumps(
        {
            "kind": "Table",
            "apiVersion": META_V1,
            "metadata": metadata,
            "columnDefinitions": [
                {
                    "name": title.lstrip("*"),
                    "type": "string",
                    "format": "name" if title == "Name" else "",
                    "description": title.lstrip("*"),
                    "priority": int(title.startswith("*")),
                }
                for title, _ in columns
            ],
            "rows": [
                {
                    "cells": [cell(obj, now) for _, cell in columns],
                    "object": {
                        "kind": "PartialObjectMetadata",
                        "apiVersion": META_V1,
                        "metadata": obj["metadata"],
                    },
                }
                for obj in objects
            ],
        },
        separators=(",", ":"),
    ).encode()
