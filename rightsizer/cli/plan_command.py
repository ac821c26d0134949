"""`gpu-rightsizer plan`: judge every GPU workload and say what should happen. Only reads."""

import datetime
import sys

from rightsizer import report
from rightsizer.cli.connection import instant_of
from rightsizer.cli.filters import chosen_of, selection_of
from rightsizer.cli.flags import CHANGES_PROPOSED, PlanOptions
from rightsizer.cli.messages import note, progress
from rightsizer.cli.options import wants_colour, width_of
from rightsizer.cli.plan_session import Look, PlanSession, utc_now
from rightsizer.cli.reporter import require_new_folder, require_writable, save, save_files
from rightsizer.errors import UsageError
from rightsizer.model import Plan
from rightsizer.planning.cost_summary import CostSummary
from rightsizer.prices import Prices
from rightsizer.report.documents import plan_pieces
from rightsizer.report.evidence_text import explained_text
from rightsizer.report.manifest_patches import patch_files
from rightsizer.report.table import plan_text
from rightsizer.report.terminal import Paint
from rightsizer.text import safe


def run(arguments: PlanOptions) -> int:
    """Make and print the plan."""
    require_writable(arguments.save)
    require_new_folder(arguments.patches)
    selection = selection_of(arguments)
    form = arguments.output or (report.EXPLAIN if arguments.workloads else report.TABLE)
    look = _look(arguments)
    if arguments.ledger and look.why:
        raise UsageError(
            f"--ledger records the cluster as it is now, but this plan cannot be applied: {look.why}"
        )
    session = PlanSession(arguments, look)
    recorder = arguments.ledger_parts.recorder(arguments, session.cluster.name) if arguments.ledger else None
    with progress():
        whole = session.observe()
        plan = chosen_of(whole, selection)
        if form in report.DRAWN:
            plan = session.with_profiles(plan)
        accounts, prices = session.account(plan)
    if recorder is not None:
        recorder.plan(whole, prices)
    if arguments.save:
        save(arguments.save, plan_pieces(plan, accounts, prices))
    if arguments.patches:
        files, without = patch_files(plan)
        save_files(arguments.patches, files)
        for line in without:
            note(safe(line))
    paint = Paint(colour=wants_colour(arguments, sys.stdout), width=width_of(sys.stdout))
    _print(form, paint, plan, accounts, prices)
    return CHANGES_PROPOSED if arguments.detailed_exitcode and plan.enforced else 0


def _print(form: str, paint: Paint, plan: Plan, accounts: CostSummary, prices: Prices) -> None:
    """Print in the chosen format; JSON piece by piece, to save memory with large fleets."""
    match form:
        case report.TABLE:
            sys.stdout.write(plan_text(plan, accounts, prices, paint))
        case report.EXPLAIN:
            sys.stdout.write(explained_text(plan, accounts, prices, paint))
        case report.JSON:
            sys.stdout.writelines(plan_pieces(plan, accounts, prices))
        case name:
            sys.stdout.write(report.form(name)(plan, accounts, prices))


def _look(arguments: PlanOptions) -> Look:
    """What the plan is to be about.

    Raises:
        UsageError: The time is invalid, or has no zone.
    """
    at = instant_of("--at", arguments.at, utc_now()).astimezone(datetime.UTC) if arguments.at else None
    return Look(at, arguments.cluster_objects)
