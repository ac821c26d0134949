"""Price of a GPU-hour: by node from Prometheus, else by the node's labels, cloud, instance type or model. Pure."""

import dataclasses
import datetime
import fnmatch
import functools
import importlib.resources
import pathlib
from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic

from rightsizer import yamlfile
from rightsizer.errors import PricesError
from rightsizer.model import Node, Pod
from rightsizer.model.gpu_fractions import whole_gpus
from rightsizer.yamlfile import FileKind


@dataclasses.dataclass(frozen=True, slots=True)
class PriceSource:
    """Where a price comes from, for people.

    Attributes:
        name: Such as a vendor's list.
        date: When it was looked up; empty for a live metric.
        region: Of a cloud; empty elsewhere.
    """

    name: str
    date: str = ""
    region: str = ""

    def __str__(self) -> str:
        """In one line."""
        return ", ".join(filter(None, (self.name, self.region, self.date)))

    def fits(self, node: Node) -> bool:
        """Whether the node is in the list's region, and not spot: a list of a region has prices without discounts."""
        is_elsewhere = node.region not in {"", self.region} and self.region != ALL_REGIONS
        return not self.region or not (node.is_spot or is_elsewhere)


ALL_REGIONS = "all regions"
"""The region of a list whose prices are the same in all of them."""
OPENCOST = PriceSource("OpenCost")


@dataclasses.dataclass(frozen=True, slots=True)
class PriceList:
    """Prices of one source.

    Attributes:
        models: By pattern of the model's name; the first that matches holds.
        instance_types: By `node.kubernetes.io/instance-type`; they hold before those of models.
        node_selector: Only for nodes that have all of these labels, such as those of a region, a contract or spot.
    """

    source: PriceSource
    models: Mapping[str, float] = dataclasses.field(default_factory=dict)
    instance_types: Mapping[str, float] = dataclasses.field(default_factory=dict)
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def of_node(self, node: Node) -> float | None:
        """The price of a whole GPU of this node for an hour; None if the list has none."""
        if any(node.labels.get(key) != value for key, value in self.node_selector.items()):
            return None
        matching = (
            price for pattern, price in self.models.items() if fnmatch.fnmatchcase(node.model, pattern)
        )
        return self.instance_types.get(node.instance_type, next(matching, None))


@dataclasses.dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one GPU for one hour.

    Attributes:
        currency: Such as USD.
        source: Where the table comes from, for people.
        date: When it was looked up.
        models: By pattern of the model's name; the first that matches holds. Not for nodes of `clouds`.
        instance_types: By `node.kubernetes.io/instance-type`.
        nodes: By name of the node, as Prometheus's `node_gpu_hourly_cost` (OpenCost) says.
        clouds: By cloud of the node.
        selected: By labels of the node; the first that has a price holds, before all but `nodes`.
        rest: For nodes of which this table says nothing.
    """

    currency: str
    source: str
    date: str
    models: Mapping[str, float]
    instance_types: Mapping[str, float] = dataclasses.field(default_factory=dict)
    nodes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    clouds: Mapping[str, PriceList] = dataclasses.field(default_factory=dict)
    selected: tuple[PriceList, ...] = ()
    rest: "Prices | None" = None

    def of_node(self, node: Node | None) -> float | None:
        """Price of a whole GPU of this node for an hour; None where nothing is known."""
        found = self.find(node)
        return found[0] if found else None

    def find(self, node: Node | None) -> tuple[float, PriceSource] | None:
        """The price of a whole GPU of this node for an hour, and its source; None where nothing is known."""
        if node is None:
            return None
        if node.name in self.nodes:
            return self.nodes[node.name], OPENCOST
        cloud = [self.clouds[node.cloud]] if node.cloud in self.clouds else []
        own = PriceList(
            PriceSource(self.source, self.date), {} if cloud else self.models, self.instance_types
        )
        for prices in (*self.selected, own, *cloud):
            if (price := prices.of_node(node)) is not None:
                return price, prices.source
        return self.rest.find(node) if self.rest else None

    def of_pod(self, pod: Pod, node: Node | None) -> float | None:
        """Price per hour of a pod's GPUs; None if unknown."""
        price = self.of_node(node)
        return None if price is None else price * whole_gpus(pod, node)


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


_Date = Annotated[str, pydantic.AfterValidator(_date)]


class CloudTable(pydantic.BaseModel):
    """A cloud's prices in a file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    source: _Name
    date: _Date
    region: _Name
    instanceTypes: Annotated[dict[_Name, _Price], pydantic.Field(min_length=1)]


class CloudTables(pydantic.BaseModel):
    """The clouds that a node's providerID can name."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    aws: CloudTable | None = None
    azure: CloudTable | None = None
    gcp: CloudTable | None = None
    oci: CloudTable | None = None


class SelectedTable(pydantic.BaseModel):
    """The prices of some nodes in a file."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    nodeSelector: Annotated[dict[_Name, str], pydantic.Field(min_length=1)]
    source: _Name | None = None
    date: _Date | None = None
    models: dict[_Name, _Price] = {}
    instanceTypes: dict[_Name, _Price] = {}

    @pydantic.model_validator(mode="after")
    def _has_prices(self) -> "SelectedTable":
        if not self.models and not self.instanceTypes:
            message = "has no price; give models, instanceTypes or both"
            raise ValueError(message)
        return self


class PriceTable(pydantic.BaseModel):
    """The price table of a file; each price is for one GPU and one hour."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    apiVersion: Literal["gpu-rightsizer.io/v1alpha1"]
    kind: Literal["Prices"]
    currency: Annotated[str, pydantic.Field(pattern=r"^[A-Z]{3}$")] = "USD"
    source: _Name
    date: _Date
    models: dict[_Name, _Price] = {}
    instanceTypes: dict[_Name, _Price] = {}
    clouds: CloudTables = CloudTables()
    selected: tuple[SelectedTable, ...] = ()

    @pydantic.model_validator(mode="after")
    def _has_prices(self) -> "PriceTable":
        if not (self.models or self.instanceTypes or self.selected) and self.clouds == CloudTables():
            message = "has no price; give models, instanceTypes or selected"
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
    """The prices of a file, or those that are shipped; these also follow a file with the same currency.

    Raises:
        ConfigurationError: The file cannot be read.
        PricesError: It is not a price table; carries all its problems.
    """
    if path is None:
        return _shipped()
    own = parse(yamlfile.read_bytes(path, KIND), source=str(path))
    return dataclasses.replace(own, rest=_shipped()) if own.currency == _shipped().currency else own


@functools.cache
def _shipped() -> Prices:
    """Read once: a cycle would take a tenth of a second longer."""
    return parse(importlib.resources.files("rightsizer").joinpath(SHIPPED).read_bytes(), source=SHIPPED)


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
        clouds={
            name: PriceList(PriceSource(cloud.source, cloud.date, cloud.region), {}, cloud.instanceTypes)
            for name, cloud in table.clouds
            if cloud is not None
        },
        selected=tuple(
            PriceList(
                PriceSource(one.source or table.source, one.date or table.date),
                one.models,
                one.instanceTypes,
                one.nodeSelector,
            )
            for one in table.selected
        ),
    )
