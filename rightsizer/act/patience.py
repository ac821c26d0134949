"""How long, and by which clock, is waited for what others do: controllers, kubelets, pods that end."""

import dataclasses
from collections.abc import Callable, Iterator

_FIRST_WAIT_S = 0.2
_LONGEST_WAIT_S = 2.0
PAUSE_S = 120.0
"""So long is waited, whatever else, for pods without which what was stopped goes on: they get 30 s to end, unless they
ask for more. What is not gone then is left to the next run."""


@dataclasses.dataclass(frozen=True, slots=True)
class Patience:
    """How long is waited for what was changed to come to rest.

    Attributes:
        span_s: In all, in seconds.
        monotonic: A clock that only goes on, in seconds.
        sleep: Waits so many seconds.
        is_stopped: Asked between two looks; once true, nothing is waited for any more.
    """

    span_s: float
    monotonic: Callable[[], float]
    sleep: Callable[[float], None]
    is_stopped: Callable[[], bool]

    def rounds(self) -> Iterator[float]:
        """Seconds that have been waited, before each look; whoever looks says when to end by not asking for more."""
        began, wait_s = self.monotonic(), _FIRST_WAIT_S
        while True:
            yield self.monotonic() - began
            self.sleep(wait_s)
            wait_s = min(wait_s * 2, _LONGEST_WAIT_S)
