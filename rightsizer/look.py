"""The last look: the fleet's use and one workload, read again right before it is written to.

Its clock is Prometheus's, by which the plan was made: what this machine believes the time to be has no say in what
counts as recent.
"""

import dataclasses
import datetime
from collections.abc import Callable

from rightsizer.errors import EvidenceIncomplete
from rightsizer.measure import Signal, measure
from rightsizer.model import Fleet, ObjectRef, Plan, Workload
from rightsizer.observe import inventory
from rightsizer.observe.cluster import Cluster
from rightsizer.policy.document import Policy
from rightsizer.policy.rules import Rulebook
from rightsizer.validate import RECENT, Use
from rightsizer.workloads import KINDS


class Watch:
    """The fleet's use, followed from where the plan's evidence ended for as long as a run takes.

    Args:
        signal: Where use is measured.
        clock: Prometheus's clock.
        plan: Its fleet is asked about; its evidence holds while it is young.
        policy: What the plan was made by.
        own: The namespace in which we run.
    """

    def __init__(
        self,
        signal: Signal,
        clock: Callable[[], datetime.datetime],
        plan: Plan,
        *,
        policy: Policy,
        own: str,
    ) -> None:
        assert plan.measured and plan.fleet  # noqa: S101, PT018 - it was made a moment ago
        self._signal = signal
        self._clock = clock
        self._fleet = plan.fleet
        self._policy = policy
        self._own = own
        self._since = plan.at - RECENT
        self._measured = plan.measured

    def use(self) -> Use:
        """Everything since the plan, however long ago that was.

        The plan's evidence is measured anew once it is older than RECENT (one set of queries for the whole fleet), so
        that a gap in the samples since the plan, or power without activity, counts as it would in a plan of now.

        Raises:
            PrometheusError: Something could not be read whole.
        """
        now = self._clock()
        if now <= self._since:
            raise EvidenceIncomplete(
                f"Prometheus's clock has gone back, from {self._since + RECENT:%H:%M:%S} to {now:%H:%M:%S} UTC"
            )
        if now - self._measured.at > RECENT:
            rulebook = Rulebook(self._policy, self._fleet, at=now, own=self._own)
            self._measured = measure(self._fleet, self._signal, rulebook, now)
        return Use(
            at=now,
            measured=dataclasses.replace(self._measured, at=now),
            since=self._since,
            activity=self._signal.activity(now - self._since, now),
            recent=self._signal.activity(RECENT, now),
        )


def look_at(ref: ObjectRef, cluster: Cluster) -> tuple[Workload | None, Fleet]:
    """A workload as it is now, None where it holds no GPUs any more, and what is around it.

    Raises:
        ClusterError: Something could not be read whole.
    """
    objects = inventory.read(cluster, KINDS, namespace=ref.namespace)
    fleet = inventory.assemble(objects)
    named = [
        workload
        for workload in fleet.workloads
        if (workload.ref.full_kind, workload.ref.name) == (ref.full_kind, ref.name)
    ]
    return (named[0] if named else None), fleet
