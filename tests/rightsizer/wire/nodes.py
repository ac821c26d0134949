"""The nodes of a random cluster: whole GPUs in plenty; MIG instances, and amounts by HAMi, for many, few or none."""

import json
import random
from collections.abc import Iterator, Mapping

from tests.rightsizer.given import H100
from tests.rightsizer.wire.amounts import CORES, GPU, GPU_MIB, MEMORY
from tests.rightsizer.wire.recorder import Object


def nodes(dice: random.Random) -> Iterator[Object]:
    """All of them."""
    for number in range(5):
        yield _node(f"n{number}", {GPU: 640})
    instances = {
        "nvidia.com/mig-1g.10gb": dice.choice([0, 2, 5, 12]),
        "nvidia.com/mig-3g.40gb": dice.choice([3, 20]),
    }
    yield _node("mig", instances, labels={"nvidia.com/gpu.product": H100.replace(" ", "-")})
    gpus = dice.choice([1, 2, 8])
    card = {"count": 10, "devmem": GPU_MIB, "devcore": 100, "type": H100, "health": True}
    register = json.dumps([{"id": f"GPU-{number}", **card} for number in range(gpus)])
    amounts = {GPU: 10 * gpus, MEMORY: GPU_MIB * gpus, CORES: 100 * gpus}
    yield _node("hami", amounts, annotations={"hami.io/node-nvidia-register": register})


def _node(name: str, gpus: Mapping[str, int], **meta: Mapping[str, str]) -> Object:
    amounts = {"cpu": "512", "memory": "4Ti", "pods": "500", **{key: str(gpus[key]) for key in gpus}}
    status = {"capacity": amounts, "allocatable": amounts}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, **meta}, "status": status}
