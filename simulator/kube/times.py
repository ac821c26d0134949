"""Timestamps in the one form in which the server keeps them, whatever zone and precision a client wrote. Pure."""

import datetime
from typing import Any

from simulator.kube.errors import bad_request
from simulator.kube.objects import rfc3339

_SECONDS = {
    "completionTime",
    "creationTimestamp",
    "deletionTimestamp",
    "finishedAt",
    "firstTimestamp",
    "lastHeartbeatTime",
    "lastProbeTime",
    "lastScheduleTime",
    "lastSuccessfulTime",
    "lastTimestamp",
    "lastTransitionTime",
    "lastUpdateTime",
    "startTime",
    "startedAt",
}
_MICROSECONDS = {"acquireTime", "eventTime", "lastObservedTime", "renewTime"}
_FREE_TEXT = {"annotations", "binaryData", "data", "labels", "stringData"}


def normalise_times(node: dict[str, Any]) -> None:
    """Rewrite every timestamp of an object in place."""
    for key, value in node.items():
        if isinstance(value, str) and value:
            if key in _SECONDS:
                node[key] = rfc3339(_parse(value))
            elif key in _MICROSECONDS:
                node[key] = _parse(value).astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        elif isinstance(value, dict) and key not in _FREE_TEXT:
            normalise_times(value)
        elif isinstance(value, list):
            for entry in value:
                if isinstance(entry, dict):
                    normalise_times(entry)


def _parse(text: str) -> datetime.datetime:
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise bad_request(f'parsing time "{text}" as "2006-01-02T15:04:05Z07:00": cannot parse "{text}"')
    return moment
