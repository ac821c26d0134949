"""Which workload, and which of its replicas, a pod's name stands for.

Replacement pods have new names, but must behave like their predecessors: a pod takes the lowest free ordinal.
"""

import threading
from collections.abc import Iterable

from simulator.spec import Archetype, Kind, WorkloadSpec
from simulator.workloads.archetypes import Actor

NAME_LABEL = "app.kubernetes.io/name"
"""Pods carry their workload's name under this label."""


class Population:
    """The workloads of a cluster and the pods seen of them. Safe to use from several threads."""

    def __init__(self, workloads: Iterable[WorkloadSpec], *, seed: int) -> None:
        self._seed = seed
        self._workloads = {(spec.namespace, spec.name): spec for spec in workloads}
        self._ordinals: dict[tuple[str, str], dict[str, int]] = {}
        self._lock = threading.Lock()

    def workload(self, namespace: str, name: str, *, pod: str, gpus: int) -> WorkloadSpec:
        """The workload `name`; a pod of none that is known trains steadily on all of its `gpus`."""
        stranger = WorkloadSpec(Kind.POD, namespace, pod, Archetype.TRAIN_STEADY, gpus=gpus)
        return self._workloads.get((namespace, name), stranger)

    def join(self, spec: WorkloadSpec, pod: str) -> int:
        """The ordinal of `pod` among the pods of `spec`; the same for as long as it does not leave."""
        with self._lock:
            taken = self._ordinals.setdefault((spec.namespace, spec.name), {})
            if pod not in taken:
                taken[pod] = next(n for n in range(len(taken) + 1) if n not in taken.values())
            return taken[pod]

    def leave(self, spec: WorkloadSpec, pod: str) -> None:
        """`pod` is gone."""
        with self._lock:
            self._ordinals.get((spec.namespace, spec.name), {}).pop(pod, None)

    def actors(self, spec: WorkloadSpec, pod: str, *, start_s: float) -> list[Actor]:
        """The devices of `pod`, which started at `start_s`, as actors."""
        ordinal = self.join(spec, pod)
        return [Actor(self._seed, spec, ordinal, device, start_s) for device in range(spec.gpus)]
