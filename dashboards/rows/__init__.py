"""The dashboard's table: variables, rows, panels and their queries. Pure. To add a panel, add it to its row.

Panels query recorded series (dashboards/rules) and the few series that the rightsizer publishes itself.
"""

from dashboards.panels import Variable
from dashboards.rows.backtest import BACKTEST
from dashboards.rows.classes import CLASSES
from dashboards.rows.cluster import CLUSTER
from dashboards.rows.nodes import NODES
from dashboards.rows.queries import IN_CLASS, IN_CLUSTER
from dashboards.rows.rightsizer import RIGHTSIZER
from dashboards.rows.workloads import WORKLOADS

VARIABLES = (
    Variable(
        "cluster",
        "Cluster",
        "cluster",
        "gpu:node:gpus",
        "Label of the cluster, if series have one",
    ),
    Variable(
        "class",
        "Class",
        "priority_class",
        f"gpu:namespace:held{{{IN_CLUSTER}}}",
        "PriorityClass of the pods, from kube-state-metrics",
    ),
    Variable(
        "namespace",
        "Namespace",
        "namespace",
        f"gpu:namespace:held{{{IN_CLASS}}}",
        "Namespaces whose pods hold GPUs",
    ),
    Variable(
        "workload",
        "Workload",
        "workload",
        f'gpu:workload:held{{{IN_CLASS}, namespace=~"$namespace"}}',
        "Owner of the pods, from kube-state-metrics or from pod names",
    ),
    Variable("node", "Node", "node", f"gpu:node:gpus{{{IN_CLUSTER}}}", "Nodes with GPUs"),
    Variable("model", "GPU model", "modelName", f"gpu:node:gpus{{{IN_CLUSTER}}}", "Model name of the driver"),
)


ROWS = (CLUSTER, CLASSES, WORKLOADS, NODES, RIGHTSIZER, BACKTEST)
