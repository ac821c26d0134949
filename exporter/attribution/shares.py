"""A device's busy time, shared among the processes that the driver's samples name. Pure.

Whole numbers throughout: what the parts do not add up to stays over, and is never lost.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from exporter.attribution.records import ProcessSample, Slice


class Portion(NamedTuple):
    """A process's part, in percent of microseconds, between two instants of Unix time in microseconds."""

    pid: int
    from_us: int
    to_us: int
    busy: int


class Shared(NamedTuple):
    """What each process gets, and what nobody does.

    `is_exact`: the samples of device and processes were taken at the same instants, so that each is known for itself.
    """

    parts: tuple[Portion, ...]
    rest: int
    is_exact: bool


def share(slices: Sequence[Slice], samples: Iterable[ProcessSample]) -> Shared:
    """Lay the processes' samples over the device's.

    Where both were taken at the same instants, each period is shared by itself: a process gets what its sample says.
    The driver rounds to whole percents, so what is missing or too much within that rounding is shared in proportion;
    what is missing beyond it belongs to nobody that is known. Where the instants differ, or where each process has but
    one sample for a look that was busy in many periods, the samples say the proportions only, for the busy time of that
    look as a whole.
    """
    by_end: dict[int, list[ProcessSample]] = {}
    for sample in samples:
        by_end.setdefault(sample.at_us, []).append(sample)
    if _is_by_period(slices, by_end):
        return _by_period(slices, by_end)
    return _in_proportion(slices, [sample for found in by_end.values() for sample in found])


def _is_by_period(slices: Sequence[Slice], by_end: dict[int, list[ProcessSample]]) -> bool:
    """Whether the driver samples processes in each period, and not once for all of them."""
    if not by_end.keys() <= {piece.to_us for piece in slices}:
        return False
    pids = [sample.pid for found in by_end.values() for sample in found]
    sampled = sum(piece.busy for piece in slices if piece.to_us in by_end)
    return len(pids) > len(set(pids)) or 2 * sampled >= sum(piece.busy for piece in slices)


def _by_period(slices: Sequence[Slice], by_end: dict[int, list[ProcessSample]]) -> Shared:
    parts: list[Portion] = []
    rest = 0
    for piece in slices:
        found = by_end.get(piece.to_us, [])
        span_us = piece.to_us - piece.from_us
        weights = [sample.percent * span_us for sample in found]
        slack = span_us * (sum(map(bool, weights)) + 1) // 2  # half a percent for each, and for the device
        split = _split(piece.busy, weights, slack)
        parts += [
            Portion(sample.pid, piece.from_us, piece.to_us, part)
            for sample, part in zip(found, split, strict=True)
            if part
        ]
        rest += piece.busy - sum(split)
    return Shared(tuple(parts), rest, is_exact=True)


def _in_proportion(slices: Sequence[Slice], samples: Sequence[ProcessSample]) -> Shared:
    busy = sum(piece.busy for piece in slices)
    from_us = min((piece.from_us for piece in slices), default=0)
    split = _split(busy, [sample.percent for sample in samples], slack=busy)
    parts = tuple(
        Portion(sample.pid, from_us, sample.at_us, part)
        for sample, part in zip(samples, split, strict=True)
        if part
    )
    return Shared(parts, busy - sum(split), is_exact=False)


def _split(total: int, weights: Sequence[int], slack: int) -> list[int]:
    """`total` by `weights`: as they are, or in proportion where they are more than it, or less by `slack` at most."""
    weighed = sum(weights)
    if not weighed:
        return [0] * len(weights)
    if weighed <= total - slack:
        return list(weights)
    return [total * weight // weighed for weight in weights]
