"""`gpu-rightsizer undo`: list what was changed, or put it back."""

import argparse
import sys
from collections.abc import Sequence

from rightsizer.cli.connection import cluster_settings
from rightsizer.cli.session import Interrupts, confirmed, require_answer, utc_now
from rightsizer.cli.telling import Telling, require_writable
from rightsizer.errors import UsageError
from rightsizer.model import Result
from rightsizer.observe.cluster import Cluster
from rightsizer.report.document import render, undoable_document
from rightsizer.report.outcomes import undoable_text
from rightsizer.undo import find, put_back, skipped
from rightsizer.workloads.changes import Undoable


def run(arguments: argparse.Namespace) -> int:
    """Find, choose, ask, put back, tell."""
    chosen = bool(arguments.workloads or arguments.run)
    if chosen and arguments.all:
        raise UsageError("undo takes --all, or else workloads, --run or both")
    require_writable(arguments.save)
    cluster = Cluster(cluster_settings(arguments))
    if not (chosen or arguments.all):
        return _list(find(cluster, arguments.state_namespace), arguments)
    items = _choose(find(cluster, arguments.state_namespace), arguments)
    require_answer(arguments)
    telling = Telling(arguments, arguments.run, undo="")
    telling.say(undoable_text(items))
    if items and not confirmed(arguments, f"Put {len(items)} back?"):
        telling.say("Nothing was changed.\n")
        return 0
    pending = [skipped(item, "not attempted: the run was interrupted", at=utc_now()) for item in items]
    with Interrupts() as interrupts:
        steps = put_back(
            items, cluster, force=arguments.force, clock=utc_now, is_stopped=lambda: interrupts.happened
        )
        telling.follow(steps, pending)
    return 1 if any(outcome.result is not Result.DONE for outcome in telling.outcomes) else 0


def _list(items: Sequence[Undoable], arguments: argparse.Namespace) -> int:
    if arguments.output == "table":
        sys.stdout.write(undoable_text(items))
    else:
        sys.stdout.write(render(undoable_document(items), arguments.output))
    return 0


def _choose(items: Sequence[Undoable], arguments: argparse.Namespace) -> list[Undoable]:
    if arguments.all:
        return list(items)
    if arguments.run:
        items = [item for item in items if item.record is not None and item.record.run == arguments.run]
        if not items:
            raise UsageError(
                f"--run {arguments.run}: nothing in the cluster carries its record; see gpu-rightsizer undo"
            )
        if not arguments.workloads:
            return list(items)
    # Latest first: of several evicted pods of one name the last one is meant, unless --run says which.
    by_name = {str(item.ref): item for item in reversed(items)}
    missing = [name for name in arguments.workloads if name not in by_name]
    if missing:
        raise UsageError(
            f"{', '.join(missing)}: carries no record of a change, or does not exist; "
            "write NAMESPACE/KIND/NAME as gpu-rightsizer undo lists them"
        )
    return [by_name[name] for name in dict.fromkeys(arguments.workloads)]
