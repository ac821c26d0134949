"""`gpu-rightsizer history`: changes and how they ended, from the cluster or from a journal."""

import argparse
import datetime
import pathlib

from rightsizer.changes.record_codec import JournalEntry
from rightsizer.cli.connection import cluster_settings, instant_of
from rightsizer.cli.plan_session import utc_now
from rightsizer.cli.reporter import show
from rightsizer.errors import UsageError
from rightsizer.execute.journal import read_journal
from rightsizer.execute.listing import list_changes, list_events
from rightsizer.kube.cluster import Cluster
from rightsizer.model import ObjectRef
from rightsizer.report.outcomes import history_document, history_text, journal_document, journal_text


def run(arguments: argparse.Namespace) -> int:
    """Read, choose, print. Nothing is changed."""
    since = instant_of("--since", arguments.since, utc_now()) if arguments.since else None
    if arguments.workload and arguments.workload.count("/") != 2:  # noqa: PLR2004 - what it is written with
        raise UsageError(f"{arguments.workload}: write NAMESPACE/KIND/NAME, as history lists them")
    (_show_journal if arguments.journal else _show_cluster)(arguments, since)
    return 0


def _show_cluster(arguments: argparse.Namespace, since: datetime.datetime | None) -> None:
    cluster = Cluster(cluster_settings(arguments))
    items = [
        item
        for item in list_changes(cluster, arguments.state_namespace)
        if any(_is_meant(arguments, ref) for ref in (item.ref, item.carrier) if ref)
        and (not arguments.run or item.record.run == arguments.run)
        and (since is None or item.at >= since)
    ]
    told = [
        event
        for event in list_events(cluster)
        if _is_meant(arguments, event.ref)
        and (not arguments.run or arguments.run in event.message)
        and (since is None or event.at >= since)
    ]
    show(arguments, history_text(items, told), history_document(items, told))


def _is_meant(arguments: argparse.Namespace, ref: ObjectRef) -> bool:
    return not arguments.workload or str(ref) == arguments.workload


def _show_journal(arguments: argparse.Namespace, since: datetime.datetime | None) -> None:
    steps: list[JournalEntry] = []
    problems: list[str] = []
    for line in read_journal(pathlib.Path(arguments.journal)):
        if isinstance(line, str):
            problems.append(line)
        elif (
            (not arguments.workload or f"{line.namespace}/{line.kind}/{line.name}" == arguments.workload)
            and (not arguments.run or line.run == arguments.run)
            and (since is None or line.at >= since)
        ):
            steps.append(line)
    show(arguments, journal_text(steps, problems), journal_document(steps, problems))
