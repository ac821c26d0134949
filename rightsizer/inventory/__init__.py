"""API objects become the Fleet: workloads with their owners, gangs and GPU requests, and the nodes with GPUs."""
