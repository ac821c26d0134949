"""Price of a GPU-hour: by node from Prometheus, else by instance type, else by model. Pure.

A MIG instance costs its share of the card's compute slices, a time slice its share of the replicas. A request for
memory or cores (HAMi, gpushare) costs the larger share of the two; HAMi grants all memory without a request for it.
"""

import dataclasses
import datetime
import fnmatch
import importlib.resources
import pathlib
import re
from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic

from rightsizer import yamlfile
from rightsizer.errors import PricesError
from rightsizer.model import Node, Pod
from rightsizer.model.offers import ALIYUN_MEM, GPU, GPU_CORES, GPU_MEM, GPU_MEM_PERCENT
from rightsizer.yamlfile import FileKind

_PROFILE = re.compile(r"mig-(?P<slices>\d+)g\.")
_SLICES = 7
"""Compute slices of every card with more than four (NVIDIA MIG user guide, supported profiles)."""
_SLICES_OF = {"*A30*": 4, "*RTX?PRO?6000*": 4}

_MEMORY_UNITS = {GPU_MEM: 1 << 20, ALIYUN_MEM: 1 << 30}
"""Bytes per unit of these resources, on each GPU (HAMi, gpushare)."""
_PERCENTAGES = frozenset({GPU_MEM_PERCENT, GPU_CORES})
"""Resources in percent of each GPU (HAMi)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one GPU for one hour.

    Attributes:
        currency: Such as USD.
        source: Where the table comes from, for people.
        date: When it was looked up.
        models: By pattern of the model's name; the first that matches holds.
        instance_types: By `node.kubernetes.io/instance-type`.
        nodes: By name of the node, as Prometheus's `node_gpu_hourly_cost` (OpenCost) says.
    """

    currency: str
    source: str
    date: str
    models: Mapping[str, float]
    instance_types: Mapping[str, float] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def of_node(self, node: Node | None) -> float | None:
        """Price of a whole GPU of this node for an hour; None where nothing is known."""
        if node is None:
            return None
        known = self.nodes.get(node.name)
        if known is None:
            known = self.instance_types.get(node.instance_type)
        if known is None:
            known = next(
                (price for pattern, price in self.models.items() if fnmatch.fnmatchcase(node.model, pattern)),
                None,
            )
        return known

    def of_pod(self, pod: Pod, node: Node | None) -> float | None:
        """Price per hour of a pod's GPUs; None if unknown."""
        price = self.of_node(node)
        return None if price is None else price * whole_gpus(pod, node)


def whole_gpus(pod: Pod, node: Node | None) -> float:
    """GPUs held by a pod, with MIG instances and shares as fractions: never more than its devices."""
    amounts = {
        name: count for name, count in pod.resources.items() if name in _MEMORY_UNITS or name in _PERCENTAGES
    }
    is_hami = node is not None and node.sharing == "hami" and GPU in pod.resources
    if amounts.keys() == {GPU_CORES} or (is_hami and not amounts):
        return float(pod.devices)
    if amounts:
        return pod.devices * max(_of_each(name, count, node) for name, count in amounts.items())
    counted = sum(count * _part(resource, node) for resource, count in pod.resources.items())
    return min(float(pod.devices), counted)


def gpus_of_node(node: Node) -> float:
    """Whole GPUs in a node; without a label that says so, those that it offers."""
    if node.gpus is not None:
        return float(node.gpus)
    return sum(count * _part(resource, node) for resource, count in node.allocatable.items())


def _of_each(resource: str, count: int, node: Node | None) -> float:
    """An amount as a share of each GPU; 1 if the GPU's memory is unknown."""
    if resource in _PERCENTAGES:
        return min(1.0, count / 100)
    memory_bytes = node.memory_bytes if node else None
    return min(1.0, count * _MEMORY_UNITS[resource] / memory_bytes) if memory_bytes else 1.0


def _part(resource: str, node: Node | None) -> float:
    profile = mig_part(resource, node.model if node else "")
    if profile is not None:
        return profile
    if node is None or not node.sharing or not node.gpus:
        return 1.0
    offered = node.allocatable.get(resource, 0)
    return min(1.0, node.gpus / offered) if offered else 1.0


def mig_part(name: str, model: str) -> float | None:
    """The share of a GPU that a MIG profile is, by the name of a resource or profile; None if it names none."""
    profile = _PROFILE.search(name)
    if profile is None:
        return None
    of = next((of for pattern, of in _SLICES_OF.items() if fnmatch.fnmatchcase(model, pattern)), _SLICES)
    return min(1.0, int(profile["slices"]) / of)


HIGHEST = 10_000
"""Highest accepted price per GPU-hour; a higher one is probably a price per month or node."""

_Price = Annotated[float, pydantic.Field(gt=0, le=HIGHEST, allow_inf_nan=False)]
_Name = Annotated[str, pydantic.Field(min_length=1)]


def _date(text: str) -> str:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is not a date; write year, month and day, such as 2026-11-21"
        raise ValueError(message) from None
    return text


class PriceTable(pydantic.BaseModel):
    """The price table of a file; each price is for one GPU and one hour."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    apiVersion: Literal["gpu-rightsizer.io/v1alpha1"]
    kind: Literal["Prices"]
    currency: Annotated[str, pydantic.Field(pattern=r"^[A-Z]{3}$")] = "USD"
    source: _Name
    date: Annotated[str, pydantic.AfterValidator(_date)]
    models: dict[_Name, _Price] = {}
    instanceTypes: dict[_Name, _Price] = {}

    @pydantic.model_validator(mode="after")
    def _has_prices(self) -> "PriceTable":
        if not self.models and not self.instanceTypes:
            message = "has no price; give models, instanceTypes or both"
            raise ValueError(message)
        return self


KIND = FileKind(
    "price table",
    PriceTable,
    "apiVersion, kind, source, date, models",
    "docs/rightsizer.md",
    PricesError,
)
SHIPPED = "prices.yaml"


def load(path: pathlib.Path | None = None) -> Prices:
    """The prices of a file, or those that are shipped.

    Raises:
        ConfigurationError: The file cannot be read.
        PricesError: It is not a price table; carries all its problems.
    """
    if path is not None:
        return parse(yamlfile.read_bytes(path, KIND), source=str(path))
    raw = importlib.resources.files("rightsizer").joinpath(SHIPPED).read_bytes()
    return parse(raw, source=SHIPPED)


def parse(raw: bytes, *, source: str) -> Prices:
    """Turn the bytes of a price table into prices.

    Raises:
        PricesError: With every problem found.
    """
    table, _ = yamlfile.parse(raw, KIND, source=source)
    return Prices(
        currency=table.currency,
        source=table.source,
        date=table.date,
        models=table.models,
        instance_types=table.instanceTypes,
    )
