"""Tests of rightsizer.cli."""
