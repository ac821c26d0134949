"""Waiting until something holds."""

import time
from collections.abc import Callable

PATIENCE_S = 60.0


def wait_until(holds: Callable[[], object]) -> None:
    """Return as soon as it holds; fail after a minute."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
