"""The last look: the fleet's use and one workload, read again right before it is written to.

Its clock is Prometheus's, by which the plan was made: what this machine believes the time to be has no say in what
counts as recent.
"""

import dataclasses
import datetime
from collections.abc import Callable

from rightsizer.errors import EvidenceIncomplete
from rightsizer.measure import Signal
from rightsizer.model import Fleet, Measured, ObjectRef, Workload
from rightsizer.observe import inventory
from rightsizer.observe.cluster import Cluster
from rightsizer.validate import RECENT, Use
from rightsizer.workloads import KINDS


class Watch:
    """The fleet's use, followed from where the plan's evidence ended for as long as a run takes.

    Args:
        signal: Where use is measured.
        clock: Prometheus's clock.
        planned_at: The end of the plan's evidence, by the same clock.
        measured: That evidence.
    """

    def __init__(
        self,
        signal: Signal,
        clock: Callable[[], datetime.datetime],
        *,
        planned_at: datetime.datetime,
        measured: Measured,
    ) -> None:
        self._signal = signal
        self._clock = clock
        self._since = planned_at - RECENT
        self._measured_at = planned_at
        self._measured = measured

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
        if now - self._measured_at > RECENT:
            usages = {window: self._signal.usages(window, now) for window in sorted(self._measured.usages)}
            self._measured = dataclasses.replace(self._measured, usages=usages)
            self._measured_at = now
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
