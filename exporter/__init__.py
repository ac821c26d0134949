"""The exporter: what each GPU of this node does, and for which pod, as Prometheus metrics.

Data flows one way: cli > server > exposition | sampler > collectors | pods > nvml > settings | model | errors.
"""

__version__ = "0.1.0"
