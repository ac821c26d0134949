"""deploy/prometheus/dashboard-rules.yaml: up to date, and what its series say of each exporter and way of scraping."""

import pathlib
import subprocess

import pytest

from dashboards.__main__ import RULES, rendered

DATA = pathlib.Path(__file__).parent / "data"


def test_the_file_is_what_the_table_says() -> None:
    """`python -m dashboards` writes it; `make golden` does that, too."""
    assert RULES.read_text() == rendered()[RULES]


@pytest.mark.prometheus
def test_promtool_finds_that_they_record_what_they_should() -> None:
    """Shared GPUs once, parts of GPUs, copies and exporters' own pods told apart, classes with kube-state-metrics."""
    case = DATA / "dashboard-rules-test.yaml"
    done = subprocess.run(
        ["promtool", "test", "rules", case.name], cwd=case.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
