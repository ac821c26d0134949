"""Writes to the cluster: changes, evictions, verification, rollback and undo."""
