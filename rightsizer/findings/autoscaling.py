"""Manifests of autoscalers, for workloads whose demand for replicas varies: KEDA ScaledObject and HPA. Pure.

An autoscaler follows such demand within seconds, within the measured bounds. People apply the manifests.
"""

import math
from collections.abc import Mapping
from typing import Any

from rightsizer.findings.evidence import Candidate, has_replicas, names_of
from rightsizer.findings.replicas import ReplicaNeed, demand, replicas_of
from rightsizer.kinds import kind_of
from rightsizer.model import ActivitySeries, Autoscalers
from rightsizer.prometheus import promql

_HPA, _KEDA = "HorizontalPodAutoscaler", "KEDA"
"""Managers that scale a workload already."""

_WHOLE_NAME = 40
"""Length up to which controllers keep a name whole (generateName, 58 characters)."""
_TARGET_PERCENT = 60
"""Mean utilization at which the HPA adds pods: leaves headroom while a new pod loads its model."""
STEP_PERCENT = 5
"""Share of the most replicas in whose multiples KEDA scales: about half as many changes as one by one."""


def autoscalers_for(candidate: Candidate, source: ActivitySeries) -> Autoscalers | None:
    """Manifests for a workload with varying demand; None if it does not vary or is unknown.

    If it has an autoscaler, the one manifest of its kind and name: with other bounds and another query.
    """
    known, replicas = demand(candidate), replicas_of(candidate)
    present = [manager for manager in candidate.workload.managers if manager.kind in {_HPA, _KEDA}]
    if known is None or replicas is None or not _can_be_scaled(candidate) or len(present) > 1:
        return None
    if not all(manager.scales and manager.name for manager in present):
        return None
    need = known.possible
    highest = max(replicas, candidate.original_replicas or 0, need.replicas())
    lowest = max(1, need.replicas(0))
    if need.replicas(known.quietest) >= min(highest, known.certain.replicas()):
        return None
    bounds = (lowest, highest)
    kind, name = (present[0].kind, present[0].name) if present else ("", candidate.workload.ref.name)
    keda = ("keda.sh/v1alpha1", "ScaledObject", _keda_spec(candidate, source, need, bounds))
    hpa = ("autoscaling/v2", "HorizontalPodAutoscaler", _hpa_spec(candidate, source, bounds))
    return Autoscalers(
        lowest=lowest,
        highest=highest,
        scaled_object=_manifest(candidate, name, *keda) if kind != _HPA else None,
        hpa=_manifest(candidate, name, *hpa) if kind != _KEDA else None,
        replaces=f"{keda[1] if kind == _KEDA else kind} {name}" if present else "",
    )


def _can_be_scaled(candidate: Candidate) -> bool:
    """Whether it has a scale subresource, and one pod per replica."""
    workload, row = candidate.workload, kind_of(candidate.workload.ref)
    is_scaled = row is not None and row.has_scale and not row.roles
    return is_scaled and has_replicas(workload) and not names_of(workload).is_group


def _manifest(
    candidate: Candidate, name: str, api_version: str, kind: str, spec: Mapping[str, Any]
) -> dict[str, Any]:
    ref = candidate.workload.ref
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {"name": name, "namespace": ref.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name},
            **spec,
        },
    }


def _keda_spec(
    candidate: Candidate, source: ActivitySeries, need: ReplicaNeed, bounds: tuple[int, int]
) -> dict[str, Any]:
    """https://keda.sh/docs/2.17/scalers/prometheus/: the query's value is the number of replicas.

    Without any series the query has no value: then KEDA keeps the replicas that there are.
    """
    query = {
        "serverAddress": source.server,
        "query": busy_replicas(candidate, source, need, most=bounds[1]),
        "threshold": "1",
        "ignoreNullValues": "false",
    }
    return {
        "minReplicaCount": bounds[0],
        "maxReplicaCount": bounds[1],
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(candidate)}},
        "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": query}],
    }


def _hpa_spec(candidate: Candidate, source: ActivitySeries, bounds: tuple[int, int]) -> dict[str, Any]:
    """Requires an adapter that serves the metric per pod, such as prometheus-adapter."""
    target = {"type": "AverageValue", "averageValue": str(_TARGET_PERCENT)}
    return {
        "minReplicas": bounds[0],
        "maxReplicas": bounds[1],
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": source.metric}, "target": target}}],
        "behavior": _behavior(candidate),
    }


def busy_replicas(candidate: Candidate, source: ActivitySeries, need: ReplicaNeed, *, most: int) -> str:
    """PromQL for the number of replicas active in the same minute, plus headroom and the largest jump.

    It looks back over a minute, or over two intervals between samples if that is longer.
    """
    part, ref = candidate.criteria.tooManyReplicas, candidate.workload.ref
    (suffix,) = names_of(candidate.workload).suffixes if len(ref.name) <= _WHOLE_NAME else (".+",)
    pods = promql.matcher(source.pod, "=~", f"{promql.escaped(ref.name)}-{suffix}")
    of_pods = (promql.equals(source.namespace, ref.namespace), pods)
    selected = promql.selector(source.metric, (*of_pods, *source.matchers))
    minutes = math.ceil(2 * source.interval_s / 60)
    by_pod = promql.by("max", [source.pod], f"max_over_time({selected}[{minutes}m])")
    busy = f"sum({by_pod} > bool {part.busyPercent:g})"
    extra = f"clamp_min(ceil({busy} * {part.headroomPercent / 100:g}), {need.replicas(0)})"
    step = math.ceil(most * STEP_PERCENT / 100)
    return f"ceil(({busy} + {extra}) / {step}) * {step}" if step > 1 else f"{busy} + {extra}"


def _behavior(candidate: Candidate) -> dict[str, Any]:
    """Scale up at once, and down after the window; the API allows at most an hour."""
    window_s = round(candidate.criteria.tooManyReplicas.window.total_seconds())
    return {"scaleDown": {"stabilizationWindowSeconds": min(window_s, 3600)}}
