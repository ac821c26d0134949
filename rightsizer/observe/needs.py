"""What pods ask for besides GPUs: CPU, memory and a place on a node. Pure; every pod of the cluster comes through here.

https://kubernetes.io/docs/concepts/workloads/pods/init-containers/#resource-sharing-within-containers
"""

import functools
import math
from collections.abc import Mapping

from rightsizer.observe.objects import Container, PodSpec
from rightsizer.observe.quantity import parse_quantity

_SCALES = {"cpu": 1000, "memory": 1}


def needs_of(spec: PodSpec) -> dict[str, int]:
    """CPU in thousandths of a core, memory in bytes, and one of "pods"."""
    needs = {"pods": 1}
    whole = (spec.resources.requests if spec.resources else None) or {}
    for name in _SCALES:
        amount = whole.get(name)
        need = _requested(spec, name) if amount is None else amount_of(name, amount)
        needs[name] = need + amount_of(name, (spec.overhead or {}).get(name))
    return needs


def room_of(allocatable: Mapping[str, str | int]) -> dict[str, int]:
    """What a node has, in the same units."""
    return {
        name: amount_of(name, allocatable[name]) for name in ("cpu", "memory", "pods") if name in allocatable
    }


@functools.lru_cache(maxsize=8192)
def amount_of(name: str, amount: str | int | None) -> int:
    """A quantity in the unit that its resource is counted in here, rounded up; what cannot be read counts as none."""
    if amount is None:
        return 0
    try:
        return math.ceil(parse_quantity(amount) * _SCALES.get(name, 1))
    except ValueError:
        return 0


def _requested(spec: PodSpec, name: str) -> int:
    """The most at any one time: an init container runs beside the sidecars before it, the others beside all."""
    sidecars, most = 0, 0
    for one in spec.init_containers or ():
        need = _request(one, name)
        if one.restart_policy == "Always":
            sidecars += need
            most = max(most, sidecars)
        else:
            most = max(most, sidecars + need)
    return max(most, sidecars + sum([_request(one, name) for one in spec.containers]))


def _request(one: Container, name: str) -> int:
    requests = one.resources.requests
    return amount_of(name, requests[name]) if requests and name in requests else 0
