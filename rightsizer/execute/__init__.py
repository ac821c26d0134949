"""Everything that writes to the cluster: changes, evictions, verification, rollback and undo."""
