"""Sizes that resized workloads keep: only healthy ones, of what the policy enforces, and not for ever."""

import dataclasses
import datetime
import json
from collections.abc import Callable
from typing import Any

import pytest

from rightsizer.changes.record_codec import UNDO_ANNOTATION, encode_record
from rightsizer.model import (
    Action,
    ChangeOutcome,
    ChangeRecord,
    Edit,
    FindingName,
    FoundChange,
    Mode,
    ObjectRef,
    Workload,
)
from rightsizer.planning.kept_sizes import MOST, KeptSize, kept_sizes, repository, size_key, without_sizes
from rightsizer.policy.schema import Policy
from tests.rightsizer.build import AT, fleet, pod, policy, rule, workload
from tests.rightsizer.build import evaluator as book_of

GPU = "nvidia.com/gpu"
MONTH = datetime.timedelta(days=30)
PLACE = ("spec", "template", "spec", "containers", "name=main", "resources")
EDITS = tuple(Edit((*PLACE, part, GPU), "2", "1") for part in ("limits", "requests"))
RECORD = ChangeRecord(AT - MONTH, "run-1", "resize", gpus=1, edits=EDITS, confirmed=True)
KEY = "research.Deployment.w"
ENFORCED = rule("all", findings={FindingName.TOO_MANY_GPUS: Mode.ENFORCE}, actions=(Action.RESIZE,))
TEXT = "nvidia.com/gpu\n1\n2\n2026-12-21T12:00:00Z\nlow-priority\nmain\nregistry:5000/serve\nrun-1\nserve\n--\n--port=1"


def _policy(*rules: Any, **changes: Any) -> Policy:
    return policy(*(rules or (ENFORCED,)), **{"keepSizes": MONTH, **changes})


def _resized(record: ChangeRecord | None = RECORD, *, amount: str = "1", **changes: Any) -> Workload:
    amounts = {GPU: amount}
    container = {
        "name": "main",
        "image": "registry:5000/serve:v2",
        "command": ["serve"],
        "args": ["--port=1"],
        "resources": {"limits": amounts, "requests": amounts},
    }
    spec = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    marks = {UNDO_ANNOTATION: encode_record(record)} if record else {}
    given = {"annotations": marks, "spec": json.dumps(spec).encode(), **changes}
    return workload(pod(), **given)


def _changes(
    *items: Workload,
    texts: dict[str, str] | None = None,
    rules: Policy | None = None,
    is_remembered: bool = True,
    at: datetime.datetime = AT,
) -> dict[str, str | None]:
    """The changes of the ConfigMap but for the policy's hash, which is the same unless `texts` say otherwise."""
    known = tuple(FoundChange(item.ref, RECORD, is_remembered=is_remembered) for item in items)
    around = dataclasses.replace(fleet(*items), changes=known)
    before = {"policy": "hash", **(texts or {})}
    found = dict(kept_sizes(before, book_of(rules or _policy(), around=around, at=at), "hash").texts)
    assert found.pop("policy", None) == ("hash" if (rules or _policy()).keepSizes else None)
    return found


def test_sizes_healthy_resize_is_kept() -> None:
    """With the number before, the end, and what identifies the program."""
    assert _changes(_resized()) == {KEY: TEXT}


def test_sizes_run_of_cron_job_is_kept_for_cron_job() -> None:
    """Its next run comes with the template of the CronJob."""
    starter = ObjectRef("batch/v1", "CronJob", "research", "nightly", "uid-c")
    item = _resized(kind="Job", starter=starter)
    assert list(_changes(item)) == ["research.CronJob.nightly"]
    ref = ObjectRef("batch/v1", "Job", "research", "nightly-2901", "uid")
    assert without_sizes({"research.CronJob.nightly": TEXT, KEY: TEXT}, [ref]) == {
        "research.CronJob.nightly": None
    }


def _replaced(**changes: Any) -> Workload:
    return _resized(_record(**changes))


def _record(**changes: Any) -> ChangeRecord:
    """The record, but for what is given."""
    values = {
        field: getattr(RECORD, field) for field in ("at", "run", "action", "gpus", "edits", "confirmed")
    }
    return ChangeRecord(**{**values, **changes})


NOT_KEPT: dict[str, Callable[[], dict[str, str | None]]] = {
    "no-record": lambda: _changes(_resized(None)),
    "not-confirmed": lambda: _changes(_replaced(confirmed=False)),
    "forged": lambda: _changes(_resized(), is_remembered=False),
    "another-run": lambda: _changes(_replaced(run="run-2")),
    "another-action": lambda: _changes(_replaced(action="reslice")),
    "unfinished": lambda: _changes(_replaced(pending_edits=EDITS)),
    "reverted": lambda: _changes(_resized(amount="2")),
    "more": lambda: _changes(_replaced(edits=tuple(edit.reversed for edit in EDITS))),
    "unreadable": lambda: _changes(_resized(annotations={UNDO_ANNOTATION: "{"})),
    "kind": lambda: _changes(
        _resized(ref=ObjectRef("argoproj.io/v1alpha1", "Rollout", "research", "w", "uid-w"))
    ),
    "advised": lambda: _changes(_resized(), rules=_policy(rule("all"))),
    "opted-out": lambda: _changes(
        _resized(annotations={UNDO_ANNOTATION: encode_record(RECORD), "gpu-rightsizer.io/mode": "off"})
    ),
    "protected": lambda: _changes(_resized(), rules=_policy(protectedNamespaces=("research",))),
    "gpus-to-keep": lambda: _changes(
        _resized(),
        rules=_policy(rule("all", findings=ENFORCED.findings, actions=(Action.RESIZE,), minGPUs=1)),
    ),
    "switched-off": lambda: _changes(_resized(), rules=_policy(keepSizes=None)),
}


@pytest.mark.parametrize("changes", NOT_KEPT.values(), ids=NOT_KEPT)
def test_sizes_without_proof_or_policy_are_not_kept(changes: Callable[[], dict[str, str | None]]) -> None:
    """Only what this program made, saw healthy, and would make again."""
    assert changes() == {}


def _undone(end: ChangeOutcome) -> Workload:
    past = ChangeRecord(AT - MONTH, "run-1", "resize", end=end, ended=AT)
    return _resized(None, amount="2", past=(past,))


ENDS: dict[str, Callable[[], dict[str, str | None]]] = {
    "undone": lambda: _changes(_undone(ChangeOutcome.UNDONE), texts={KEY: TEXT}),
    "rolled-back": lambda: _changes(_undone(ChangeOutcome.ROLLBACK), texts={KEY: TEXT}),
    "advised-now": lambda: _changes(_resized(None), texts={KEY: TEXT}, rules=_policy(rule("all"))),
    "expired": lambda: _changes(texts={KEY: TEXT}, at=AT + MONTH),
    "unreadable": lambda: _changes(texts={KEY: "x"}),
    "switched-off": lambda: _changes(texts={KEY: TEXT}, rules=_policy(keepSizes=None)),
    "other-policy": lambda: _changes(texts={KEY: TEXT, "policy": "other"}),
}


@pytest.mark.parametrize("changes", ENDS.values(), ids=ENDS)
def test_sizes_end(changes: Callable[[], dict[str, str | None]]) -> None:
    """By undo, rollback, policy or time; of a workload that is away, any other policy ends them."""
    assert changes() == {KEY: None}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(lambda: _changes(texts={KEY: TEXT}), id="away"),
        pytest.param(lambda: _changes(_resized(None, amount="2"), texts={KEY: TEXT}), id="created-again"),
        pytest.param(lambda: _changes(_undone(ChangeOutcome.REVERTED), texts={KEY: TEXT}), id="old-manifest"),
        pytest.param(
            lambda: _changes(_resized(None), texts={KEY: TEXT, "policy": "other"}),
            id="there-under-other-policy",
        ),
    ],
)
def test_sizes_of_workload_with_old_manifest_stay(changes: Callable[[], dict[str, str | None]]) -> None:
    """That is what they are for."""
    assert changes() == {}


def test_sizes_of_many_workloads_are_limited() -> None:
    """A ConfigMap has an end; known ones are renewed all the same."""
    full = {f"research.Deployment.x{number}": TEXT for number in range(MOST)}
    assert _changes(_resized(), texts=full) == {}
    del full["research.Deployment.x0"]
    assert _changes(_resized(), texts=full) == {KEY: TEXT}
    assert _changes(_resized(), texts={**full, KEY: TEXT.replace("2026", "2027")}) == {KEY: TEXT}


def test_sizes_of_many_workloads_of_a_namespace_leave_room_for_others() -> None:
    """Namespaces take turns, also where one has filled all places before."""
    flood = [
        _resized(ref=ObjectRef("apps/v1", "Deployment", "aaa", f"x{number}", f"uid-{number}"))
        for number in range(MOST)
    ]
    new = _changes(*flood, _resized())
    assert (len(new), new[KEY]) == (MOST, TEXT)
    full = {f"aaa.Deployment.x{number:03}": TEXT for number in range(MOST)}
    assert _changes(_resized(), texts=full) == {KEY: TEXT, f"aaa.Deployment.x{MOST - 1}": None}


def test_sizes_left_out_are_named_with_reason() -> None:
    """Nobody else says that a resized workload comes back large."""
    full = {"policy": "hash", **{f"research.Deployment.x{number}": TEXT for number in range(MOST)}}
    item = _resized()
    long = _resized(spec=item.spec.replace(b"--port=1", b"x" * 4096))
    for texts, one, words in (
        (full, item, f"{item.ref}: {MOST} others are kept"),
        ({}, long, f"{item.ref}: its command is too long"),
    ):
        known = (FoundChange(one.ref, RECORD, is_remembered=True),)
        around = dataclasses.replace(fleet(one), changes=known)
        found = kept_sizes(texts, book_of(_policy(), around=around), "hash")
        assert (found.left_out, KEY in found.texts) == ((words,), False)


def test_sizes_expired_one_that_is_kept_again_takes_room() -> None:
    """One more than the limit would be kept for each."""
    old = TEXT.replace("2026-12", "2026-01")
    full = {KEY: old, **{f"research.Deployment.x{number}": TEXT for number in range(MOST - 1)}}
    other = _resized(ref=ObjectRef("apps/v1", "Deployment", "research", "x", "uid-x"))
    assert _changes(_resized(), other, texts=full) == {KEY: TEXT}


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("serve", "serve"),
        ("serve:v1", "serve"),
        ("registry:5000/serve", "registry:5000/serve"),
        ("registry:5000/serve:v1", "registry:5000/serve"),
        ("registry/serve:v1@sha256:0", "registry/serve"),
    ],
)
def test_sizes_image_has_no_tag(image: str, name: str) -> None:
    """A new version is the same program."""
    assert repository(image) == name


def test_sizes_key_too_long_is_empty() -> None:
    """A ConfigMap takes keys of 253 characters."""
    assert size_key(ObjectRef("apps/v1", "Deployment", "n" * 63, "w" * 180, "")) == ""
    assert size_key(ObjectRef("apps/v1", "Deployment", "research", "w", "")) == KEY


def test_sizes_text_has_command_last() -> None:
    """A script has lines of its own."""
    size = KeptSize(GPU, 1, 2, AT, "", "main", "i", "r", "sh\n-c\na\nb")
    assert size.written().split("\n", 8)[8] == "sh\n-c\na\nb"
