"""Splits a device's busy time among the processes in the driver's samples. Pure.

Whole numbers only: the remainder is returned too, so that nothing is lost to rounding.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from exporter.attribution.records import ProcessSample, Slice


class Portion(NamedTuple):
    """Busy time of one process in percent of microseconds, between two Unix times in microseconds."""

    pid: int
    from_us: int
    to_us: int
    busy: int


class SharedBusyTime(NamedTuple):
    """Busy time by process, and the remainder.

    `is_exact`: device and processes were sampled at the same instants, so that each period is known.
    """

    parts: tuple[Portion, ...]
    rest: int
    is_exact: bool


def share(slices: Sequence[Slice], samples: Iterable[ProcessSample]) -> SharedBusyTime:
    """Split the device's slices by the processes' samples.

    If both were sampled at the same instants, each period is split by itself, and a process gets what its sample
    says. The driver rounds to whole percents: a difference within that rounding is split in proportion, a larger one
    remains. If the instants differ, or each process has one sample for many busy periods, the samples are only
    proportions of the whole busy time.
    """
    by_end: dict[int, list[ProcessSample]] = {}
    for sample in samples:
        by_end.setdefault(sample.at_us, []).append(sample)
    if _is_by_period(slices, by_end):
        return _by_period(slices, by_end)
    return _in_proportion(slices, [sample for found in by_end.values() for sample in found])


def _is_by_period(slices: Sequence[Slice], by_end: dict[int, list[ProcessSample]]) -> bool:
    """Whether the driver samples the processes in each period."""
    if not by_end.keys() <= {piece.to_us for piece in slices}:
        return False
    pids = [sample.pid for found in by_end.values() for sample in found]
    sampled = sum(piece.busy for piece in slices if piece.to_us in by_end)
    return len(pids) > len(set(pids)) or 2 * sampled >= sum(piece.busy for piece in slices)


def _by_period(slices: Sequence[Slice], by_end: dict[int, list[ProcessSample]]) -> SharedBusyTime:
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
    return SharedBusyTime(tuple(parts), rest, is_exact=True)


def _in_proportion(slices: Sequence[Slice], samples: Sequence[ProcessSample]) -> SharedBusyTime:
    busy = sum(piece.busy for piece in slices)
    from_us = min((piece.from_us for piece in slices), default=0)
    split = _split(busy, [sample.percent for sample in samples], slack=busy)
    parts = tuple(
        Portion(sample.pid, from_us, sample.at_us, part)
        for sample, part in zip(samples, split, strict=True)
        if part
    )
    return SharedBusyTime(parts, busy - sum(split), is_exact=False)


def _split(total: int, weights: Sequence[int], slack: int) -> list[int]:
    """`total` by `weights`: the weights themselves, or in proportion if their sum is above `total` - `slack`."""
    weighed = sum(weights)
    if not weighed:
        return [0] * len(weights)
    if weighed <= total - slack:
        return list(weights)
    return [total * weight // weighed for weight in weights]
