"""People who agree to everything, and keep what a cycle reports."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from rightsizer.execute.reconcile import Reconciliation
from rightsizer.execute.run_context import Deadline
from rightsizer.model import Decision, Outcome, Plan
from rightsizer.prices import Prices


class Readers:
    """Those who read the log of `run`.

    Args:
        deadline: Until when effects are waited for.
    """

    def __init__(self, deadline: Deadline) -> None:
        self.outcomes: list[Outcome] = []
        self._deadline = deadline

    def agrees(self, rollbacks: Sequence[Reconciliation]) -> bool:
        """Yes, as with --yes."""
        del rollbacks
        return True

    def reconciled(self, outcomes: Iterable[Outcome]) -> None:
        """All of them."""
        self.outcomes += outcomes

    def chosen(self, plan: Plan, prices: Prices) -> Sequence[Decision]:
        """All that rules enforce."""
        del prices
        return plan.enforced

    def changed(self, steps: Callable[[Deadline], Iterator[Outcome]], pending: list[Outcome]) -> None:
        """All of them, with their effects."""
        del pending
        self.outcomes += steps(self._deadline)
