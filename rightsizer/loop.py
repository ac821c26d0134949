"""A cycle on one screen: observe → assess → decide. What follows (look again, apply) starts from its plan."""

import collections
import dataclasses
import datetime
import logging
from typing import Protocol

from rightsizer.config import format_duration
from rightsizer.decide import decide, windows
from rightsizer.model import Plan, Usages, UsagesByWindow
from rightsizer.observe import inventory
from rightsizer.observe.cluster import Cluster
from rightsizer.policy.checks import require_classes
from rightsizer.policy.reading import LoadedPolicy
from rightsizer.report.words import count
from rightsizer.workloads import KINDS

log = logging.getLogger(__name__)


class Signal(Protocol):
    """A source of usage."""

    def usages(self, window: datetime.timedelta, at: datetime.datetime) -> Usages:
        """Usage of every device by every pod in the window that ends at `at`."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Observed:
    """A plan with what it was made from."""

    plan: Plan
    usages: UsagesByWindow


def make_plan(
    cluster: Cluster, signal: Signal, loaded: LoadedPolicy, *, at: datetime.datetime, run: str
) -> Observed:
    """Read the world and decide about all of it.

    Raises:
        PolicyError: The policy names what the cluster does not have.
        ClusterError, PrometheusError: Something could not be read whole; then there is no plan.
    """
    objects = inventory.read(cluster, KINDS)
    require_classes(loaded, objects.priority_classes)
    workloads = inventory.assemble(objects).workloads
    pods = sum(len(workload.pods) for workload in workloads)
    log.info("%s of %s ask for GPUs", count(pods, "pod"), count(len(workloads), "workload"))
    usages = {window: _usages(signal, window, at) for window in sorted(windows(loaded.policy))}
    plan = Plan(at, run, loaded.source, loaded.digest, decide(workloads, usages, loaded.policy, at))
    _log_decisions(plan)
    return Observed(plan, usages)


def _usages(signal: Signal, window: datetime.timedelta, at: datetime.datetime) -> Usages:
    usages = signal.usages(window, at)
    devices = sum(map(len, usages.values()))
    span = format_duration(window.total_seconds())
    log.info("window %s: usage of %s by %s", span, count(devices, "device"), count(len(usages), "pod"))
    return usages


def _log_decisions(plan: Plan) -> None:
    for decision in plan.decisions:
        ref, verdict, finding = decision.workload.ref, decision.verdict.value, decision.finding.name.value
        log.debug("%s: %s, %s, rule %s", ref, verdict, finding, decision.rule)
    counts = collections.Counter(decision.verdict for decision in plan.decisions)
    told = ", ".join(f"{number} {verdict.value}" for verdict, number in sorted(counts.items()))
    judged = count(len(plan.decisions), "workload")
    log.info("%s judged: %s; %d to be stopped", judged, told or "none", len(plan.enforced))
