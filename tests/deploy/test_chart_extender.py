"""The scheduler extender of the chart: what it runs, what it may do, who may ask, and the example that asks it."""

from typing import Any

import pytest
import yaml

from rightsizer.__main__ import parser
from rightsizer.changes.memory import NAMED_MAP
from rightsizer.doctor.rights import EXTEND, RIGHTS, needed
from tests.deploy.chart import ACTING, CHART, Object, find_one, pod_of, refused, render
from tests.deploy.podsecurity import beyond_restricted

pytestmark = pytest.mark.helm

NAME = "gpu-rightsizer-extender"
EXAMPLE = CHART.parents[1] / "examples/scheduler-extender/kube-scheduler.yaml"


def _objects(values: Object | None = None, **extender: Any) -> list[Object]:
    given = {"rightsizer": ACTING, **(values or {})}
    return render({**given, "extender": {"enabled": True, "tls": {"existingSecret": "tls"}, **extender}})


def test_extender_is_not_installed_by_default() -> None:
    """Nor anything of it."""
    assert NAME not in yaml.safe_dump(render())


def test_extender_runs_with_policy_and_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rightsizer's policy and Prometheus, its own schedule, and TLS with certificates of clients."""
    pod = pod_of(find_one(_objects(), "Deployment", NAME))
    (container,) = pod["containers"]
    variables = {one["name"]: one["value"] for one in container["env"]}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    parsed = parser().parse_args(container["args"])
    assert (parsed.command, str(parsed.policy)) == ("extend", "/etc/gpu-rightsizer/policy.yaml")
    assert (parsed.schedule, parsed.extender_listen) == ("*/5 * * * *", ":9402")
    assert str(parsed.client_ca_file) == "/etc/gpu-rightsizer/tls/ca.crt"
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    assert volumes[mounts["/etc/gpu-rightsizer/tls"]]["secret"]["secretName"] == "tls"
    assert mounts["/etc/gpu-rightsizer"] in volumes
    assert not list(beyond_restricted(pod))
    anybody = pod_of(
        find_one(_objects(tls={"existingSecret": "tls", "verifyClient": False}), "Deployment", NAME)
    )
    assert "CLIENT_CA_FILE" not in yaml.safe_dump(anybody)


def test_extender_may_read_watch_create_events_and_keep_what_it_named_only() -> None:
    """With an account of its own; its rights are those that doctor lists."""
    objects = _objects()
    role = find_one(objects, "ClusterRole", NAME)
    granted = {
        (verb, group, resource)
        for rule in role["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    everywhere, in_own = (
        [one for one in needed(RIGHTS, EXTEND[0]) if one.is_own is is_own] for is_own in (False, True)
    )
    assert {(one.verb, one.group, one.resource) for one in everywhere} <= granted
    assert {one for one in granted if one[0] not in {"get", "list", "watch"}} == {("create", "", "events")}
    own = {
        (verb, resource, name)
        for rule in find_one(objects, "Role", NAME)["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }
    assert {(one.verb, one.resource, name) for one in in_own for name in one.names or [""]} <= own
    writes = {("create", "configmaps", ""), ("patch", "configmaps", NAMED_MAP)}
    assert {one for one in own if one[0] not in {"get", "list"}} == writes
    (subject,) = find_one(objects, "ClusterRoleBinding", NAME)["subjects"]
    assert subject["name"] == pod_of(find_one(objects, "Deployment", NAME))["serviceAccountName"] == NAME


def test_extender_is_reachable_where_the_example_asks() -> None:
    """Service, port and name of its certificate."""
    source = [{"ipBlock": {"cidr": "10.0.0.0/24"}}]
    given: Object = {"clusterIP": "10.96.0.42", "from": source}
    objects = _objects(None, **given)
    (extender,) = yaml.safe_load(EXAMPLE.read_text())["extenders"]
    service = find_one(objects, "Service", NAME)["spec"]
    (port,) = service["ports"]
    assert extender["urlPrefix"] == f"https://{service['clusterIP']}:{port['port']}"
    assert extender["tlsConfig"]["serverName"] == f"{NAME}.gpu-rightsizer.svc"
    policy = find_one(objects, "NetworkPolicy", NAME)["spec"]
    assert policy["ingress"][1] == {"ports": [{"protocol": "TCP", "port": "extender"}], "from": source}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rightsizer": {"enabled": False}}, "extender.enabled needs rightsizer.enabled"),
        ({"rightsizer": {}}, "rightsizer.prometheus.url is required"),
        ({"extender": {"enabled": True}}, "extender.tls.existingSecret is required"),
    ],
)
def test_extender_lacks_what_it_needs_is_refused(values: Object, words: str) -> None:
    """With the value to set."""
    given = {"rightsizer": ACTING, "extender": {"enabled": True, "tls": {"existingSecret": "tls"}}}
    assert words in refused({**given, **values})


def test_wait_for_idle_lets_no_class_preempt() -> None:
    """On every level."""
    values = {"priorityClasses": {"gpus": [{"name": "h100"}], "waitForIdle": True}}
    classes = [one for one in render(values) if one["kind"] == "PriorityClass"]
    assert [one["preemptionPolicy"] for one in classes] == ["Never"] * 3
