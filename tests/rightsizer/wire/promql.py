"""PromQL as far as the rightsizer asks it, over series that a test holds in memory: a real Prometheus takes too long.

Knows nothing of GPUs. Ranges are open at their begin, as from Prometheus 3.0 on. test_promql.py compares its answers
with a real Prometheus's.
"""

import functools
import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

LOOKBACK_S = 300.0
NAME = "__name__"

Spans = tuple[tuple[float, float, float], ...]
"""After which second, until which, and the value of each sample in between; in order."""
Row = Sequence[float | None]
"""A value for each step of a query; None where there is none."""
Vector = list[tuple["Labels", Row]]
Matcher = tuple[str, Callable[[str], bool]]


class Labels(dict[str, str]):
    """The labels of a series in an answer, with the keys by which it was compared."""

    __slots__ = ("_keys",)

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__(labels)
        self._keys: dict[Sequence[str] | None, Hashable] = {}

    def key(self, on: Sequence[str] | None) -> Hashable:
        """By some of its labels, or all but its name."""
        if on not in self._keys:
            self._keys[on] = (
                tuple([self.get(name, "") for name in on])
                if on is not None
                else frozenset(item for item in self.items() if item[0] != NAME)
            )
        return self._keys[on]


@functools.lru_cache(1 << 16)
def _shape_of(spans: Spans, step_s: int) -> object:
    """Stands for samples: those of many series are the same."""
    del spans, step_s
    return object()


class Track:
    """A series with a sample at each full `step_s` of its spans.

    Attributes:
        nameless: Its labels but its name.
        shape: The same for series with the same samples.
    """

    __slots__ = ("labels", "nameless", "shape", "spans", "step_s")

    def __init__(self, labels: Mapping[str, str], spans: Spans, step_s: int = 60) -> None:
        self.labels, self.spans, self.step_s = Labels(labels), spans, step_s
        self.nameless = Labels(_nameless(labels))
        self.shape = _shape_of(spans, step_s)


class Series:
    """All series, and the instants of one query."""

    def __init__(self, tracks: Iterable[Track]) -> None:
        self._by_name: dict[str, list[Track]] = {}
        self._selected: dict[tuple[str, tuple[Matcher, ...]], list[Track]] = {}
        self._rows: dict[tuple[str, tuple[float, ...], float], dict[object, Row]] = {}
        for one in tracks:
            self._by_name.setdefault(one.labels[NAME], []).append(one)

    def values(
        self,
        name: str,
        matchers: tuple[Matcher, ...],
        function: str,
        ends: tuple[float, ...],
        length_s: float,
    ) -> Vector:
        """A function over the range before each of these ends, of the series that meet the matchers.

        Without a name, of all metrics.
        """
        rows = self._rows.setdefault((function, ends, length_s), {})
        over = _OVER[function]
        found = []
        for one in self._select(name, matchers):
            if one.shape not in rows:
                rows[one.shape] = [
                    over(samples) if samples else None for samples in _ranges(one, ends, length_s)
                ]
            labels = one.labels if function == "last_over_time" else one.nameless
            found.append((labels, rows[one.shape]))
        return found

    def _select(self, name: str, matchers: tuple[Matcher, ...]) -> list[Track]:
        if (name, matchers) not in self._selected:
            of_names = [test for label, test in matchers if label == NAME]
            rest = [(label, test) for label, test in matchers if label != NAME]
            names = [
                one for one in ([name] if name else self._by_name) if all(test(one) for test in of_names)
            ]
            found = [one for name in names for one in self._by_name.get(name, ())]
            for label, test in rest:
                found = [one for one in found if test(one.labels.get(label, ""))]
            self._selected[name, matchers] = found
        return self._selected[name, matchers]


Samples = list[tuple[int, float]]
"""How many samples in a row have a value."""


def _ranges(track: Track, ends: Iterable[float], length_s: float) -> Iterator[Samples]:
    step = track.step_s
    for end in ends:
        found = []
        for begins, until, value in track.spans:
            count = math.floor(min(end, until) / step) - math.floor(max(end - length_s, begins) / step)
            if count > 0:
                found.append((count, value))
        yield found


def _extreme(pick: Callable[[list[float]], float]) -> Callable[[Samples], float]:
    def over(samples: Samples) -> float:
        return pick([value for _, value in samples if not math.isnan(value)] or [math.nan])

    return over


def _sum(samples: Samples) -> float:
    return sum(count * value for count, value in samples)


def _increase(samples: Samples) -> float | None:
    """Without Prometheus's extrapolation to the ends of the range."""
    values = [value for _, value in samples]
    if sum(count for count, _ in samples) < 2:
        return None
    steps = itertools.pairwise(values)
    return sum((after - before if after >= before else after) for before, after in steps)


_OVER: Mapping[str, Callable[[Samples], float | None]] = {
    "count_over_time": lambda samples: float(sum(count for count, _ in samples)),
    "last_over_time": lambda samples: samples[-1][1],
    "max_over_time": _extreme(max),
    "min_over_time": _extreme(min),
    "sum_over_time": _sum,
    "avg_over_time": lambda samples: _sum(samples) / sum(count for count, _ in samples),
    "resets": lambda samples: float(
        sum(after < before for (_, before), (_, after) in itertools.pairwise(samples))
    ),
    "increase": _increase,
    "rate": _increase,
}

Expression = Callable[[Series, tuple[float, ...]], Vector]
"""What a query yields for some instants."""


def evaluate(query: str, series: Series, steps: tuple[float, ...]) -> Vector:
    """The result of a query, without series that have no value at any step."""
    found = _parsed(query)(series, steps)
    return [(labels, row) for labels, row in found if row.count(None) < len(row)]


@functools.lru_cache(4096)
def _parsed(query: str) -> Expression:
    parser = _Parser(query)
    found = parser.binary(0)
    assert parser.next() == "", query
    return found


_TOKEN = re.compile(r'\s*("(?:\\.|[^"\\])*"|\'[^\']*\'|[\w:.]+|=~|!~|!=|<=|>=|[-+*/<>=(){}\[\],])')
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LEVELS: Sequence[Sequence[str]] = (
    ("or",),
    ("and", "unless"),
    ("<", ">", "<=", ">=", "!="),
    ("-", "+"),
    ("*", "/"),
)
_AGGREGATIONS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "count": lambda values: float(len(values)),
    "max": lambda values: _extreme(max)([(1, value) for value in values]),
    "min": lambda values: _extreme(min)([(1, value) for value in values]),
    "sum": sum,
    "avg": lambda values: sum(values) / len(values),
}


class _Parser:
    """Recursive descent; whatever it does not know fails the test that asks it."""

    def __init__(self, text: str) -> None:
        self._text, self._place = text, 0

    def next(self) -> str:
        """The next token, which stays; empty at the end."""
        match = _TOKEN.match(self._text, self._place)
        assert match or not self._text[self._place :].strip(), self._text[self._place :]
        return match[1] if match else ""

    def take(self, *expected: str) -> str:
        """Go past the next token."""
        token = self.next()
        match = _TOKEN.match(self._text, self._place)
        assert match is not None, self._text[self._place :]
        assert token in (expected or {token}), (expected, self._text[self._place :])
        self._place = match.end()
        return token

    def binary(self, level: int) -> Expression:
        """Operators of this level and of those that bind more."""
        if level == len(_LEVELS):
            return self._unary()
        left = self.binary(level + 1)
        while self.next() in _LEVELS[level]:
            operator = self.take()
            on = self._names() if self.next() == "on" and self.take() else None
            right = self.binary(level + 1)
            left = _joined(operator, left, right, on)
        return left

    def _unary(self) -> Expression:
        token = self.next()
        if token == "(":
            self.take()
            inner = self.binary(0)
            self.take(")")
            return inner
        if re.fullmatch(r"[-\d].*", token):
            return _constant(self._number())
        if token == "{":
            return self._selector("")
        return self._named(self.take())

    def _named(self, name: str) -> Expression:
        if name in _AGGREGATIONS:
            return self._aggregation(name)
        if name in _OVER:
            self.take("(")
            ranged = self._selector("", function=name)
            self.take(")")
            return ranged
        return self._function(name) if self.next() == "(" else self._selector(name)

    def _number(self) -> float:
        sign = -1 if self.next() == "-" and self.take() else 1
        text = self.take()
        if text.endswith("e"):  # 1e-05: the tokens are cut at the sign
            text += self.take("-", "+") + self.take()
        return sign * float(text)

    def _names(self) -> tuple[str, ...]:
        self.take("(")
        found = []
        while self.next() != ")":
            found.append(self.take())
            if self.next() == ",":
                self.take()
        self.take(")")
        return tuple(found)

    def _aggregation(self, name: str) -> Expression:
        grouping, names = "by", tuple[str, ...]()
        if self.next() != "(":
            grouping, names = self.take("by", "without"), self._names()
        self.take("(")
        inner = self.binary(0)
        self.take(")")

        def kept(labels: Labels) -> tuple[str, ...]:
            if grouping == "by":
                return names
            return tuple([name for name in sorted(labels) if name not in (NAME, *names)])

        return _aggregated(_AGGREGATIONS[name], kept, inner)

    def _function(self, name: str) -> Expression:
        self.take("(")
        inner = self.binary(0)
        texts: list[str] = []
        while self.next() == ",":
            self.take()
            texts.append(self.take() if self.next()[0] in "\"'" else str(self._number()))
        self.take(")")
        if name == "label_replace":
            return _labelled(inner, *(_string(text) for text in texts))
        pick = {"clamp_min": max, "clamp_max": min}[name]
        limit = float(texts[0])
        return _mapped(inner, lambda value: value if math.isnan(value) else pick(value, limit))

    def _selector(self, name: str, function: str = "last_over_time") -> Expression:
        if not name and self.next() != "{":
            name = self.take()
        matchers = []
        if self.next() == "{":
            self.take()
            while self.next() != "}":
                matchers.append(_matcher(self.take(), self.take(), _string(self.take())))
                if self.next() == ",":
                    self.take()
            self.take("}")
        length_s = LOOKBACK_S
        if self.next() == "[":
            self.take()
            length_s = _seconds(self.take())
            self.take("]")
        tests = tuple(matchers)

        def select(series: Series, steps: tuple[float, ...]) -> Vector:
            return series.values(name, tests, function, steps, length_s)

        return select


def _seconds(text: str) -> float:
    return sum(int(number) * _UNITS_S[unit] for number, unit in _DURATION.findall(text))


def _string(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1])


@functools.lru_cache(4096)
def _matcher(label: str, operator: str, value: str) -> Matcher:
    if operator in {"=", "!="}:
        return label, (value.__eq__ if operator == "=" else value.__ne__)
    pattern = re.compile(value, re.DOTALL)
    if operator == "=~":
        return label, lambda text: pattern.fullmatch(text) is not None
    return label, lambda text: pattern.fullmatch(text) is None


def _nameless(labels: Mapping[str, str]) -> Mapping[str, str]:
    return {key: value for key, value in labels.items() if key != NAME}


def _constant(number: float) -> Expression:
    return lambda _, steps: [(Labels({"": ""}), [number] * len(steps))]


def _is_scalar(vector: Vector) -> bool:
    return len(vector) == 1 and "" in vector[0][0]


def _mapped(inner: Expression, change: Callable[[float], float]) -> Expression:
    def run(series: Series, steps: tuple[float, ...]) -> Vector:
        known: dict[int, Row] = {}
        found = inner(series, steps)
        for _, row in found:
            if id(row) not in known:
                known[id(row)] = [None if value is None else change(value) for value in row]
        return [(Labels(_nameless(labels)), known[id(row)]) for labels, row in found]

    return run


def _labelled(inner: Expression, label: str, to: str, of: str, pattern: str) -> Expression:
    compiled, template = re.compile(pattern), re.sub(r"\$(\d)", r"\\\1", to)

    def run(series: Series, steps: tuple[float, ...]) -> Vector:
        return [
            (Labels({**labels, label: match.expand(template)}), row)
            if (match := compiled.fullmatch(labels.get(of, "")))
            else (labels, row)
            for labels, row in inner(series, steps)
        ]

    return run


def _aggregated(
    merge: Callable[[Sequence[float]], float], kept: Callable[[Labels], tuple[str, ...]], inner: Expression
) -> Expression:
    """An aggregation; `kept` are the names of the labels that it keeps of a series."""

    def run(series: Series, steps: tuple[float, ...]) -> Vector:
        groups: dict[Hashable, tuple[Labels, list[Row]]] = {}
        for labels, row in inner(series, steps):
            by = kept(labels)
            group = {name: labels[name] for name in by if labels.get(name)}
            groups.setdefault((by, labels.key(by)), (Labels(group), []))[1].append(row)
        return [(labels, _merged(merge, rows)) for labels, rows in groups.values()]

    return run


def _merged(merge: Callable[[Sequence[float]], float], rows: Sequence[Row]) -> Row:
    if len(rows) == 1 and merge is not _AGGREGATIONS["count"]:
        return rows[0]
    columns = ([value for value in column if value is not None] for column in zip(*rows, strict=True))
    return [merge(values) if values else None for values in columns]


_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "<=": lambda left, right: left <= right,
    ">=": lambda left, right: left >= right,
    "!=": lambda left, right: left != right,
}
_COMPUTE: Mapping[str, Callable[[float, float], float]] = {
    "-": lambda left, right: left - right,
    "+": lambda left, right: left + right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right if right else math.nan,
}


def _joined(operator: str, left: Expression, right: Expression, on: Sequence[str] | None) -> Expression:
    def run(series: Series, steps: tuple[float, ...]) -> Vector:
        lefts, rights = left(series, steps), right(series, steps)
        if operator in {"or", "and", "unless"}:
            return list(_sets(operator, lefts, rights, on))
        if _is_scalar(rights):
            partners = [rights[0][1]] * len(lefts)
        else:
            by_key = {labels.key(on): row for labels, row in rights}
            nothing: Row = [None] * len(steps)
            partners = [by_key.get(labels.key(on), nothing) for labels, _ in lefts]
        keeps = operator in _COMPARE
        return [
            (labels if keeps else Labels(_nameless(labels)), _paired(operator, row, partner))
            for (labels, row), partner in zip(lefts, partners, strict=True)
        ]

    return run


def _paired(operator: str, row: Row, partner: Row) -> Row:
    pairs = zip(row, partner, strict=True)
    if operator in _COMPARE:
        holds = _COMPARE[operator]
        return [
            one if one is not None and other is not None and holds(one, other) else None
            for one, other in pairs
        ]
    compute = _COMPUTE[operator]
    return [None if one is None or other is None else compute(one, other) for one, other in pairs]


def _sets(
    operator: str, lefts: Vector, rights: Vector, on: Sequence[str] | None
) -> Iterator[tuple[Labels, Row]]:
    """Step by step: whether any series of the other side has these labels then."""
    others: dict[Hashable, dict[int, Row]] = {}
    for labels, row in lefts if operator == "or" else rights:
        others.setdefault(labels.key(on), {})[id(row)] = row
    if operator == "or":
        yield from lefts
    wanted = operator == "and"
    known: dict[tuple[int, ...], Row] = {}  # most rows are alike
    for labels, row in rights if operator == "or" else lefts:
        there = others.get(labels.key(on))
        if there is None:
            if not wanted:
                yield labels, row
            continue
        alike = (id(row), *there)
        if alike not in known:
            first, *more = there.values()
            is_there = [value is not None for value in first]
            for one in more:
                is_there = [was or value is not None for was, value in zip(is_there, one, strict=True)]
            pairs = zip(row, is_there, strict=True)
            known[alike] = [value if is_one is wanted else None for value, is_one in pairs]
        yield labels, known[alike]
