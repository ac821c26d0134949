"""`gpu-rightsizer undo`: list what was changed, or put it back."""

import argparse
import sys
from collections.abc import Sequence

from rightsizer.cli.options import cluster_settings
from rightsizer.cli.session import Interrupts, confirmed, require_answer, tell, utc_now
from rightsizer.errors import UsageError
from rightsizer.model import Outcome, Result
from rightsizer.observe.cluster import Cluster
from rightsizer.report.document import render, undoable_document
from rightsizer.report.table import undoable_text
from rightsizer.undo import find, put_back
from rightsizer.workloads.changes import Undoable


def run(arguments: argparse.Namespace) -> int:
    """Find, choose, ask, put back, tell."""
    chosen_by = sum(map(bool, (arguments.workloads, arguments.run, arguments.all)))
    if chosen_by > 1:
        raise UsageError("undo takes workloads, or --run, or --all: one of them")
    cluster = Cluster(cluster_settings(arguments))
    if not chosen_by:
        return _list(find(cluster, arguments.state_namespace), arguments)
    items = _choose(find(cluster, arguments.state_namespace), arguments)
    require_answer(arguments)
    people = sys.stdout if arguments.output == "table" else sys.stderr
    people.write(undoable_text(items))
    if items and not confirmed(arguments, f"Put {len(items)} back?"):
        people.write("Nothing was changed.\n")
        return 0
    outcomes: list[Outcome] = []
    with Interrupts() as interrupts:
        for outcome in put_back(items, cluster, force=arguments.force, clock=utc_now):
            outcomes.append(outcome)
            if interrupts.happened:
                break
    tell(outcomes, arguments.run, arguments, undo="")
    return 1 if any(outcome.result is not Result.DONE for outcome in outcomes) else 0


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
        chosen = [item for item in items if item.record is not None and item.record.run == arguments.run]
        if not chosen:
            raise UsageError(
                f"--run {arguments.run}: nothing in the cluster carries its record; see gpu-rightsizer undo"
            )
        return chosen
    by_name = {str(item.ref): item for item in items}
    missing = [name for name in arguments.workloads if name not in by_name]
    if missing:
        raise UsageError(
            f"{', '.join(missing)}: carries no record of a change, or does not exist; "
            "write NAMESPACE/KIND/NAME as gpu-rightsizer undo lists them"
        )
    return [by_name[name] for name in dict.fromkeys(arguments.workloads)]
