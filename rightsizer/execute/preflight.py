"""The preflight check: reads the fleet's use and one workload again, right before the write.

It uses Prometheus's clock, as the plan does, so this machine's clock does not decide what is recent.
"""

import dataclasses
import datetime
from collections.abc import Callable, Iterator

from rightsizer.errors import EvidenceIncomplete
from rightsizer.findings.evidence import pod_key
from rightsizer.inventory.cluster_reader import read_cluster
from rightsizer.inventory.demand_kinds import NO_QUEUES, NamedQueues, demand_kind
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.object_names import api_path
from rightsizer.model import Decision, FindingName, Fleet, FoundChange, ObjectRef, Plan, Workload
from rightsizer.planning.measure import activity_with_boards, measure
from rightsizer.planning.revalidate import RECENT, Use, removes_replicas
from rightsizer.planning.usage_signal import Signal
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.schema import Policy


class UseSincePlan:
    """The fleet's use since the end of the plan's evidence.

    Args:
        signal: Measures use.
        clock: Prometheus's clock.
        plan: Its fleet is measured; its evidence is used until it is older than RECENT.
        policy: The policy of the plan.
        own: The namespace of gpu-rightsizer.
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
        every = PolicyEvaluator(policy, plan.fleet, at=plan.at, own=own).all_criteria()
        self._idle_before = max(rule.tooManyReplicas.idleBefore for rule in every)
        self._measured = plan.measured

    @property
    def recorded_changes(self) -> Iterator[FoundChange]:
        """The changes that objects recorded when the plan was made: preflight does not read them all."""
        return (change for change in self._fleet.changes if change.is_on_object)

    def with_neighbours(self, fleet: Fleet, namespace: str) -> Fleet:
        """A fleet that was read of one namespace, and what other namespaces held when the plan was made.

        Pods share nodes: a check of what a node's series leave open must not pass because its pods were not read.
        """
        others = (workload for workload in self._fleet.workloads if workload.ref.namespace != namespace)
        return dataclasses.replace(fleet, workloads=(*fleet.workloads, *others))

    def use(self, decision: Decision) -> Use:
        """The use since the plan; of what is stopped although it is active, also its other signals and requests.

        Evidence older than RECENT is measured again, with one set of queries for the whole fleet. So a gap in the
        samples since the plan, or power without activity, counts as it would in a new plan.

        Raises:
            PrometheusError: A query failed, or its result is incomplete.
        """
        now = self._clock()
        if now <= self._since:
            raise EvidenceIncomplete(
                f"Prometheus's clock has gone back, from {self._since + RECENT:%H:%M:%S} to {now:%H:%M:%S} UTC"
            )
        if now - self._measured.at > RECENT:
            evaluator = PolicyEvaluator(self._policy, self._fleet, at=now, own=self._own)
            self._measured = measure(self._fleet, self._signal, evaluator, now)
        plan = (self._measured, self._fleet)
        lately = now - self._since
        name, pods = decision.finding.name, [pod_key(pod) for pod in decision.workload.pods]
        return Use(
            at=now,
            measured=dataclasses.replace(self._measured, at=now),
            since=self._since,
            activity=activity_with_boards(self._signal, lately, now, plan=plan),
            recent=activity_with_boards(self._signal, RECENT, now, plan=plan, with_coverage=True),
            latest=self._signal.activity(self._idle_before, now) if removes_replicas(decision) else {},
            traffic=self._signal.usages(lately, now, of=pods) if name is FindingName.STUCK else {},
            requests=self._signal.serving(pods, lately, now) if name is FindingName.NO_REQUESTS else {},
        )


def is_pending(ref: ObjectRef, cluster: Cluster) -> bool:
    """Whether a pod, or an object of a queue, still waits.

    Raises:
        ClusterError: It could not be found out.
    """
    row = demand_kind(ref)
    if row is None:
        return False
    item = cluster.find(api_path(ref.api_version, ref.namespace, row.of.plural, ref.name), row.shape)
    return item is not None and item.metadata.uid == ref.uid and row.waits(item)


def read_workload(
    ref: ObjectRef, cluster: Cluster, *, is_whole: bool = False, queues: NamedQueues = NO_QUEUES
) -> tuple[Workload | None, Fleet]:
    """A workload as it is now (None if it holds no GPUs anymore), and the fleet: of its namespace, or the whole one.

    `queues` has the policy's labels of gangs.

    Raises:
        ClusterError: Something could not be read whole.
    """
    namespace = None if is_whole else ref.namespace
    fleet = build_fleet(read_cluster(cluster, (), namespace=namespace, queues=queues))
    place = (ref.namespace, ref.full_kind, ref.name)
    for workload in fleet.workloads:
        if (workload.ref.namespace, workload.ref.full_kind, workload.ref.name) == place:
            return workload, fleet
    return None, fleet
