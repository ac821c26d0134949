"""The simulated cluster of the core's tests."""

from tests.rightsizer.conftest import world

__all__ = ["world"]
