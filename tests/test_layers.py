"""The direction of imports: what stands earlier in a program's line may import what stands later, never back."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the docstring of each package; members of one layer do not import each other across packages.
EXPORTER = (
    {"cli", "__main__", "process"},
    {"http"},
    {"render", "sampling"},
    {"collectors"},
    {"nvml"},
    {"attribution"},
    {"pods"},
    {"settings"},
    {"dcgm"},
    {"model"},
    {"errors"},
)
RIGHTSIZER = (
    {"cli", "__main__"},
    {"guardrails"},
    {"doctor"},
    {"execute"},
    {"report"},
    {"planning"},
    {"findings"},
    {"kinds"},
    {"policy"},
    {"inventory"},
    {"usage"},
    {"prometheus"},
    {"changes"},
    {"kube"},
    {"prices"},
    {"text"},
    {"yamlfile"},
    {"config"},
    {"model"},
    {"errors"},
)
PURE = (
    "exporter/attribution/cgroups.py",
    "exporter/attribution/ledger.py",
    "exporter/attribution/processowners.py",
    "exporter/attribution/records.py",
    "exporter/attribution/shares.py",
    "exporter/dcgm/fields.py",
    "exporter/dcgm/flags.py",
    "exporter/http/request.py",
    "exporter/model.py",
    "exporter/pods/allocations.py",
    "exporter/pods/claimants.py",
    "exporter/pods/deviceids.py",
    "exporter/pods/podfacts.py",
    "exporter/pods/protobuf.py",
    "exporter/render/exposition.py",
    "exporter/render/textformat.py",
    "exporter/sampling/metricslist.py",
    "rightsizer/planning/cost_summary.py",
    "rightsizer/findings/__init__.py",
    "rightsizer/findings/autoscaling.py",
    "rightsizer/findings/confidence.py",
    "rightsizer/findings/data_quality.py",
    "rightsizer/findings/evidence.py",
    "rightsizer/findings/finders.py",
    "rightsizer/findings/too_many_gpus.py",
    "rightsizer/findings/idle.py",
    "rightsizer/findings/kind_traits.py",
    "rightsizer/findings/mig_profiles.py",
    "rightsizer/findings/gpu_slices.py",
    "rightsizer/findings/replicas.py",
    "rightsizer/findings/idle_history.py",
    "rightsizer/findings/node_room.py",
    "rightsizer/findings/oversized_gpu.py",
    "rightsizer/findings/input_bound.py",
    "rightsizer/findings/not_starting.py",
    "rightsizer/findings/stuck.py",
    "rightsizer/findings/underutilized.py",
    "rightsizer/findings/followup_queries.py",
    "rightsizer/text.py",
    "rightsizer/changes/plausible.py",
    "rightsizer/planning/breaker.py",
    "rightsizer/planning/budget.py",
    "rightsizer/planning/decide.py",
    "rightsizer/planning/cooldown.py",
    "rightsizer/doctor/check_nodes.py",
    "rightsizer/doctor/diagnosis.py",
    "rightsizer/doctor/facts.py",
    "rightsizer/doctor/check_inventory.py",
    "rightsizer/doctor/check_permissions.py",
    "rightsizer/doctor/check_policy.py",
    "rightsizer/doctor/rights.py",
    "rightsizer/doctor/check_server.py",
    "rightsizer/doctor/check_signals.py",
    "rightsizer/doctor/check_list.py",
    "rightsizer/doctor/doctor_output.py",
    "rightsizer/model/fleet.py",
    "rightsizer/model/conclusions.py",
    "rightsizer/model/names.py",
    "rightsizer/model/measurements.py",
    "rightsizer/inventory/claims.py",
    "rightsizer/inventory/gangs.py",
    "rightsizer/inventory/cluster_state.py",
    "rightsizer/inventory/scale_targets.py",
    "rightsizer/inventory/managers.py",
    "rightsizer/inventory/pods.py",
    "rightsizer/inventory/nodes.py",
    "rightsizer/changes/object_history.py",
    "rightsizer/kube/api_objects.py",
    "rightsizer/kube/owner_kinds.py",
    "rightsizer/kube/quantity.py",
    "rightsizer/changes/records.py",
    "rightsizer/inventory/resources.py",
    "rightsizer/kube/statuses.py",
    "rightsizer/inventory/stranded_gpus.py",
    "rightsizer/policy/cluster_checks.py",
    "rightsizer/policy/calendar.py",
    "rightsizer/policy/classes.py",
    "rightsizer/policy/criteria.py",
    "rightsizer/policy/schema.py",
    "rightsizer/policy/explain.py",
    "rightsizer/policy/limits.py",
    "rightsizer/planning/pending_demand.py",
    "rightsizer/planning/capacity.py",
    "rightsizer/policy/other_controllers.py",
    "rightsizer/policy/do_not_disrupt.py",
    "rightsizer/policy/notification_targets.py",
    "rightsizer/report/notifications.py",
    "rightsizer/policy/match.py",
    "rightsizer/policy/matching.py",
    "rightsizer/policy/protections.py",
    "rightsizer/policy/rule.py",
    "rightsizer/policy/effective.py",
    "rightsizer/report/approvals.py",
    "rightsizer/report/charts.py",
    "rightsizer/policy/unreachable.py",
    "rightsizer/policy/starter.py",
    "rightsizer/policy/values.py",
    "rightsizer/policy/thresholds.py",
    "rightsizer/report/documents.py",
    "rightsizer/report/events.py",
    "rightsizer/report/markdown.py",
    "rightsizer/report/html_elements.py",
    "rightsizer/report/outcomes.py",
    "rightsizer/report/html.py",
    "rightsizer/report/html_workloads.py",
    "rightsizer/report/terminal.py",
    "rightsizer/report/history.py",
    "rightsizer/report/rows.py",
    "rightsizer/report/csv.py",
    "rightsizer/report/pause_text.py",
    "rightsizer/report/table.py",
    "rightsizer/report/totals.py",
    "rightsizer/report/wide_table.py",
    "rightsizer/planning/revalidate.py",
    "rightsizer/cli/crontab.py",
    "rightsizer/guardrails/admission.py",
    "rightsizer/guardrails/cel.py",
    "rightsizer/guardrails/permitted.py",
    "rightsizer/guardrails/rbac.py",
    "rightsizer/planning/victims.py",
    "rightsizer/kinds/__init__.py",
    "rightsizer/kinds/appwrapper.py",
    "rightsizer/kinds/argo.py",
    "rightsizer/kinds/patches.py",
    "rightsizer/kinds/kubectl_commands.py",
    "rightsizer/kinds/core.py",
    "rightsizer/kinds/edits.py",
    "rightsizer/kinds/fields.py",
    "rightsizer/kinds/worker_groups.py",
    "rightsizer/kinds/health.py",
    "rightsizer/kinds/kind.py",
    "rightsizer/kinds/kubeflow.py",
    "rightsizer/kinds/control_objects.py",
    "rightsizer/kinds/notices.py",
    "rightsizer/kinds/command_objects.py",
    "rightsizer/kinds/pause_for_change.py",
    "rightsizer/execute/evict.py",
    "rightsizer/kinds/ray.py",
    "rightsizer/kinds/serving.py",
    "rightsizer/kinds/sigs.py",
    "rightsizer/kinds/volcano.py",
    "rightsizer/kinds/past_changes.py",
)
# datetime is here for its types; its clock is closed by the linter (DTZ) and by taking `at` as an argument everywhere.
IMPURE_MODULES = {
    "kubernetes",
    "logging",
    "os",
    "pathlib",
    "random",
    "requests",
    "secrets",
    "socket",
    "subprocess",
    "threading",
    "time",
}
# Programs, and what each may import of this repository.
PROGRAMS = {"exporter": {"exporter"}, "rightsizer": {"rightsizer"}}


def _sources(package: str) -> Iterator[Path]:
    yield from sorted((ROOT / package).rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    """Full names of the modules that a file imports, wherever in the file; `from a import b` counts as a.b."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _part(path: Path, package: str) -> str:
    """The module or subpackage directly below the package to which a file belongs; "" for the package itself."""
    first = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


@pytest.mark.parametrize(("package", "layers"), [("exporter", EXPORTER), ("rightsizer", RIGHTSIZER)])
def test_imports_go_one_way(package: str, layers: tuple[set[str], ...]) -> None:
    """No module imports one that stands before it in its program's line, and every module has a place in the line."""
    rank = {name: position for position, layer in enumerate(layers) for name in layer}
    wrong = []
    for path in _sources(package):
        part = _part(path, package)
        if part and part not in rank:
            wrong.append(f"{path.relative_to(ROOT)} has no layer: give it one in {Path(__file__).name}")
            continue
        for name in _imports(path):
            owner, _, rest = name.partition(".")
            target = rest.partition(".")[0]
            if owner == package and part and target in rank and rank[target] < rank[part]:
                wrong.append(f"{path.relative_to(ROOT)} imports {name}, which stands before it")
    assert wrong == []


@pytest.mark.parametrize("package", PROGRAMS)
def test_programs_share_no_code(package: str) -> None:
    """Neither program imports the other, the simulator, the tests or the benchmarks."""
    foreign = {"exporter", "rightsizer", "simulator", "tests", "benchmarks"} - PROGRAMS[package]
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in _sources(package)
        for name in _imports(path)
        if name.partition(".")[0] in foreign
    ]
    assert wrong == []


def test_only_one_package_touches_pynvml() -> None:
    """The driver's library has one door."""
    doors = {path.parent.relative_to(ROOT) for path in _sources("exporter") if "pynvml" in set(_roots(path))}
    assert doors == {Path("exporter/nvml")}


@pytest.mark.parametrize(
    ("library", "expected"),
    [
        ("kubernetes", {"rightsizer/kube/cluster.py"}),
        ("requests", {"rightsizer/prometheus/transport.py", "rightsizer/execute/notify.py"}),
    ],
)
def test_only_one_file_opens_each_wire(library: str, expected: set[str]) -> None:
    """The API server, Prometheus and the receivers of messages have one door each."""
    doors = {str(path.relative_to(ROOT)) for path in _sources("rightsizer") if library in set(_roots(path))}
    assert doors == expected


@pytest.mark.parametrize("name", PURE)
def test_pure_modules_touch_nothing(name: str) -> None:
    """What is to be tested by values alone imports no clock, file, socket, thread or log."""
    assert set(_roots(ROOT / name)) & IMPURE_MODULES == set()


def _roots(path: Path) -> Iterator[str]:
    yield from (name.partition(".")[0] for name in _imports(path))
