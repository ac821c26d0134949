"""The exporter: what each GPU of this node does, and for which pod, as Prometheus metrics.

Data flows one way: cli > http > render | sampling > collectors > nvml > attribution > pods > settings > model > errors.
"""

__version__ = "0.1.0"
