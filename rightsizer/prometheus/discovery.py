"""Finds a Prometheus in the cluster by the labels that the usual charts and operators give its Service.

Asks for one that holds GPU series and guesses nothing: where several do, or none, a person is told to name one. What is
found is sent no credentials, since whoever may create a Service may label it.
"""

import dataclasses
import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rightsizer.config import PrometheusSettings, Secret
from rightsizer.errors import ConfigurationError, PrometheusError
from rightsizer.kube.cluster import Cluster
from rightsizer.prometheus.query_api import Prometheus
from rightsizer.prometheus.transport import ServiceProxyTransport

log = logging.getLogger(__name__)

GPU_SERIES = (
    'count({__name__=~"DCGM_FI_DEV_(GPU_UTIL|FB_USED|POWER_USAGE).*|DCGM_FI_PROF_GR_ENGINE_ACTIVE.*"})'
)
"""DCGM's names before and from dcgm-exporter 4.9, which our exporter serves, too."""

PROBE_TIMEOUT_S = 10.0
"""For one count; a server that needs longer is none to choose unasked."""

_NAME, _COMPONENT = "app.kubernetes.io/name", "app.kubernetes.io/component"


@dataclasses.dataclass(frozen=True, slots=True)
class ServerFlavour:
    """A kind of server, and how its Service is recognised.

    Attributes:
        labels: Sets of labels, of which one has to be there whole.
        path: What stands before "/api/v1".
        headers: What it needs to answer at all.
        sees_all: Whether it is built to answer for several Prometheus servers, and so preferred to each of them.
    """

    name: str
    labels: tuple[Mapping[str, str], ...]
    path: str = ""
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sees_all: bool = True


# Labels as the charts and operators of 2026 set them; KRR's list (robusta-dev/krr) and kube-prometheus' manifests.
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
        sees_all=False,
    ),
)

_PORTS = ("http-web", "web", "http", "http-metrics", "https", "https-web")
"""Names of the port that answers queries, the likeliest first."""
_OTHER_PORTS = ("grpc", "reloader", "metrics-internal")


class _Metadata(msgspec.Struct):
    name: str
    namespace: str
    labels: dict[str, str] = {}


class _Port(msgspec.Struct, rename="camel"):
    port: int
    name: str = ""
    protocol: str = "TCP"
    app_protocol: str | None = None

    @property
    def scheme(self) -> str:
        """Kubernetes says it by appProtocol; before that, the port's name did."""
        is_https = (self.app_protocol or self.name).startswith("https") or self.port == 443  # noqa: PLR2004
        return "https" if is_https else "http"


class _Spec(msgspec.Struct):
    type: str = ""
    ports: list[_Port] = []
    selector: dict[str, str] | None = None


class _Service(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    """A port of a Service that looks like a server of a flavour."""

    flavour: ServerFlavour
    namespace: str
    name: str
    port: int
    scheme: str

    def __str__(self) -> str:
        """As messages name it."""
        return f"{self.flavour.name} at service {self.namespace}/{self.name}:{self.port}"

    @property
    def url(self) -> str:
        """As pods of the cluster reach it."""
        return f"{self.scheme}://{self.name}.{self.namespace}.svc:{self.port}{self.flavour.path}"


def connect(settings: PrometheusSettings, cluster: Cluster, holds: str = GPU_SERIES) -> Prometheus:
    """The Prometheus that the settings name or, where they name none, the one of the cluster that holds GPU series.

    In the cluster it is asked directly, from outside through the API server's proxy.

    Args:
        settings: How to reach it; `url` is what may be missing.
        cluster: Where to look: it takes permission to list services, and from outside to get services/proxy.
        holds: PromQL that has a result where there are GPU series.

    Raises:
        ConfigurationError: There is none, or more than one to choose from.
        ClusterError: The services could not be listed.
    """
    if settings.url is not None:
        return Prometheus(settings)
    candidates = _candidates(cluster)
    log.info("looked for Prometheus: %s", "; ".join(map(str, candidates)) or "no service is labelled so")
    found = [_probe(one, settings, cluster, holds) for one in candidates]
    for sees_all in (True, False):
        holding = [one for one in found if one.holds_gpus and one.candidate.flavour.sees_all is sees_all]
        if len(holding) > 1:
            raise ConfigurationError(_which("several services hold GPU series", holding))
        if holding:
            return _reach(holding[0].candidate, settings, cluster)
    if found:
        raise ConfigurationError(_which("no service that looks like it holds GPU series", found))
    raise ConfigurationError(_nothing())


@dataclasses.dataclass(frozen=True, slots=True)
class _Probed:
    """What a candidate answered."""

    candidate: _Candidate
    holds_gpus: bool
    words: str


def _probe(candidate: _Candidate, settings: PrometheusSettings, cluster: Cluster, holds: str) -> _Probed:
    brief = dataclasses.replace(settings, timeout_s=min(settings.timeout_s, PROBE_TIMEOUT_S))
    try:
        server = _reach(candidate, brief, cluster)
        samples = server.query(holds, server.now())
    except PrometheusError as error:
        return _Probed(candidate, holds_gpus=False, words=str(error))
    series = int(sum(sample.value for sample in samples))
    return _Probed(candidate, holds_gpus=series > 0, words=f"{series} GPU series")


def _reach(candidate: _Candidate, settings: PrometheusSettings, cluster: Cluster) -> Prometheus:
    given = set(map(str.lower, settings.headers))
    usual = {
        name: Secret(text) for name, text in candidate.flavour.headers.items() if name.lower() not in given
    }
    settings = dataclasses.replace(settings, url=candidate.url, headers={**usual, **settings.headers})
    if cluster.is_inside:
        return Prometheus(settings)
    scheme = "https:" if candidate.scheme == "https" else ""
    service = f"/api/v1/namespaces/{candidate.namespace}/services/{scheme}{candidate.name}:{candidate.port}"
    where = f"{candidate}, through {cluster.host}"
    way = ServiceProxyTransport(
        cluster, f"{service}/proxy{candidate.flavour.path}", where=where, headers=settings.headers
    )
    return Prometheus(settings, way)


def _candidates(cluster: Cluster) -> list[_Candidate]:
    """Of Services with the same pods behind them, one."""
    found: dict[tuple[str, str], _Candidate] = {}
    for service in _services(cluster):
        flavour = _flavour(service.metadata.labels)
        port = _port(service.spec.ports)
        # An ExternalName leads out of the cluster, wherever its author likes.
        if flavour is None or port is None or service.spec.type == "ExternalName":
            continue
        at = service.metadata
        pods = str(sorted((service.spec.selector or {"name": at.name}).items()))
        found.setdefault(
            (at.namespace, pods), _Candidate(flavour, at.namespace, at.name, port.port, port.scheme)
        )
    order = [flavour.name for flavour in SERVER_FLAVOURS]
    return sorted(found.values(), key=lambda one: (order.index(one.flavour.name), one.namespace, one.name))


def _services(cluster: Cluster) -> list[_Service]:
    """Those that have one of the labels, by name."""
    wanted: dict[str, set[str]] = {_NAME: set(), "app": set()}
    for flavour in SERVER_FLAVOURS:
        for labels in flavour.labels:
            key = _NAME if _NAME in labels else "app"
            wanted[key].add(labels[key])
    found: dict[tuple[str, str], _Service] = {}
    for key, values in wanted.items():
        selector = f"{key} in ({','.join(sorted(values))})"
        for service in cluster.list_all("/api/v1/services", _Service, label_selector=selector):
            found[service.metadata.namespace, service.metadata.name] = service
    return [found[key] for key in sorted(found)]


def _flavour(labels: Mapping[str, str]) -> ServerFlavour | None:
    for flavour in SERVER_FLAVOURS:
        if any(one.items() <= labels.items() for one in flavour.labels):
            return flavour
    return None


def _port(ports: Sequence[_Port]) -> _Port | None:
    """The one that answers queries: by its name, or the first that is not known to be something else."""
    by_name = {port.name: port for port in ports}
    for name in _PORTS:
        if name in by_name:
            return by_name[name]
    return next((port for port in ports if not port.name.startswith(_OTHER_PORTS)), None)


def _which(what: str, found: Iterable[_Probed]) -> str:
    lines = "".join(
        f"\n  {one.candidate}: {one.words}\n    --prometheus-url {one.candidate.url}" for one in found
    )
    return f"which Prometheus? {what}; name one by --prometheus-url, as it is reached from here:{lines}"


def _nothing() -> str:
    looked = "; ".join(
        f"{flavour.name} ({', or '.join(','.join(f'{k}={v}' for k, v in one.items()) for one in flavour.labels)})"
        for flavour in SERVER_FLAVOURS
    )
    return (
        "which Prometheus? give --prometheus-url http://HOST:9090, or set GPU_RIGHTSIZER_PROMETHEUS_URL: "
        f"no service of the cluster is labelled as one; looked for: {looked}"
    )
