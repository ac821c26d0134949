"""Whether an object, as it was read for the plan, has a place for what is to be done to it. Pure.

What is not known of an object keeps nothing from being planned: the write finds out.
"""

import contextlib
import datetime
from typing import Any

import msgspec

from rightsizer.kinds import row_of, stopped_by
from rightsizer.kinds.edits import patch_of, places, value_at
from rightsizer.kinds.kind import proposal_edits, stop_edits
from rightsizer.model import Proposal, Workload


def missing_field_reason(workload: Workload, proposal: Proposal | None, at: datetime.datetime) -> str:
    """Why a workload's own object has no place for a proposal, or for a stop where there is none; empty where it has.

    Args:
        workload: As it was read.
        proposal: What is to be left.
        at: Now.
    """
    row, obj = row_of(workload), as_read(workload)
    by = stopped_by(workload) if proposal is None else None
    if row is None or obj is None or (by is not None and by[0] != workload.ref):
        return ""
    resources = sorted({name for pod in workload.pods for name in pod.resources})
    if proposal is not None and proposal.asks and any(one.kind == "Kueue" for one in workload.managers):
        return "Kueue admits it by the quota of what it asks for now"
    try:
        if proposal is None:
            patch_of(obj, stop_edits(row, obj, at))
        else:
            patch_of(obj, proposal_edits(row, obj, proposal, resources=resources, pods=workload.pods))
    except ValueError as error:
        return str(error)
    return ""


def pod_spec_of(workload: Workload) -> dict[str, Any]:
    """What a workload's own object says of the nodes that its pods may come to; nothing where that is not known.

    A template's spec, or what stands for one: of what encloses the containers the nearest that says anything.
    """
    row, obj = row_of(workload), as_read(workload)
    if row is None or obj is None:
        return {}
    for pattern in row.changeable:
        for path in places(obj, pattern):
            around = (value_at(obj, path[:length]) for length in range(len(path), 0, -1))
            found = next((one for one in around if isinstance(one, dict) and _WHERE & one.keys()), None)
            if found is not None:
                return found
    return {}


_WHERE = frozenset({"nodeSelector", "tolerations", "affinity"})


def as_read(workload: Workload) -> dict[str, Any] | None:
    """The annotations and the spec of a workload's own object; None where they were not read, or cannot be."""
    with contextlib.suppress(msgspec.DecodeError, RecursionError):
        if workload.spec:
            spec = msgspec.json.decode(workload.spec)
            return {"metadata": {"annotations": dict(workload.annotations)}, "spec": spec}
    return None
