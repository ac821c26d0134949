"""Activity of pods on GPUs, slot by slot."""
