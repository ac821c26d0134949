"""What a GPU costs in an hour: by node where Prometheus knows, else by instance type, else by model. Pure.

A MIG instance costs its share of the card's compute slices, a time slice its share of the replicas, and what is asked
for by memory or cores (HAMi, gpushare) the larger share of the two; who asks HAMi for no memory gets all of it.
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
"""Compute slices of every card that can be cut in more than four (NVIDIA MIG user guide, supported profiles)."""
_SLICES_OF = {"*A30*": 4, "*RTX?PRO?6000*": 4}

_MEMORY_UNITS = {GPU_MEM: 1 << 20, ALIYUN_MEM: 1 << 30}
"""Bytes of one of what these count, of each GPU (HAMi, gpushare)."""
_PERCENTAGES = frozenset({GPU_MEM_PERCENT, GPU_CORES})
"""What counts hundredths of each GPU (HAMi)."""


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
        """Price of what a pod holds for an hour; None where nothing is known."""
        price = self.of_node(node)
        return None if price is None else price * whole_gpus(pod, node)


def whole_gpus(pod: Pod, node: Node | None) -> float:
    """What a pod holds, in whole GPUs, of which MIG instances and shares are parts: never more than its devices."""
    amounts = {
        name: count for name, count in pod.resources.items() if name in _MEMORY_UNITS or name in _PERCENTAGES
    }
    is_by_hami = node is not None and node.sharing == "hami" and GPU in pod.resources
    if amounts.keys() == {GPU_CORES} or (is_by_hami and not amounts):
        return float(pod.devices)
    if amounts:
        return pod.devices * max(_of_each(name, count, node) for name, count in amounts.items())
    counted = sum(count * _part(resource, node) for resource, count in pod.resources.items())
    return min(float(pod.devices), counted)


def _of_each(resource: str, count: int, node: Node | None) -> float:
    """Which part of each GPU an amount is; all of it where its memory is not known."""
    if resource in _PERCENTAGES:
        return min(1.0, count / 100)
    memory_bytes = node.memory_bytes if node else None
    return min(1.0, count * _MEMORY_UNITS[resource] / memory_bytes) if memory_bytes else 1.0


def _part(resource: str, node: Node | None) -> float:
    profile = _PROFILE.search(resource)
    if profile:
        model = node.model if node else ""
        of = next((of for pattern, of in _SLICES_OF.items() if fnmatch.fnmatchcase(model, pattern)), _SLICES)
        return min(1.0, int(profile["slices"]) / of)
    if node is None or not node.sharing or not node.gpus:
        return 1.0
    offered = node.allocatable.get(resource, 0)
    return min(1.0, node.gpus / offered) if offered else 1.0


_HIGHEST = 10_000
"""No GPU costs more in an hour, in any currency that has cents; what is above is a price per month or per node."""

_Price = Annotated[float, pydantic.Field(gt=0, le=_HIGHEST, allow_inf_nan=False)]
_Name = Annotated[str, pydantic.Field(min_length=1)]


def _date(text: str) -> str:
    try:
        datetime.date.fromisoformat(text)
    except ValueError:
        message = f"{text!r} is not a date; write year, month and day, such as 2026-11-21"
        raise ValueError(message) from None
    return text


class PriceTable(pydantic.BaseModel):
    """A price table, as it stands in a file; every price is for one GPU and one hour."""

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
