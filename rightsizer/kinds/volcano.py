"""Volcano's Job, which is told by Command objects what to do, as vcctl does it. Pure.

https://github.com/volcano-sh/apis/tree/master/pkg/apis/bus/v1alpha1
"""

from rightsizer.changes.record_codec import ORDER_ANNOTATION
from rightsizer.kinds.core import CLASS, TEMPLATE_CLASS
from rightsizer.kinds.edits import NAMED
from rightsizer.kinds.fields import annotation
from rightsizer.kinds.kind import CommandObject, Kind, Stop
from rightsizer.model import Action

_COMMANDS = CommandObject(
    "bus.volcano.sh/v1alpha1",
    "Command",
    "commands",
    back="ResumeJob",
    state=("status", "state", "phase"),
    # batch.volcano.sh/v1alpha1 JobPhase
    stopped=frozenset(
        {"Aborting", "Aborted", "Terminating", "Terminated", "Completing", "Completed", "Failed"}
    ),
)

KINDS = (
    Kind(
        "batch.volcano.sh",
        "Job",
        source="batch.volcano.sh/v1alpha1, bus.volcano.sh/v1alpha1",
        lost="work since the last checkpoint of every task; the job restarts",
        stop=Stop(Action.SUSPEND, "Suspended", annotation(ORDER_ANNOTATION), "AbortJob", orders=_COMMANDS),
        classes=(("spec", "tasks", NAMED, *TEMPLATE_CLASS[1:]),),
        class_of_all=("spec", CLASS),
    ),
)
