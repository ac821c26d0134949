"""`gpu-rightsizer undo`: list changes, or revert them."""

import contextlib
import datetime
import logging
import secrets
import time
from collections.abc import Sequence

from rightsizer.cli.connection import cluster_settings, instant_of
from rightsizer.cli.cycle import change_sizes, lease_of
from rightsizer.cli.flags import UndoOptions
from rightsizer.cli.messages import note
from rightsizer.cli.plan_session import (
    Interrupts,
    confirmed,
    policy_of,
    require_answer,
    utc_now,
)
from rightsizer.cli.reporter import OutcomeReporter, require_writable, show
from rightsizer.errors import ClusterError, UsageError
from rightsizer.execute.run_context import Deadline
from rightsizer.execute.undo import find_undoable, known_only, skipped, undo_changes
from rightsizer.kinds.patches import UndoItem
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.lease import LeaderElector
from rightsizer.model import ObjectRef, Result
from rightsizer.planning.kept_sizes import without_sizes
from rightsizer.report.documents import undoable_document
from rightsizer.report.outcomes import undoable_text
from rightsizer.text import count

log = logging.getLogger(__name__)

_SUGGESTED = 5


def run(arguments: UndoOptions) -> int:
    """Find, choose, ask, revert, report."""
    chosen = bool(arguments.workloads or arguments.run or arguments.since)
    if chosen and arguments.all:
        raise UsageError("undo takes --all, or else workloads, --run, --since or several of these")
    span = _span(arguments)
    require_writable(arguments.save)
    cluster = Cluster(cluster_settings(arguments))
    protected = policy_of(arguments).policy.protectedNamespaces
    items = find_undoable(
        cluster,
        arguments.state_namespace,
        at=utc_now(),
        protected=protected,
        privileged=arguments.allow_privileged,
        unverified=arguments.allow_unverified,
    )
    if not arguments.workloads:
        items = known_only(items)
    if not (chosen or arguments.all):
        show(arguments, undoable_text(items), undoable_document(items), cluster=cluster.name)
        return 0
    items = _choose(_within(items, span), arguments)
    require_answer(arguments)
    reporter = OutcomeReporter(arguments, arguments.run, undo="", cluster=cluster.name)
    reporter.say(undoable_text(items))
    if items and not confirmed(arguments, cluster.name, f"Revert {count(len(items), 'change')}?"):
        reporter.say("Nothing was changed.\n")
        return 0
    pending = [skipped(item, "not attempted: the run was interrupted", at=utc_now()) for item in items]
    with Interrupts() as interrupts, contextlib.ExitStack() as stack:
        _take_lease(arguments, stack)
        deadline = Deadline(0.0, time.monotonic, time.sleep, lambda: interrupts.happened)
        # First: the pods of a restored template are created at once.
        restored = [item.workload for item in items if not item.problem]
        change_sizes(cluster, arguments.state_namespace, lambda texts: without_sizes(texts, restored))
        steps = undo_changes(items, cluster, force=arguments.force, clock=utc_now, deadline=deadline)
        reporter.follow(steps, pending)
    # Unless named, what cannot be reverted, as the list said, or was never changed, is no failure.
    final = {item.ref for item in items if item.is_final and not arguments.workloads}
    good = {Result.DONE} if arguments.workloads else {Result.DONE, Result.UNTRUSTED}
    return 1 if any(one.result not in good and one.ref not in final for one in reporter.outcomes) else 0


def _take_lease(arguments: UndoOptions, stack: contextlib.ExitStack) -> None:
    """Take the Lease if possible, so that no other run begins.

    An undo never waits for it and needs no right to it: every write names the version that was read.
    """
    lease = lease_of(arguments, secrets.token_hex(4))
    try:
        is_ours = lease.try_acquire()
    except ClusterError as error:
        log.info("without the Lease: %s", error)
        return
    if is_ours:
        stack.enter_context(LeaderElector(lease, is_optional=True))
    else:
        note(
            f"{lease.holder} holds the Lease and may be at work; going on all the same "
            "(gpu-rightsizer pause keeps it from changing anything more)"
        )


_Span = tuple[datetime.datetime, datetime.datetime] | None


def _span(arguments: UndoOptions) -> _Span:
    """The time span of --since and --until.

    Raises:
        UsageError: Invalid times.
    """
    if not arguments.since:
        if arguments.until:
            raise UsageError("--until: of what? give --since, too")
        return None
    now = utc_now()
    since = instant_of("--since", arguments.since, now)
    until = instant_of("--until", arguments.until, now) if arguments.until else now
    if since > until:
        raise UsageError(f'--since "{arguments.since}": lies after --until, or is yet to come')
    return since, until


def _within(items: Sequence[UndoItem], span: _Span) -> list[UndoItem]:
    """Those whose records say that they were changed in that time."""
    if span is None:
        return list(items)
    since, until = span
    return [item for item in items if item.record is not None and since <= item.record.at <= until]


def _choose(items: Sequence[UndoItem], arguments: UndoOptions) -> list[UndoItem]:
    if arguments.all or (arguments.since and not (arguments.workloads or arguments.run)):
        return list(items)
    if arguments.run:
        items = [item for item in items if item.record is not None and item.record.run == arguments.run]
        if not items:
            raise UsageError(
                f'--run "{arguments.run}": nothing in the cluster carries its record; see gpu-rightsizer undo'
            )
        if not arguments.workloads:
            return list(items)
    chosen: dict[ObjectRef, UndoItem] = {}
    missing = []
    for name in arguments.workloads:
        named = _named(items, name)
        chosen |= {item.ref: item for item in named}
        missing += [] if named else [name]
    if missing:
        names = {name.rpartition("/")[2] for name in missing}
        meant = [str(item.ref) for item in items if item.ref.name in names][:_SUGGESTED]
        hint = "write NAMESPACE/KIND/NAME as gpu-rightsizer undo lists them"
        if meant:
            hint = f"did you mean {' or '.join(meant)}?"
        raise UsageError(f"{', '.join(missing)}: carries no record of a change, or does not exist; {hint}")
    return list(chosen.values())


def _named(items: Sequence[UndoItem], name: str) -> list[UndoItem]:
    """The changes of an object or workload with that name; of evicted pods with one name, the latest."""
    own: dict[str, UndoItem] = {}
    about = []
    for item in items:
        if name in _names(item.ref):
            own.setdefault(item.ref.full_kind, item)
        elif name in _names(item.workload):
            about.append(item)
    if len(own) > 1:
        kinds = " or ".join(f"{item.ref.namespace}/{kind}/{item.ref.name}" for kind, item in own.items())
        raise UsageError(f"{name}: there are several; write {kinds}")
    return [*own.values(), *about]


def _names(ref: ObjectRef) -> tuple[str, str]:
    """The name with and without the API group."""
    return str(ref), f"{ref.namespace}/{ref.full_kind}/{ref.name}"
