"""Tests of rightsizer_history."""
