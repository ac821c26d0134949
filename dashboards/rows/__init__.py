"""The dashboard's table: variables, rows, panels and what each of them asks. Pure. To add a panel, add it to its row.

Everything is asked of recorded series (rules.py), except what the rightsizer publishes, which is a few series.
"""

from dashboards.panels import Variable
from dashboards.rows.asking import IN_CLASS, IN_CLUSTER
from dashboards.rows.classes import CLASSES
from dashboards.rows.cluster import CLUSTER
from dashboards.rows.nodes import NODES
from dashboards.rows.rightsizer import RIGHTSIZER
from dashboards.rows.workloads import WORKLOADS

VARIABLES = (
    Variable(
        "cluster",
        "Cluster",
        "cluster",
        "gpu:node:gpus",
        "The label that tells clusters apart, where there is one",
    ),
    Variable(
        "class",
        "Class",
        "priority_class",
        f"gpu:namespace:held{{{IN_CLUSTER}}}",
        "PriorityClass of pods, by kube-state-metrics",
    ),
    Variable(
        "namespace",
        "Namespace",
        "namespace",
        f"gpu:namespace:held{{{IN_CLASS}}}",
        "Of the pods that hold GPUs",
    ),
    Variable(
        "workload",
        "Workload",
        "workload",
        f'gpu:workload:held{{{IN_CLASS}, namespace=~"$namespace"}}',
        "Whose pods they are, by kube-state-metrics, else by the pods' names",
    ),
    Variable("node", "Node", "node", f"gpu:node:gpus{{{IN_CLUSTER}}}", "With GPUs"),
    Variable("model", "GPU model", "modelName", f"gpu:node:gpus{{{IN_CLUSTER}}}", "As the driver names it"),
)


ROWS = (CLUSTER, CLASSES, WORKLOADS, NODES, RIGHTSIZER)
