"""What must stand in records of changes and in manifests that are kept, so that everything can be taken back."""

import base64
import json
import re
from collections.abc import Iterator

from tests.rightsizer.wire.form import UNDO, value_at
from tests.rightsizer.wire.law import OURS, annotations_of
from tests.rightsizer.wire.recorder import Entry, Object


def recorded(
    before: Object, after: Object, text: str | None, changed: list[tuple[str, ...]]
) -> Iterator[str]:
    """The record of how to take it back stands in the same patch, and is true."""
    if text is None:
        yield "carries no record"
        return
    record = json.loads(text)
    if len(text) > 2048:
        yield f"a record of {len(text)} bytes"
    if missing := {"run", "at", "action", "rule", "finding", "reason", "by"} - {
        key for key in record if record[key]
    }:
        yield f"a record without {missing}"
    edits = {tuple(edit["path"]): edit for edit in record["edits"]}
    earlier = json.loads(annotations_of(before).get(UNDO, '{"edits": []}'))["edits"]
    first = {tuple(edit["path"]): edit.get("before") for edit in earlier}
    for path in changed:
        was = first.get(path, value_at(before, path))
        if path not in edits:
            yield f"a record without {path}"
        elif (edits[path].get("before"), edits[path].get("after")) not in {
            (was, value_at(after, path)),
            (value_at(before, path), value_at(after, path)),
        }:
            yield f"a record that is not true of {path}: {edits[path]}"


def as_recorded(before: Object, after: Object, changed: list[tuple[str, ...]]) -> Iterator[str]:
    """What is given back is what the record on the object says was there, or of a number some of it."""
    record = json.loads(annotations_of(before).get(UNDO, '{"edits": []}'))
    edits = {tuple(edit["path"]): edit for edit in record["edits"]}
    for path in changed:
        was, now = edits.get(path, {}).get("before"), value_at(after, path)
        is_part = type(now) is int and type(was) is int and value_at(before, path) < now <= was
        if path not in edits or not (now == was or is_part):
            yield f"gives back {path}: {now}, the record says {edits.get(path)}"


def kept(entry: Entry) -> Iterator[str]:
    """The manifest of what is evicted is kept, whole enough to create it anew."""
    assert entry.scene.obj is not None
    pod = entry.scene.obj
    where = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for secret in entry.scene.secrets:
        if annotations_of(secret).get(OURS + "pod") != where:
            continue
        if not secret["metadata"]["name"].endswith(pod["metadata"]["uid"][:8]):
            continue
        manifest = json.loads(base64.b64decode(secret["data"]["manifest"]))
        same = [
            manifest["spec"]["containers"][0][key] == pod["spec"]["containers"][0][key]
            for key in ("env", "resources")
        ]
        if all(same) and manifest["metadata"].get("labels") == pod["metadata"].get("labels"):
            return
    yield "an eviction whose manifest is not kept"


def run_of(entry: Entry) -> str:
    """The run that made a change, by its record or its manifest."""
    if entry.kind != "Pod":
        return (
            str(json.loads(annotations_of(entry.after)[UNDO])["run"])
            if UNDO in annotations_of(entry.after)
            else ""
        )
    uid = entry.scene.obj["metadata"]["uid"][:8] if entry.scene.obj else ""
    labels = [
        secret["metadata"]["labels"][OURS + "manifest"]
        for secret in entry.scene.secrets
        if re.search(f"-{uid}$", secret["metadata"]["name"])
    ]
    return str(labels[0]) if labels else ""


def foreign(obj: Object) -> dict[str, str]:
    """Annotations that are not ours."""
    return {
        key: text
        for key, text in annotations_of(obj).items()
        if not key.startswith(OURS) and key != "deployment.kubernetes.io/revision"
    }
