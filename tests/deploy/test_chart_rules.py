"""What the chart makes of the rules: they ask for this release's own objects, and wait as its values say."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.deploy.chart import Object, find_one, render

ALL = {part: {"enabled": True} for part in ("recording", "dashboard", "alerts")}
KEPT = {
    "release": ("gpu-rightsizer", {}, "gpu-rightsizer"),
    "contained": ("gpu-rightsizer-prod", {}, "gpu-rightsizer-prod"),
    "before": ("prod", {}, "prod-gpu-rightsizer"),
    "fullname": ("prod", {"fullnameOverride": "idle-gpus"}, "idle-gpus"),
    "name": ("prod", {"nameOverride": "idle"}, "prod-idle"),
}


def _rules(part: str, values: Mapping[str, Any] | None = None, release: str = "gpu-rightsizer") -> Object:
    """The groups of a PrometheusRule, by name."""
    objects = render({**(values or {}), "monitoring": {"rules": ALL}}, release=release)
    (found,) = [
        one
        for one in objects
        if one["kind"] == "PrometheusRule" and one["metadata"]["name"].endswith(f"-{part}")
    ]
    return {group["name"]: group for group in found["spec"]["groups"]}


def _alert(name: str, values: Mapping[str, Any] | None = None, release: str = "gpu-rightsizer") -> Object:
    groups = _rules("alerts", values, release)
    (found,) = [rule for group in groups.values() for rule in group["rules"] if rule.get("alert") == name]
    alert: Object = found
    return alert


@pytest.mark.parametrize("case", KEPT)
def test_alerts_ask_for_the_releases_own_objects(case: str) -> None:
    """Whatever it is called: the CronJob, the Deployment, and the job by which Prometheus scrapes it."""
    release, values, name = KEPT[case]
    failing = _alert("GpuRightsizerJobFailing", values, release)["expr"]
    assert failing.count(f'cronjob="{name}"') == 2
    silent = _alert("GpuRightsizerSilent", values, release)["expr"]
    assert f'deployment="{name}"' in silent
    down = _alert("GpuRightsizerDown", values, release)["expr"]
    assert f'up{{job=~"(.*/)?{name}"}}' in down
    for expression in (failing, silent, down):
        assert ")?gpu-rightsizer" not in expression.replace(f")?{name}", "")
    made = render({**values, "monitoring": {"rules": ALL}}, release=release, only=["rightsizer"])
    assert find_one(made, "CronJob", name)


@pytest.mark.parametrize(("seconds", "waits"), [(3600, "65m"), (60, "6m"), (14_401, "246m")])
def test_a_job_has_its_time_before_it_counts_as_failing(seconds: int, waits: str) -> None:
    """Its deadline, and some minutes for kube-state-metrics and scrapes."""
    values = {"rightsizer": {"cronJob": {"activeDeadlineSeconds": seconds}}}
    assert _alert("GpuRightsizerJobFailing", values)["for"] == waits
