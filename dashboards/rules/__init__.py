"""Recording rules of the dashboard: the same series for every exporter and scrape configuration. Pure.

    gpu:device:*     of each GPU, or MIG instance:  cluster, node, gpu, UUID, GPU_I_ID, GPU_I_PROFILE, modelName
    gpu:pod:*        of each pod on a device:       also namespace, pod, workload, priority_class
    gpu:workload:*   sums over pods                 gpu:namespace:*, gpu:node:* likewise

To add a rule, add a row. Rules of a group are evaluated in order, and each sees the results of earlier ones.
"""

from typing import Any

from dashboards.rules.devices import DEVICES
from dashboards.rules.faults import FAULTS
from dashboards.rules.fleet import FLEET, IDLE
from dashboards.rules.money import MONEY
from dashboards.rules.pods import PODS

PREFIX = "gpu-rightsizer-dashboard-"

GROUPS = (DEVICES, PODS, FLEET, IDLE, FAULTS, MONEY)


def document() -> dict[str, Any]:
    """The content of the rule file."""
    return {
        "groups": [
            {
                "name": f"{PREFIX}{group.name}",
                "interval": group.interval,
                "rules": [
                    {"record": rule.record, "expr": rule.expr}
                    | ({"labels": dict(rule.labels)} if rule.labels else {})
                    for rule in group.rules
                ],
            }
            for group in GROUPS
        ]
    }
