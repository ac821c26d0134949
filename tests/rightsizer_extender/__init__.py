"""Tests of rightsizer_extender."""
