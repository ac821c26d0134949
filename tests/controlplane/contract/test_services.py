"""Services and their proxy, through which the rightsizer reaches Prometheus from outside."""

from urllib.parse import quote

import pytest

from tests.controlplane.contract.server import Api, Object


def service(**spec: object) -> Object:
    """A Service without pods behind it."""
    ports = [{"name": "web", "port": 9090}]
    return {
        "metadata": {"name": "s", "labels": {"app": "prometheus"}},
        "spec": {"ports": ports, "selector": {"app": "none"}, **spec},
    }


def test_service_created_gets_defaults(api: Api) -> None:
    """Type, protocol and target port."""
    spec = api.create(f"{api.core}/services", service())["spec"]
    assert spec["type"] == "ClusterIP"
    assert spec["ports"] == [{"name": "web", "port": 9090, "protocol": "TCP", "targetPort": 9090}]


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"ports": []}, "spec.ports"),
        ({"ports": [{"port": 0}]}, "spec.ports[0].port"),
        ({"ports": [{"port": 65536}]}, "spec.ports[0].port"),
        ({"ports": [{"port": 1}, {"port": 2, "name": "b"}]}, "spec.ports[0].name"),
        ({"type": "Other"}, "spec.type"),
        ({"type": "ExternalName"}, "spec.externalName"),
    ],
)
def test_invalid_service_is_422(strict_api: Api, spec: Object, field: str) -> None:
    """422 with the field."""
    reply = strict_api("POST", f"{strict_api.core}/services", service(**spec))
    assert (reply.status_code, reply.json()["reason"]) == (422, "Invalid")
    assert field in {cause["field"] for cause in reply.json()["details"]["causes"]}


def test_service_list_by_label_set_is_filtered(api: Api) -> None:
    """One list for several values of a label."""
    api.create(f"{api.core}/services", service())
    chosen = [
        [item["metadata"]["name"] for item in api.items(f"{api.core}/services", labelSelector=selector)]
        for selector in ("app in (prometheus,thanos-query)", "app in (thanos-query)")
    ]
    assert chosen == [["s"], []]


@pytest.mark.parametrize("segment", ["s:9090", "https:s:9090"])
def test_proxy_without_endpoints_is_503(api: Api, segment: str) -> None:
    """503 with a Status, and no connection to anywhere."""
    api.create(f"{api.core}/services", service())
    path = f"{api.core}/services/{segment}/proxy/api/v1/query?query={quote('time()')}"
    reply = api.eventually(lambda: api("GET", path), lambda found: found.status_code == 503)
    assert (reply.status_code, reply.json()["reason"]) == (503, "ServiceUnavailable")
    assert reply.json()["message"].startswith('no endpoints available for service "')


def test_proxy_of_missing_service_is_404(api: Api) -> None:
    """404, by its name."""
    reply = api("GET", f"{api.core}/services/gone:9090/proxy/x")
    assert (reply.status_code, reply.json()["reason"]) == (404, "NotFound")
    assert reply.json()["message"] == 'services "gone" not found'


def test_proxy_needs_its_own_grant(api: Api) -> None:
    """Who may get services may not get what is behind them; a POST through it is a create."""
    api.server.grant("reader", api.namespace, verbs=["get"], resources=["services"])
    api.server.grant("proxied", api.namespace, verbs=["get"], resources=["services/proxy"])
    api.create(f"{api.core}/services", service())
    path = f"{api.core}/services/s:9090/proxy/x"
    api.eventually(lambda: api("GET", path, user="proxied").status_code == 503)
    for verb, reply in (
        ("get", api("GET", path, user="reader")),
        ("create", api("POST", path, {}, user="proxied")),
    ):
        assert reply.status_code == 403
        assert f'cannot {verb} resource "services/proxy" in API group ""' in reply.json()["message"]
        assert reply.json()["message"].startswith('services "s:9090" is forbidden: ')
