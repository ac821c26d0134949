"""What Argo CD or Flux is to leave alone so that a change stands: the fields that it really changes. Pure."""

import json
import re
from collections.abc import Iterator

from rightsizer.kinds import pause_for, row_of
from rightsizer.kinds.edits import ITEM, Path
from rightsizer.kinds.kind import Kind
from rightsizer.model import Decision, Manager, Verdict

_ARGO = re.compile(r"(?:jsonPointers|managedFieldsManagers): \[.*\]")
_FLUX = re.compile(r"(?<=paths: )\[.*\]")
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def exception_for(manager: Manager, decision: Decision) -> str:
    """What to configure on its side, for what would be done; as it was read where nothing would."""
    row = row_of(decision.workload)
    paths = sorted(set(_paths(row, decision))) if row else []
    if decision.finding.verdict is not Verdict.ACT or not paths:
        return manager.exception
    if manager.kind == "Argo CD":
        fields = _argo(paths)
        return _ARGO.sub(lambda _: fields, manager.exception)
    pointers = json.dumps(sorted({_pointer(path) for path in paths}))
    return _FLUX.sub(lambda _: pointers, manager.exception)


def _paths(row: Kind, decision: Decision) -> Iterator[Path]:
    """The fields; of containers all that they ask for, since names of resources come and go."""
    proposal = decision.finding.proposal
    if (proposal is None or pause_for(decision.workload, proposal)) and row.stop and row.stop.field:
        yield row.stop.field.path
    if proposal is None:
        return
    if proposal.replicas is None:
        yield from ((*pattern, "resources") for pattern in row.changeable)
    elif row.groups is not None:
        yield from (field.path for field in row.groups.fields())
    elif row.replicas is not None:
        yield row.replicas.path


def _argo(paths: list[Path]) -> str:
    """Items of lists are nothing that a JSON pointer could name, without their place."""
    if any(step.endswith(ITEM) for path in paths for step in path):
        return f"jqPathExpressions: {json.dumps([_jq(path) for path in paths])}"
    return f"jsonPointers: [{', '.join(map(_pointer, paths))}]"


def _jq(path: Path) -> str:
    return "".join("[]" if step.endswith(ITEM) else _key(step) for step in path)


def _key(step: str) -> str:
    return f".{step}" if _PLAIN.fullmatch(step) else f".[{json.dumps(step)}]"


def _pointer(path: Path) -> str:
    """RFC 6901; as far as to the list where it leads to an item of one."""
    steps = []
    for step in path:
        if step.endswith(ITEM):
            break
        steps.append("/" + step.replace("~", "~0").replace("/", "~1"))
    return "".join(steps)
