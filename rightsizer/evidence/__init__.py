"""What pods did on GPUs, slot by slot."""
