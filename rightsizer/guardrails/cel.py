"""Expressions of the Common Expression Language that compare an object with its old version. Pure.

Objects are plain maps and lists, whatever their kind. Values are variables, and a test of many values is written once:
the time that the API server takes to compile an expression grows much faster than its length. Each variable is a pair
of new and old value. Optional types are not used, because older servers do not have them.
https://kubernetes.io/docs/reference/using-api/cel/
"""

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from rightsizer.inventory.gpu_requests import WHOLE_GPU_RESOURCES
from rightsizer.kinds.claim_templates import MADE
from rightsizer.kinds.edits import ANY, ITEM, Path
from rightsizer.kinds.kind import NOW, Field, Value


def text(value: str) -> str:
    """A string literal."""
    return json.dumps(value)


def listed(values: Sequence[str]) -> str:
    """A list of string literals."""
    return f"[{', '.join(map(text, values))}]"


_BOTH = "[object, oldObject]"
_LEVEL = (
    "l, l[0].all(k, k in l[2] || (k in l[1] && l[0][k] == l[1][k])) && l[1].all(k, k in l[2] || k in l[0])"
)
"""Comparison of two maps, given a list of keys: all entries with other keys are unchanged."""
RECORDS, SLICES, PARTS = "records", "slices", "parts"
"""Variables of a policy: the undo record now and before; resources in place of a GPU; resources that divide it."""
_NEW, _OLD = f"variables.{RECORDS}[0]", f"variables.{RECORDS}[1]"
_SLASHED = 'k.contains("/")'
"""Extended resources have a domain; gpu-rightsizer changes no others."""
_QUANTITY = "quantity(string({}))"
_AT_MOST = f"{_QUANTITY.format('l[0][k]')}.compareTo({_QUANTITY}) < 1"
"""Amounts may have a suffix: the API server stores 30000 as 30k."""
_PROFILE = text("/mig-[0-9]+g[.][0-9]+gb")
_NUMBER = 'int({0}.find("[0-9]+{1}").replace("{2}", ""))'
_NO_SMALLER = " && ".join(
    f"{_NUMBER.format('k', *unit)} <= {_NUMBER.format('j', *unit)}" for unit in (("g[.]", "g."), ("gb", "gb"))
)
_LARGER = (
    f"j in {listed(sorted(WHOLE_GPU_RESOURCES))} || "
    f"(j.matches({_PROFILE}) && (!k.matches({_PROFILE}) || {_NO_SMALLER}))"
)
"""A whole GPU, or a MIG profile that is no smaller than another one."""
_SLICE = (
    f'k.matches(variables.{SLICES}) && l[0].all(i, i == k || i in l[1] || !i.contains("/")) && l[1].exists(j, '
    f'!(j in l[0]) && ({_LARGER}) && (k.endsWith("mem") || {_AT_MOST.format("l[1][j]")}))'
)
"""One new slice in place of a whole GPU or a larger profile that is gone; of an amount of memory any number."""
_PART = f'k.matches(variables.{PARTS}) && l[1].exists(j, j.contains("/") && j in l[0])'
_NO_MORE = (
    f'{_SLASHED} && ({_OLD}.contains(l[2] + k + "],before:" + string(l[0][k]) + ",") || '
    f"(k in l[1] ? {_AT_MOST.format('l[1][k]')} : ({_SLICE}) || ({_PART})))"
)
"""Condition on new and old amounts and their path in a record: each decreases, or equals the old record's value."""
_AMOUNTS_TRUE = (
    f'{_NEW}.split(l[2]).all(t, !t.matches("^[^,]*],before:") || t.matches("^[^,]*],before:null,") || '
    f'{_OLD}.contains(l[2] + t.find("^[^,]*,[^,]*,")) || '
    'l[1].exists(k, t.startsWith(k + "],before:" + string(l[1][k]) + ",")))'
)
"""Each amount in the new record, however it is written, is the old amount, or is also in the old record."""
_NAMED = (
    f'{_NEW}.split({{prefix}}).all(t, t == "" || t.startsWith("{{{{") || {{exists}} || '
    f'{_OLD}.contains({{prefix}} + t.find("^[^]]*],[^,]*,")))'
)
"""Condition that what the new record names below a path exists or was recorded: it could raise what is added later."""
_SAME = f"c[0] == c[1] && {_NEW} == {_OLD}"
_COUNT = "#"
"""Placeholder for the value of a stopped workload: any lower number."""
_FIELD_TRUE = (
    f'[variables.{RECORDS}.map(r, r.split(f[0])).map(x, x.size() < 2 ? f[2] : x[1].find("^[^,]*"))].all(s, '
    f's[0] in [f[2], s[1]] && (f[1] in [f[2], f[3], s[1]] || (f[3] == "{_COUNT}" && '
    '[[f[1], f[2], s[1]].map(t, t == "null" ? 1 : int(t))].all(v, v[0] <= v[1] || v[0] <= v[2]))))'
)
"""Condition on a field (path in a record; new, old and stopped value): it is stopped, decreases, or equals the value in
the old record; and the value in the new record is the old value, or is also in the old record."""


def child(above: str, step: str, otherwise: str = "{}") -> str:
    """The value of a key of a map, or `otherwise` if the key is missing."""
    return f"({text(step)} in {above} ? {above}[{text(step)}] : {otherwise})"


class Variables:
    """Variables that the expressions of one policy share; each is computed at its first use."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def at(self, path: Path) -> str:
        """The maps or lists at a path of the object, as it is and as it was; empty maps where there is none."""
        pair = _BOTH
        for step in path:
            pair = self.named(step, _step(pair, step))
        return pair

    def named(self, name: str, expression: str) -> str:
        """A variable of this value; with a number where another one has the name."""
        if expression not in self._names:
            others = sum(taken.rstrip("0123456789") == name for taken in self._names.values())
            self._names[expression] = f"{name}{others + 1}" if others else name
        return f"variables.{self._names[expression]}"

    def rendered(self) -> list[dict[str, str]]:
        """The variables of a policy; those that others use come first."""
        return [{"name": name, "expression": expression} for expression, name in self._names.items()]


def _step(pair: str, step: str) -> str:
    return f"{pair}.map(p, {child('p', step)})"


def same(known: Variables, root: Path, keys: Sequence[str]) -> str:
    """Test that these entries of a map are unchanged."""
    pair = known.at(root)
    return (
        f"{listed(keys)}.all(k, [{pair}].all(l, (k in l[0]) == (k in l[1]) && "
        "(!(k in l[0]) || l[0][k] == l[1][k])))"
    )


def same_but(known: Variables, root: Path, paths: Sequence[Path]) -> str:
    """Test that everything below `root` is unchanged, except the values at `paths`."""
    pair = known.at(root)
    return (
        _Found.below(pair, paths, text(_opened(root)), known).expression()
        if paths
        else f"{pair}[0] == {pair}[1]"
    )


def others_same(pair: str, free: str, changed: str) -> str:
    """Test of two maps: each entry `k` is the same, or `changed` holds for the new one, or it is gone and free."""
    return _unless(f"[{pair}]", free, changed)


def read_records(known: Variables, annotation: str) -> None:
    """Name the undo records, without quotes: numbers and texts are then compared alike."""
    found = child("a", annotation, text(""))
    known.named(
        RECORDS,
        f"{known.at(('metadata', 'annotations'))}.map(a, {found}.replace({text(chr(34))}, {text('')}))",
    )


def no_new_record() -> list[str]:
    """Alternatives of which one holds unless an object without an undo record gets one."""
    return [f'{_OLD} != ""', f'{_NEW} == ""']


def fields_true(known: Variables, fields: Mapping[Field, str]) -> Iterator[str]:
    """Tests that fields are stopped, decreased or restored, and that records hold their old values.

    Args:
        known: Shared variables.
        fields: Each with its value in a stopped workload.
    """
    alone: list[str] = []
    listed_in: dict[tuple[Path, str], list[str]] = {}
    entries: dict[Path, list[str]] = {}
    for field, to in fields.items():
        path = field.path
        many = next((at for at, step in enumerate(path) if step.endswith(ITEM) or step == ANY), None)
        if many is None:
            pair, place = known.at(path[:-1]), text(f"[{','.join(path)}],before:")
            alone.append(_one(field, to, place, (f"{pair}[0]", f"{pair}[1]")))
        else:
            root, key, below = path[:many], path[many].removesuffix(ITEM), ",".join(path[many + 1 :])
            if key == ANY:
                place = f"{text(_opened(root))} + k + {text(f',{below}],before:')}"
                entries.setdefault(root, []).append(_one(field, to, place, ("m[0]", "m[1]")))
                continue
            place = f"{text(_opened(root) + key + '=')} + n[{text(key)}] + {text(f',{below}],before:')}"
            listed_in.setdefault((root, text(key)), []).append(_one(field, to, place, ("n", "o")))
    if alone:
        yield f"[{', '.join(alone)}].all(f, {_FIELD_TRUE})"
    for (root, name), parts in listed_in.items():
        pair, is_it = known.at(root), f"{name} in o && n[{name}] == o[{name}]"
        true = f"[{', '.join(parts)}].all(f, {_FIELD_TRUE})"
        yield f"{pair}[0].all(n, {name} in n && {pair}[1].exists(o, {is_it} && {true}))"
    for root, parts in entries.items():
        pair, true = known.at(root), f"[{', '.join(parts)}].all(f, {_FIELD_TRUE})"
        yield f"{pair}[0].all(k, k in {pair}[1] && [{pair}.map(p, p[k])].all(m, {true}))"
        exists = f'{pair}[1].exists(k, t.startsWith(k + ","))'
        yield _NAMED.format(prefix=text(_opened(root)), exists=exists)


def _one(field: Field, to: str, place: str, above: tuple[str, str]) -> str:
    """A field as the expression about it has it: its name in records, and texts of its values."""
    step = field.path[-1]
    new, old = (_as_text(holder, step, field) for holder in above)
    stopped = text(_COUNT) if field.value is Value.COUNT else text(to)
    if field.value is Value.TEMPLATE:
        is_made = f"{new}.startsWith({old}) && {new}.substring({old}.size()).matches({text(f'^{MADE}$')})"
        stopped = f'({is_made} ? {new} : "")'
    if to == NOW:
        stopped = f'({new}.matches("^20[0-9-]{{8}}T[0-9:]{{8}}Z$") ? {new} : "")'
    return f"[{place}, {new}, {old}, {stopped}]"


def _as_text(holder: str, step: str, field: Field) -> str:
    value_of = f"{holder}[{text(step)}]"
    shown = f'({value_of} ? "true" : "false")' if field.value is Value.SWITCH else f"string({value_of})"
    return f"({text(step)} in {holder} ? {shown} : {text(json.dumps(field.absent))})"


def _opened(path: Path) -> str:
    """The beginning of a record's entry for a path."""
    return f"[{','.join(path)},"


def unlisted(field: str) -> str:
    """Condition that an object lists no finalizer or owner that it did not have."""
    new, old = (child(child(side, "metadata"), field, "[]") for side in ("object", "oldObject"))
    return f"object == null || {new}.all(n, oldObject != null && n in {old})"


def nothing_added(field: str, free: str) -> str:
    """Condition that an object has no label or annotation `k` that it did not have, unless it is free."""
    new, old = (child(child(side, "metadata"), field) for side in ("object", "oldObject"))
    pair = f"[{new}, oldObject == null ? {{}} : {old}]"
    return f"object == null || [{pair}].all(l, l[0].all(k, {free} || (k in l[1] && l[0][k] == l[1][k])))"


def _unless(pairs: str, free: str, changed: str = "", also: str = "") -> str:
    kept = f"l[0].all(k, {changed or free} || (k in l[1] && l[0][k] == l[1][k]))"
    return f"{pairs}.all(l, {kept} && l[1].all(k, {free} || k in l[0]){also})"


@dataclasses.dataclass(slots=True)
class _Found:
    """Pairs of new and old values to compare, by type: maps, amounts of resources, lists, and maps of any keys."""

    known: Variables | None
    maps: list[str] = dataclasses.field(default_factory=list)
    amounts: list[str] = dataclasses.field(default_factory=list)
    lists: dict[tuple[str, tuple[Path, ...]], list[str]] = dataclasses.field(default_factory=dict)
    entries: dict[tuple[Path, ...], list[str]] = dataclasses.field(default_factory=dict)

    @classmethod
    def below(cls, pair: str, paths: Iterable[Path], place: str, known: Variables | None = None) -> "_Found":
        """The values below a pair, except those at `paths`; variables cannot be used within items of lists."""
        found = cls(known)
        found.add(pair, tuple(paths), place)
        return found

    def add(self, pair: str, paths: tuple[Path, ...], place: str) -> None:
        """Add everything below a pair, except the values at `paths`; `place` is its path in a record."""
        below: dict[str, list[Path]] = {}
        for path in paths:
            below.setdefault(path[0], []).append(path[1:])
        for step, rests in below.items():
            if step == ANY and () not in rests:
                self.entries.setdefault(tuple(rests), []).append(pair)
                return
            if step == ANY:
                self.amounts.append(f"{pair} + [{place}]")
                return
            if step.endswith(ITEM):
                key = step.removesuffix(ITEM)
                entry = f"{pair} + [{_joined(place, key + '=')}]"
                self.lists.setdefault((key, tuple(rests)), []).append(entry)
                return
        self.maps.append(f"{pair} + [{listed(sorted(below))}]")
        for step, rests in sorted(below.items()):
            if () not in rests:
                inner = _step(pair, step)
                named = self.known.named(step, inner) if self.known else inner
                self.add(named, tuple(rests), _joined(place, step + ","))

    def expression(self) -> str:
        """The whole test."""
        parts = [f"[{', '.join(self.maps)}].all({_LEVEL})"] if self.maps else []
        if self.amounts:
            parts.append(_unless(f"[{', '.join(self.amounts)}]", _SLASHED, _NO_MORE, f" && {_AMOUNTS_TRUE}"))
        for (key, rests), pairs in self.lists.items():
            exists = f'c[1].exists(o, {text(key)} in o && t.startsWith(o[{text(key)}] + ","))'
            named = _NAMED.format(prefix="c[2]", exists=exists)
            parts.append(f"[{', '.join(pairs)}].all(c, ({_SAME}) || ({named} && {_items(key, rests)}))")
        for rests, pairs in self.entries.items():
            inner = _Found.below("[c[0][k], c[1][k]]", rests, "").expression()
            parts.append(
                f"[{', '.join(pairs)}].all(c, c[0].all(k, k in c[1] && {inner}) && c[1].all(k, k in c[0]))"
            )
        return " && ".join(parts)


def _joined(place: str, more: str) -> str:
    """An expression that ends with a text, and more of that text."""
    return f'{place.removesuffix(chr(34))}{more}"'


def _items(key: str, rests: tuple[Path, ...]) -> str:
    """Test of two lists: the same items in the same order, unchanged except for the values at these paths."""
    name = text(key)
    inner = _Found.below("[n, o]", rests, f'c[2] + n[{name}] + ","').expression()
    order = f"c[0].map(n, {child('n', key, text(''))}) == c[1].map(n, {child('n', key, text(''))})"
    is_it = f"{name} in o && n[{name}] == o[{name}]"
    return f"{order} && c[0].all(n, {name} in n && c[1].exists(o, {is_it} && {inner}))"


def values(known: Variables, patterns: Sequence[Path], of_all: Path = ()) -> str:
    """A list of the texts at the ends of these paths of the object; empty ones where only the last step is missing.

    Definitions may allow any value anywhere below, so each step counts only if it has the expected type.

    Args:
        known: What is shared.
        patterns: Each with at most one step for any item of a list, or any entry of a map.
        of_all: Where a text stands that counts as well, and in place of every empty one.
    """
    found = " + ".join(_values(known, pattern) for pattern in patterns)
    if not of_all:
        return found
    default = known.named(f"{of_all[-1]}OfAll", _text_at(f"{known.at(of_all[:-1])}[0]", of_all[-1]))
    return f'({found}).map(c, c == "" ? {default} : c) + [{default}].filter(c, c != "")'


def _values(known: Variables, pattern: Path) -> str:
    many = next((at for at, step in enumerate(pattern) if step == ANY or step.endswith(ITEM)), None)
    is_container = "type(i) == map"
    if many is None:
        found, rest = f"[{known.at(pattern[:-2])}[0]]", pattern[-2:]
    else:
        found, rest = f"{known.at(pattern[:many])}[0]", pattern[many + 1 :]
        is_map = pattern[many] == ANY
        found = f"(type({found}) == {'map' if is_map else 'list'} ? {found} : [])"
        found = f"{found}.map(k, {found}[k])" if is_map else found
        if pattern[many] == ITEM:  # of any kind: one without containers says nothing of a class that it lacks
            is_container += f' && ("containers" in i || {_is_text("i", rest[-1])})'
    for step in rest[:-1]:
        found += f".map(i, type(i) == map && {text(step)} in i, i[{text(step)}])"
    return f"{found}.map(i, {is_container}, {_text_at('i', rest[-1])})"


def _text_at(above: str, step: str) -> str:
    return f'({_is_text(above, step)} ? {above}[{text(step)}] : "")'


def _is_text(above: str, step: str) -> str:
    return f"{text(step)} in {above} && type({above}[{text(step)}]) == string"
