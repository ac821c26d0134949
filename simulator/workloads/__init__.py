"""How GPU workloads behave over time, deterministic by seed."""
