"""The ledger as `plan`, `apply` and `run` use it; another package keeps it, and the program's entry hands it in."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from rightsizer.cli.options import LedgerOptions
from rightsizer.model import ClusterName, Outcome, Plan

if TYPE_CHECKING:  # --help and completions would wait for it
    from rightsizer.prices import Prices

Page = Callable[[Mapping[str, list[str]]], tuple[int, str]]
"""From the parameters of a request to the HTTP status and the text."""


class CycleRecorder(Protocol):
    """Records plans and outcomes; a failure is logged and never ends a cycle."""

    def plan(self, plan: Plan, prices: "Prices") -> None:
        """Record a plan."""
        ...

    def outcomes(self, plan: Plan, prices: "Prices", outcomes: Sequence[Outcome]) -> None:
        """Record the changes that were made."""
        ...


class LedgerParts(Protocol):
    """Makes the parts of the ledger; imports what they need only then."""

    def recorder(self, arguments: LedgerOptions, cluster: ClusterName) -> CycleRecorder | None:
        """The recorder that --ledger asks for; None without it.

        Raises:
            UsageError: The cluster has no name that could be a folder's.
            ConfigurationError: The ledger cannot be reached, or a library is missing.
        """
        ...

    def page(self, ledger: str | None, *, is_shown: bool) -> Page:
        """The page of a ledger that `run` serves if it is to be shown, else how to turn it on.

        Raises:
            UsageError: It is to be shown, and there is no ledger.
        """
        ...
