"""Tests of rightsizer_history.ledger."""
