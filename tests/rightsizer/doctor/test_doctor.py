"""Every diagnosis of doctor from facts alone: status, words, remedy."""

import dataclasses
import datetime
import functools
import re
from collections.abc import Mapping
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from rightsizer.doctor.check_server import scrape_interval_s
from rightsizer.doctor.diagnosis import (
    FAILED,
    FOLLOWS,
    Diagnosis,
    Facts,
    Failure,
    Message,
    Naming,
    Recorded,
    Server,
    Status,
    document,
    text,
)
from rightsizer.doctor.examination import CHECKS, MODULES, diagnose
from rightsizer.doctor.rights import RIGHTS, Purpose, needed, roles
from rightsizer.model import Device, Fleet, Mode, Node, NodeCoverage, PriorityClass, Usages, Workload
from rightsizer.policy.limits import Budget, BudgetScope, Freeze, MaintenanceWindow, Per
from rightsizer.policy.match import Match
from rightsizer.policy.policy_file import BUILT_IN, LoadedPolicy
from rightsizer.policy.schema import Defaults, Policy
from rightsizer.policy.thresholds import Thresholds
from rightsizer.usage.device_usage import DISAGREEMENT
from rightsizer.usage.provenance import Provenance, ScrapeTarget
from rightsizer.usage.source_metrics import DCGM, DCGM_49, MetricKind, MetricSource
from rightsizer.usage.sources import GPU_EXPORTER_SOURCE
from tests.conftest import Golden
from tests.rightsizer.build import AT, DAY, idle_usage, pod, policy, rule, usages, workload

AWAY = Failure("querying it: nobody answers", "no Prometheus answers")
NO_CLUSTER = Failure("reading pods: Connection refused", "the cluster's objects could not be read")
ONE = pod("w-0", devices=2)
NODE = Node("n1", "H100", gpus=2, allocatable={"nvidia.com/gpu": 2})
RECORDED = frozenset(
    {("gpu_rightsizer:activity:max5m", "DCGM_FI_DEV_GPU_UTIL"), ("gpu_rightsizer:power:max5m", "P")}
)


def loaded(made: Policy, source: str = "policy.yaml") -> LoadedPolicy:
    """A policy as it is after reading."""
    return LoadedPolicy(made, source, "0" * 64, {})


def server(**changes: Any) -> Server:
    """A Prometheus 3 with all its defaults written out."""
    values: dict[str, Any] = {
        "where": "http://prometheus:9090",
        "now": AT,
        "local": AT,
        "took_s": 0.004,
        "build": {"version": "3.7.1", "revision": "x"},
        "flags": {
            "query.max-samples": "50000000",
            "storage.tsdb.retention.time": "30d",
            "storage.tsdb.retention.size": "0B",
        },
    }
    return Server(**{**values, **changes})


def flags(**changes: str) -> Server:
    """One with other flags."""
    given = {name.replace("__", "-").replace("_", "."): value for name, value in changes.items()}
    return server(flags={"query.max-samples": "50000000", **given})


def fleet(*items: Workload, **changes: Any) -> Fleet:
    """One node with a workload of two GPUs."""
    values: dict[str, Any] = {
        "workloads": items or (workload(ONE),),
        "nodes": {"n1": NODE},
        "classes": {"low-priority": PriorityClass("low-priority", 1000)},
    }
    return Fleet(**{**values, **changes})


def facts(**changes: Any) -> Facts:
    """A cluster in which all is well, but for what is given."""
    values: dict[str, Any] = {
        "at": AT,
        "own": "gpu-rightsizer",
        "max_samples": 50_000_000,
        "host": "https://api:6443",
        "policy": enforcing(budgets=ROOMY),
        "evicts": True,
        "fleet": fleet(),
        "allowed": dict.fromkeys(RIGHTS, True),
        "server": server(),
        "source": DCGM,
        "interval_s": 15.0,
        "begins": None,
        "ended": None,
        "naming": Naming({"exported_pod": 2}, (), 2),
        "recorded": Recorded(RECORDED, RECORDED, RECORDED),
        "provenance": Provenance(namespaces=frozenset({"", "monitoring"}), jobs=("gpu-exporter",)),
        "usages": used(),
        "node_coverage": {"n1": NodeCoverage(2, 2, 1.0)},
    }
    return Facts(**{**values, **changes})


def used(*more: Mapping[str, Any]) -> Usages:
    """What the workload's pod used of its GPUs."""
    return usages((ONE, (idle_usage(0), *(idle_usage(1, **one) for one in more or ({},)))))


def without(source: MetricSource, *kinds: MetricKind) -> MetricSource:
    """A source that lacks some quantities."""
    kept = tuple(one for one in source.metrics if one.kind not in kinds)
    return dataclasses.replace(source, metrics=kept)


def denied(command: Purpose, *, dear: bool = False) -> dict[Any, bool]:
    """All rights but those of a command that it fails, or does, without."""
    lost = [right for right in needed(RIGHTS, command) if bool(right.cost) is dear]
    return {right: right not in lost for right in RIGHTS}


def enforcing(**changes: Any) -> LoadedPolicy:
    """A policy with other limits."""
    return loaded(policy(rule("all"), **changes))


def thresholds(**changes: Any) -> LoadedPolicy:
    """A policy whose one rule judges idleness otherwise."""
    return loaded(policy(defaults=Defaults(idle=Thresholds(**changes))))


NOTHING = Recorded(RECORDED, frozenset(), frozenset())
ROOMY = (Budget(scope=BudgetScope.CLUSTER, per=Per.HOUR, workloads=20),)
BUDGET_TOO_SMALL = (Budget(scope=BudgetScope.CLUSTER, per=Per.HOUR, gpus=1),)
BUDGET_ZERO = (Budget(scope=BudgetScope.NAMESPACE, per=Per.RUN, workloads=0),)
BY_CLASS = rule("classes", match=Match(priorityClasses=("no-such-*",)))
ANNOTATED = {"low-priority": PriorityClass("low-priority", 1000, {"gpu-rightsizer.io/mode": "perhaps"})}
FREEZE = Freeze.model_validate({"from": "2026-11-20", "to": "2026-11-25"})
NEVER = (MaintenanceWindow.model_validate({"days": ["sat"], "from": "01:00", "to": "02:00"}),)
FOREVER = (Freeze.model_validate({"from": "2026-01-01", "to": "2099-12-30"}),)
SHARED = dataclasses.replace(NODE, sharing="time-slicing", gpus=1, allocatable={"nvidia.com/gpu": 8})
MIG = dataclasses.replace(NODE, allocatable={"nvidia.com/mig-1g.10gb": 7, "nvidia.com/gpu": 1})
CUT = Device("GPU-1", "3", "A100", "1g.10gb")

CASES: Mapping[str, tuple[dict[str, Any], str, Status, str]] = {
    # what is otherwise: the check, how it stands, what it says among other things
    "objects": ({}, "cluster", Status.OK, "1 workload with 2 GPUs, 1 node with GPUs"),
    "no-api-server": ({"fleet": NO_CLUSTER}, "cluster", Status.ERROR, "Connection refused"),
    "nothing-to-judge": ({"fleet": fleet(workloads=())}, "cluster", Status.WARNING, "no workload holds"),
    "nothing-left-out": ({}, "objects", Status.OK, "all objects"),
    "left-out": (
        {"fleet": fleet(problems=("/apis/x is left out",))},
        "objects",
        Status.WARNING,
        "/apis/x is left out",
    ),
    "all-rights": ({}, "plan", Status.OK, "rights"),
    "plan-denied": (
        {"allowed": denied(Purpose.PLAN)},
        "plan",
        Status.ERROR,
        "not allowed to list pods, nodes",
    ),
    "plan-dear": (
        {"allowed": denied(Purpose.PLAN, dear=True)},
        "plan",
        Status.WARNING,
        ": quotas are unknown",
    ),
    **{
        f"{name}-rights-unknown": (
            {"allowed": Failure("creating in /apis/x: 403 Forbidden")},
            name,
            Status.UNKNOWN,
            "unknown: creating in /apis/x: 403 Forbidden",
        )
        for name in ("plan", "discovery", "apply", "undo")
    },
    "discovery-denied": (
        {"allowed": denied(Purpose.DISCOVERY)},
        "discovery",
        Status.WARNING,
        "get services/proxy",
    ),
    "apply-denied": ({"allowed": denied(Purpose.APPLY)}, "apply", Status.WARNING, "create pods/eviction"),
    "undo-denied": ({"allowed": denied(Purpose.UNDO)}, "undo", Status.WARNING, "patch deployments.apps"),
    "discovery": ({}, "discovery", Status.OK, "all 2 required rights"),
    "apply": ({}, "apply", Status.OK, "rights"),
    "plan-evicting": (
        {"allowed": {right: right.resource != "secrets" for right in RIGHTS}},
        "plan",
        Status.WARNING,
        "list secrets",
    ),
    "plan-not-evicting": (
        {"allowed": {right: right.resource != "secrets" for right in RIGHTS}, "evicts": False},
        "plan",
        Status.OK,
        "rights are granted",
    ),
    "apply-dear": (
        {"allowed": denied(Purpose.APPLY, dear=True)},
        "apply",
        Status.WARNING,
        "apply is limited",
    ),
    "undo": ({}, "undo", Status.OK, "rights"),
    "undo-dear": (
        {"allowed": denied(Purpose.UNDO, dear=True)},
        "undo",
        Status.WARNING,
        "not allowed to get customresourcedefinitions.apiextensions.k8s.io, cronjobs.batch, jobsets.jobset.x-k8s.io",
    ),
    "answers": ({}, "reachable", Status.OK, "http://prometheus:9090 answers in 4 ms (Prometheus 3.7.1)"),
    "silent": ({"server": AWAY}, "reachable", Status.ERROR, "nobody answers"),
    "unnamed": (
        {"server": Failure("two hold GPUs", is_unnamed=True)},
        "reachable",
        Status.ERROR,
        "no Prometheus found: two hold",
    ),
    "same-time": ({}, "clock", Status.OK, "differ by 0 s"),
    "behind": (
        {"server": server(now=AT - datetime.timedelta(seconds=40))},
        "clock",
        Status.WARNING,
        "40 s behind",
    ),
    "ahead": (
        {"server": server(now=AT + datetime.timedelta(hours=1))},
        "clock",
        Status.ERROR,
        "1h ahead of",
    ),
    "limit": ({}, "sample-limit", Status.OK, "50,000,000"),
    "small-limit": (
        {"server": flags(query_max__samples="1000000")},
        "sample-limit",
        Status.ERROR,
        "1,000,000",
    ),
    "no-limit": ({"server": server(flags=Failure("404"))}, "sample-limit", Status.UNKNOWN, "is unknown"),
    "reaches": ({}, "retention", Status.OK, "14d"),
    "younger-than-history": ({"begins": AT - 3 * DAY}, "retention", Status.WARNING, "4.7 times as long"),
    "younger-than-window": (
        {"begins": AT - DAY / 2},
        "retention",
        Status.ERROR,
        "until 2026-11-22 00:00 UTC",
    ),
    "forgets": (
        {"server": flags(storage_tsdb_retention_time="10d")},
        "retention",
        Status.WARNING,
        "keeps 10d, but the policy looks back 14d: required idle times are 1.4 times as long",
    ),
    "forgets-later": (
        {"server": flags(storage_tsdb_retention_time="10d"), "begins": AT - 2 * DAY},
        "retention",
        Status.WARNING,
        "7.0 times as long, less each day until 2026-11-29",
    ),
    "forgets-soon": (
        {"server": flags(storage_tsdb_retention_time="2d"), "begins": AT - 2 * DAY},
        "retention",
        Status.WARNING,
        "keeps 2d, but the policy looks back 14d: required idle times are 2.0 times as long",
    ),
    "dense": ({}, "scrape-interval", Status.OK, "every 15s"),
    "sparse": ({"interval_s": 120.0}, "scrape-interval", Status.WARNING, "every 2m"),
    "too-sparse": (
        {"interval_s": 900.0},
        "scrape-interval",
        Status.ERROR,
        "window of 40m holds 2, but needs 18",
    ),
    "recorded": ({}, "recording-rules", Status.OK, "all 2 rules cover 1d"),
    "recorded-lately": (
        {"recorded": Recorded(RECORDED, RECORDED, frozenset())},
        "recording-rules",
        Status.OK,
        "not cover 1d",
    ),
    "no-rules": ({"recorded": NOTHING}, "recording-rules", Status.OK, "2 devices fit"),
    "rules-wanted": (
        {"recorded": NOTHING, "naming": Naming({"pod": 9}, (), 10_000)},
        "recording-rules",
        Status.WARNING,
        "10000 devices over 1d",
    ),
    "half-the-rules": (
        {"recorded": Recorded(RECORDED, frozenset(sorted(RECORDED)[:1]), frozenset())},
        "recording-rules",
        Status.WARNING,
        "1 of 2 rules are missing (gpu_rightsizer:power:max5m of P)",
    ),
    "unverified-rules": (
        {"recorded": Recorded(RECORDED, RECORDED, RECORDED, "the server evaluates none of them")},
        "recording-rules",
        Status.WARNING,
        "not used: the server evaluates none of them",
    ),
    "from-exporters": ({}, "provenance", Status.OK, "all GPU series come from exporters in monitoring"),
    "origin-unknown": (
        {"provenance": Provenance(problem="instance is no address")},
        "provenance",
        Status.WARNING,
        "instance is no address",
    ),
    "not-from-exporters": (
        {"provenance": Provenance(ignored=(ScrapeTarget("gpu-exporter", "10.0.0.9:80", 12),))},
        "provenance",
        Status.WARNING,
        "12 GPU series of 1 target ignored: not from an exporter (10.0.0.9:80)",
    ),
    "origin-without-cluster": (
        {"fleet": NO_CLUSTER},
        "provenance",
        Status.UNKNOWN,
        "because pods could not be read",
    ),
    "own-table": (
        {"source": dataclasses.replace(DCGM, has_rules=False)},
        "recording-rules",
        Status.OK,
        "this signals table",
    ),
    "source": ({}, "source", Status.OK, "dcgm: DCGM_FI_DEV_GPU_UTIL"),
    "series-ended": (
        {"ended": AT - datetime.timedelta(minutes=80)},
        "source",
        Status.ERROR,
        "GPU series (dcgm) ended 2026-11-",
    ),
    "no-source": (
        {"source": Failure("Prometheus holds no GPU series", "x")},
        "source",
        Status.ERROR,
        "no GPU series",
    ),
    "labels": ({}, "labels", Status.OK, "2 series name pods of this cluster, by exported_pod (2)"),
    "labels-of-whom-is-not-known": (
        {"fleet": Failure("listing pods: 403 Forbidden")},
        "labels",
        Status.UNKNOWN,
        "2 series name pods, by exported_pod (2); whether they are in this cluster is unknown",
    ),
    "both-labels": (
        {"naming": Naming({"pod": 1, "exported_pod": 2}, (), 3)},
        "labels",
        Status.OK,
        "exported_pod (2) and pod (1)",
    ),
    "nobody-named": ({"naming": Naming({}, (), 0)}, "labels", Status.ERROR, "no series names a pod"),
    "others-named": (
        {"naming": Naming({}, (("gpu", "exporter-x"),), 0)},
        "labels",
        Status.ERROR,
        "gpu/exporter-x",
    ),
    "nobody-to-name": (
        {"naming": Naming({}, (), 0), "fleet": fleet(workloads=())},
        "labels",
        Status.OK,
        "no pod holds",
    ),
    "metrics": ({}, "metrics", Status.OK, "are measured"),
    "no-activity": (
        {"source": without(DCGM_49, MetricKind.ACTIVITY)},
        "metrics",
        Status.ERROR,
        "GPU_UTIL_RATIO",
    ),
    "no-second": (
        {"source": without(DCGM, MetricKind.TRAFFIC, MetricKind.POWER)},
        "metrics",
        Status.ERROR,
        "second signal",
    ),
    "no-traffic": ({"source": without(DCGM, MetricKind.TRAFFIC)}, "metrics", Status.WARNING, "traffic"),
    "no-power": ({"source": without(DCGM, MetricKind.POWER)}, "metrics", Status.WARNING, "power"),
    "no-memory": (
        {"source": without(DCGM, MetricKind.MEMORY)},
        "metrics",
        Status.WARNING,
        "memory in use",
    ),
    "mig-measured": ({"usages": used({"device": CUT})}, "mig", Status.OK, "all MIG instances"),
    "mig-dark": (
        {"usages": used({"device": CUT, "activity_mean": None})},
        "mig",
        Status.WARNING,
        "1 MIG instance",
    ),
    "once": ({}, "duplicates", Status.OK, "one series"),
    "twins": (
        {"naming": Naming({"pod": 4}, (), 2, ("gpu",), 2)},
        "duplicates",
        Status.OK,
        "copies of 2 devices",
    ),
    "twice": ({"naming": Naming({"pod": 4}, (), 2, ("a", "b"), 2)}, "duplicates", Status.WARNING, "(a, b)"),
    "agree": ({"usages": used({"invalid": ("X",)})}, "agreement", Status.OK, "no two"),
    "disagree": ({"usages": used({"invalid": (DISAGREEMENT,)})}, "agreement", Status.WARNING, "research/w-0"),
    "valid": ({"usages": used({"invalid": (DISAGREEMENT,)})}, "values", Status.OK, "plausible"),
    "invalid": ({"usages": used({"invalid": ("X",)})}, "values", Status.WARNING, "1 device with"),
    "nodes": ({}, "nodes", Status.OK, "every node with GPUs has series (1)"),
    "unseen": (
        {"fleet": fleet(nodes={"n1": NODE, "n2": dataclasses.replace(NODE, name="n2")})},
        "nodes",
        Status.ERROR,
        "1 of 2 GPU nodes have no GPU series: n2",
    ),
    "nameless": (
        {"node_coverage": {"10.0.0.7": NodeCoverage(2, 2, 1.0)}},
        "nodes",
        Status.WARNING,
        "10.0.0.7; n1",
    ),
    "no-nodes": (
        {"fleet": fleet(workloads=(), nodes={}), "node_coverage": {}},
        "nodes",
        Status.OK,
        "no node with GPUs",
    ),
    "devices": ({}, "devices", Status.OK, "all devices"),
    "mig-devices": (
        {"fleet": fleet(nodes={"n1": MIG}), "node_coverage": {"n1": NodeCoverage(8, 2, 1.0)}},
        "devices",
        Status.OK,
        "all devices",
    ),
    "fewer-of-dra": (
        {
            "fleet": Fleet(
                (), {"n1": dataclasses.replace(NODE, allocatable={"deviceclass:gpu.nvidia.com": 2})}, {}
            ),
            "node_coverage": {"n1": NodeCoverage(1, 1, 1.0)},
        },
        "devices",
        Status.WARNING,
        "n1 (1 of 2)",
    ),
    "fewer": ({"node_coverage": {"n1": NodeCoverage(1, 1, 1.0)}}, "devices", Status.WARNING, "n1 (1 of 2)"),
    "owned": ({}, "owners", Status.OK, "every held device"),
    "unowned": ({"node_coverage": {"n1": NodeCoverage(2, 1, 1.0)}}, "owners", Status.ERROR, "n1 (1 of 2)"),
    "shared": (
        {"fleet": fleet(nodes={"n1": SHARED}), "node_coverage": {"n1": NodeCoverage(1, 1, 1.0)}},
        "owners",
        Status.OK,
        "every held device",
    ),
    "steady": ({"node_coverage": {"n1": NodeCoverage(2, 2, 0.95)}}, "gaps", Status.OK, "no gaps"),
    "gaps": ({"node_coverage": {"n1": NodeCoverage(2, 2, 0.4)}}, "gaps", Status.WARNING, "n1 (40%)"),
    "no-foreign-nodes": ({}, "foreign-nodes", Status.OK, "all series"),
    "foreign-nodes": (
        {"node_coverage": {"n1": NodeCoverage(2, 2, 1.0), "x": NodeCoverage(1, 0, 1.0)}},
        "foreign-nodes",
        Status.WARNING,
        "x",
    ),
    "policy": ({}, "file", Status.OK, "policy.yaml: 1 rule"),
    "no-policy": ({"policy": BUILT_IN}, "file", Status.OK, "nothing is changed"),
    "bad-policy": ({"policy": Failure("line 3: rules[0].mdoe: unknown")}, "file", Status.ERROR, "line 3"),
    "classes": ({}, "classes", Status.OK, "exist"),
    "no-class": (
        {"policy": loaded(policy(BY_CLASS))},
        "classes",
        Status.ERROR,
        "no PriorityClass no-such-*",
    ),
    "class-problem": (
        {"fleet": fleet(classes=ANNOTATED)},
        "classes",
        Status.WARNING,
        "low-priority protects",
    ),
    "classes-without-a-file": (
        {"fleet": fleet(classes=ANNOTATED), "policy": BUILT_IN},
        "classes",
        Status.WARNING,
        "annotations of PriorityClasses (low-priority) are ignored without a policy file",
    ),
    "matches": ({}, "rules", Status.OK, "all 1"),
    "matches-nothing": (
        {"policy": loaded(policy(rule("nobodys", match=Match(namespaces=("x",))), rule("all")))},
        "rules",
        Status.WARNING,
        "nobodys",
    ),
    "no-such-namespace": (
        {
            "policy": loaded(policy(rule("all", match=Match(namespaces=("reserch",))))),
            "fleet": fleet(namespaces=frozenset({"research"})),
        },
        "rules",
        Status.WARNING,
        "rules[0].match.namespaces[0]: the cluster has no namespace reserch; did you mean research?",
    ),
    "budgets": ({}, "budgets", Status.OK, "every budget"),
    "budgets-unused": (
        {"policy": loaded(policy(rule("all", Mode.ADVISE)))},
        "budgets",
        Status.OK,
        "no rule enforces",
    ),
    "shut": ({"policy": enforcing(budgets=BUDGET_ZERO)}, "budgets", Status.WARNING, "workloads: 0"),
    "tight": (
        {"policy": enforcing(budgets=BUDGET_TOO_SMALL)},
        "budgets",
        Status.WARNING,
        "allows 1 GPU, but the smallest",
    ),
    "open": ({}, "calendar", Status.OK, "changes are allowed now"),
    "closed": (
        {"policy": enforcing(maintenanceWindows=NEVER, freezes=(FREEZE,))},
        "calendar",
        Status.OK,
        "frozen",
    ),
    "never": ({"policy": enforcing(freezes=FOREVER)}, "calendar", Status.WARNING, "in the next 31 days"),
}


def said(given: Facts, check: str) -> list[Diagnosis]:
    """What a check says about facts."""
    return [one for row, one in diagnose(given) if row.name == check]


@pytest.mark.parametrize("case", CASES)
def test_doctor_check_facts_give_expected_status_and_message(case: str) -> None:
    """Status and words; all but the good ones say what to do."""
    changes, check, status, words = CASES[case]
    found = said(facts(**changes), check)
    (matching,) = [one for one in found if words in one.words]
    assert matching.status is status
    if status in {Status.WARNING, Status.ERROR}:
        assert matching.remedy


def _template(text: str) -> re.Pattern[str]:
    parts = re.split(r"\{[^{}]*\}", text)
    return re.compile(".*".join(map(re.escape, parts)), re.DOTALL)


MESSAGES = {
    f"{module.__name__}-{name}": message
    for module in MODULES
    for name, message in vars(module).items()
    if isinstance(message, Message)
}


@functools.cache
def _all_said() -> frozenset[Diagnosis]:
    """Whatever is said in the cases, apart from what a missing fact makes unknown."""
    every = (one for changes, *_ in CASES.values() for _, one in diagnose(facts(**changes)))
    general = (FAILED, FOLLOWS)
    return frozenset(one for one in every if not any(_is_of(one, message) for message in general))


def _is_of(one: Diagnosis, message: Message) -> bool:
    texts = ((message.says, one.words), (message.remedy, one.remedy))
    return message.status is one.status and all(_template(text).fullmatch(words) for text, words in texts)


@pytest.mark.parametrize("name", MESSAGES)
def test_doctor_every_message_is_said_in_a_case(name: str) -> None:
    """Each can occur."""
    assert any(_is_of(one, MESSAGES[name]) for one in _all_said())


def test_doctor_check_any_facts_give_only_known_messages() -> None:
    """Each check says something, whatever the facts are."""
    assert [one for one in _all_said() if not any(_is_of(one, known) for known in MESSAGES.values())] == []
    for changes, *_ in CASES.values():
        assert {check.name for check, _ in diagnose(facts(**changes))} == {check.name for check in CHECKS}


def test_doctor_check_names_are_unique() -> None:
    """Programs find a check by its name."""
    names = [check.name for check in CHECKS]
    assert len(names) == len(set(names))


_FIELDS = (
    "fleet",
    "allowed",
    "policy",
    "server",
    "source",
    "interval_s",
    "begins",
    "ended",
    "naming",
    "recorded",
    "usages",
)


@hypothesis.given(st.sets(st.sampled_from((*_FIELDS, "node_coverage", "host"))))
@hypothesis.settings(max_examples=60)
def test_doctor_check_missing_facts_do_not_affect_other_checks(away: set[str]) -> None:
    """Facts that are missing make checks unknown, or are one problem; the other checks are unaffected."""
    before = {check.name: one for check, one in diagnose(facts())}
    missing = {name: Failure(f"{name} is away", f"no {name}") for name in away}
    after = [(check.name, one) for check, one in diagnose(facts(**missing))]
    assert {name for name, _ in after} == before.keys()
    for name, one in after:
        assert one.status in {Status.UNKNOWN, Status.ERROR} or one == before[name]


def test_doctor_check_own_query_failure_is_reported_in_full() -> None:
    """A query that was too large is no other check's business."""
    (one,) = said(facts(node_coverage=Failure("querying: too many samples")), "nodes")
    assert (one.status, one.words) == (Status.UNKNOWN, "unknown: querying: too many samples")
    assert "--prometheus-timeout" in one.remedy


@pytest.mark.parametrize(
    ("build", "name"),
    [
        ({"version": "2.42.0+ds", "revision": "x"}, "Prometheus 2.42.0+ds"),
        ({"version": "0.39.2", "revision": "x"}, "Thanos 0.39.2"),
        ({"application": "Grafana Mimir", "version": "2.17.0", "features": {}}, "Grafana Mimir 2.17.0"),
        ({"version": "2.24.0"}, "VictoriaMetrics or similar"),
        ({}, "unknown server"),
        (Failure("404"), "unknown server"),
    ],
)
def test_doctor_prometheus_flavour_is_detected_from_build_info(build: Any, name: str) -> None:
    """What a server does not say is not made up."""
    (one,) = said(facts(server=server(build=build)), "reachable")
    assert one.words.endswith(f"({name})")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"storage.tsdb.retention.time": "0s", "storage.tsdb.retention.size": "0B"}, None),
        ({"storage.tsdb.retention.time": "0s", "storage.tsdb.retention.size": "100GB"}, None),
        ({"storage.tsdb.retention.time": "1y"}, None),
        ({"storage.tsdb.retention.time": "7d"}, "keeps 7d"),
        ({}, None),
    ],
)
def test_doctor_retention_flags_give_duration_or_unknown(given: dict[str, str], kept: str | None) -> None:
    """15 days where nothing is given, which suffice for 14; what is kept by size alone is not known."""
    warned = [
        one.words for one in said(facts(server=server(flags=given)), "retention") if "keeps" in one.words
    ]
    assert [words.partition(",")[0].removeprefix("Prometheus ") for words in warned] == (
        [kept] if kept else []
    )


def test_doctor_default_retention_below_30_days_is_reported() -> None:
    """A history of 30 days needs more than Prometheus's own 15."""
    nothing = {"storage.tsdb.retention.time": "0s"}
    given = facts(server=server(flags=nothing), policy=thresholds(history=30 * DAY))
    (one,) = [one for one in said(given, "retention") if one.status is Status.WARNING]
    assert "--storage.tsdb.retention.time=30d" in one.remedy


def test_doctor_return_factor_zero_requires_no_history() -> None:
    """ReturnFactor 0 asks for none."""
    given = facts(begins=AT - 3 * DAY, policy=thresholds(idleFactor=0.0))
    assert [one.status for one in said(given, "retention")] == [Status.OK]


def test_doctor_rare_scrapes_with_counters_are_accepted() -> None:
    """Our exporter's miss nothing in between."""
    (one,) = said(facts(interval_s=120.0, source=GPU_EXPORTER_SOURCE), "scrape-interval")
    assert one.status is Status.OK


def test_doctor_new_or_unready_pod_without_series_is_accepted() -> None:
    """Nor one that is not ready."""
    for young in (pod("w-0", devices=2, started=AT - DAY / 1440), pod("w-0", devices=2, is_ready=False)):
        given = facts(fleet=fleet(workload(young)), node_coverage={"n1": NodeCoverage(2, 0, 1.0)})
        assert [one.status for one in said(given, "owners")] == [Status.OK]


def test_doctor_gpu_shares_without_count_label_are_not_reported() -> None:
    """Where no label says how many GPUs are shared nothing is said of them."""
    node = dataclasses.replace(SHARED, gpus=None)
    given = facts(fleet=fleet(nodes={"n1": node}), node_coverage={"n1": NodeCoverage(1, 1, 1.0)})
    assert [one.status for one in said(given, "devices")] == [Status.OK]


def _world_of_ills() -> Facts:
    return facts(
        fleet=fleet(
            nodes={name: dataclasses.replace(NODE, name=name) for name in ("n1", "n2", "n3", "n4", "n5")},
            problems=(
                "/apis/keda.sh/v1alpha1/scaledobjects is left out: 403 Forbidden: scaledobjects is forbidden",
            ),
        ),
        allowed=denied(Purpose.APPLY),
        begins=AT - 3 * DAY,
        naming=Naming({"exported_pod": 4}, (), 2, ("dcgm", "gpu-exporter"), 2),
        recorded=Failure(
            "querying Prometheus at http://prometheus:9090: HTTP 422: execution: too many samples"
        ),
        source=without(DCGM, MetricKind.POWER),
        node_coverage={"n1": NodeCoverage(2, 1, 0.4)},
        policy=enforcing(budgets=BUDGET_TOO_SMALL),
        usages=used({"invalid": ("DCGM_FI_DEV_GPU_UTIL",)}),
    )


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("doctor.txt", facts()),
        ("doctor-ills.txt", _world_of_ills()),
        (
            "doctor-away.txt",
            facts(
                **dict.fromkeys(("fleet", "host", "allowed"), NO_CLUSTER),
                **dict.fromkeys(
                    (
                        "server",
                        "source",
                        "interval_s",
                        "begins",
                        "naming",
                        "recorded",
                        "usages",
                        "node_coverage",
                    ),
                    AWAY,
                ),
            ),
        ),
    ],
)
def test_doctor_table_fits_80_columns_grouped_by_family(golden: Golden, name: str, given: Facts) -> None:
    """A family after the other; what is to be copied stands on a line of its own."""
    told = text(list(diagnose(given)), colour=False)
    assert max(map(len, told.splitlines())) <= 80
    golden(name, told)


def test_doctor_table_colour_stripped_equals_plain() -> None:
    """With its escape sequences removed the coloured table is the plain one."""
    found = list(diagnose(_world_of_ills()))
    coloured = text(found, colour=True)
    assert re.sub(r"\x1b\[[0-9]*m", "", coloured) == text(found, colour=False)
    assert "\x1b[31merror" in coloured


def test_doctor_table_escape_sequences_from_server_are_removed() -> None:
    """Nor a program's."""
    found = list(diagnose(facts(server=Failure("\x1b]0;owned\x07", AWAY.summary))))
    assert "\x1b" not in text(found, colour=False)
    assert "\x1b" not in str([one["message"] for one in document(found)["checks"]])


def test_doctor_document_lists_every_check_with_counts() -> None:
    """Every check with family, status, words, and what to do."""
    made = document(list(diagnose(_world_of_ills())))
    assert sum(made["summary"].values()) == len(made["checks"])
    unseen = next(one for one in made["checks"] if one["check"] == "nodes")
    assert unseen == {
        "family": "coverage",
        "check": "nodes",
        "status": "error",
        "message": "4 of 5 GPU nodes have no GPU series: n2, n3, n4 and 1 more",
        "remedy": "run an exporter there, and scrape it; pods on the first:",
        "command": "kubectl get pods -A --field-selector spec.nodeName=n2",
    }


def test_doctor_roles_grant_exactly_the_permission_table() -> None:
    """Every right is in the role of each command that needs it; rights in the state namespace only in a Role."""
    granted = {
        (role["metadata"]["name"], role["kind"], rule["apiGroups"][0], resource, verb)
        for role in roles("gpu-rightsizer")
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    wanted = {
        (
            f"gpu-rightsizer-{command}",
            "Role" if right.is_own else "ClusterRole",
            right.group,
            right.resource,
            right.verb,
        )
        for right in RIGHTS
        for command in right.commands
    }
    assert granted == wanted
    assert "*" not in {part for row in granted for part in row}


@pytest.mark.parametrize(
    ("minutes", "samples", "interval_s"),
    [
        (10, 600, 1.0),
        (10, 39, 15.0),
        (10, 40, 15.0),
        (10, 41, 15.0),
        (10, 20, 30.0),
        (10, 10, 60.0),
        (10, 11, 60.0),
        (60, 30, 120.0),
        (360, 24, 900.0),
        (10, 12, 50.0),
    ],
)
def test_doctor_scrape_interval_is_rounded_to_configured_value(
    minutes: int, samples: int, interval_s: float
) -> None:
    """A span holds a sample more or less; an unusual interval is shown as measured."""
    assert scrape_interval_s(datetime.timedelta(minutes=minutes), samples) == interval_s
