"""Manifests of autoscalers, for workloads whose demand for replicas varies: KEDA ScaledObject and HPA. Pure.

An autoscaler follows such demand within seconds, within the measured bounds. People apply the manifests.
"""

from collections.abc import Mapping
from typing import Any

from rightsizer.findings.evidence import GROUPED, SCALABLE, Candidate, has_replicas
from rightsizer.findings.replicas import demand, replicas_of
from rightsizer.model import ActivitySeries, Autoscalers
from rightsizer.prometheus import promql

_AUTOSCALERS = ("HorizontalPodAutoscaler", "KEDA")
"""Managers that already scale a workload."""

_TARGET_PERCENT = 60
"""Mean utilization at which the HPA adds pods: leaves headroom while a new pod loads its model."""


def autoscalers_for(candidate: Candidate, source: ActivitySeries) -> Autoscalers | None:
    """Manifests for a workload with varying demand; None if it does not vary or is unknown."""
    known, replicas = demand(candidate), replicas_of(candidate)
    if known is None or replicas is None or not _can_be_scaled(candidate):
        return None
    if known.unknown or not known.minutes:
        return None
    lowest = max(1, known.with_headroom(min(known.minutes)))
    highest = max(replicas, known.with_headroom(known.peak))
    if lowest >= min(highest, known.with_headroom(known.peak)):
        return None
    return Autoscalers(
        lowest=lowest,
        highest=highest,
        scaled_object=_manifest(
            candidate, "keda.sh/v1alpha1", "ScaledObject", _keda_spec(candidate, source, lowest, highest)
        ),
        hpa=_manifest(
            candidate,
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            _hpa_spec(candidate, source, lowest, highest),
        ),
    )


def _can_be_scaled(candidate: Candidate) -> bool:
    """Whether it has a scale subresource, one pod per replica, and no autoscaler yet."""
    workload = candidate.workload
    is_scaled = any(manager.kind in _AUTOSCALERS for manager in workload.managers)
    return has_replicas(workload) and workload.ref.kind in SCALABLE - GROUPED and not is_scaled


def _manifest(candidate: Candidate, api_version: str, kind: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    ref = candidate.workload.ref
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": ref.name, "namespace": ref.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name},
            **spec,
        },
    }


def _keda_spec(candidate: Candidate, source: ActivitySeries, lowest: int, highest: int) -> dict[str, Any]:
    """https://keda.sh/docs/2.17/scalers/prometheus/: the query's value is the number of replicas."""
    query = {
        "serverAddress": source.server,
        "query": busy_replicas(candidate, source),
        "threshold": "1",
    }
    return {
        "minReplicaCount": lowest,
        "maxReplicaCount": highest,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(candidate)}},
        "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": query}],
    }


def _hpa_spec(candidate: Candidate, source: ActivitySeries, lowest: int, highest: int) -> dict[str, Any]:
    """Requires an adapter that serves the metric per pod, such as prometheus-adapter."""
    target = {"type": "AverageValue", "averageValue": str(_TARGET_PERCENT)}
    return {
        "minReplicas": lowest,
        "maxReplicas": highest,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": source.metric}, "target": target}}],
        "behavior": _behavior(candidate),
    }


def busy_replicas(candidate: Candidate, source: ActivitySeries) -> str:
    """PromQL for the number of active replicas plus headroom."""
    part, ref = candidate.criteria.too_many_replicas, candidate.workload.ref
    pods = promql.quoted(f"{promql.escaped(ref.name)}-.+")
    selected = promql.selector(
        source.metric, (promql.equals(source.namespace, ref.namespace), f"{source.pod}=~{pods}")
    )
    by_pod = promql.by("max", [source.pod], f"max_over_time({selected}[5m])")
    busy = f"(count({by_pod} > {part.busyPercent:g}) or vector(0))"
    extra = f"clamp_min(ceil({busy} * {part.headroomPercent / 100:g}), {part.minHeadroom})"
    return f"{busy} + {extra}"


def _behavior(candidate: Candidate) -> dict[str, Any]:
    """Scale up at once, and down after the window; the API allows at most an hour."""
    window_s = round(candidate.criteria.too_many_replicas.window.total_seconds())
    return {"scaleDown": {"stabilizationWindowSeconds": min(window_s, 3600)}}
