"""The chart's monitors and rules as a TypeScript program that runs only where the Prometheus Operator takes them.

    python -m tests.deploy.monitors_as_typescript > monitors.mts

Types refuse what is not known, since the compiler looks for unknown properties in literals; the schemas of the custom
resources, which the program asks when it runs, refuse what is missing or of a form that they do not take.
"""

import json
import sys
from collections.abc import Iterator

from tests.deploy.chart import EVERYTHING, Object, render

KINDS = ("ServiceMonitor", "PodMonitor", "PrometheusRule")
_MODULE = "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1"
_HEAD = f"""\
import * as operator from {json.dumps(_MODULE)};

"""


def rendered() -> Iterator[Object]:
    """Of each kind all that the chart makes, with every option, and monitors with none but their switch."""
    only = {"serviceMonitor": {}, "podMonitor": {"enabled": True}}
    for monitoring in (EVERYTHING["monitoring"], {**EVERYTHING["monitoring"], **only}):
        yield from _of_kinds(render({**EVERYTHING, "monitoring": monitoring}))
    for switch in ("serviceMonitor", "podMonitor"):
        yield from _of_kinds(render({"monitoring": {switch: {"enabled": True}}}))


def _of_kinds(objects: list[Object]) -> Iterator[Object]:
    return (one for one in objects if one["kind"] in KINDS)


def program(objects: Iterator[Object]) -> str:
    """The program."""
    parts = [_HEAD]
    for number, one in enumerate(objects):
        kind, literal = one["kind"], json.dumps(one, indent=2)
        parts.append(f"const data_{number}: operator.I{kind} = {literal};\n")
        parts.append(f"new operator.{kind}(data_{number}).validate();\n")
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(program(rendered()))
