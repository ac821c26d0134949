"""What a stop takes along, and what it destroys: told before anything is done. Pure."""

import dataclasses

from rightsizer.model import Decision, Fleet, ObjectRef, Workload
from rightsizer.workloads import kind_of, pause_for, row_of, stopped_by
from rightsizer.workloads.commands import stop_commands


def stopping(decision: Decision, fleet: Fleet) -> Decision:
    """A decision with what it destroys, where it stops a workload: for good, or to let it go on with less."""
    workload = decision.workload
    if decision.finding.proposal is not None:
        of = row_of(workload) if pause_for(workload, decision.finding.proposal) else None
        return (
            dataclasses.replace(decision, lost=f"it is stopped and starts anew: {of.lost}")
            if of
            else decision
        )
    along = along_with(workload, fleet)
    rows = [(ref, row) for ref in along if (row := kind_of(ref)) is not None]
    by, row = stopped_by(workload), row_of(workload)
    words = [row.lost] if row is not None else []
    if by is not None and workload.lever is not None:
        words.append(f"by {by[0].kind} {by[0].name}: {by[1].lost}")
    words += [f"{ref.kind} {ref.name}: {row.lost}" for ref, row in rows]
    return dataclasses.replace(
        decision,
        along=along,
        lost="; ".join(words),
        command=stop_commands(workload, rows) if rows else decision.command,
    )


def along_with(workload: Workload, fleet: Fleet) -> tuple[ObjectRef, ...]:
    """What made a workload when the time had come, where another one that it made is stopped already.

    One Job that does nothing may be an accident of that run; of two, the next one will be the same. A Job that was put
    back carries no record any more, so it does not count.
    """
    starter = workload.starter
    if starter is None or kind_of(starter) is None:
        return ()
    before = [
        change
        for change in fleet.changes
        if change.stands and change.starter == starter and change.ref.name != workload.ref.name
    ]
    return (starter,) if before else ()
