"""One sampling cycle after the other: sampler > sweep > catalogue, and the metrics file that chooses what is read."""
