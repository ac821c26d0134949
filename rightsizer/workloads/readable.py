"""Which of our notes on workloads cannot be read, and what each is taken for instead. Pure.

Of changes that objects remember `observe.records` tells the same, since those count also without pods.
"""

import datetime
from collections.abc import Callable, Iterable, Iterator, Mapping

from rightsizer.config import parse_duration
from rightsizer.model import Workload
from rightsizer.notes import read_instant
from rightsizer.observe.records import (
    CAME_BACK_ANNOTATION,
    NOTICE_ANNOTATION,
    RESUMED_ANNOTATION,
    SNOOZE_ANNOTATION,
)
from rightsizer.workloads.changes import resumed_at
from rightsizer.workloads.notices import read_notice

_Annotations = Mapping[str, str]


def _came_back(annotations: _Annotations) -> None:
    parse_duration(annotations[CAME_BACK_ANNOTATION])


def _snooze(annotations: _Annotations) -> None:
    if read_instant(annotations[SNOOZE_ANNOTATION], zone=datetime.UTC) is None:
        message = "no instant"
        raise ValueError(message)


_READERS: Mapping[str, tuple[Callable[[_Annotations], object], str]] = {
    CAME_BACK_ANNOTATION: (_came_back, "it counts as the longest pause there is"),
    NOTICE_ANNOTATION: (read_notice, "notice is given anew"),
    RESUMED_ANNOTATION: (resumed_at, "it counts as put back right now"),
    SNOOZE_ANNOTATION: (_snooze, "it counts as the longest time that the policy grants"),
}


def unreadable_notes(workloads: Iterable[Workload]) -> Iterator[str]:
    """What cannot be read, by object and annotation, in words."""
    for workload in workloads:
        for key, (read, instead) in _READERS.items():
            if key not in workload.annotations:
                continue
            try:
                read(workload.annotations)
            except ValueError:
                yield f"{workload.ref}: its annotation {key} cannot be read; {instead}"
