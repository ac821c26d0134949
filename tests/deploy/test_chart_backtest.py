"""The scheduled backtest of the chart: what it runs, that it only advises, what it shares with the rightsizer."""

import re
from typing import Any

import pytest
import yaml

from rightsizer.__main__ import parser
from rightsizer.doctor.rights import roles
from rightsizer.kube.last_backtest import NAME as FIGURES
from tests.deploy.chart import ACTING, EVERYTHING, POLICY, Object, find_one, notes, pod_of, refused, render
from tests.deploy.podsecurity import beyond_restricted

pytestmark = pytest.mark.helm

NAME = "gpu-rightsizer-backtest"
URL = {"url": "http://prometheus:9090"}


def _objects(values: Object | None = None, **backtest: Any) -> list[Object]:
    given = {"rightsizer": {"prometheus": URL}, **(values or {})}
    return render({**given, "backtest": {"enabled": True, **backtest}})


def _container(objects: list[Object]) -> Object:
    found: Object = pod_of(find_one(objects, "CronJob", NAME))["containers"][0]
    return found


def test_backtest_is_not_installed_by_default() -> None:
    """Nor anything of it."""
    assert NAME not in yaml.safe_dump([one for one in render() if one["kind"] != "Role"])


def test_backtest_command_follows_values_and_parses() -> None:
    """The release's policy first: its receivers get the message."""
    container = _container(
        _objects({"rightsizer": {**ACTING, "prometheus": EVERYTHING["rightsizer"]["prometheus"]}})
    )
    assert container["command"] == ["gpu-rightsizer"]
    assert container["args"][:9] == [
        *("backtest", "--publish", "--from", "30d", "--output", "table"),
        *("--policy", "/etc/gpu-rightsizer/policy.yaml", "--enforce"),
    ]
    objects = _objects(
        {"rightsizer": ACTING},
        **{**EVERYTHING["backtest"], "from": "14d", "enforce": False, "notify": False},
    )
    args = _container(objects)["args"]
    parsed = parser().parse_args(args)
    assert parsed.policies == [
        "/etc/gpu-rightsizer/policy.yaml",
        "/etc/gpu-rightsizer/backtest/careful.yaml",
    ]
    assert (parsed.since, parsed.output, parsed.step) == ("14d", "json", "30m")
    assert (parsed.publish, parsed.notify, parsed.enforce) == (True, False, False)
    assert str(parsed.save) == "/var/lib/gpu-rightsizer/backtest.html"
    assert (parsed.history, parsed.part) == ("/var/lib/gpu-rightsizer/history", "$(JOB_COMPLETION_INDEX)/4")


@pytest.mark.parametrize("parts", [1, 4])
def test_backtest_parts_are_pods_of_an_indexed_job(parts: int) -> None:
    """All at once: the first waits for the others. Kubernetes sets the variable of the index."""
    objects = _objects(history="s3://bucket/history", parts=parts)
    spec = find_one(objects, "CronJob", NAME)["spec"]["jobTemplate"]["spec"]
    indexed = {"completionMode": "Indexed", "completions": 4, "parallelism": 4}
    assert {key: spec[key] for key in indexed if key in spec} == ({} if parts == 1 else indexed)
    assert ("--part" in _container(objects)["args"]) is (parts > 1)


def test_backtest_files_are_mounted_where_its_command_reads_them() -> None:
    """Both policies as they were given, and the claim."""
    objects = _objects({"rightsizer": ACTING}, **EVERYTHING["backtest"])
    pod = pod_of(find_one(objects, "CronJob", NAME))
    mounts = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    for directory, key in (("", "policy"), ("/backtest", "careful")):
        volume = volumes[mounts[f"/etc/gpu-rightsizer{directory}"]]
        data = find_one(objects, "ConfigMap", volume["configMap"]["name"])["data"]
        assert yaml.safe_load(data[f"{key}.yaml"]) == POLICY
    claim = volumes[mounts["/var/lib/gpu-rightsizer"]]["persistentVolumeClaim"]
    assert claim == {"claimName": "reports"}


def test_backtest_pod_passes_restricted_and_is_no_pod_of_the_rightsizer() -> None:
    """Its labels fit no selector of the Deployment, its Service or its budget; neither serves metrics."""
    objects = render(EVERYTHING)
    template = find_one(objects, "CronJob", NAME)["spec"]["jobTemplate"]["spec"]["template"]
    assert beyond_restricted(template["spec"]) == set()
    selectors = [
        one["spec"]["selector"].get("matchLabels", one["spec"]["selector"])
        for one in objects
        if one["kind"] in {"Deployment", "DaemonSet", "Service", "PodDisruptionBudget", "ServiceMonitor"}
    ]
    assert selectors
    labels = template["metadata"]["labels"].items()
    assert not any(selector.items() <= labels for selector in selectors)
    variables = {one["name"] for one in _container(objects)["env"]}
    assert not variables & {f"GPU_RIGHTSIZER_{one}" for one in ("LISTEN", "SCHEDULE", "JITTER", "INSTANCE")}


def test_backtest_network_policy_allows_what_the_rightsizers_does_but_no_scrape() -> None:
    """Prometheus, the API server and receivers."""
    objects = render(EVERYTHING)
    mine, others = (find_one(objects, "NetworkPolicy", name)["spec"] for name in (NAME, "gpu-rightsizer"))
    labels = find_one(objects, "CronJob", NAME)["spec"]["jobTemplate"]["spec"]["template"]["metadata"][
        "labels"
    ]
    assert mine["podSelector"]["matchLabels"].items() <= labels.items()
    assert mine["egress"] == others["egress"]
    assert mine["ingress"] == []


@pytest.mark.parametrize("rightsizer", [{"prometheus": URL}, ACTING], ids=["advises", "acts"])
def test_backtest_account_may_list_pods_and_write_its_figures_and_nothing_else(rightsizer: Object) -> None:
    """In one ConfigMap that the chart makes, since RBAC cannot limit create by name; within what the doctor prints."""
    objects = _objects({"rightsizer": rightsizer})
    account = pod_of(find_one(objects, "CronJob", NAME))["serviceAccountName"]
    assert account == NAME
    assert find_one(objects, "ServiceAccount", account)
    bound = [
        one["roleRef"]
        for one in objects
        if one["kind"].endswith("RoleBinding") and account in [each["name"] for each in one["subjects"]]
    ]
    assert sorted((one["kind"], one["name"]) for one in bound) == [("ClusterRole", NAME), ("Role", NAME)]
    (reading,) = find_one(objects, "ClusterRole", NAME)["rules"]
    assert reading == {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}
    (rule,) = find_one(objects, "Role", NAME)["rules"]
    assert rule == {
        "apiGroups": [""],
        "resources": ["configmaps"],
        "resourceNames": [FIGURES],
        "verbs": ["get", "patch"],
    }
    assert "data" not in find_one(objects, "ConfigMap", FIGURES)
    printed = [
        rule for one in roles("gpu-rightsizer") if one["metadata"]["name"] == NAME for rule in one["rules"]
    ]
    assert rule in printed
    assert reading in printed
    reads = [
        verb
        for one in find_one(objects, "Role")["rules"]
        if FIGURES in one.get("resourceNames", ())
        for verb in one["verbs"]
    ]
    assert reads == ["get"]


def test_backtest_account_is_the_given_one_if_the_chart_makes_none() -> None:
    """Whoever makes accounts binds them, too."""
    objects = _objects({"serviceAccount": {"create": False, "name": "mine"}, "rbac": {"create": False}})
    assert pod_of(find_one(objects, "CronJob", NAME))["serviceAccountName"] == "mine"
    assert not [
        one
        for one in objects
        if one["kind"] in {"ServiceAccount", "Role"} and "exporter" not in one["metadata"]["name"]
    ]


def test_backtest_cronjob_of_a_long_release_name_is_valid() -> None:
    """A CronJob's name has 52 characters at most."""
    given = {"rightsizer": {"prometheus": URL}, "backtest": {"enabled": True}}
    (name,) = [
        one["metadata"]["name"]
        for one in render(
            given, release="a-very-long-release-name-of-more-than-50-letters", only=["backtest"]
        )
        if one["kind"] == "CronJob"
    ]
    assert len(name) <= 52
    assert name.endswith("-backtest")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"backtest": {"enabled": True}}, "rightsizer.prometheus.url is required"),
        ({"backtest": {"enabled": True}, "rightsizer": {"enabled": False}}, "needs rightsizer.enabled"),
        (
            {"backtest": {"enabled": True, "policies": {"policy": POLICY}}},
            "backtest.policies has policy, which is the name of rightsizer.policy",
        ),
        ({"backtest": {"policies": {"A b": POLICY}}}, "'A b' does not match"),
        ({"backtest": {"policies": {"a": {**POLICY, "rule": []}}}}, "'rule' not allowed"),
        (
            {"backtest": {"enabled": True, "parts": 2}, "rightsizer": {"prometheus": URL}},
            "backtest.history is required",
        ),
        (
            {
                "backtest": {"enabled": True, "history": "/var/lib/gpu-rightsizer/history"},
                "rightsizer": {"prometheus": URL},
            },
            "backtest.report.existingClaim is required",
        ),
        ({"backtest": {"parts": 17}}, "backtest/parts"),
        ({"backtest": {"history": "/tmp"}}, "backtest/history"),
        ({"backtest": {"schedule": "weekly"}}, "backtest/schedule"),
        ({"backtest": {"from": "a month"}}, "backtest/from"),
    ],
)
def test_backtest_invalid_values_are_rejected_by_name(values: Object, words: str) -> None:
    """Before anything is installed."""
    assert re.search(words, refused(values))


def test_notes_name_the_first_backtest_and_where_its_figures_go() -> None:
    """A CronJob of the rightsizer serves no figures."""
    given = {"backtest": {"enabled": True}, "rightsizer": {"prometheus": URL}}
    told = notes(given)
    assert f"create job --from=cronjob/{NAME}" in told
    assert "figures reach Prometheus only with rightsizer.mode=deployment" in told
    assert "figures" not in notes({**given, "rightsizer": {"prometheus": URL, "mode": "deployment"}})
