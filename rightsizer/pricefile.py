"""Price tables: the shipped one, or a file of the user's, read whole or refused with all its problems at once."""

import datetime
import importlib.resources
import pathlib
from typing import Annotated, Literal

import pydantic

from rightsizer import yamlfile
from rightsizer.errors import PricesError
from rightsizer.money import Prices
from rightsizer.yamlfile import FileKind

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
