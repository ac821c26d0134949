"""Everything that writes to the cluster: the one door for changes, evictions, and what puts them back."""
