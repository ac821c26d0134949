"""deploy/prometheus/alerts.yaml: each alert fires on its cases only, and has a runbook and tests."""

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
    "%B": 'namespace="g",cronjob="gpu-rightsizer-backtest"',
}
LONG_AFTER = {
    "gpu-rightsizer-alerts-exporters": "30h",
    "gpu-rightsizer-alerts-waste": "11h30m",
    "gpu-rightsizer-alerts-rightsizer": "92h",
}
"""Time after which all series and windows have ended, by group; default 4h."""

NOT_OURS = {
    "up",
    "kube_cronjob_created",
    "kube_cronjob_next_schedule_time",
    "kube_cronjob_spec_suspend",
    "kube_cronjob_status_last_schedule_time",
    "kube_cronjob_status_last_successful_time",
    "kube_deployment_created",
    "kube_node_status_allocatable",
    "kube_node_status_condition",
}
"""Metrics of Prometheus and kube-state-metrics."""


def full(text: str) -> str:
    """The text of a case with abbreviations expanded."""
    for short, long in SHORT.items():
        text = text.replace(short, long)
    return text


def _test_of(alert: str, case: dict[str, Any], last: str) -> dict[str, Any]:
    """One case in promtool's format; nothing fires at the last instant."""
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
    """The groups of dashboard-rules.yaml that an alert queries."""
    if "gpu:pod:" not in ALERTS[alert]["expr"]:
        return []
    groups = yaml.safe_load((DEPLOY / "dashboard-rules.yaml").read_text())["groups"]
    return [one for one in groups if re.search("-(devices|pods)$", one["name"])]


@pytest.mark.slow
@pytest.mark.prometheus
@pytest.mark.timeout(300)
@pytest.mark.parametrize("alert", ALERTS)
def test_alert_over_time_fires_only_as_its_cases_say(alert: str, tmp_path: pathlib.Path) -> None:
    """Each case over time; without data the alert does not fire."""
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
def test_alert_cases_include_firing_and_silent(alert: str) -> None:
    """One case fires and ends, another never fires."""
    firing = [any(case["firing"].values()) for case in CASES[alert].values()]
    assert True in firing
    assert False in firing


def test_alert_cases_name_only_existing_alerts() -> None:
    """Cases follow the renaming of an alert."""
    assert CASES.keys() == ALERTS.keys()


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_has_severity_summary_description_and_runbook(alert: str) -> None:
    """Texts name label values if the alert has labels."""
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
def test_alert_has_runbook_with_all_sections(alert: str) -> None:
    """All runbooks have the same sections in order, and an entry with the severity in the index."""
    text = (RUNBOOKS / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n")
    places = [text.find(f"\n{part}\n") for part in _PARTS]
    assert places == sorted(places)
    assert -1 not in places
    severity = ALERTS[alert]["labels"]["severity"]
    assert f"| [{alert}]({alert}.md) | {severity} |" in (RUNBOOKS / "README.md").read_text()


def test_runbook_has_alert() -> None:
    """No runbook remains of a removed alert."""
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == ALERTS.keys() | {"README"}


_WORDS = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LANGUAGE = {
    *("and", "or", "unless", "offset", "by", "on", "max", "sum", "count", "count_values", "rate", "increase"),
    *("max_over_time", "count_over_time", "label_replace", "scalar", "vector", "time"),
}


def _metrics(expression: str) -> set[str]:
    """Names of the metrics in an expression."""
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
def test_rule_queries_only_existing_metrics(rule: dict[str, Any]) -> None:
    """Metrics come from the exporter, the rightsizer, recording rules or kube-state-metrics."""
    assert _metrics(rule["expr"]) - _known() == set()


def test_rule_queries_both_names_of_renamed_metrics() -> None:
    """A rule with a renamed DCGM metric also queries its other name."""
    renamed = {
        one.dcgm.name: one.dcgm_49.name for one in catalogue.metrics() if one.dcgm.name != one.dcgm_49.name
    }
    renamed |= {new: old for old, new in renamed.items()}
    for rule in RULES:
        asked = _metrics(rule["expr"])
        assert {renamed[name] for name in asked & renamed.keys()} <= asked, rule


def test_xid_table_of_runbooks_equals_rules() -> None:
    """docs/runbooks/README.md lists the codes of each class; no code is in two classes."""
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
