"""deploy/prometheus/dashboard-rules.yaml is up to date and correct for each exporter and scrape configuration."""

import pathlib
import subprocess

import pytest

from dashboards.__main__ import RULES, rendered

DATA = pathlib.Path(__file__).parent / "data"


def test_rules_file_equals_table() -> None:
    """`python -m dashboards` or `make golden` writes it."""
    assert RULES.read_text() == rendered()[RULES]


@pytest.mark.prometheus
def test_rules_record_expected_series_in_promtool() -> None:
    """Shared GPUs, MIG instances, copies, the exporters' own pods, and classes from kube-state-metrics."""
    case = DATA / "dashboard-rules-test.yaml"
    done = subprocess.run(
        ["promtool", "test", "rules", case.name], cwd=case.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
