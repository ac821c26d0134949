"""Kubernetes quantities ("500m", "2Gi", "8") as exact fractions. Pure."""

import functools
import math
import re
from fractions import Fraction

_FORM = re.compile(r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE]([+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i))?")
_SCALE: dict[str, Fraction] = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 1000),
    **{suffix: Fraction(1000 ** (power + 1)) for power, suffix in enumerate(("k", "M", "G", "T", "P", "E"))},
    **{
        suffix: Fraction(1024 ** (power + 1))
        for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))
    },
}
_LARGEST = 2**63 - 1
"""What is larger counts as this (resource.Quantity)."""
_EXPONENTS = 1000
"""Beyond this a quantity is capped: to expand it would take gigabytes."""


def parse_quantity(text: object) -> Fraction:
    """The value of a quantity."""
    match = _FORM.fullmatch(str(text))
    if match is None or isinstance(text, bool):
        raise ValueError(
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
        )
    number, exponent, suffix = match.groups()
    if exponent:
        power = max(-_EXPONENTS, min(int(exponent), _EXPONENTS))
        return _capped(Fraction(number) * Fraction(10) ** power)
    return _capped(Fraction(number) * _SCALE.get(suffix, Fraction(1)))


def _capped(value: Fraction) -> Fraction:
    return max(Fraction(-_LARGEST), min(value, Fraction(_LARGEST)))


@functools.cache
def thousandths(text: object) -> int:
    """A quantity in thousandths, rounded up, as the scheduler counts."""
    return math.ceil(parse_quantity(text) * 1000)
