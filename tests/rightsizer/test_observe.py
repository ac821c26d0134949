"""What is made of the API server's objects and of Prometheus's series, where a scenario would be too coarse."""

import re

import pytest

from simulator.prometheus import Prometheus
from tests.rightsizer.world import DEFAULT_POLICY, World


def _finding(world: World, name: str) -> tuple[str, str]:
    run = world.run("plan", "-o", "json", policy=DEFAULT_POLICY)
    assert run.code == 0, run.err
    item = run.items[name]
    return item["verdict"], item["finding"]


@pytest.mark.covers("P14")
@pytest.mark.prometheus
@pytest.mark.parametrize("usage", ["four-hours-missing", "thinned-out"])
def test_observe_prometheus_outage_is_a_gap(world: World, usage: str) -> None:
    """Where no series has its samples, Prometheus was down or starved: that nothing is denser makes nothing whole."""
    with Prometheus(world.directory / "own") as own:
        world.prometheus = own
        world.add("Deployment", world.team, "idle", {"usage": usage})
        assert _finding(world, "idle") == ("unknown", "partial-data")


@pytest.mark.prometheus
def test_observe_changed_scrape_interval_is_no_gap(world: World) -> None:
    """Where everything has a quarter of the samples for half a day, it was scraped every fourth minute."""
    with Prometheus(world.directory / "own") as own:
        world.prometheus = own
        world.add("Deployment", world.team, "idle", {"usage": "every-fourth-minute"})
        assert _finding(world, "idle") == ("act", "idle")


SHORT = """\
apiVersion: gpu-rightsizer.io/v1alpha1
kind: Policy
defaults: {idle: {window: WINDOW, grace: 1m, history: 1h}}
rules: [{name: all, match: {everything: true}, mode: enforce}]
"""


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("window", "step_s", "verdict", "finding"),
    [
        ("5m", 16, "act", "idle"),  # 18 or 19 samples, by where the window falls
        ("10m", 60, "unknown", "partial-data"),
        ("21m", 60, "act", "idle"),
    ],
)
def test_observe_window_with_few_samples_is_reported_too_short(
    world: World, monkeypatch: pytest.MonkeyPatch, window: str, step_s: int, verdict: str, finding: str
) -> None:
    """It is judged where samples suffice; else it is said that the window is too short, and what would do."""
    monkeypatch.setattr("tests.rightsizer.given.STEP_S", step_s)
    monkeypatch.setattr("tests.rightsizer.given.DAY_S", 3600)
    with Prometheus(world.directory / "own") as own:
        world.prometheus = own
        world.add("Deployment", world.team, "idle", {})
        run = world.run("plan", "-o", "json", policy=SHORT.replace("WINDOW", window))
    item = run.items["idle"]
    assert (item["verdict"], item["finding"]) == (verdict, finding)
    assert item["coverage"] >= 0.9
    if verdict == "unknown":
        # Prometheus 2 counts the sample on the window's older edge too, 3 does not.
        assert re.fullmatch(
            r"the window of 10m holds only (10 samples: set it to 23m|11 samples: set it to 20m) or longer, .*",
            item["evidence"]["reasons"][0],
        )


@pytest.mark.prometheus
@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["cluster=none"], 'none with cluster="none" (--prometheus-label): cluster is (none), ours'),
        (["cluster=ours", "zone=b"], 'none with cluster="ours", zone="b" (--prometheus-label): cluster is '),
    ],
)
def test_observe_unknown_label_is_reported_with_known_values(
    world: World, labels: list[str], words: str
) -> None:
    """It is named, with the values that there are; the exporter is not blamed."""
    with Prometheus(world.directory / "own") as own:
        world.prometheus = own
        world.add("Pod", world.team, "a", {})
        world.labels = {"cluster": "ours"}
        world.add("Pod", world.team, "b", {})
        flags = [flag for label in labels for flag in ("--prometheus-label", label)]
        run = world.run("plan", *flags)
    assert (run.code, run.out) == (1, "")
    assert words in run.err


@pytest.mark.covers("P19")
@pytest.mark.prometheus
def test_observe_two_clusters_without_cluster_name_is_refused(world: World) -> None:
    """A pod of the same name elsewhere never speaks for ours: without a name for our cluster there is no plan."""
    with Prometheus(world.directory / "own") as own:
        world.prometheus = own
        world.labels = {"cluster": "theirs"}
        world.add("Pod", world.team, "shell", {"usage": "idle"})
        world.labels = {"cluster": "ours"}
        (pod,) = world.pods_of(world.team, "shell")
        world.record(pod, "busy", 1)
        run = world.run("plan", policy=DEFAULT_POLICY)
        assert (run.code, run.out) == (1, "")
        assert (
            "GPU series of several clusters (ours, theirs); name yours: --prometheus-label cluster="
            in run.err
        )
        for cluster, verdict in (("ours", "keep"), ("theirs", "act")):
            run = world.run(
                "plan", "-o", "json", "--prometheus-label", f"cluster={cluster}", policy=DEFAULT_POLICY
            )
            assert run.items["shell"]["verdict"] == verdict
