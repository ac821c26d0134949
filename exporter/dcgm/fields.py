"""The names of DCGM's fields, also of those that this exporter cannot read, and which names are one field.

The list is in fields.txt. Must not know which fields can be read here.
"""

import difflib
import functools
import importlib.resources
from collections.abc import Iterable, Mapping

_PREFIX = "DCGM_FI_"
_OF_DCGM_EXPORTER = ("DCGM_EXP_", "DCGM_FI_EXP_")


@functools.cache
def fields() -> Mapping[str, str]:
    """DCGM 4.6's name of a field by each of its names."""
    found: dict[str, str] = {}
    text = importlib.resources.files("exporter.dcgm").joinpath("fields.txt").read_text()
    for line in text.splitlines():
        for word in () if line.startswith("#") else line.split():
            names = [
                name if name.startswith(_OF_DCGM_EXPORTER) else _PREFIX + name for name in word.split("=")
            ]
            found.update(dict.fromkeys(names, names[0]))
    return found


def nearest(name: str, names: Iterable[str]) -> str | None:
    """The closest of `names`; None if none is close."""
    found = difflib.get_close_matches(name.upper(), list(names), n=1, cutoff=0.75)
    return found[0] if found else None
