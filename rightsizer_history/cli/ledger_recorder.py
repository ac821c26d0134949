"""Record of a cycle in the ledger of --ledger; a failure is a warning and never ends a cycle."""

import logging
from collections.abc import Sequence

from rightsizer.cli.options import LedgerOptions
from rightsizer.errors import ConfigurationError, UsageError
from rightsizer.model import ClusterName, Outcome, Plan
from rightsizer.prices import Prices
from rightsizer_history.ledger.entries import Bookkeeper, LedgerPeriod
from rightsizer_history.ledger.files import FLAG, ClusterLedger, is_cluster_name

log = logging.getLogger(__name__)


class LedgerRecorder:
    """Records the plans and outcomes of one cluster."""

    def __init__(self, ledger: ClusterLedger, team_label: str) -> None:
        self._ledger = ledger
        self._team_label = team_label

    def plan(self, plan: Plan, prices: Prices) -> None:
        """Record a plan for the time since the one before, and what became of earlier changes."""
        books = Bookkeeper(plan, prices, self._team_label)
        try:
            period = LedgerPeriod.until(plan.at, self._ledger.last(plan.at))
            self._ledger.write_usage(plan.at, plan.run, books.usage(period))
            self._ledger.write_changes(plan.at, plan.run, books.returns(period))
            self._ledger.merge(plan.at)
        except ConfigurationError as error:
            log.warning("this plan is not in the ledger: %s", error)
        except Exception:
            log.exception("this plan is not in the ledger: a bug in gpu-rightsizer, or a damaged file")

    def outcomes(self, plan: Plan, prices: Prices, outcomes: Sequence[Outcome]) -> None:
        """Record the changes that were made, with what verification saw."""
        made = list(Bookkeeper(plan, prices, self._team_label).changes(outcomes))
        if not made:
            return
        try:
            self._ledger.write_changes(max(change.at for change in made), plan.run, made)
        except ConfigurationError as error:
            log.warning("the changes of run %s are not in the ledger: %s", plan.run, error)


def recorder_of(ledger: str, arguments: LedgerOptions, cluster: ClusterName) -> LedgerRecorder:
    """The recorder that --ledger asks for.

    Raises:
        UsageError: The cluster has no name that could be a folder's.
        ConfigurationError: The ledger cannot be reached, or a library is missing.
    """
    name = arguments.cluster_name or cluster.context
    if not is_cluster_name(name):
        about = f'"{name[:80]}" cannot name a folder' if name else "a pod does not know its cluster's name"
        raise UsageError(
            f"{FLAG} needs --cluster-name: {about}; write letters, digits, -, _ and ., at most 63, such as prod-eu"
        )
    books = ClusterLedger(ledger, name)
    books.check()
    return LedgerRecorder(books, arguments.team_label)
