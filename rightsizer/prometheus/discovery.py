"""Finds Prometheus in the cluster by the labels that the usual charts and operators set on its Service.

The server must hold GPU series. If several do, or none, the user must name one. Servers that are found receive no
credentials, since anyone who may create a Service may set its labels.
"""

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rightsizer.config import PrometheusSettings, Secret
from rightsizer.errors import ConfigurationError, PrometheusError
from rightsizer.kube.api_objects import ObjectMeta
from rightsizer.kube.cluster import Cluster
from rightsizer.prometheus.query_api import Prometheus
from rightsizer.prometheus.transport import ServiceProxyTransport

log = logging.getLogger(__name__)

GPU_SERIES = (
    'count({__name__=~"DCGM_FI_DEV_(GPU_UTIL|FB_USED|POWER_USAGE).*|DCGM_FI_PROF_GR_ENGINE_ACTIVE.*"})'
)
"""DCGM's names before and from dcgm-exporter 4.9; gpu-exporter serves them, too."""

PROBE_TIMEOUT_S = 10.0
"""Timeout of one count; a slower server is not chosen."""

_NAME, _COMPONENT = "app.kubernetes.io/name", "app.kubernetes.io/component"


@dataclasses.dataclass(frozen=True, slots=True)
class ServerFlavour:
    """A kind of server, and the labels of its Service."""

    name: str
    labels: tuple[Mapping[str, str], ...]  # sets of labels; one of them must match
    path: str = ""  # prefix of "/api/v1"
    # Headers without which it refuses queries
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    is_global: bool = True  # whether it aggregates several Prometheus servers; it is then preferred to them


# Labels that charts and operators set in 2026, from KRR's list (robusta-dev/krr) and kube-prometheus' manifests.
SERVER_FLAVOURS = (
    ServerFlavour(
        "Thanos",
        (
            {_NAME: "thanos", _COMPONENT: "query"},
            {_NAME: "thanos-query"},
            {"app": "thanos-query"},
            {"app": "thanos-querier"},
        ),
    ),
    ServerFlavour(
        "Mimir",
        ({_NAME: "mimir", _COMPONENT: "query-frontend"},),
        path="/prometheus",
        headers={"X-Scope-OrgID": "anonymous"},
    ),
    ServerFlavour(
        "VictoriaMetrics cluster", ({_NAME: "vmselect"}, {"app": "vmselect"}), path="/select/0/prometheus"
    ),
    ServerFlavour("VictoriaMetrics", ({_NAME: "vmsingle"}, {_NAME: "victoria-metrics-single"})),
    ServerFlavour(
        "Prometheus",
        (
            {_NAME: "prometheus", _COMPONENT: "server"},
            {_NAME: "prometheus", _COMPONENT: "prometheus"},
            {"app": "prometheus", "component": "server"},
            {"app": "kube-prometheus-stack-prometheus"},
            {"app": "prometheus-operator-prometheus"},
            {"app": "prometheus-prometheus"},
            {"app": "prometheus-server"},
            {"app": "rancher-monitoring-prometheus"},
            {"app": "stack-prometheus"},
        ),
        is_global=False,
    ),
)

_PORTS = ("http-web", "web", "http", "http-metrics", "https", "https-web")
"""Names of the query port, most likely first."""
_OTHER_PORTS = ("grpc", "reloader", "metrics-internal")


class _Port(msgspec.Struct, rename="camel"):
    port: int
    name: str = ""
    app_protocol: str | None = None

    @property
    def scheme(self) -> str:
        """The scheme by appProtocol, else by the port's name or number."""
        is_https = (self.app_protocol or self.name).startswith("https") or self.port == 443  # noqa: PLR2004
        return "https" if is_https else "http"


class _ServiceSpec(msgspec.Struct):
    type: str = ""
    ports: list[_Port] = []
    selector: dict[str, str] | None = None


class _Service(msgspec.Struct):
    metadata: ObjectMeta
    spec: _ServiceSpec = msgspec.field(default_factory=_ServiceSpec)


@dataclasses.dataclass(frozen=True, slots=True)
class _ServerCandidate:
    """A port of a Service whose labels are those of a flavour."""

    flavour: ServerFlavour
    namespace: str
    name: str
    port: int
    scheme: str

    def __str__(self) -> str:
        """The server, as messages name it."""
        return f"{self.flavour.name} at service {self.namespace}/{self.name}:{self.port}"

    @property
    def url(self) -> str:
        """The URL inside the cluster."""
        return f"{self.scheme}://{self.name}.{self.namespace}.svc:{self.port}{self.flavour.path}"


def connect(settings: PrometheusSettings, cluster: Cluster, holds: str = GPU_SERIES) -> Prometheus:
    """The Prometheus of the settings' URL, or else the one in the cluster for which the PromQL `holds` has a result.

    Inside the cluster, queries go directly to the Service; from outside, through the API server's proxy. It needs
    permission to list services, and from outside to get services/proxy.

    Raises:
        ConfigurationError: There is none, or there are several to choose from.
        ClusterError: The services could not be listed.
    """
    if settings.url is not None:
        return Prometheus(settings)
    candidates = _candidates(cluster)
    log.info("Prometheus candidates: %s", "; ".join(map(str, candidates)) or "no service has such labels")
    probes = [_probe(candidate, settings, cluster, holds) for candidate in candidates]
    for is_global in (True, False):
        counted = [probe for probe in probes if probe.series]
        holding = [probe for probe in counted if probe.candidate.flavour.is_global is is_global]
        if len(holding) > 1:
            raise ConfigurationError(_choice("several services hold GPU series", holding))
        if holding:
            return _reach(holding[0].candidate, settings, cluster)
    if probes:
        raise ConfigurationError(_choice("no service that looks like Prometheus holds GPU series", probes))
    raise ConfigurationError(_no_service())


@dataclasses.dataclass(frozen=True, slots=True)
class _Probe:
    candidate: _ServerCandidate
    series: int
    result: str


def _probe(candidate: _ServerCandidate, settings: PrometheusSettings, cluster: Cluster, holds: str) -> _Probe:
    """Count the GPU series of a candidate, or keep its error."""
    brief = dataclasses.replace(settings, timeout_s=min(settings.timeout_s, PROBE_TIMEOUT_S))
    try:
        server = _reach(candidate, brief, cluster)
        series = sum(sample.count for sample in server.query(holds, server.now()))
    except PrometheusError as error:
        return _Probe(candidate, 0, str(error))
    return _Probe(candidate, series, f"{series} GPU series")


def _reach(candidate: _ServerCandidate, settings: PrometheusSettings, cluster: Cluster) -> Prometheus:
    given = set(map(str.lower, settings.headers))
    flavour = candidate.flavour
    defaults = {name: Secret(text) for name, text in flavour.headers.items() if name.lower() not in given}
    settings = dataclasses.replace(settings, url=candidate.url, headers={**defaults, **settings.headers})
    if cluster.is_inside:
        return Prometheus(settings)
    service = f"{'https:' if candidate.scheme == 'https' else ''}{candidate.name}:{candidate.port}"
    path = f"/api/v1/namespaces/{candidate.namespace}/services/{service}/proxy{flavour.path}"
    where = f"{candidate}, through {cluster.host}"
    return Prometheus(settings, ServiceProxyTransport(cluster, path, where=where, headers=settings.headers))


def _candidates(cluster: Cluster) -> list[_ServerCandidate]:
    """One for each set of pods, though several Services may select them."""
    found: dict[tuple[str, str], _ServerCandidate] = {}
    for service in _services(cluster):
        flavour = _flavour(service.metadata.labels or {})
        port = _port(service.spec.ports)
        # An ExternalName may lead to any host outside the cluster.
        if flavour is None or port is None or service.spec.type == "ExternalName":
            continue
        namespace, name = service.metadata.namespace, service.metadata.name
        pods = str(sorted((service.spec.selector or {"name": name}).items()))
        candidate = _ServerCandidate(flavour, namespace, name, port.port, port.scheme)
        found.setdefault((namespace, pods), candidate)
    order = [flavour.name for flavour in SERVER_FLAVOURS]
    return sorted(found.values(), key=lambda svc: (order.index(svc.flavour.name), svc.namespace, svc.name))


def _services(cluster: Cluster) -> list[_Service]:
    """The Services that have one of the labels, by name."""
    values: dict[str, set[str]] = {_NAME: set(), "app": set()}
    for labels in (labels for flavour in SERVER_FLAVOURS for labels in flavour.labels):
        key = _NAME if _NAME in labels else "app"
        values[key].add(labels[key])
    found = {
        (service.metadata.namespace, service.metadata.name): service
        for key, names in values.items()
        for service in cluster.list_all(
            "/api/v1/services", _Service, label_selector=f"{key} in ({','.join(sorted(names))})"
        )
    }
    return [found[key] for key in sorted(found)]


def _flavour(labels: Mapping[str, str]) -> ServerFlavour | None:
    for flavour in SERVER_FLAVOURS:
        if any(wanted.items() <= labels.items() for wanted in flavour.labels):
            return flavour
    return None


def _port(ports: Sequence[_Port]) -> _Port | None:
    """The query port: by its name, or the first without another port's name."""
    by_name = {port.name: port for port in ports}
    for name in _PORTS:
        if name in by_name:
            return by_name[name]
    return next((port for port in ports if not port.name.startswith(_OTHER_PORTS)), None)


def _choice(reason: str, probes: Iterable[_Probe]) -> str:
    lines = "".join(
        f"\n  {probe.candidate}: {probe.result}\n    --prometheus-url {probe.candidate.url}"
        for probe in probes
    )
    return f"which Prometheus? {reason}; choose one with --prometheus-url, as reachable from here:{lines}"


def _no_service() -> str:
    labels = "; ".join(
        f"{flavour.name} ({', or '.join(','.join(f'{k}={v}' for k, v in labels.items()) for labels in flavour.labels)})"
        for flavour in SERVER_FLAVOURS
    )
    return (
        "which Prometheus? give --prometheus-url http://HOST:9090, or set GPU_RIGHTSIZER_PROMETHEUS_URL: "
        f"no service in the cluster has the labels of one; looked for: {labels}"
    )
