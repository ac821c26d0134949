"""The last look: the fleet's use and one workload, read again right before it is written to.

Its clock is Prometheus's, by which the plan was made: what this machine believes the time to be has no say in what
counts as recent.
"""

import dataclasses
import datetime
from collections.abc import Callable, Iterator, Mapping, Sequence

from rightsizer.errors import EvidenceIncomplete
from rightsizer.inventory.cluster_reader import read_cluster
from rightsizer.inventory.stranded_gpus import is_unschedulable
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kinds import RECORDABLE_KINDS
from rightsizer.kube.api_objects import PodObject
from rightsizer.kube.cluster import Cluster
from rightsizer.model import Fleet, FoundChange, ObjectRef, Plan, Workload
from rightsizer.planning.measure import Signal, measure
from rightsizer.planning.revalidate import RECENT, Use
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.schema import Policy


class UseSincePlan:
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

    @property
    def fleet(self) -> Fleet:
        """As the plan was made for it."""
        return self._fleet

    @property
    def told(self) -> Iterator[FoundChange]:
        """What objects told of when the plan was made: a last look reads neither manifests nor what holds no GPUs."""
        return (change for change in self._fleet.changes if change.is_on_object)

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
            rulebook = PolicyEvaluator(self._policy, self._fleet, at=now, own=self._own)
            self._measured = measure(self._fleet, self._signal, rulebook, now)
        return Use(
            at=now,
            measured=dataclasses.replace(self._measured, at=now),
            since=self._since,
            activity=self._signal.activity(now - self._since, now),
            recent=self._signal.activity(RECENT, now, with_coverage=True),
        )


def any_pending(pods: Sequence[ObjectRef], cluster: Cluster) -> bool:
    """Whether one of these pods still waits for a place.

    Raises:
        ClusterError: It could not be found out.
    """
    for ref in pods:
        item = cluster.find(f"/api/v1/namespaces/{ref.namespace}/pods/{ref.name}", PodObject)
        if item is not None and item.metadata.uid == ref.uid and is_unschedulable(item):
            return True
    return False


def read_workload(
    ref: ObjectRef, cluster: Cluster, *, beside: Fleet | None = None
) -> tuple[Workload | None, Fleet]:
    """A workload as it is now, None where it holds no GPUs any more, and what is around it.

    Args:
        ref: The workload.
        cluster: Where it is.
        beside: Where it matters what all nodes have free: the fleet as it was planned for, whose pods of other
            namespaces, those that wait, and quotas count as they were then.

    Raises:
        ClusterError: Something could not be read whole.
    """
    objects = read_cluster(cluster, RECORDABLE_KINDS, namespace=ref.namespace, all_nodes=beside is not None)
    fleet = build_fleet(objects)
    if beside is not None:
        others = {
            node: tuple(pod for pod in pods if pod.ref.namespace != ref.namespace)
            for node, pods in beside.pods_on.items()
        }
        spare = {node: _least(left, beside.spare.get(node, left)) for node, left in fleet.spare.items()}
        fleet = dataclasses.replace(
            fleet, elsewhere=others, waiting=beside.waiting, spare=spare, quotas=beside.quotas
        )
    named = [
        workload
        for workload in fleet.workloads
        if (workload.ref.full_kind, workload.ref.name) == (ref.full_kind, ref.name)
    ]
    return (named[0] if named else None), fleet


def _least(now: Mapping[str, int], then: Mapping[str, int]) -> dict[str, int]:
    """Of each resource what was free at both times: now only the pods of one namespace are known."""
    return {name: min(left, then.get(name, left)) for name, left in now.items()}
