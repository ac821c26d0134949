"""`gpu-rightsizer history`: changes and how they ended."""

import datetime
import logging
from collections.abc import Sequence

from rightsizer.changes.memory import change_key
from rightsizer.cli.connection import cluster_settings, instant_of
from rightsizer.cli.flags import HistoryOptions
from rightsizer.cli.plan_session import policy_of, utc_now
from rightsizer.cli.reporter import show
from rightsizer.errors import ClusterError, UsageError
from rightsizer.execute.listing import list_changes, list_events, read_memory
from rightsizer.execute.notify import notify_of_changes
from rightsizer.kube.cluster import Cluster
from rightsizer.model import FoundChange, ObjectRef
from rightsizer.report.outcomes import history_document, history_text

log = logging.getLogger(__name__)


def run(arguments: HistoryOptions) -> int:
    """Read, choose, print. Nothing is changed."""
    since = instant_of("--since", arguments.since, utc_now()) if arguments.since else None
    if arguments.workload and arguments.workload.count("/") != 2:  # noqa: PLR2004 - what it is written with
        raise UsageError(f"{arguments.workload}: write NAMESPACE/KIND/NAME, as history lists them")
    if arguments.notify and (since is None or not arguments.policy):
        raise UsageError("--notify: give --since, such as 1d, and --policy")
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
    is_chosen = bool(arguments.workload or arguments.run or since)
    text = history_text(items, told, is_chosen=is_chosen)
    show(arguments, text, history_document(items, told), cluster=cluster.name)
    if arguments.notify and since is not None:
        _send_digest(arguments, cluster, items, since)
    return 0


def _send_digest(
    arguments: HistoryOptions, cluster: Cluster, items: Sequence[FoundChange], since: datetime.datetime
) -> None:
    """Send the changes that the memory has: whoever may change an object may write others into it."""
    policy = policy_of(arguments).policy
    memory = read_memory(cluster, arguments.state_namespace)
    if memory is None:
        raise ClusterError("--notify: the ConfigMaps with earlier changes cannot be read; see doctor --roles")
    known = [item for item in items if change_key(item.record.run, item.ref) in memory.by_run]
    name = arguments.cluster_name or cluster.name.words
    for problem in notify_of_changes(policy.notifications, name, known, since):
        log.warning("%s", problem)


def _is_meant(arguments: HistoryOptions, ref: ObjectRef) -> bool:
    return not arguments.workload or str(ref) == arguments.workload
