"""Tests of rightsizer_history.report."""
