"""`gpu-rightsizer report`: what the ledgers of one or many clusters say about a period. Reads only files."""

import datetime
import sys

from rightsizer.cli.connection import instant_of
from rightsizer.cli.plan_session import utc_now
from rightsizer.errors import UsageError
from rightsizer_history import report
from rightsizer_history.cli import ReportOptions
from rightsizer_history.ledger.files import FLAG
from rightsizer_history.ledger.sums import LedgerReader, since_midnight
from rightsizer_history.report.ledger import focus_csv

TURN_ON = (
    f"report needs {FLAG}: the directory or bucket in which run, plan and apply keep their cycles with the same flag "
    f"(variable GPU_RIGHTSIZER_LEDGER, chart: rightsizer.ledger)"
)


def run(arguments: ReportOptions) -> int:
    """Read, sum up, print. Nothing is changed."""
    if not arguments.ledgers:
        raise UsageError(TURN_ON)
    with reader_of(arguments, utc_now()) as reader:
        if arguments.output == report.CSV:
            sys.stdout.writelines(focus_csv(reader.charges()))
            for words in reader.problems:
                sys.stderr.write(f"{words}\n")
        else:
            account = reader.account(arguments.by)
            sys.stdout.write(report.form(arguments.output, report.LEDGER_FORMS)(account))
    return 0


def reader_of(arguments: ReportOptions, now: datetime.datetime) -> LedgerReader:
    """The ledgers of the flags, for their period.

    Raises:
        UsageError: The period is empty, or a time is invalid.
        ConfigurationError: A ledger cannot be read, or nothing was recorded.
    """
    end = now
    if arguments.until:
        last = since_midnight(
            instant_of("--until", arguments.until, now) - datetime.timedelta(microseconds=1)
        )
        end = min(last + datetime.timedelta(days=1), now)
    begin = since_midnight(instant_of("--since", arguments.since, now))
    if begin >= end:
        raise UsageError(f'--since "{arguments.since}": is after the end, {end:%Y-%m-%d %H:%M} UTC')
    return LedgerReader(arguments.ledgers, begin, end, arguments.clusters)
