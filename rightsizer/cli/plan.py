"""`gpu-rightsizer plan`: judge every GPU workload and say what should happen. Only reads."""

import argparse
import datetime
import pathlib
import sys

from rightsizer.cli.flags import CHANGES_PROPOSED
from rightsizer.cli.options import wants_colour
from rightsizer.cli.session import Look, Session
from rightsizer.cli.telling import require_writable, save
from rightsizer.errors import UsageError
from rightsizer.report.document import plan_json
from rightsizer.report.forms import DRAWN, TABLE, form
from rightsizer.report.table import plan_text


def run(arguments: argparse.Namespace) -> int:
    """Make and print the plan."""
    require_writable(arguments.save)
    session = Session(arguments, _look(arguments))
    plan = session.observe()
    if arguments.output in DRAWN:
        plan = session.with_profiles(plan)
    accounts, prices = session.account(plan)
    if arguments.save:
        save(arguments.save, plan_json(plan, accounts, prices))
    if arguments.output == TABLE:
        text = plan_text(plan, accounts, prices, colour=wants_colour(arguments, sys.stdout))
    else:
        text = form(arguments.output)(plan, accounts, prices)
    sys.stdout.write(text)
    return CHANGES_PROPOSED if arguments.detailed_exitcode and plan.enforced else 0


def _look(arguments: argparse.Namespace) -> Look:
    """What the plan is to be about.

    Raises:
        UsageError: The time is none, or has no zone.
    """
    objects = pathlib.Path(arguments.cluster_objects) if arguments.cluster_objects else None
    if not arguments.at:
        return Look(objects=objects)
    try:
        at = datetime.datetime.fromisoformat(arguments.at)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise UsageError(f"--at {arguments.at}: write a time with its zone, such as 2026-11-20T18:00:00Z")
    return Look(at.astimezone(datetime.UTC), objects)
