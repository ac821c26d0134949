"""What a GPU of each node costs in an hour, where Prometheus knows: OpenCost's metric. Knows no price of its own.

`node_gpu_hourly_cost` is the price of one GPU of the node for one hour (https://opencost.io/docs/integrations/metrics).
"""

import datetime
import json
import math
from collections.abc import Mapping
from typing import Protocol

from rightsizer.prometheus.query_api import Sample

METRIC = "node_gpu_hourly_cost"


class Queries(Protocol):
    """What answers instant queries."""

    def query(self, promql: str, at: datetime.datetime) -> list[Sample]:
        """One sample for each series of the answer."""
        ...


def node_prices(
    prometheus: Queries, at: datetime.datetime, labels: Mapping[str, str] | None = None
) -> dict[str, float]:
    """Price of one GPU for one hour, by node; empty where nobody measures it.

    Zero is what OpenCost says of nodes that it has no price for; it is left out, as is what is no number. Where
    Prometheus found the exporter's own label in the way (honor_labels: false), `exported_node` is the node.

    Args:
        prometheus: Whom to ask.
        at: As of when.
        labels: What every series must carry.

    Raises:
        PrometheusError: There is no whole answer.
    """
    matchers = ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted((labels or {}).items()))
    samples = prometheus.query(f"max by (node, exported_node) ({METRIC}{{{matchers}}} > 0)", at)
    prices: dict[str, float] = {}
    for sample in samples:
        node = sample.labels.get("exported_node") or sample.labels.get("node")
        if node and math.isfinite(sample.value) and sample.value > 0:
            prices[node] = max(sample.value, prices.get(node, 0.0))
    return dict(sorted(prices.items()))
