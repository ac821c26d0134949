"""`gpu-rightsizer plan`: judge every GPU workload and say what should happen. Only reads."""

import argparse
import sys

from rightsizer.cli.flags import CHANGES_PROPOSED
from rightsizer.cli.options import wants_colour
from rightsizer.cli.session import Session
from rightsizer.cli.telling import require_writable, save
from rightsizer.report.document import plan_json
from rightsizer.report.forms import TABLE, form
from rightsizer.report.table import plan_text


def run(arguments: argparse.Namespace) -> int:
    """Make and print the plan."""
    require_writable(arguments.save)
    session = Session(arguments)
    plan = session.observe().plan
    accounts, prices = session.account(plan)
    if arguments.save:
        save(arguments.save, plan_json(plan, accounts, prices))
    if arguments.output == TABLE:
        text = plan_text(plan, accounts, prices, colour=wants_colour(arguments, sys.stdout))
    else:
        text = form(arguments.output)(plan, accounts, prices)
    sys.stdout.write(text)
    return CHANGES_PROPOSED if arguments.detailed_exitcode and plan.enforced else 0
