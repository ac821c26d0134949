"""Prometheus series become Usage: what each pod did on each of its GPUs, with coverage and history."""
