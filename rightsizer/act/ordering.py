"""Orders to controllers that obey objects of their own: given after the record was written, so that none is lost."""

from rightsizer.errors import RequestRefused
from rightsizer.model import ObjectRef
from rightsizer.observe.cluster import Cluster
from rightsizer.workloads.kind import Orders
from rightsizer.workloads.orders import order


def give(
    cluster: Cluster, orders: Orders, ref: ObjectRef, *, verb: str, run: str, dry_run: bool = False
) -> None:
    """Order something about a workload; what this run has ordered already is not ordered twice.

    Raises:
        ClusterError: The API server refuses, or does not answer.
    """
    collection, body = order(orders, ref, verb, run=run)
    try:
        cluster.create(collection, body, dry_run=dry_run)
    except RequestRefused as refused:
        if refused.reason != "AlreadyExists":
            raise
