"""Prometheus is found by the labels of its Service and must hold GPU series; several are never guessed between."""

import datetime
import json
import pathlib
import socket
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from rightsizer.config import ClusterSettings, PrometheusSettings, Secret
from rightsizer.errors import ConfigurationError, PrometheusError, QueryTooLarge, RequestRefused
from rightsizer.kube.cluster import Cluster
from rightsizer.prometheus.discovery import SERVER_FLAVOURS, ServerFlavour, connect
from rightsizer.prometheus.query_api import Prometheus
from simulator.kube import ApiServer, Fault, Rule
from tests.rightsizer.commands import run_command
from tests.rightsizer.fakeprometheus import GOOD, SCALAR, Answer, Fake, serving
from tests.rightsizer.world import World

AT = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
NAME, COMPONENT = "app.kubernetes.io/name", "app.kubernetes.io/component"
PROMETHEUS = {"app": "kube-prometheus-stack-prometheus"}
THANOS = {NAME: "thanos-query"}
EMPTY = '{"status":"success","data":{"resultType":"vector","result":[]}}'


class Place:
    """A cluster whose Services lead to servers of the test's own."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.api = ApiServer()
        self.kubeconfig = directory / "kubeconfig"
        self.servers: list[Fake] = []

    def service(self, name: str, labels: dict[str, str], backend: Fake | None = None, **spec: object) -> None:
        """A Service of the namespace monitoring, and what stands behind its first port."""
        full = {"ports": [{"name": "http-web", "port": 9090}], "selector": {"app": name}, **spec}
        metadata = {"name": name, "namespace": "monitoring", "labels": labels}
        self.api.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": full})
        if backend is not None:
            for port in json.loads(json.dumps(full["ports"])):
                self.api.backends.set("monitoring", name, port["port"], backend.url)

    def account(self, *rules: tuple[str, str]) -> None:
        """Be somebody who may do that, as (verb, resource), and nothing else."""
        self.api.add_user("reader-token", "reader")
        for verb, resource in rules:
            self.api.allow(Rule("reader", verbs=(verb,), resources=(resource,)))
        self.kubeconfig.write_text(yaml.safe_dump(self.api.kubeconfig("reader-token")))

    def connect(self, **settings: object) -> Prometheus:
        """Find it."""
        cluster = Cluster(ClusterSettings(self.kubeconfig))
        return connect(PrometheusSettings(**{"timeout_s": 30.0, **settings}), cluster)  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: pathlib.Path) -> Iterator[Place]:
    """A cluster with a namespace for monitoring."""
    found = Place(tmp_path)
    with found.api:
        found.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "monitoring"}})
        found.kubeconfig.write_text(yaml.safe_dump(found.api.kubeconfig()))
        yield found


def _holding(body: str) -> Iterator[Fake]:
    def respond(form: dict[str, str]) -> Answer:
        return Answer(body=SCALAR if form["query"] == "time()" else body)

    with serving() as server:
        server.respond = respond
        yield server


@pytest.fixture
def gpus() -> Iterator[Fake]:
    """A server that holds GPU series."""
    yield from _holding(GOOD.replace('"1.5"', '"8"'))


@pytest.fixture
def empty() -> Iterator[Fake]:
    """A server that holds none."""
    yield from _holding(EMPTY)


ALL_LABELS = [
    pytest.param(flavour, dict(labels), id=f"{flavour.name}-{'-'.join(labels.values())}".replace(" ", "-"))
    for flavour in SERVER_FLAVOURS
    for labels in flavour.labels
]


@pytest.mark.parametrize(("flavour", "labels"), ALL_LABELS)
def test_connect_each_flavour_is_found_by_its_labels(
    place: Place, gpus: Fake, flavour: ServerFlavour, labels: dict[str, str]
) -> None:
    """Queries use the path and headers of the flavour, and GET only."""
    place.service("metrics", {**labels, "release": "x"}, gpus)
    found = place.connect()
    assert [sample.value for sample in found.query("x", AT)] == [8.0]
    assert found.where.startswith(f"{flavour.name} at service monitoring/metrics:9090, through ")
    last = gpus.asked[-1]
    assert last["path"] == f"{flavour.path}/api/v1/query"
    sent = {name.lower(): value for name, value in last.items()}
    assert {name: sent[name.lower()] for name in flavour.headers} == flavour.headers
    assert {request.method for request in place.api.requests.all()} == {"GET"}


def test_connect_kubeconfig_token_is_not_sent_to_prometheus(place: Place, gpus: Fake) -> None:
    """The token opens the API server's proxy; Prometheus sees only the tenant header."""
    place.service("metrics", PROMETHEUS, gpus)
    place.connect(headers={"x-scope-orgid": Secret("team")}).query("x", AT)
    assert all("Authorization" not in one for one in gpus.asked)
    assert gpus.asked[-1]["x-scope-orgid"] == "team"


def test_connect_tenant_header_replaces_the_default(place: Place, gpus: Fake) -> None:
    """Mimir receives only the user's tenant."""
    place.service("mimir", {NAME: "mimir", COMPONENT: "query-frontend"}, gpus)
    place.connect(headers={"x-scope-orgid": Secret("team")})
    tenants = [v for k, v in gpus.asked[-1].items() if k.lower() == "x-scope-orgid"]
    assert tenants == ["team"]


def test_connect_global_server_is_preferred(place: Place, gpus: Fake) -> None:
    """Thanos is preferred to a Prometheus that holds GPU series, too."""
    place.service("a-prometheus", PROMETHEUS, gpus)
    place.service("thanos", THANOS, gpus)
    assert "thanos" in place.connect().where


def test_connect_server_without_gpu_series_is_skipped(place: Place, gpus: Fake, empty: Fake) -> None:
    """Whatever its flavour."""
    place.service("thanos", THANOS, empty)
    place.service("a-prometheus", PROMETHEUS, empty)
    place.service("b-prometheus", PROMETHEUS, gpus)
    assert "monitoring/b-prometheus:9090" in place.connect().where


def test_connect_several_with_gpu_series_raises_with_urls(place: Place, gpus: Fake) -> None:
    """The error lists each server with its URL."""
    place.service("a-prometheus", PROMETHEUS, gpus)
    place.service("b-prometheus", PROMETHEUS, gpus)
    with pytest.raises(ConfigurationError) as caught:
        place.connect()
    assert str(caught.value).splitlines() == [
        "which Prometheus? several services hold GPU series; choose one with --prometheus-url, as reachable from here:",
        "  Prometheus at service monitoring/a-prometheus:9090: 8 GPU series",
        "    --prometheus-url http://a-prometheus.monitoring.svc:9090",
        "  Prometheus at service monitoring/b-prometheus:9090: 8 GPU series",
        "    --prometheus-url http://b-prometheus.monitoring.svc:9090",
    ]


def test_connect_two_services_of_the_same_pods_count_once(place: Place, gpus: Fake) -> None:
    """Such as an operator's headless Service beside a chart's."""
    for name in ("a", "b"):
        place.service(name, PROMETHEUS, gpus, selector={"app": "prometheus"})
    assert "monitoring/a:9090" in place.connect().where


def test_connect_none_with_gpu_series_raises_with_results(place: Place, empty: Fake) -> None:
    """The error lists each server with its result."""
    place.service("a-prometheus", PROMETHEUS, empty)
    place.service("b-prometheus", PROMETHEUS)
    with pytest.raises(
        ConfigurationError, match="no service that looks like Prometheus holds GPU series"
    ) as caught:
        place.connect()
    assert "a-prometheus:9090: 0 GPU series" in str(caught.value)
    assert 'no endpoints available for service "b-prometheus:9090"' in str(caught.value)


def test_connect_server_that_needs_credentials_raises(place: Place) -> None:
    """The error names the permission and the flags."""
    with serving() as server:
        server.answers.append(Answer(401, "denied"))
        place.service("metrics", PROMETHEUS, server)
        with pytest.raises(ConfigurationError, match=r"HTTP 401: not allowed; see your permission .*-url"):
            place.connect()
    assert len(server.asked) == 1


def test_connect_no_service_raises_with_the_labels(place: Place, gpus: Fake) -> None:
    """The error names the flag, the variable and the labels."""
    place.service("other", {"app": "grafana"}, gpus)
    place.service("half", {NAME: "thanos", COMPONENT: "store"}, gpus)
    with pytest.raises(
        ConfigurationError, match=r"which Prometheus\? give --prometheus-url .* or set GPU"
    ) as caught:
        place.connect()
    assert "app.kubernetes.io/name=thanos-query" in str(caught.value)
    assert gpus.asked == []


def test_connect_external_name_service_is_ignored(place: Place) -> None:
    """Anyone who may create a Service could redirect the queries."""
    place.service("metrics", PROMETHEUS, type="ExternalName", externalName="evil.example")
    with pytest.raises(ConfigurationError, match="no service in the cluster has the labels of one"):
        place.connect()


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        ([("grpc", 10901), ("http", 10902)], "metrics:10902/"),
        ([("reloader-web", 8080), ("http-web", 9090)], "metrics:9090/"),
        ([("grpc", 10901), ("anything", 7)], "metrics:7/"),
        ([("https", 9091)], "https:metrics:9091/"),
        ([("web", 443)], "https:metrics:443/"),
    ],
)
def test_connect_query_port_is_chosen_by_name(
    place: Place, gpus: Fake, ports: list[tuple[str, int]], expected: str
) -> None:
    """By its usual names; https by name or number."""
    place.service("metrics", THANOS, gpus, ports=[{"name": name, "port": port} for name, port in ports])
    place.connect()
    paths = [
        urllib.parse.unquote(request.path) for request in place.api.requests.all() if "proxy" in request.path
    ]
    assert all(f"/services/{expected}proxy/api/v1/query" in path for path in paths)


def test_connect_needs_list_services_and_get_services_proxy(place: Place, gpus: Fake) -> None:
    """No other permission is needed."""
    place.service("metrics", PROMETHEUS, gpus)
    place.account(("list", "services"))
    with pytest.raises(
        ConfigurationError, match="HTTP 403: not allowed; see your permission to get services/proxy"
    ):
        place.connect()
    place.account(("list", "services"), ("get", "services/proxy"))
    assert place.connect().query("x", AT)


def test_connect_without_permission_to_list_services_raises(place: Place) -> None:
    """The error has the API server's words."""
    place.account()
    with pytest.raises(RequestRefused, match='cannot list resource "services"'):
        place.connect()


def test_query_proxy_connection_lost_raises(place: Place, gpus: Fake) -> None:
    """The error names the service."""
    place.service("metrics", PROMETHEUS, gpus)
    found = place.connect()
    place.api.inject(Fault(path="proxy", times=None, drop=True))
    with pytest.raises(PrometheusError, match="querying Prometheus at service monitoring/metrics"):
        found.query("x", AT)


def test_query_proxy_timeout_raises_query_too_large(place: Place, gpus: Fake) -> None:
    """The deadline holds behind the proxy, too."""
    place.service("metrics", PROMETHEUS, gpus)
    found = place.connect(timeout_s=3.0)
    place.api.inject(Fault(path="proxy", times=None, delay_s=10.0))
    with pytest.raises(QueryTooLarge, match="no response within"):
        found.query("x", AT)


def test_connect_inside_the_cluster_uses_the_service_directly(
    place: Place, gpus: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the Service's DNS name, with POST, and without the API server's proxy."""
    real = socket.getaddrinfo

    def resolve(host: str, *rest: Any, **more: Any) -> Any:
        return real("127.0.0.1" if host == "metrics.monitoring.svc" else host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    port = gpus.server_address[1]
    place.service("metrics", {NAME: "vmselect"}, ports=[{"name": "http", "port": port}])
    cluster = Cluster(ClusterSettings(place.kubeconfig))
    cluster.is_inside = True
    found = connect(PrometheusSettings(timeout_s=30.0), cluster)
    assert found.where == f"http://metrics.monitoring.svc:{port}/select/0/prometheus"
    assert {(one["method"], one["path"]) for one in gpus.asked} == {
        ("POST", "/select/0/prometheus/api/v1/query")
    }
    assert not [request for request in place.api.requests.all() if "proxy" in request.path]


def test_connect_url_given_is_used_without_search(place: Place, gpus: Fake, empty: Fake) -> None:
    """No service is listed."""
    place.service("metrics", PROMETHEUS, gpus)
    place.connect(url=empty.url).query("x", AT)
    assert (len(empty.asked), gpus.asked, place.api.requests.all()) == (1, [], [])


@pytest.mark.prometheus
def test_plan_without_prometheus_url_finds_one_and_apply_refuses(world: World) -> None:
    """Plan says which Prometheus it found; apply needs a URL."""
    world.add("Deployment", world.team, "idle", {})
    world.namespace("monitoring")
    metadata = {
        "name": "prometheus",
        "namespace": "monitoring",
        "labels": {NAME: "prometheus", COMPONENT: "server"},
    }
    spec = {"ports": [{"name": "http", "port": 80}]}
    world.api.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})
    world.api.backends.set("monitoring", "prometheus", 80, world.prometheus.url)
    kubeconfig = ["--kubeconfig", str(world.directory / "kubeconfig")]
    run = run_command("plan", "-o", "json", *kubeconfig)
    assert run.err.startswith(
        "note: no --prometheus-url; found Prometheus at service monitoring/prometheus:80, through "
    )
    assert run.items["idle"]["finding"] == "idle"
    assert world.api.requests.mutating(include_dry_run=True) == []
    refused = run_command("apply", "--yes", *kubeconfig)
    assert (refused.code, "apply acts on what it says, so name it" in refused.err) == (2, True)
