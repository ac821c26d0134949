"""The numbers of GPUs that resized workloads keep when they come back with an old manifest. Pure.

They stand in a ConfigMap of the state namespace, where the admission policy of `guardrails.resize_admission` reads
them. Each cycle writes it: what came up healthy after its resize is kept for `keepSizes`, counted from the last cycle
that saw it so. Nothing else is kept, and nothing that the policy does not enforce now.
"""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence

from rightsizer.inventory.turns import in_turn
from rightsizer.kinds import row_of
from rightsizer.kinds.change_edits import as_read
from rightsizer.kinds.edits import Path, value_at
from rightsizer.kinds.patches import read_record
from rightsizer.kube.configmaps import Changes, Texts
from rightsizer.model import Action, ChangeOutcome, ChangeRecord, Edit, FindingName, Mode, ObjectRef, Workload
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.text import read_instant

NAME = "gpu-rightsizer-sizes"
"""The ConfigMap."""
POLICY_KEY = "policy"
"""Key with the hash of the policy that the sizes were kept under; no workload has this key."""
OWNERS = frozenset({("apps", "Deployment"), ("apps", "StatefulSet"), ("batch", "Job"), ("batch", "CronJob")})
"""Kinds that a pod's owner reference and labels name without a request."""
FIELDS = 9
_MOST_KEY = 253
"""Maximum of a key of a ConfigMap (core/v1)."""
_MOST_TEXT = 4096
"""Some programs are scripts in an argument; a ConfigMap has 1 MiB for all workloads."""
MOST = 200
"""Workloads in the ConfigMap; namespaces take turns."""


@dataclasses.dataclass(frozen=True, slots=True)
class KeptSize:
    """Number of GPUs that the pods of a workload need, and the program of which that is known.

    Attributes:
        before: What its manifest said then; other numbers stay as they are.
        image: Without tag and digest; another program may need more, like one with another command.
    """

    resource: str
    kept: int
    before: int
    until: datetime.datetime
    priority_class: str
    container: str
    image: str
    run: str
    command: str

    def written(self) -> str:
        """One field a line, the command last, which may have lines of its own."""
        until = self.until.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        head = (self.resource, str(self.kept), str(self.before), until, self.priority_class, self.container)
        return "\n".join((*head, self.image, self.run, self.command))


@dataclasses.dataclass(frozen=True, slots=True)
class SizeChanges:
    """The changes of the ConfigMap, and the resized workloads without room in it, with the reason."""

    texts: Changes
    left_out: tuple[str, ...] = ()


def size_key(ref: ObjectRef) -> str:
    """The key of a workload; empty if its pods do not name it."""
    key = f"{ref.namespace}.{ref.kind}.{ref.name}"
    return key if (ref.group, ref.kind) in OWNERS and len(key) <= _MOST_KEY else ""


def _namespace(key: str) -> str:
    return key.partition(".")[0]


def kept_sizes(texts: Texts, evaluator: PolicyEvaluator, policy_hash: str) -> SizeChanges:
    """The changes of the ConfigMap: new sizes, and None for those that end."""
    length = evaluator.policy.keepSizes
    if length is None:
        return SizeChanges(dict.fromkeys(texts))
    there = {size_key(workload.starter or workload.ref): workload for workload in evaluator.fleet.workloads}
    ours = {(change.ref, change.record.run) for change in evaluator.fleet.changes if change.is_remembered}
    is_same_policy = texts.get(POLICY_KEY) == policy_hash
    changes: dict[str, str | None] = {POLICY_KEY: policy_hash}
    for key in texts.keys() - {POLICY_KEY}:
        workload = there.get(key)
        is_wanted = is_same_policy if workload is None else _is_wanted(workload, evaluator)
        if not is_wanted or not _is_current(texts[key], evaluator.at):
            changes[key] = None
    kept = texts.keys() - changes.keys()
    sizes: dict[str, str] = {}
    left_out: list[str] = []
    for key, workload in sorted(there.items()):
        size = _size_of(workload, ours, until=evaluator.at + length) if key else None
        if size is None or not _is_wanted(workload, evaluator):
            continue
        if len(text := size.written()) > _MOST_TEXT:
            left_out.append(f"{workload.ref}: its command is too long")
        else:
            sizes[key] = text
    # A namespace keeps its earlier sizes first.
    turns = in_turn([*sorted(kept), *(key for key in sizes if key not in kept)], _namespace)
    changes |= {key: sizes[key] for key in turns[:MOST] if key in sizes}
    changes |= {key: None for key in turns[MOST:] if key in kept}
    left_out += [f"{there[key].ref if key in there else key}: {MOST} others are kept" for key in turns[MOST:]]
    return SizeChanges(changes, tuple(left_out))


def without_sizes(texts: Texts, refs: Sequence[ObjectRef]) -> Changes:
    """The changes of the ConfigMap before these workloads are restored."""
    makers = [dataclasses.replace(ref, kind="CronJob", name=ref.name.rpartition("-")[0]) for ref in refs]
    made = [
        maker for ref, maker in zip(refs, makers, strict=True) if (ref.group, ref.kind) == ("batch", "Job")
    ]
    return {key: None for ref in (*refs, *made) if (key := size_key(ref)) in texts}


def _is_current(text: str, at: datetime.datetime) -> bool:
    fields = text.split("\n", FIELDS - 1)
    until = read_instant(fields[3]) if len(fields) == FIELDS else None
    return until is not None and at < until


def _is_wanted(workload: Workload, evaluator: PolicyEvaluator) -> bool:
    """Whether the policy resizes this workload by itself, nobody opted out, and its last resize was not undone."""
    effective = evaluator.evaluate(workload)
    resizes = [change for change in workload.past if change.action == Action.RESIZE]
    is_undone = bool(resizes) and max(resizes, key=lambda change: change.at).end in {
        ChangeOutcome.UNDONE,
        ChangeOutcome.ROLLBACK,
        ChangeOutcome.REFUSED,
    }
    enforces = effective.mode_for(FindingName.TOO_MANY_GPUS) is Mode.ENFORCE
    return enforces and Action.RESIZE in effective.actions and not effective.min_gpus and not is_undone


def _size_of(
    workload: Workload, ours: set[tuple[ObjectRef, str]], *, until: datetime.datetime
) -> KeptSize | None:
    """The size that a workload runs healthily with, by its record; None without a record that the memory knows."""
    record = _record_of(workload)
    if record is None or (workload.ref, record.run) not in ours:
        return None
    if record.action != Action.RESIZE or not record.confirmed or record.is_unfinished:
        return None
    obj = as_read(workload)
    if obj is None:
        return None
    edits = [edit for edit in record.edits if edit.path[-3:-1] == ("resources", "limits")]
    if len(edits) != 1 or value_at(obj, edits[0].path) != edits[0].after or not _is_fewer(edits[0]):
        return None
    path: Path = edits[0].path[:-3]
    found = value_at(obj, path)
    if not isinstance(found, dict) or not path[-1].startswith("name="):
        return None
    return KeptSize(
        resource=edits[0].path[-1],
        kept=int(edits[0].after),
        before=int(edits[0].before),
        until=until,
        priority_class=workload.priority_class,
        container=path[-1].removeprefix("name="),
        image=repository(str(found.get("image", ""))),
        run=record.run,
        command=command_of(found),
    )


def _record_of(workload: Workload) -> ChangeRecord | None:
    row = row_of(workload)
    try:
        return read_record(workload.annotations, row) if row is not None else None
    except ValueError:
        return None


def _is_fewer(edit: Edit) -> bool:
    numbers = [str(edit.after), str(edit.before)]
    return all(map(str.isdecimal, numbers)) and 0 < int(numbers[0]) < int(numbers[1])


def repository(image: str) -> str:
    """An image without tag and digest."""
    name = image.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def command_of(container: Mapping[str, object]) -> str:
    """The command and arguments of a container, as the admission policy joins them."""
    parts = (container.get("command"), ["--"], container.get("args"))
    return "\n".join(str(word) for part in parts if isinstance(part, list) for word in part)
