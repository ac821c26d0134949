"""`gpu-rightsizer policy check`: tell everything that is wrong with a policy file."""

import argparse
import pathlib
import sys

from rightsizer.cli.options import cluster_settings
from rightsizer.observe.cluster import Cluster
from rightsizer.observe.inventory import read_priority_classes
from rightsizer.policy.checks import require_classes
from rightsizer.policy.reading import load
from rightsizer.report.words import count, safe


def run(arguments: argparse.Namespace) -> int:
    """Check the file, and its names against the cluster."""
    loaded = load(pathlib.Path(arguments.file))
    checked = "not asked of a cluster"
    if not arguments.offline:
        cluster = Cluster(cluster_settings(arguments))
        require_classes(loaded, set(read_priority_classes(cluster)))
        checked = f"its PriorityClasses exist at {cluster.host}"
    rules = len(loaded.policy.rules)
    sys.stdout.write(safe(f"{arguments.file}: good: {count(rules, 'rule')}, {checked}") + "\n")
    return 0
