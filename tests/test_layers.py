"""The direction of imports: what stands earlier in a program's line may import what stands later, never back."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the docstring of each package; members of one layer do not import each other across packages.
EXPORTER = (
    {"cli", "__main__", "heap", "logs", "signals"},
    {"serving"},
    {"exposition", "textformat", "sampler"},
    {"accountant"},
    {"sweep"},
    {"metricsfile", "metricslist"},
    {"catalog"},
    {"collectors", "jobs", "labels", "pods"},
    {"nvml"},
    {"accounts"},
    {"settings"},
    {"dcgm"},
    {"model"},
    {"errors"},
)
RIGHTSIZER = (
    {"cli", "__main__"},
    {"locks"},
    {"loop", "doctor"},
    {"act", "schedule", "serve"},
    {"report"},
    {"accounting", "pricefile"},
    {"look"},
    {"measure"},
    {"validate"},
    {"belief", "budget", "ondemand", "places", "breaker"},
    {"decide"},
    {"steering"},
    {"assess", "holdoff"},
    {"workloads", "policy"},
    {"observe"},
    {"money"},
    {"crontab"},
    {"config", "notes", "yamlfile"},
    {"model"},
    {"errors"},
)
PURE = (
    "exporter/accounts/books.py",
    "exporter/accounts/ledger.py",
    "exporter/accounts/records.py",
    "exporter/accounts/shares.py",
    "exporter/accounts/tenants.py",
    "exporter/dcgm/fields.py",
    "exporter/dcgm/flags.py",
    "exporter/exposition.py",
    "exporter/metricslist.py",
    "exporter/textformat.py",
    "exporter/model.py",
    "exporter/serving/request.py",
    "exporter/pods/cgroups.py",
    "exporter/pods/claimants.py",
    "exporter/pods/deviceids.py",
    "exporter/pods/join.py",
    "exporter/pods/podfacts.py",
    "rightsizer/accounting.py",
    "rightsizer/assess/__init__.py",
    "rightsizer/assess/autoscaling.py",
    "rightsizer/assess/confidence.py",
    "rightsizer/assess/doubts.py",
    "rightsizer/assess/evidence.py",
    "rightsizer/assess/findings.py",
    "rightsizer/assess/gpus.py",
    "rightsizer/assess/idle.py",
    "rightsizer/assess/kinds.py",
    "rightsizer/assess/levels.py",
    "rightsizer/assess/mig.py",
    "rightsizer/assess/parts.py",
    "rightsizer/assess/proof.py",
    "rightsizer/assess/replicas.py",
    "rightsizer/assess/rhythm.py",
    "rightsizer/assess/room.py",
    "rightsizer/assess/sliceable.py",
    "rightsizer/assess/starved.py",
    "rightsizer/assess/stranded.py",
    "rightsizer/assess/stuck.py",
    "rightsizer/assess/underused.py",
    "rightsizer/assess/wanted.py",
    "rightsizer/assess/words.py",
    "rightsizer/belief.py",
    "rightsizer/breaker.py",
    "rightsizer/budget.py",
    "rightsizer/decide.py",
    "rightsizer/holdoff.py",
    "rightsizer/doctor/coverage.py",
    "rightsizer/doctor/diagnosis.py",
    "rightsizer/doctor/facts.py",
    "rightsizer/doctor/inventory.py",
    "rightsizer/doctor/permissions.py",
    "rightsizer/doctor/policy.py",
    "rightsizer/doctor/rights.py",
    "rightsizer/doctor/server.py",
    "rightsizer/doctor/signals.py",
    "rightsizer/doctor/table.py",
    "rightsizer/doctor/telling.py",
    "rightsizer/model/fleet.py",
    "rightsizer/model/judgement.py",
    "rightsizer/model/names.py",
    "rightsizer/model/usage.py",
    "rightsizer/money.py",
    "rightsizer/notes.py",
    "rightsizer/observe/claims.py",
    "rightsizer/observe/gangs.py",
    "rightsizer/observe/gathered.py",
    "rightsizer/observe/levers.py",
    "rightsizer/observe/managers.py",
    "rightsizer/observe/needs.py",
    "rightsizer/observe/hami.py",
    "rightsizer/observe/nodes.py",
    "rightsizer/observe/history.py",
    "rightsizer/observe/objects.py",
    "rightsizer/observe/objectstext.py",
    "rightsizer/observe/owners.py",
    "rightsizer/observe/pods.py",
    "rightsizer/observe/quantity.py",
    "rightsizer/observe/records.py",
    "rightsizer/observe/resources.py",
    "rightsizer/observe/statuses.py",
    "rightsizer/observe/stranded.py",
    "rightsizer/policy/checks.py",
    "rightsizer/policy/calendar.py",
    "rightsizer/policy/classes.py",
    "rightsizer/policy/criteria.py",
    "rightsizer/policy/document.py",
    "rightsizer/policy/explain.py",
    "rightsizer/policy/limits.py",
    "rightsizer/ondemand.py",
    "rightsizer/places.py",
    "rightsizer/policy/managed.py",
    "rightsizer/policy/marks.py",
    "rightsizer/policy/notifying.py",
    "rightsizer/report/notifications.py",
    "rightsizer/policy/match.py",
    "rightsizer/policy/matching.py",
    "rightsizer/policy/protections.py",
    "rightsizer/policy/rule.py",
    "rightsizer/policy/rules.py",
    "rightsizer/report/approvals.py",
    "rightsizer/report/charts.py",
    "rightsizer/policy/shadows.py",
    "rightsizer/policy/starting.py",
    "rightsizer/policy/sweeping.py",
    "rightsizer/policy/thresholds.py",
    "rightsizer/policy/values.py",
    "rightsizer/report/document.py",
    "rightsizer/report/events.py",
    "rightsizer/report/markdown.py",
    "rightsizer/report/markup.py",
    "rightsizer/report/outcomes.py",
    "rightsizer/report/page.py",
    "rightsizer/report/pageitems.py",
    "rightsizer/report/paint.py",
    "rightsizer/report/past.py",
    "rightsizer/report/rows.py",
    "rightsizer/report/sheet.py",
    "rightsizer/report/state.py",
    "rightsizer/report/table.py",
    "rightsizer/report/totals.py",
    "rightsizer/report/wide.py",
    "rightsizer/report/words.py",
    "rightsizer/validate.py",
    "rightsizer/crontab.py",
    "rightsizer/locks/admission.py",
    "rightsizer/locks/cel.py",
    "rightsizer/locks/enabled.py",
    "rightsizer/locks/rbac.py",
    "rightsizer/steering.py",
    "rightsizer/workloads/__init__.py",
    "rightsizer/workloads/appwrapper.py",
    "rightsizer/workloads/argo.py",
    "rightsizer/workloads/changes.py",
    "rightsizer/workloads/commands.py",
    "rightsizer/workloads/core.py",
    "rightsizer/workloads/edits.py",
    "rightsizer/workloads/fields.py",
    "rightsizer/workloads/groups.py",
    "rightsizer/workloads/health.py",
    "rightsizer/workloads/kind.py",
    "rightsizer/workloads/kubeflow.py",
    "rightsizer/workloads/levers.py",
    "rightsizer/workloads/notices.py",
    "rightsizer/workloads/orders.py",
    "rightsizer/workloads/pausing.py",
    "rightsizer/workloads/readable.py",
    "rightsizer/workloads/pods.py",
    "rightsizer/workloads/ray.py",
    "rightsizer/workloads/serving.py",
    "rightsizer/workloads/sigs.py",
    "rightsizer/workloads/stopping.py",
    "rightsizer/workloads/volcano.py",
    "rightsizer/workloads/recalled.py",
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
        ("kubernetes", {"rightsizer/observe/cluster.py"}),
        ("requests", {"rightsizer/observe/transport.py", "rightsizer/act/notifying.py"}),
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
