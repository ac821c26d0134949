"""`gpu-rightsizer plan`: judge every GPU workload and say what should happen. Only reads."""

import argparse
import sys

from rightsizer.cli.flags import CHANGES_PROPOSED
from rightsizer.cli.options import wants_colour
from rightsizer.cli.session import Session
from rightsizer.cli.telling import require_writable, save
from rightsizer.report.document import plan_document, render
from rightsizer.report.table import plan_text


def run(arguments: argparse.Namespace) -> int:
    """Make and print the plan."""
    require_writable(arguments.save)
    plan = Session(arguments).observe().plan
    document = plan_document(plan)
    save(arguments.save, render(document, "json"))
    if arguments.output == "table":
        sys.stdout.write(plan_text(plan, colour=wants_colour(arguments, sys.stdout)))
    else:
        sys.stdout.write(render(document, arguments.output))
    return CHANGES_PROPOSED if arguments.detailed_exitcode and plan.enforced else 0
