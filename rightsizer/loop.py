"""A cycle on one screen: observe → assess → decide. What follows (look again, apply) starts from its plan."""

import dataclasses
import datetime
from typing import Protocol

from rightsizer.decide import UsagesByWindow, decide, windows
from rightsizer.model import Plan, Usages
from rightsizer.observe import inventory
from rightsizer.observe.cluster import Cluster
from rightsizer.policy.checks import require_classes
from rightsizer.policy.reading import LoadedPolicy
from rightsizer.workloads import KINDS


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
    usages = {window: signal.usages(window, at) for window in sorted(windows(loaded.policy))}
    decisions = decide(inventory.assemble(objects), usages, loaded.policy, at)
    return Observed(Plan(at, run, loaded.source, loaded.digest, decisions), usages)
