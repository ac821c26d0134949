"""Charges victims to the budgets before kube-scheduler hears of them, in a ConfigMap that outlives the process."""

import contextlib
import datetime
import logging
from collections.abc import Callable, Iterable

import msgspec

from rightsizer.changes.memory import NAMED_MAP
from rightsizer.errors import ConfigurationError, RightsizerError
from rightsizer.kinds.patches import record_of
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.configmaps import Changes, ConfigMap, Texts
from rightsizer.kube.watched import Connect
from rightsizer.model import FoundChange
from rightsizer.text import decoded
from rightsizer_extender.preemption import Preemptible

_KEY = "named.json"
_LONGEST = 768 << 10
"""Maximum size in bytes: some 1,800 victims."""
_DAY = datetime.timedelta(days=1)
"""The longest that a budget counts."""

log = logging.getLogger(__name__)


def read_charges(cluster: Cluster, namespace: str) -> str:
    """The text of the charges in the state namespace; empty without any.

    Raises:
        ClusterError: They could not be read.
    """
    return _map(cluster, namespace).read().get(_KEY, "")


def _map(cluster: Cluster, namespace: str) -> ConfigMap:
    return ConfigMap(cluster, namespace, NAMED_MAP, "what was named to kube-scheduler")


def parse_charges(text: str) -> dict[str, FoundChange]:
    """The charges of a day, by UID of the victim's first pod.

    Raises:
        ConfigurationError: Somebody edited them, and they are invalid.
    """
    try:
        return decoded(text, dict[str, FoundChange], longest=_LONGEST) if text else {}
    except ValueError as error:
        raise ConfigurationError(f"ConfigMap {NAMED_MAP}: {_KEY} {error}; delete it to forget it") from error


class VictimCharges:
    """Charges what is named between two plans, each of which allows no more than the budgets.

    Only if nobody else did meanwhile: the plan does not know of that.

    Args:
        connect: A connection; may raise RightsizerError.
        namespace: The state namespace.
        clock: The time now.
    """

    def __init__(self, connect: Connect, namespace: str, clock: Callable[[], datetime.datetime]) -> None:
        self._connect = connect
        self._namespace = namespace
        self._clock = clock
        self._run = self._known = self._problem = ""
        self._uids: set[str] = set()
        """UIDs of those since the plan: one victim may make room for several pods, and costs once."""

    def planned(self, run: str, known: str) -> None:
        """Go on from the charges that a new plan knows of."""
        self._run, self._known = run, known
        self._uids.clear()

    def charge(self, units: Iterable[Preemptible]) -> tuple[Preemptible, ...] | None:
        """Charge victims, and return those that were not yet charged; None if that failed: then none may be named."""
        fresh = tuple(unit for unit in units if unit.uid not in self._uids)
        try:
            if fresh:
                self._keep(fresh)
        except RightsizerError as error:
            if str(error) != self._problem:
                log.warning("nobody is named: no budget can be charged: %s", error)
            self._problem = str(error)
            return None
        self._uids |= {unit.uid for unit in fresh}
        return fresh

    def _keep(self, units: Iterable[Preemptible]) -> None:
        at = self._clock()
        kept = {uid: past for uid, past in parse_charges(self._known).items() if at - past.at < _DAY}
        for unit in units:
            workload, record = unit.decision.workload, record_of(unit.decision, (), run=self._run, at=at)
            kept[unit.uid] = FoundChange(workload.ref, record.summary, starter=workload.starter)
        text = msgspec.json.encode(kept).decode()
        if len(text) > _LONGEST:
            raise RightsizerError(f"{len(kept)} victims of a day fill ConfigMap {NAMED_MAP}")
        with contextlib.closing(self._connect()) as cluster:
            _map(cluster, self._namespace).change(lambda texts: self._changes(texts, text))
        self._known = text

    def _changes(self, texts: Texts, text: str) -> Changes:
        if texts.get(_KEY, "") != self._known:
            raise RightsizerError("the plan does not know of all that was named; the next one will")
        return {_KEY: text}
