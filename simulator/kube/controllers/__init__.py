"""Level-triggered controllers, one per file; `loop` runs them. They change objects only through the registry."""

from collections.abc import Callable

from simulator.kube.controllers.budgets import Budgets
from simulator.kube.controllers.context import Context, Controller
from simulator.kube.controllers.deployments import Deployments, ReplicaSets
from simulator.kube.controllers.garbage import GarbageCollector
from simulator.kube.controllers.jobs import Jobs
from simulator.kube.controllers.namespaces import Namespaces, Quotas
from simulator.kube.controllers.operators import KueueAndKeda, Operators
from simulator.kube.controllers.podlifecycle import PodLifecycle
from simulator.kube.controllers.scheduler import Scheduler
from simulator.kube.controllers.statefulsets import StatefulSets

CONTROLLERS: tuple[Callable[[Context], Controller], ...] = (
    Namespaces,
    GarbageCollector,
    Deployments,
    ReplicaSets,
    StatefulSets,
    Jobs,
    Operators,
    KueueAndKeda,
    Scheduler,
    PodLifecycle,
    Budgets,
    Quotas,
)
