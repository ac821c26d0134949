"""The fixtures of the core's tests."""

from tests.rightsizer.conftest import receiver, world

__all__ = ("receiver", "world")
