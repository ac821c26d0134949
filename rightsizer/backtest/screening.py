"""Which workloads a policy could change in a cycle: all others were active on every GPU. Pure."""

from collections.abc import Collection, Sequence

from rightsizer.backtest.recording import Grid, Member, Track
from rightsizer.findings.replicas import ReplicaNeed, is_worth_it
from rightsizer.model import Slot
from rightsizer.policy.effective import Criteria
from rightsizer.policy.thresholds import TooManyReplicas


class Screen:
    """The least that criteria ask for before a finding calls for a change.

    Args:
        criteria: Those of one workload.
    """

    def __init__(self, criteria: Collection[Criteria], grid: Grid) -> None:
        self._grid = grid
        percents = [
            percent
            for each in criteria
            for percent in (each.idle.maxUtilizationPercent, each.too_many_gpus.maxUtilizationPercent)
        ]
        self._active = max(percents) / 100
        self._moved = max(each.idle.maxMemoryTrafficPercent for each in criteria) / 100
        self._steps = min(grid.steps_in(window) for each in criteria for window in each.wide_windows)
        self._stuck_steps = min(grid.steps_in(each.stuck.window) for each in criteria)
        self._parts = {each.too_many_replicas for each in criteria}

    def leaves_out(self, members: Sequence[Member], since: int, step: int) -> bool:
        """Whether no finding would change the workload of these pods; what was before `since` was others'.

        That is so if every GPU was active and one moved memory in the shortest windows, and as many replicas as
        would be kept were active at once.
        """
        tracks = [
            track for member in members for track in member.tracks if track.end > since and track.is_held
        ]
        first, stuck_first = max(since, step - self._steps), max(since, step - self._stuck_steps)
        return (
            not any(track.is_own for track in tracks)
            and all(_was_busy(track.above(self._active), track, first, step) for track in tracks)
            and any(_was_busy(track.moved(self._moved), track, stuck_first, step) for track in tracks)
            and (len(members) == 1 or all(self._suffice(members, part, since, step) for part in self._parts))
        )

    def _suffice(self, members: Sequence[Member], part: TooManyReplicas, since: int, step: int) -> bool:
        """Whether a change would remove too few: as many as in the busiest step and headroom stay."""
        first, replicas, limit = (
            max(since, step - self._grid.steps_in(part.window)),
            len(members),
            part.busyPercent / 100,
        )
        busy = max(
            (
                sum(
                    any(_was_busy(track.states(limit), track, at, at + 1) for track in member.tracks)
                    for member in members
                )
                for at in range(first, step)
            ),
            default=0,
        )
        return not is_worth_it(part, replicas, ReplicaNeed(part, busy, 0).replicas())


def _was_busy(row: bytes, track: Track, first: int, stop: int) -> bool:
    return row.find(Slot.BUSY, max(0, first - track.first), max(0, stop - track.first)) >= 0
