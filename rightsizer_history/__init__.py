"""Backtests, tuned policies and the ledger: a package above the core, which never imports it."""
