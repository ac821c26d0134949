"""HTML made of elements: text is escaped where it is put in, so that none can be forgotten. Pure.

Nothing else in the report writes a `<`.
"""

import html

from rightsizer.text import safe


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def text(content: str) -> Markup:
    """Anything, as text."""
    return content if isinstance(content, Markup) else Markup(html.escape(safe(content), quote=False))


def join(*parts: str) -> Markup:
    """Several parts, one after the other."""
    return Markup("".join(map(text, parts)))


_VOID = frozenset({"meta", "input"})


def element(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """One element; an attribute that is None is left out.

    Args:
        name: Ours, never from outside.
        children: Elements, or text, which is escaped.
        attributes: Names are ours, with `_` for `-` (and one behind Python's keywords); values are escaped.
    """
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    opened = f"<{name}{shown}>"
    return Markup(opened if name in _VOID else f"{opened}{join(*children)}</{name}>")


def raw(name: str, content: str) -> Markup:
    """A `style` or `script` of our own, whose content HTML does not unescape."""
    return Markup(f"<{name}>{content}</{name}>")


def _value(value: str | float) -> str:
    return html.escape(safe(value)) if isinstance(value, str) else f"{value:.6g}"
