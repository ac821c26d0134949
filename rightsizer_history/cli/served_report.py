"""The page of the ledger that `run` serves at /report: the last 30 days, computed when it is asked for."""

import datetime
import threading
import time
from collections.abc import Mapping

from rightsizer.cli.plan_session import utc_now
from rightsizer.errors import RightsizerError
from rightsizer_history.ledger import BY
from rightsizer_history.ledger.files import FLAG
from rightsizer_history.ledger.sums import LedgerReader, since_midnight
from rightsizer_history.report import LEDGER_FORMS, form

SPAN = datetime.timedelta(days=30)
_FRESH_S = 60.0
"""A page is computed again at most once in this time, however often it is asked for."""
_LONGEST_WAIT_S = 30.0


class ServedReport:
    """One page for each part that sums can be by; one is computed at a time."""

    def __init__(self, ledger: str | None) -> None:
        self._ledger = ledger
        self._lock = threading.Lock()
        self._pages: dict[str, tuple[float, str]] = {}

    def answer(self, query: Mapping[str, list[str]]) -> tuple[int, str]:
        """The HTTP status, and the page, or in words why there is none."""
        if unknown := sorted(query.keys() - {"by"}):
            words = (
                f"unknown parameter {unknown[0][:40]}: this page has only by, and the last {SPAN.days} days"
            )
            return 400, f"{words}; for other periods and clusters, use gpu-rightsizer report\n"
        by = query.get("by", ["namespace"])[0]
        if by not in BY:
            return 400, f"by must be one of {', '.join(BY)}\n"
        if not self._ledger:
            words = f"start run with {FLAG} DIR and --serve-report (chart: rightsizer.ledger)"
            return 404, f"no report is shown here: {words}; whoever reaches this port then sees it\n"
        if not self._lock.acquire(timeout=_LONGEST_WAIT_S):
            return 503, "another page is being computed; try again\n"
        try:
            at, page = self._pages.get(by, (0.0, ""))
            if not page or time.monotonic() - at > _FRESH_S:
                page = self._page(self._ledger, by)
                self._pages[by] = time.monotonic(), page
        except RightsizerError as error:
            return 503, f"{error}\n"
        finally:
            self._lock.release()
        return 200, page

    def _page(self, ledger: str, by: str) -> str:
        now = utc_now()
        with LedgerReader([ledger], since_midnight(now - SPAN), now) as reader:
            return form("html", LEDGER_FORMS)(reader.account(by), is_served=True)
