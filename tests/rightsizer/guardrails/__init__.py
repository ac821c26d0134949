"""Tests of rightsizer.guardrails."""
