"""Tests of rightsizer.ledger."""
