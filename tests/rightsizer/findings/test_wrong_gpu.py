"""Pods that work, or may work, on GPUs that they do not hold."""

import dataclasses
from typing import Any

import pytest

from rightsizer.model import Device, Finding, FindingName, Node, Usage, Verdict
from tests.rightsizer.build import (
    H100,
    busy_usage,
    findings,
    idle_usage,
    pod,
    usages,
    workload,
)

HOUR_S = 3600.0
OTHER = Device("GPU-other", "", H100)
WORKS = Usage(OTHER, 0.5, 0.5, busy_s=12 * HOUR_S, is_own=True, is_held=False)
UNCOUNTED = dataclasses.replace(busy_usage(), device=OTHER, is_held=False)


def _found(
    *rows: Usage, gpus: int = 1, reach: str = "", kind: str = "Deployment", **changes: Any
) -> list[Finding]:
    one = pod(devices=gpus, reach=reach)
    item = workload(one, kind=kind)
    return list(findings(item, usages((one, rows)), **changes))


def _idle(number: int = 0) -> Usage:
    usage = idle_usage()
    return dataclasses.replace(usage, device=dataclasses.replace(usage.device, uuid=f"GPU-{number}"))


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "Job", "Pod"])
def test_wrong_gpu_is_named_and_keeps_the_workload(kind: str) -> None:
    """Whatever its own GPU shows; the words name both."""
    first, *others = _found(_idle(), WORKS, kind=kind)
    assert (first.name, first.verdict, first.proposal) == (FindingName.WRONG_GPU, Verdict.KEEP, None)
    assert "worked for 12h of the last 1d on GPU-other" in first.words[0]
    assert "it holds GPU-0 (unused)" in first.words[0]
    assert Verdict.ACT not in {one.verdict for one in others}


@pytest.mark.parametrize("own", [idle_usage, busy_usage], ids=["idle", "busy"])
def test_too_many_gpus_work_elsewhere_is_only_advised_on(own: Any) -> None:
    """The GPU that it was given and does not use may be the one that it needs."""
    rows = [dataclasses.replace(own(), device=_idle(0).device), *map(_idle, (1, 2, 3))]
    verdicts = {one.name: one.verdict for one in _found(*rows, WORKS, gpus=4)}
    assert verdicts[FindingName.WRONG_GPU] is Verdict.KEEP
    assert Verdict.ACT not in verdicts.values()
    assert FindingName.TOO_MANY_GPUS in {one.name for one in _found(busy_usage(), *rows[1:], gpus=4)}


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        pytest.param(UNCOUNTED, Verdict.UNKNOWN, id="busy"),
        pytest.param(Usage(OTHER, is_held=False), Verdict.UNKNOWN, id="without-series"),
        pytest.param(
            dataclasses.replace(UNCOUNTED, activity_mean=0.0, activity_peak=0.0), Verdict.UNKNOWN, id="hot"
        ),
        pytest.param(
            dataclasses.replace(_idle(), device=OTHER, is_held=False, coverage=0.5),
            Verdict.UNKNOWN,
            id="gaps",
        ),
        pytest.param(dataclasses.replace(_idle(), device=OTHER, is_held=False), Verdict.ACT, id="idle"),
        pytest.param(
            Usage(
                OTHER, 0.0, 0.0, busy_s=12 * HOUR_S, unattributed_s=12 * HOUR_S, is_own=True, is_held=False
            ),
            Verdict.UNKNOWN,
            id="unattributed",
        ),
        pytest.param(
            Usage(OTHER, 0.0, 0.0, busy_s=0.0, is_own=True, is_held=False), Verdict.ACT, id="counted-idle"
        ),
    ],
)
def test_idle_gpu_in_reach_may_be_used_by_the_pod(row: Usage, verdict: Verdict) -> None:
    """Unless it was idle, or counters tell whose work it was."""
    node = Node("n1", gpus=2)
    first = _found(_idle(), row, reach="its container main is privileged", nodes=(node,))[0]
    assert first.verdict is verdict
    if verdict is Verdict.UNKNOWN:
        assert first.name is FindingName.NO_DATA
        assert "its container main is privileged" in first.words[0]
        lacks = "12h of work there belong to no known pod" if row.is_own else "no counters of gpu-exporter"
        assert lacks in first.words[0]


def test_idle_gpus_in_reach_without_series_are_unknown() -> None:
    """The node has eight GPUs, of which two have series."""
    other = dataclasses.replace(_idle(), device=OTHER, is_held=False)
    found = _found(_idle(), other, reach="MPS", nodes=(Node("n1", gpus=8),))
    assert "only 2 of 8 GPUs of node n1 have series" in found[0].words[0]
