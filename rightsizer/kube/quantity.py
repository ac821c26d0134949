"""Kubernetes quantities ("2", "1k", "2e0", "4Ki", "500m") as exact fractions. Pure.

An API server keeps whole amounts in several spellings: it accepts 1000 GPUs and stores 1k.
https://pkg.go.dev/k8s.io/apimachinery/pkg/api/resource#Quantity
"""

import re
from fractions import Fraction

_FORM = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(?:[eE](?P<exponent>[+-]?[0-9]+)|(?P<suffix>[numkMGTPE]|[KMGTPE]i))?"
)
_SCALES = {
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}
_MAX_LENGTH = 1000
"""Longer ones are taken for none: a user may write a million digits."""
_MAX_EXPONENT = 2 * _MAX_LENGTH
"""Beyond it every number that fits is more than LARGEST, or no whole one; to write it out would take gigabytes."""

LARGEST = 2**63 - 1
"""What is more counts as this, as in Kubernetes."""


def parse_quantity(text: str | int) -> Fraction:
    """The value of a quantity.

    Raises:
        ValueError: It is none.
    """
    written = str(text)
    match = _FORM.fullmatch(written) if len(written) <= _MAX_LENGTH else None
    if match is None:
        raise ValueError(f"{written[:40]!r} is not a quantity")
    number = Fraction(match["number"])
    if match["exponent"]:
        power = max(-_MAX_EXPONENT, min(int(match["exponent"]), _MAX_EXPONENT))
        number *= Fraction(10) ** power
    elif match["suffix"]:
        number *= _SCALES[match["suffix"]]
    return max(Fraction(-LARGEST), min(number, Fraction(LARGEST)))
