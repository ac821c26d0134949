"""No requests: an inference server that nobody uses, although its GPUs are not quite idle. Pure.

Health checks and warm-ups keep GPUs from being idle; the server's own counters tell that nobody asked it.
"""

from collections.abc import Iterable

from rightsizer.findings.data_quality import COMPLETENESS_CHECKS, first_issues
from rightsizer.findings.evidence import Candidate, is_batch, is_grouped, pod_key
from rightsizer.findings.idle_history import observed_since
from rightsizer.model import Finding, FindingName, Measured, ServingLoad, Verdict, Workload
from rightsizer.policy.recognition import server_of
from rightsizer.text import count, percent, span

_SHOWN = 3


def find_no_requests(candidate: Candidate) -> Finding | None:
    """A workload whose pods all had no request in the window; None if one is too young, or its load unknown."""
    part, workload = candidate.criteria.noRequests, candidate.workload
    if is_batch(workload) or workload.gang or is_grouped(workload) or not candidate.held:
        return None
    loads = [candidate.measured.serving.get(part.window, {}).get(pod_key(pod)) for pod in candidate.held]
    if not all(load is not None and _is_unused(load) for load in loads):
        return None
    begins = [observed_since(pod) for pod in candidate.held]
    if any(began is None or candidate.at - began < part.window for began in begins):
        return None
    evidence = candidate.over_idle()
    means = [gpu.usage.activity_mean for gpu in evidence.devices]
    if any(mean is None or mean * 100 > part.maxMeanPercent for mean in means):
        return None
    if first_issues(evidence, COMPLETENESS_CHECKS):
        return None
    engines = ", ".join(sorted({load.engine for load in loads if load is not None}))
    return evidence.finding(
        FindingName.NO_REQUESTS,
        Verdict.ACT,
        f"no request to {engines} in the last {span(part.window)}",
        f"mean activity of each GPU at most {percent(max(mean or 0.0 for mean in means))}",
        evidence.levels,
    )


def _is_unused(load: ServingLoad) -> bool:
    """Whether it served nothing, and nothing ran or waited in any sample; a counter has to say so."""
    return load.requests == 0 and not load.running and not load.queued


def servers_without_metrics(workloads: Iterable[Workload], measured: Measured) -> tuple[str, ...]:
    """A remark about the inference servers of which no requests are known, although they are recognised; or none."""
    known = {pod for loads in measured.serving.values() for pod in loads}
    found = []
    for workload in workloads:
        if is_batch(workload) or not workload.holding or known & set(map(pod_key, workload.holding)):
            continue
        name, by = server_of(workload)
        if name:
            found.append(f"{workload.ref} ({name}, by {by})")
    if not found:
        return ()
    found.sort()  # whatever order the workloads are in, it is the same remark
    more = [f"and {len(found) - _SHOWN} more"] if found[_SHOWN:] else []
    words = (
        f"Prometheus has no metrics of {count(len(found), 'inference server')}, so their requests are unknown"
    )
    return (f"{words}: {', '.join([*found[:_SHOWN], *more])}; scrape /metrics of their pods",)
