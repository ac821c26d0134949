"""Autoscalers that do at once what we do once a cycle: a KEDA ScaledObject and a HorizontalPodAutoscaler, as values.

Where the replicas that are needed vary from hour to hour, following them is an autoscaler's work. The bounds are those
that were measured. Pure; applying them is left to people.
"""

import json
import re
from typing import Any

from rightsizer.findings.evidence import Case
from rightsizer.findings.kind_traits import GROUPED, SCALABLE, has_replicas
from rightsizer.findings.replicas import demand, replicas_of, with_headroom
from rightsizer.model import ActivitySeries, Autoscalers

_AUTOSCALERS = ("HorizontalPodAutoscaler", "KEDA")
"""Kinds of managers that scale it already."""

_TARGET_PERCENT = 60
"""Mean utilization at which the HPA adds pods: room for a burst until a new one has loaded its model."""


def autoscalers_for(case: Case, source: ActivitySeries) -> Autoscalers | None:
    """Manifests for a workload whose need of replicas varies; None where it does not, or is not known."""
    workload = case.workload
    concurrency = case.measured.concurrency.get(workload.ref.uid)
    replicas = replicas_of(case)
    if concurrency is None or replicas is None or not _can_be_scaled(case):
        return None
    part = case.criteria.too_many_replicas
    known = demand(concurrency, part, workload, case.at)
    minutes = [busy for busy in (*concurrency.busy, *concurrency.earlier[: known.days]) if busy is not None]
    if known.unknown or not minutes:
        return None
    lowest = max(1, with_headroom(min(minutes), part))
    highest = max(replicas, with_headroom(known.peak, part))
    if lowest >= min(highest, with_headroom(known.peak, part)):
        return None
    return Autoscalers(
        lowest=lowest,
        highest=highest,
        scaled_object=_scaled_object(case, source, lowest, highest),
        hpa=_hpa(case, source, lowest, highest),
    )


def _can_be_scaled(case: Case) -> bool:
    """Whether autoscalers know its kind, its replicas are pods, and none scales it yet."""
    workload = case.workload
    is_scaled = any(manager.kind in _AUTOSCALERS for manager in workload.managers)
    return has_replicas(workload) and workload.ref.kind in SCALABLE - GROUPED and not is_scaled


def _scaled_object(case: Case, source: ActivitySeries, lowest: int, highest: int) -> dict[str, Any]:
    """https://keda.sh/docs/2.17/scalers/prometheus/: as many replicas as the query's value, rounded up."""
    window_s = round(case.criteria.too_many_replicas.window.total_seconds())
    return {
        "apiVersion": "keda.sh/v1alpha1",
        "kind": "ScaledObject",
        "metadata": _metadata(case),
        "spec": {
            "scaleTargetRef": _target(case),
            "minReplicaCount": lowest,
            "maxReplicaCount": highest,
            "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(window_s)}},
            "triggers": [
                {
                    "type": "prometheus",
                    "metricType": "AverageValue",
                    "metadata": {
                        "serverAddress": source.server,
                        "query": busy_replicas(case, source),
                        "threshold": "1",
                    },
                }
            ],
        },
    }


def _hpa(case: Case, source: ActivitySeries, lowest: int, highest: int) -> dict[str, Any]:
    """With prometheus-adapter or its like, which serves the metric by pod."""
    window_s = round(case.criteria.too_many_replicas.window.total_seconds())
    target = {"type": "AverageValue", "averageValue": str(_TARGET_PERCENT)}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": _metadata(case),
        "spec": {
            "scaleTargetRef": _target(case),
            "minReplicas": lowest,
            "maxReplicas": highest,
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": source.metric}, "target": target}}],
            "behavior": _behavior(window_s),
        },
    }


def busy_replicas(case: Case, source: ActivitySeries) -> str:
    """PromQL: how many replicas are at work now, with the headroom of the criteria."""
    part, ref = case.criteria.too_many_replicas, case.workload.ref
    pods = re.escape(ref.name).replace("\\-", "-") + "-.+"
    selector = f"{source.namespace}={_quoted(ref.namespace)}, {source.pod}=~{_quoted(pods)}"
    by_pod = f"max by ({source.pod}) (max_over_time({source.metric}{{{selector}}}[5m]))"
    busy = f"(count({by_pod} > {part.busyPercent:g}) or vector(0))"
    extra = f"clamp_min(ceil({busy} * {part.headroomPercent / 100:g}), {part.minHeadroom})"
    return f"{busy} + {extra}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _metadata(case: Case) -> dict[str, Any]:
    return {"name": case.workload.ref.name, "namespace": case.workload.ref.namespace}


def _target(case: Case) -> dict[str, Any]:
    ref = case.workload.ref
    return {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name}


def _behavior(window_s: int) -> dict[str, Any]:
    """Up at once, down only when nothing in the window needed more; the API allows an hour at most."""
    return {"scaleDown": {"stabilizationWindowSeconds": min(window_s, 3600)}}
