"""The plan's changes as patches of manifests, for whoever owns these: Git, Helm, a person. Pure.

Kustomize and `kubectl patch --patch-file` take them. They name fields, not versions of objects, so they stay true until
somebody changes the manifest.
"""

import collections
import dataclasses
import datetime
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from rightsizer.kinds import row_of, stopped_by
from rightsizer.kinds.change_edits import as_read, missing_field_reason, proposal_edits, stop_edits
from rightsizer.kinds.claim_templates import object_for
from rightsizer.kinds.core import POD
from rightsizer.kinds.edits import NAMED, is_item, shown, value_at
from rightsizer.kinds.kind import Kind
from rightsizer.kube.object_names import is_possible, kubectl
from rightsizer.model import BlockerCode, Decision, Edit, ObjectRef, Plan, Proposal, Verdict, Workload
from rightsizer.report.documents import render
from rightsizer.report.rows import proposal_words
from rightsizer.text import instant, safe

_BUILT_IN = frozenset({"", "apps", "batch"})
"""Groups whose lists a strategic merge patch merges by name; it replaces those of custom resources whole."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Change:
    """Change of a manifest.

    Attributes:
        of: The object as read.
        ref: The object whose manifest changes: itself, or the CronJob that made it.
        is_live: Whether the object in the cluster can be changed in the same way.
        template: The ResourceClaimTemplate that it then names, if that is new.
    """

    of: Mapping[str, Any]
    ref: ObjectRef
    edits: tuple[Edit, ...]
    is_live: bool = True
    template: Mapping[str, Any] | None = None


def patch_files(plan: Plan) -> tuple[Mapping[str, str], tuple[str, ...]]:
    """Name and text of each file: a Kustomize component for each namespace; and why other changes have none."""
    files: dict[str, str] = {}
    targets: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    resources: dict[str, list[str]] = collections.defaultdict(list)
    problems = []
    for decision in plan.decisions:
        if decision.verdict is not Verdict.ACT:
            continue
        try:
            change = _change(decision, plan.at)
        except ValueError as error:
            problems.append(f"no patch for {decision.workload.ref}: {error}")
            continue
        name = f"{change.ref.full_kind.lower()}-{change.ref.name}.yaml"
        path = f"{change.ref.namespace}/{name}"
        if path in files:  # another run of the same CronJob
            continue
        files[path] = _text(decision, change, path)
        targets[change.ref.namespace].append({"path": name, "target": _target(change.ref)})
        if change.template is not None:
            created = f"resourceclaimtemplate-{change.template['metadata']['name']}.yaml"
            files[f"{change.ref.namespace}/{created}"] = render(change.template, "yaml")
            resources[change.ref.namespace].append(created)  # no two workloads have the same
    for namespace, patches in targets.items():
        files[f"{namespace}/kustomization.yaml"] = render(
            {
                "apiVersion": "kustomize.config.k8s.io/v1alpha1",
                "kind": "Component",
                **({"resources": resources[namespace]} if namespace in resources else {}),
                "patches": patches,
            },
            "yaml",
        )
    return files, tuple(problems)


def _change(decision: Decision, at: datetime.datetime) -> _Change:
    """Change of the manifest of a decision.

    Raises:
        ValueError: No manifest says it; the message says why.
    """
    workload, proposal = decision.workload, decision.finding.proposal
    waits = [block.until for block in decision.blockers if block.code is BlockerCode.NOTICE]
    if dues := list(filter(None, [decision.due, *waits])):
        message = f"its owner is asked first; the change follows from {instant(dues[0])}"
        raise ValueError(message)
    row, obj = row_of(workload), as_read(workload)
    if row is None or not is_possible(workload.ref):
        message = f"{workload.ref.kind} is not a kind that gpu-rightsizer changes"
        raise ValueError(message)
    if obj is None:
        message = "a Pod has no template" if row is POD else "its object could not be read"
        raise ValueError(message)
    if proposal is None or proposal.replicas is not None:
        return _Change(obj, workload.ref, tuple(_count_edits(workload, row, obj, proposal, at)))
    # Preconditions are about rollouts that nobody watches.
    containers = row.changeable or tuple((*path[:-1], "containers", NAMED) for path in row.classes)
    row = dataclasses.replace(row, preconditions=(), containers=containers, pause=None)
    resources = sorted({name for pod in workload.pods for name in pod.resources})
    templates = workload.claim_templates
    edits = tuple(proposal_edits(row, obj, proposal, resources=resources, templates=templates))
    template = object_for(edits, workload, proposal)
    starter = workload.starter
    if starter is None:
        is_live = bool((row_of(workload) or row).containers)
        return _Change(obj, workload.ref, edits, is_live=is_live, template=template)
    if (starter.group, starter.kind) != ("batch", "CronJob") or not is_possible(starter):
        message = f"{starter.kind} {starter.name} made it"
        raise ValueError(message)
    edits = tuple(msgspec.structs.replace(edit, path=("spec", "jobTemplate", *edit.path)) for edit in edits)
    return _Change({"spec": {"jobTemplate": obj}}, starter, edits, template=template)


def _count_edits(
    workload: Workload, row: Kind, obj: Mapping[str, Any], proposal: Proposal | None, at: datetime.datetime
) -> Iterator[Edit]:
    """The edits of the number of replicas, or of the switch that stops it."""
    if workload.starter is not None:
        message = f"{workload.starter.kind} {workload.starter.name} made it"
        raise ValueError(message)
    if proposal is not None:
        if any(manager.scales for manager in workload.managers):
            message = "an autoscaler decides how many replicas run"
            raise ValueError(message)
        edits = proposal_edits(row, obj, proposal, resources=(), pods=workload.pods)
        going = row.groups.going if row.groups else ()
        yield from (edit for edit in edits if not going or edit.path[-len(going) :] != going)
        return
    by = stopped_by(workload)
    if by is None or by[0] != workload.ref or row.stop is None or row.stop.field is None or row.stop.command:
        message = "no field of its manifest stops it"
        raise ValueError(message)
    if why := missing_field_reason(workload, None, at):
        raise ValueError(why)
    yield from stop_edits(row, obj, at)


def _text(decision: Decision, change: _Change, path: str) -> str:
    finding, ref = decision.finding, change.ref
    has_lists = any(map(is_item, (step for edit in change.edits for step in edit.path)))
    is_built_in = ref.group in _BUILT_IN
    body: Any
    if has_lists and not is_built_in:
        body, form = list(_operations(change)), "json"
    else:
        metadata = {"name": ref.name, "namespace": ref.namespace}
        body = {"apiVersion": ref.api_version, "kind": ref.kind, "metadata": metadata}
        form = "strategic" if is_built_in else "merge"
        for edit in change.edits:
            _put(body, edit.path, edit.after)
    lines = [f"{finding.name}: {decision.workload.ref}"]
    lines += [*finding.words, *filter(None, [proposal_words(finding, finding.words)])]
    lines += [f"{shown(edit.path)}: {_value(edit.before)} -> {_value(edit.after)}" for edit in change.edits]
    command = kubectl(ref, "patch", "--type", form, "--patch-file", path)
    lines.append(command if change.is_live else f"the running {ref.kind} cannot be changed: for the next one")
    head = "".join(f"# {safe(line)}\n" for line in lines)
    return head + render(body, "yaml")


def _value(value: Any) -> str:  # noqa: ANN401 - JSON
    return "(none)" if value is None else str(value)


def _put(part: dict[str, Any], path: Sequence[str], value: Any) -> None:  # noqa: ANN401 - JSON
    """Set a field of a strategic merge patch; an item of a list is the one with this name."""
    for step, following in itertools.pairwise(path):
        if is_item(step):
            continue
        if not is_item(following):
            part = part.setdefault(step, {})
            continue
        key, _, name = following.partition("=")
        items: list[dict[str, Any]] = part.setdefault(step, [])
        found = next((entry for entry in items if entry[key] == name), None)
        if found is None:
            items.append(found := {key: name})
        part = found
    part[path[-1]] = value


def _operations(change: _Change) -> Iterator[dict[str, Any]]:
    """The operations of a JSON patch (RFC 6902), which first test that each list still has the item at this place."""
    tested = set()
    for edit in change.edits:
        pointer = ""
        for depth, step in enumerate(edit.path):
            if not is_item(step):
                pointer += "/" + step.replace("~", "~0").replace("/", "~1")
                continue
            key, _, name = step.partition("=")
            items = value_at(change.of, edit.path[:depth])
            pointer += f"/{next(place for place, entry in enumerate(items) if entry.get(key) == name)}"
            if pointer not in tested:
                tested.add(pointer)
                yield {"op": "test", "path": f"{pointer}/{key}", "value": name}
        if edit.after is None:
            yield {"op": "remove", "path": pointer}
        else:
            yield {
                "op": "add" if value_at(change.of, edit.path) is None else "replace",
                "path": pointer,
                "value": edit.after,
            }


def _target(ref: ObjectRef) -> dict[str, str]:
    """Target of a patch for Kustomize: the name is a pattern; without a namespace, since overlays often set it."""
    version = ref.api_version.rpartition("/")[2]
    group = {"group": ref.group} if ref.group else {}
    return {**group, "version": version, "kind": ref.kind, "name": re.escape(ref.name).replace(r"\-", "-")}
