"""Sources of usage, one file each. A source knows its metrics' names, labels and units, and answers with Usage."""
