"""Tests of rightsizer_history.cli."""
