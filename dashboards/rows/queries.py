"""Shared parts of the panels' queries: matchers of the variables, sums, units. Pure."""

import re

IN_CLUSTER = 'cluster=~"$cluster"'
IN_CLASS = f'{IN_CLUSTER}, priority_class=~"$class"'
IN_PENDING = f'{IN_CLASS}, namespace=~"$namespace"'
IN_NAMESPACE = f'{IN_PENDING}, modelName=~"$model"'
IN_WORKLOAD = f'{IN_NAMESPACE}, workload=~"$workload"'
IN_NODE = f'{IN_CLUSTER}, node=~"$node", modelName=~"$model"'
IN_POD = f'{IN_WORKLOAD}, node=~"$node"'
DEVICE = "cluster, UUID, GPU_I_ID"


def total(series: str, matchers: str, *labels: str) -> str:
    """The sum of a series, by labels if any; an empty class is `(none)`, as in the rightsizer."""
    over = f" by ({', '.join(labels)})" if labels else ""
    found = f"sum{over} ({series}{{{matchers}}})"
    if "priority_class" in labels:
        return f'label_replace({found}, "priority_class", "(none)", "priority_class", "")'
    return found


def of_range(expression: str) -> str:
    """Hours over the dashboard's time range, from one value every five minutes."""
    return f"sum_over_time(({expression})[$__range:5m]) / 12"


def of_class(series: str) -> str:
    """The sum of a series by class."""
    return total(series, IN_CLASS, "priority_class")


def own(name: str, *labels: str) -> str:
    """A gauge of the rightsizer; its replicas publish the same value."""
    matchers = IN_CLASS if "priority_class" in labels else IN_CLUSTER
    return f"max by ({', '.join(('cluster', *labels))}) (gpu_rightsizer_{name}{{{matchers}}})"


def of_each(name: str) -> str:
    """A gauge of each installation (one per namespace); its replicas publish the same value."""
    return f"max by (cluster, namespace) (gpu_rightsizer_{name}{{{IN_CLUSTER}}})"


def highest(count: int, expression: str) -> str:
    """The series with the highest values at the end of the time range."""
    at_end = _SELECTOR.sub(r"\g<0> @ end()", expression)
    return f"{expression} and topk({count}, {at_end})"


def increase(name: str, *labels: str) -> str:
    """The increase of a rightsizer counter over the dashboard's time range."""
    grown = f"increase(gpu_rightsizer_{name}_total{{{IN_CLUSTER}}}[$__range])"
    return f"sum by ({', '.join(labels)}) ({grown})"


_SELECTOR = re.compile(r"gpu:[a-z_:]+\{[^}]*\}")
BAD_TO_GOOD = (("red", None), ("orange", 0.3), ("green", 0.6))
GPUS = "none"
SHARE = "percentunit"
