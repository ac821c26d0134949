"""The scheduled digest of the chart: what it runs, where it sends, and that the account of the rightsizer suffices."""

import re
from typing import Any

import pytest
import yaml

from rightsizer.__main__ import parser
from rightsizer.doctor.rights import RIGHTS, Purpose, needed
from tests.deploy.chart import ACTING, EVERYTHING, SENDING, Object, find_one, pod_of, refused, render
from tests.deploy.podsecurity import beyond_restricted

pytestmark = pytest.mark.helm

NAME = "gpu-rightsizer-digest"


def _objects(rightsizer: Object | None = None, **digest: Any) -> list[Object]:
    return render({"rightsizer": {**SENDING, **(rightsizer or {})}, "digest": {"enabled": True, **digest}})


def test_digest_is_not_installed_by_default() -> None:
    """Nor beside a rightsizer that acts."""
    assert NAME not in yaml.safe_dump(render({"rightsizer": ACTING}))


def test_digest_command_parses_and_reads_the_mounted_policy() -> None:
    """Its receivers are those of the policy, whose credentials are mounted as the rightsizer's are."""
    objects = _objects({"notifications": {"existingSecret": "slack"}}, since="7d")
    pod = pod_of(find_one(objects, "CronJob", NAME))
    (container,) = pod["containers"]
    assert container["command"] == ["gpu-rightsizer"]
    parsed = parser().parse_args(container["args"])
    assert (parsed.since, parsed.notify) == ("7d", True)
    mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
    volumes = {one["name"]: one for one in pod["volumes"]}
    volume = volumes[mounts[str(parsed.policy.parent)]]
    data = find_one(objects, "ConfigMap", volume["configMap"]["name"])["data"]
    assert yaml.safe_load(data[parsed.policy.name])["notifications"] == SENDING["policy"]["notifications"]
    assert volumes[mounts["/etc/gpu-rightsizer/notifications"]]["secret"]["secretName"] == "slack"


def test_digest_pod_passes_restricted_and_runs_once() -> None:
    """It serves nothing, waits for no Lease and mounts no ledger; no selector takes it for another."""
    objects = render(EVERYTHING)
    spec = find_one(objects, "CronJob", NAME)["spec"]["jobTemplate"]["spec"]
    pod = spec["template"]["spec"]
    assert beyond_restricted(pod) == set()
    assert (spec["backoffLimit"], pod["restartPolicy"]) == (0, "Never")
    (container,) = pod["containers"]
    assert not {"ports", "livenessProbe", "readinessProbe"} & container.keys()
    variables = {one["name"] for one in container["env"]}
    unwanted = ("LISTEN", "SCHEDULE", "JITTER", "LEDGER")
    assert not variables & {f"GPU_RIGHTSIZER_{one}" for one in unwanted}
    assert "ledger" not in {one["name"] for one in pod["volumes"]}
    labels = spec["template"]["metadata"]["labels"].items()
    selectors = [
        one["spec"]["selector"].get("matchLabels", one["spec"]["selector"])
        for one in objects
        if one["kind"] in {"Deployment", "DaemonSet", "Service", "PodDisruptionBudget", "ServiceMonitor"}
    ]
    assert not any(selector.items() <= labels for selector in selectors)
    policy = find_one(objects, "NetworkPolicy", NAME)["spec"]
    assert policy["podSelector"]["matchLabels"].items() <= labels
    assert policy["egress"] == find_one(objects, "NetworkPolicy", "gpu-rightsizer")["spec"]["egress"]
    assert policy["ingress"] == []


@pytest.mark.parametrize("act", [False, True])
def test_digest_account_may_read_what_history_needs(act: bool) -> None:
    """The rightsizer's account lists every kind that records changes, and gets the memory of them."""
    objects = _objects({"act": act})
    account = pod_of(find_one(objects, "CronJob", NAME))["serviceAccountName"]
    bound = {
        one["roleRef"]["name"]
        for one in objects
        if one["kind"].endswith("RoleBinding") and account in [each["name"] for each in one["subjects"]]
    }
    rules = [
        rule
        for one in objects
        if one["kind"] in {"Role", "ClusterRole"} and one["metadata"]["name"] in bound
        for rule in one["rules"]
    ]
    allowed = {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    wanted = [one for one in needed(RIGHTS, Purpose.HISTORY) if not one.cost]
    memory = [one for one in needed(RIGHTS, Purpose.HISTORY) if one.is_own]
    assert wanted
    assert memory
    assert {(one.verb, one.group, one.resource) for one in (*wanted, *memory)} <= allowed


def test_digest_cronjob_of_a_long_release_name_is_valid() -> None:
    """A CronJob's name has 52 characters at most."""
    (name,) = [
        one["metadata"]["name"]
        for one in render(
            {"rightsizer": SENDING, "digest": {"enabled": True}},
            release="a-very-long-release-name-of-more-than-50-letters",
            only=["digest"],
        )
        if one["kind"] == "CronJob"
    ]
    assert len(name) <= 52
    assert name.endswith("-digest")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"digest": {"enabled": True}}, "rightsizer.policy has no notifications"),
        ({"digest": {"enabled": True}, "rightsizer": ACTING}, "rightsizer.policy has no notifications"),
        ({"digest": {"enabled": True}, "rightsizer": {"enabled": False}}, "needs rightsizer.enabled"),
        ({"digest": {"schedule": "daily at 7"}}, "digest/schedule"),
        ({"digest": {"since": "yesterday"}}, "digest/since"),
    ],
)
def test_digest_invalid_values_are_rejected_by_name(values: Object, words: str) -> None:
    """Before anything is installed."""
    assert re.search(words, refused(values))
