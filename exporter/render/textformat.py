"""Families as bytes: Prometheus's text format or OpenMetrics, as the client prefers. Pure.

prometheus_client's own encoders are not used because they cannot write dcgm-exporter's format: they sort labels and
append `_total` to the name of every counter. DCGM's counters keep their names here. In OpenMetrics, which demands the
suffix, their type is `unknown`.
"""

import enum
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import Metric


class Format(enum.Enum):
    """The formats by media type; the first is the default."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


_TEXT_TYPES = {"text/plain", "text/*", "*/*"}


def negotiate(accept: str) -> Format:
    """The format that a client prefers, by its Accept header; text if the header names neither."""
    preferred, weight = Format.TEXT, 0.0
    for media_type, values in _entries(accept):
        chosen = None
        if media_type == "application/openmetrics-text" and values.get("version", "1.0.0") == "1.0.0":
            chosen = Format.OPENMETRICS
        elif media_type in _TEXT_TYPES:
            chosen = Format.TEXT
        quality = _quality(values.get("q", "1"))
        if chosen is not None and quality > weight:
            preferred, weight = chosen, quality
    return preferred


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether a client takes gzip, by its Accept-Encoding header."""
    return any(
        coding == "gzip" and _quality(values.get("q", "1")) > 0
        for coding, values in _entries(accept_encoding)
    )


def _entries(header: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The entries of a header, each with its parameters."""
    for entry in header.split(","):
        name, *parameters = (part.strip().lower() for part in entry.split(";"))
        yield name, dict(parameter.partition("=")[::2] for parameter in parameters)


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


class LabelSet(dict[str, str]):
    """Constant labels, which are formatted only once."""

    @functools.cached_property
    def block(self) -> str:
        """The labels in braces, in the dict's order."""
        return _block(self)

    def joined(self, more: Sequence[tuple[str, str]]) -> "LabelSet":
        """A copy with more labels."""
        both = LabelSet({**self, **dict(more)})
        both.block = f"{self.block[:-1]},{_inner(more)}}}" if self else _block(both)
        return both


def encode(families: Sequence[Metric], form: Format) -> bytes:
    """Write `families` in their order; labels keep their dict's order."""
    openmetrics = form is Format.OPENMETRICS
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        name, kind = _head(family, openmetrics=openmetrics)
        lines.append(f"# HELP {name} {_escape_help(family.documentation, openmetrics=openmetrics)}")
        lines.append(f"# TYPE {name} {kind}")
        for sample in family.samples:
            labels = sample.labels
            block = labels.block if isinstance(labels, LabelSet) else _block(labels)
            lines.append(f"{sample.name}{block} {_number(sample.value)}")
    if openmetrics:
        lines.append("# EOF")
    return "".join(f"{line}\n" for line in lines).encode()


def _head(family: Metric, *, openmetrics: bool) -> tuple[str, str]:
    """The name and type in a family's HELP and TYPE lines."""
    if family.type != "counter":
        return family.name, family.type
    suffixed = family.samples[0].name == f"{family.name}_total"
    if openmetrics:
        return (family.name, "counter") if suffixed else (family.name, "unknown")
    return family.samples[0].name, "counter"


def _block(labels: Mapping[str, str]) -> str:
    return f"{{{_inner(labels.items())}}}" if labels else ""


def _inner(labels: Iterable[tuple[str, str]]) -> str:
    return ",".join(f'{name}="{_escape(value)}"' for name, value in labels)


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


@functools.cache
def _escape_help(text: str, *, openmetrics: bool) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if openmetrics else escaped


def _number(value: float) -> str:
    if value != value:  # noqa: PLR0124 - NaN is the number that differs from itself
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    whole = int(value)
    return str(whole) if whole == value else repr(value)
