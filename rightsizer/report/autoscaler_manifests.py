"""Manifests of the autoscalers that are advised, ready to be applied: a choice of two, as people read them. Pure."""

import json
from collections.abc import Iterator

from rightsizer.model import Decision
from rightsizer.report.documents import render
from rightsizer.text import safe_lines

KEDA = "KEDA ScaledObject"
HPA = "HorizontalPodAutoscaler"


def manifests(decision: Decision) -> Iterator[tuple[str, list[str]]]:
    """Either autoscaler: what it is, and its lines of YAML; none where none is advised."""
    if decision.autoscalers is not None:
        for title, manifest in ((KEDA, decision.autoscalers.scaled_object), (HPA, decision.autoscalers.hpa)):
            yield title, safe_lines(render(dict(manifest), "yaml")).splitlines()


def on_one_line(decision: Decision, title: str) -> str:
    """One of them as JSON; empty where it is not advised."""
    if decision.autoscalers is None:
        return ""
    manifest = decision.autoscalers.scaled_object if title == KEDA else decision.autoscalers.hpa
    return json.dumps(dict(manifest), separators=(",", ":"))
