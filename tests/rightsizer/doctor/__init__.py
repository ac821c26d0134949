"""Tests of rightsizer.doctor."""
