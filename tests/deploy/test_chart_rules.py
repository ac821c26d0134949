"""The chart's rules query the objects of the release and use intervals from values."""

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from rightsizer.report.metrics import METRICS
from tests.deploy.chart import CHART, SENDING, Object, find_one, notes, render

pytestmark = pytest.mark.helm

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
def test_alerts_query_objects_of_own_release(case: str) -> None:
    """For any release name: CronJob, Deployment and scrape job."""
    release, values, name = KEPT[case]
    failing = _alert("GpuRightsizerJobFailing", values, release)["expr"]
    assert failing.count(f'cronjob="{name}"') == 2
    silent = _alert("GpuRightsizerSilent", values, release)["expr"]
    assert f'deployment="{name}"' in silent
    down = _alert("GpuRightsizerDown", values, release)["expr"]
    assert f'up{{job=~"(.*/)?{name}"}}' in down
    missed = _alert("GpuRightsizerReportMissed", values, release)["expr"]
    assert missed.count(f'cronjob=~"{name}-backtest|{name}-digest"') == 2
    for expression in (failing, silent, down, missed):
        assert "!~" not in expression
        assert ")?gpu-rightsizer" not in expression.replace(f")?{name}", "")
    asked = {
        "rightsizer": SENDING,
        "backtest": {"enabled": True},
        "digest": {"enabled": True},
    }
    made = render({**values, **asked}, release=release, only=["rightsizer", "backtest", "digest"])
    for made_name in (name, f"{name}-backtest", f"{name}-digest"):
        assert find_one(made, "CronJob", made_name)


@pytest.mark.parametrize(("seconds", "waits"), [(3600, "65m"), (60, "6m"), (14_401, "246m")])
def test_job_alert_waits_for_job_deadline(seconds: int, waits: str) -> None:
    """The deadline plus some minutes for kube-state-metrics and scrapes."""
    deadline = {"activeDeadlineSeconds": seconds}
    values = {"rightsizer": {"cronJob": deadline}, "backtest": deadline}
    for alert in ("GpuRightsizerJobFailing", "GpuRightsizerReportMissed"):
        assert _alert(alert, values)["for"] == waits


def _intervals(part: str, **rules: Any) -> dict[str, str | None]:
    """Evaluation interval of each group of a PrometheusRule, by the end of its name."""
    given = {name: {**ALL[name], **rules.get(name, {})} for name in ALL}
    objects = render({"monitoring": {"rules": given}}, only=["monitoring"])
    groups = find_one(objects, "PrometheusRule", f"gpu-rightsizer-{part}")["spec"]["groups"]
    return {group["name"].rpartition("-")[2]: group.get("interval") for group in groups}


def test_rule_intervals_follow_values() -> None:
    """Except for groups that count per minute, or have windows of their interval."""
    assert _intervals("dashboard") == dict.fromkeys(_intervals("dashboard"), "1m")
    slower = {"dashboard": {"interval": "2m"}, "alerts": {"interval": "30s"}}
    assert _intervals("dashboard", **slower) == {
        **dict.fromkeys(_intervals("dashboard"), "2m"),
        "faults": "1m",
    }
    own = {"devices": None, "xid": None, "exporters": None, "waste": "5m", "rightsizer": None}
    assert _intervals("alerts") == own
    assert _intervals("alerts", **slower) == {name: given or "30s" for name, given in own.items()}
    assert set(_intervals("recording", **slower).values()) == {"5m"}


def test_notes_for_cronjob_list_silent_alerts() -> None:
    """Exactly the alerts with a metric of `run`, if alerts or the dashboard are enabled."""
    text = (CHART / "files" / "alerts.yaml").read_text()
    asking = {
        rule["alert"]
        for group in yaml.safe_load(text)["groups"]
        for rule in group["rules"]
        if "alert" in rule and any(re.search(rf"\b{row.full_name}\b", rule["expr"]) for row in METRICS)
    }
    asking |= {"GpuRightsizerSilent"}  # by a series that is recorded of such metrics
    for monitoring in ({"rules": ALL}, {"dashboard": {"enabled": True}}):
        told = notes({"monitoring": monitoring}).partition("A CronJob serves no metrics")[2]
        listed, jobs, _ = told.partition("GpuRightsizerJobFailing reports failing Jobs")
        assert set(re.findall(r"Gpu\w+", listed)) == asking
        assert jobs
        as_deployment = {"monitoring": monitoring, "rightsizer": {"mode": "deployment"}}
        assert "serves no metrics" not in notes(as_deployment)
    assert "serves no metrics" not in notes({})
