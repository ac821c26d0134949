"""deploy/prometheus/alerts.yaml: what fires on which series, and what on none; each alert has its runbook and tests."""

import pathlib
import re
import subprocess
from typing import Any

import pytest
import yaml

from exporter.sampling import catalogue
from rightsizer.report.metrics import METRICS

ROOT = pathlib.Path(__file__).parents[2]
DEPLOY = ROOT / "deploy/prometheus"
RUNBOOKS = ROOT / "docs/runbooks"
CASES: dict[str, dict[str, Any]] = {}
for _path in sorted((pathlib.Path(__file__).parent / "alerts").glob("*.yaml")):
    CASES |= yaml.load(_path.read_text(), Loader=yaml.CSafeLoader)
GROUPS: list[dict[str, Any]] = yaml.load((DEPLOY / "alerts.yaml").read_text(), Loader=yaml.CSafeLoader)[
    "groups"
]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}

SHORT = {
    "%E": 'job="gpu-exporter",instance="a:9400",node="n1"',
    "%O": 'hostname="n1",gpu="0",UUID="GPU-0"',
    "%D": 'Hostname="n2",gpu="1",UUID="GPU-1"',
    "%N": 'hostname="n3",gpu="2",UUID="GPU-2"',
    "%P": 'node="n1",namespace="team",priority_class="low"',
    "%R": 'job="gpu-rightsizer",instance="a:9401"',
    "%C": 'namespace="g",cronjob="gpu-rightsizer"',
}
LONG_AFTER = {
    "gpu-rightsizer-alerts-exporters": "30h",
    "gpu-rightsizer-alerts-waste": "11h30m",
    "gpu-rightsizer-alerts-rightsizer": "92h",
}
"""By then every series has ended, and every window with it: by group, 4h where nothing is said."""

NOT_OURS = {
    "up",
    "kube_cronjob_spec_suspend",
    "kube_cronjob_status_last_schedule_time",
    "kube_cronjob_status_last_successful_time",
    "kube_deployment_created",
    "kube_node_status_allocatable",
    "kube_node_status_condition",
}
"""Prometheus's own, and those of kube-state-metrics."""


def full(text: str) -> str:
    """What a case says, with its abbreviations written out."""
    for short, long in SHORT.items():
        text = text.replace(short, long)
    return text


def _test_of(alert: str, case: dict[str, Any], last: str) -> dict[str, Any]:
    """One case, as promtool takes it; at the last instant nothing fires."""
    told = f'alertname="{alert}",alertstate="firing",severity="{ALERTS[alert]["labels"]["severity"]}"'
    series = [full(one).split("} ", 1) for one in case["series"]]
    return {
        "interval": case.get("every", "1m"),
        "input_series": [{"series": f"{name}}}", "values": values} for name, values in series],
        "promql_expr_test": [
            {
                "expr": f'ALERTS{{alertname="{alert}",alertstate="firing"}}',
                "eval_time": at,
                "exp_samples": [
                    {"labels": f"ALERTS{{{told},{full(labels)}}}", "value": 1} for labels in expected
                ],
            }
            for at, expected in {**case["firing"], last: []}.items()
        ],
    }


def _shapes(alert: str) -> list[dict[str, Any]]:
    """The groups of dashboard-rules.yaml that an alert builds upon."""
    if "gpu:pod:" not in ALERTS[alert]["expr"]:
        return []
    groups = yaml.safe_load((DEPLOY / "dashboard-rules.yaml").read_text())["groups"]
    return [one for one in groups if re.search("-(devices|pods)$", one["name"])]


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.timeout(300)
@pytest.mark.parametrize("alert", ALERTS)
def test_it_fires_on_what_it_should_and_on_nothing_else(alert: str, tmp_path: pathlib.Path) -> None:
    """Case by case, over time; and once there are no data any more, it does not fire."""
    (group,) = (one for one in GROUPS if ALERTS[alert] in one["rules"])
    needed = [rule for rule in group["rules"] if rule.get("alert", alert) == alert]
    rules = tmp_path / "rules.yaml"
    rules.write_text(yaml.safe_dump({"groups": [*_shapes(alert), {**group, "rules": needed}]}))
    last = LONG_AFTER.get(group["name"], "4h")
    document = {
        "rule_files": [str(rules)],
        "evaluation_interval": group.get("interval", "1m"),  # which promtool takes for all groups
        "tests": [_test_of(alert, case, last) for case in CASES[alert].values()],
    }
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_cases_of_both_kinds(alert: str) -> None:
    """One in which it fires and stops, and one in which it never does."""
    firing = [any(case["firing"].values()) for case in CASES[alert].values()]
    assert True in firing
    assert False in firing


def test_there_are_cases_of_nothing_else() -> None:
    """An alert that was renamed takes its cases along."""
    assert CASES.keys() == ALERTS.keys()


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_says_what_whoever_is_woken_needs(alert: str) -> None:
    """How bad, what, with which values, where it is explained."""
    rule = ALERTS[alert]
    notes = rule["annotations"]
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert "for" in rule
    assert notes.keys() == {"summary", "description", "runbook"}
    assert "{{" in notes["summary"] + notes["description"] or "by" not in rule["expr"]
    assert notes["runbook"] == f"docs/runbooks/{alert}.md"


_PARTS = ("## Meaning", "## Diagnosis", "## Mitigation", "## Silence", "## False positives")


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_has_a_runbook(alert: str) -> None:
    """With the same parts in the same order, and in the index with its severity."""
    text = (RUNBOOKS / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    places = [text.find(f"\n{part}\n") for part in _PARTS]
    assert places == sorted(places)
    assert -1 not in places
    severity = ALERTS[alert]["labels"]["severity"]
    assert f"| [{alert}]({alert}.md) | {severity} |" in (RUNBOOKS / "README.md").read_text()


def test_every_runbook_has_an_alert() -> None:
    """An alert that went takes its page along."""
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == ALERTS.keys() | {"README"}


_WORDS = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LANGUAGE = {
    *("and", "or", "unless", "offset", "by", "on", "max", "sum", "count", "count_values", "rate", "increase"),
    *("max_over_time", "count_over_time", "label_replace", "scalar", "vector", "time"),
}


def _metrics(expression: str) -> set[str]:
    """The names of the metrics that an expression asks for."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]', "", expression)
    bare = re.sub(r"\b(by|on|ignoring|group_left|group_right)\s*\([^)]*\)", "", bare)
    bare = re.sub(r"\boffset\s+\w+|\b\d[\w.]*", "", bare)
    return set(_WORDS.findall(bare)) - _LANGUAGE


def _known() -> set[str]:
    recorded = {
        rule["record"]
        for path in (DEPLOY / "alerts.yaml", DEPLOY / "dashboard-rules.yaml")
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
        if "record" in rule
    }
    devices = {name for one in catalogue.metrics() for name in (one.dcgm.name, one.dcgm_49.name)}
    own = set(re.findall(r"`(gpu_(?:exporter_\w+|up|down))", (ROOT / "docs/exporter.md").read_text()))
    return recorded | devices | own | {row.full_name for row in METRICS} | NOT_OURS


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_metric_that_is_asked_for_exists(rule: dict[str, Any]) -> None:
    """In the exporter's catalogue, among the rightsizer's, among those recorded, or in kube-state-metrics."""
    assert _metrics(rule["expr"]) - _known() == set()


def test_both_generations_of_names_are_asked_for() -> None:
    """Where a rule asks for a metric of DCGM that was renamed, it asks for its other name, too."""
    renamed = {
        one.dcgm.name: one.dcgm_49.name for one in catalogue.metrics() if one.dcgm.name != one.dcgm_49.name
    }
    renamed |= {new: old for old, new in renamed.items()}
    for rule in RULES:
        asked = _metrics(rule["expr"])
        assert {renamed[name] for name in asked & renamed.keys()} <= asked, rule


def test_the_table_of_xid_errors_is_the_one_of_the_rules() -> None:
    """docs/runbooks/README.md lists the codes of each kind; the rules ask for these, and for no code twice."""
    table = dict(
        re.findall(r"^\| \[(GpuXid\w+)\]\([^)]*\) \| [^|]* \| ([\d ,]+) \|$", _index_text(), re.MULTILINE)
    )
    asked = {
        name: re.findall(r"\d+", _codes(ALERTS[name]["expr"])) for name in ALERTS if name.startswith("GpuXid")
    }
    others = asked.pop("GpuXidOther")
    assert {name: text.split(", ") for name, text in table.items()} == asked
    all_of_them = [code for codes in asked.values() for code in codes]
    assert sorted(all_of_them) == sorted(set(others))
    assert len(all_of_them) == len(set(all_of_them))


def _codes(expression: str) -> str:
    return expression.split('"')[1]


def _index_text() -> str:
    return (RUNBOOKS / "README.md").read_text()
