"""The recording rules of the dashboard: whoever exports, and however it is scraped, one shape to ask. Pure.

    gpu:device:*     of each GPU, or MIG instance:  cluster, node, gpu, UUID, GPU_I_ID, GPU_I_PROFILE, modelName
    gpu:pod:*        of each pod's part of it:      also namespace, pod, workload, priority_class
    gpu:workload:*   sums over pods                 gpu:namespace:*, gpu:node:* likewise

To add a rule, add a row. Rules of one group are evaluated in order, and each sees what those before it recorded.
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
    """The rule file's content."""
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
