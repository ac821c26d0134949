"""Expressions of the Common Expression Language that compare an object with what it was. Pure.

Objects come as plain maps and lists, whatever their kind. What is looked into is a variable, and what is asked of many
places is written once: the time that the API server takes to read an expression grows much faster than its length. Each
variable is a pair, of what is there and what was. Optional types are not used: older servers do not have them.
https://kubernetes.io/docs/reference/using-api/cel/
"""

import dataclasses
import json
from collections.abc import Iterable, Sequence

from rightsizer.kinds.edits import ANY, ITEM, Path

_BOTH = "[object, oldObject]"
_LEVEL = (
    "l, l[0].all(k, k in l[2] || (k in l[1] && l[0][k] == l[1][k])) && l[1].all(k, k in l[2] || k in l[0])"
)
"""Of two maps, that all entries but those whose keys stand in a third place are as they were."""
OURS, SLICES = "ours", "slices"
"""Variables of a policy: whether the object carried our record, and the names of resources that are parts of GPUs."""
_SLASHED = 'k.contains("/")'
"""What of the amounts in a container's resources is ours: extended resources have a domain."""
_NO_MORE = (
    f"{_SLASHED} && (variables.{OURS} || (k in l[1] ? int(l[0][k]) <= int(l[1][k]) : "
    f'k.matches(variables.{SLICES}) && l[1].exists(j, j.contains("/"))))'
)
"""Without a record none grows, and what is new is a part of a GPU in place of something."""


def text(value: str) -> str:
    """A string literal."""
    return json.dumps(value)


def listed(values: Sequence[str]) -> str:
    """A list of string literals."""
    return f"[{', '.join(map(text, values))}]"


def child(above: str, step: str, otherwise: str = "{}") -> str:
    """What stands at a key of a map, or something else where there is none."""
    return f"({text(step)} in {above} ? {above}[{text(step)}] : {otherwise})"


class Variables:
    """What the expressions of one policy share; each is computed when it is first asked for."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def at(self, path: Path) -> str:
        """The maps or lists at a path of the object, as it is and as it was; empty maps where there is none."""
        here = _BOTH
        for step in path:
            here = self.named(step, _step(here, step))
        return here

    def named(self, name: str, expression: str) -> str:
        """A variable of this value; with a number where another one has the name."""
        if expression not in self._names:
            others = sum(taken.rstrip("0123456789") == name for taken in self._names.values())
            self._names[expression] = f"{name}{others + 1}" if others else name
        return f"variables.{self._names[expression]}"

    def rendered(self) -> list[dict[str, str]]:
        """As a policy has them, what others refer to first."""
        return [{"name": name, "expression": expression} for expression, name in self._names.items()]


def _step(pair: str, step: str) -> str:
    return f"{pair}.map(p, {child('p', step)})"


def same(known: Variables, root: Path, keys: Sequence[str]) -> str:
    """That these of a map's entries are as they were."""
    pair = known.at(root)
    return (
        f"{listed(keys)}.all(k, [{pair}].all(l, (k in l[0]) == (k in l[1]) && "
        "(!(k in l[0]) || l[0][k] == l[1][k])))"
    )


def same_but(known: Variables, root: Path, paths: Sequence[Path]) -> str:
    """That everything below a path is as it was, but for what these paths lead to from there."""
    pair = known.at(root)
    return _Found.below(pair, paths, known).expression() if paths else f"{pair}[0] == {pair}[1]"


def others_same(pair: str, free: str) -> str:
    """Of two maps, that each entry `k` is as it was unless it is free."""
    return _unless(f"[{pair}]", free)


def no_more(known: Variables, path: Path, *, is_text: bool = False) -> str:
    """That a number is no larger than it was, or each of those in the items of a list; one that is missing is 1."""
    many = next((at for at, step in enumerate(path) if step.endswith(ITEM)), None)
    if many is None:
        now, before = (
            _number(f"{known.at(path[:-1])}[{which}]", path[-1:], is_text=is_text) for which in (0, 1)
        )
        return f"{now} <= {before}"
    name, pair = text(path[many].removesuffix(ITEM)), known.at(path[:many])
    sizes = " <= ".join(_number(one, path[many + 1 :], is_text=is_text) for one in ("n", "o"))
    return f"{pair}[0].all(n, {name} in n && {pair}[1].exists(o, {name} in o && n[{name}] == o[{name}] && {sizes}))"


def _number(here: str, path: Path, *, is_text: bool) -> str:
    for step in path[:-1]:
        here = child(here, step)
    return f"int({child(here, path[-1], text('1'))})" if is_text else child(here, path[-1], "1")


def _unless(pairs: str, free: str, changed: str = "") -> str:
    kept = f"l[0].all(k, {changed or free} || (k in l[1] && l[0][k] == l[1][k]))"
    return f"{pairs}.all(l, {kept} && l[1].all(k, {free} || k in l[0]))"


@dataclasses.dataclass(slots=True)
class _Found:
    """What is to be asked, of pairs by what is asked of them: maps, amounts of resources, and lists."""

    known: Variables | None
    maps: list[str] = dataclasses.field(default_factory=list)
    amounts: list[str] = dataclasses.field(default_factory=list)
    lists: dict[tuple[str, tuple[Path, ...]], list[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def below(cls, pair: str, paths: Iterable[Path], known: Variables | None = None) -> "_Found":
        """What paths from a pair come to; within items of lists there are no variables."""
        found = cls(known)
        found.add(pair, tuple(paths))
        return found

    def add(self, pair: str, paths: tuple[Path, ...]) -> None:
        """Ask the same of everything below a pair, but for what paths lead to."""
        below: dict[str, list[Path]] = {}
        for path in paths:
            below.setdefault(path[0], []).append(path[1:])
        for step, rests in below.items():
            if step == ANY:
                self.amounts.append(pair)
                return
            if step.endswith(ITEM):
                self.lists.setdefault((step.removesuffix(ITEM), tuple(rests)), []).append(pair)
                return
        self.maps.append(f"{pair} + [{listed(sorted(below))}]")
        for step, rests in sorted(below.items()):
            if () not in rests:
                inner = _step(pair, step)
                self.add(self.known.named(step, inner) if self.known else inner, tuple(rests))

    def expression(self) -> str:
        """All of it."""
        parts = [f"[{', '.join(self.maps)}].all({_LEVEL})"] if self.maps else []
        parts += [_unless(f"[{', '.join(self.amounts)}]", _SLASHED, _NO_MORE)] if self.amounts else []
        for (key, rests), pairs in self.lists.items():
            parts.append(f"[{', '.join(pairs)}].all(c, c[0] == c[1] || ({_items(key, rests)}))")
        return " && ".join(parts)


def _items(key: str, rests: tuple[Path, ...]) -> str:
    """The same items in the same order, and in each only what paths lead to from it is other than it was."""
    inner = _Found.below("[n, o]", rests).expression()
    name = text(key)
    order = f"c[0].map(n, {child('n', key, text(''))}) == c[1].map(n, {child('n', key, text(''))})"
    is_it = f"{name} in o && n[{name}] == o[{name}]"
    return f"{order} && c[0].all(n, {name} in n && c[1].exists(o, {is_it} && {inner}))"


def values(known: Variables, patterns: Sequence[Path], of_all: Path = ()) -> str:
    """A list of the texts at the ends of these paths of the object; empty ones where only the last step is missing.

    Args:
        known: What is shared.
        patterns: Each with at most one step for any item of a list, or any entry of a map.
        of_all: Where a text stands that counts as well, and in place of every empty one.
    """
    found = " + ".join(_values(known, pattern) for pattern in patterns)
    if not of_all:
        return found
    one = known.named(f"{of_all[-1]}OfAll", child(f"{known.at(of_all[:-1])}[0]", of_all[-1], text("")))
    return f'({found}).map(c, c == "" ? {one} : c) + [{one}].filter(c, c != "")'


def _values(known: Variables, pattern: Path) -> str:
    many = next((at for at, step in enumerate(pattern) if step == ANY or step.endswith(ITEM)), None)
    if many is None:
        here, rest = f"[{known.at(pattern[:-2])}[0]]", pattern[-2:]
    else:
        here, rest = f"{known.at(pattern[:many])}[0]", pattern[many + 1 :]
        here = f"{here}.map(k, {here}[k])" if pattern[many] == ANY else here
    for step in rest[:-1]:
        here += f".map(i, {text(step)} in i, i[{text(step)}])"
    return f"{here}.map(i, {child('i', rest[-1], text(''))})"
