"""Series that Prometheus leaves out of a response with a warning, since they mix floats and native histograms. Pure.

Any scraped target can expose such a series. So the query is rewritten to name them: each then has the value NaN, which
is impossible as a measurement of any kind, and the other series count.
"""

import re
from collections.abc import Iterator

_MIXED = re.compile(
    r'PromQL warning: encountered a mix of histograms and floats for (?:metric name "(?P<metric>.+?)"|aggregation)'
)
_LOST_IN = "avg_over_time|rate|increase"
"""Functions that leave out a series which mixes both, or answer NaN, which no counter's seconds are."""
_TOKEN = re.compile(r"""\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[()]""", re.DOTALL)


def leaves_out(warning: str) -> bool:
    """Whether the response to a query with this warning lacks series."""
    return _MIXED.match(warning) is not None


def rewritten(query: str, warning: str) -> Iterator[tuple[str, str]]:
    """The query with NaN for each series that it left out, and a query for only these; none if it is not known how."""
    found = _MIXED.match(warning)
    if found and found["metric"]:
        name = re.escape(found["metric"])
        call = rf"\b({_LOST_IN})\((?={name}\{{|\{{\"{name}\")"
        count, total = "count_over_time", "sum_over_time"
    else:
        call = r"\bsum( (?:by|without) \([^()]*\)) \("
        count, total = r"count\1 ", r"sum\1 "
    for match in re.finditer(call, query):
        end = _closing(query, match.end())
        argument = query[match.end() : end]
        left_out = f"({match.expand(count)}({argument}) unless {match.expand(total)}({argument}))"
        yield f"{query[: match.start()]}({left_out} * NaN){query[end + 1 :]}", left_out


def _closing(query: str, start: int) -> int:
    """The place of the parenthesis that closes the one before `start`."""
    depth = 1
    for token in _TOKEN.finditer(query, start):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if not depth:
            return token.start()
    raise ValueError(query)
