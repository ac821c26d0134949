"""Tests of rightsizer.report."""
