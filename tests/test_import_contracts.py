"""The import contracts of pyproject.toml: each holds, and each fails for an import that it forbids."""

import copy
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter.api import read_configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

CONFIGURATION = read_configuration(str(Path(__file__).parents[1] / "pyproject.toml"))
CONTRACTS: dict[str, dict[str, Any]] = {one["id"]: one for one in CONFIGURATION["contracts_options"]}
TYPES = {"forbidden": ForbiddenContract, "layers": LayersContract}
FORBIDDEN_IMPORTS = {
    "rightsizer-layers": [
        ("rightsizer.kinds", "rightsizer.findings"),
        ("rightsizer.model", "rightsizer.text"),
    ],
    "rightsizer_extender-layers": [
        ("rightsizer_extender.preemption", "rightsizer_extender.preemption_state")
    ],
    "rightsizer_history-layers": [("rightsizer_history.ledger", "rightsizer_history.cli")],
    "exporter-layers": [("exporter.model", "exporter.nvml"), ("exporter.nvml", "exporter.http")],
    "programs": [
        ("exporter.model", "rightsizer.model"),
        ("rightsizer.cli", "simulator"),
        ("rightsizer.planning.plan", "rightsizer_extender.preemption"),
        ("rightsizer.cli.cycle", "rightsizer_history.cli"),
    ],
    "parts": [
        ("rightsizer_extender.preemption", "exporter.model"),
        ("rightsizer_extender.preemption", "simulator"),
        ("rightsizer_history.cli", "rightsizer_extender"),
    ],
    "nvml": [("exporter.cli", "pynvml")],
    "wires": [("rightsizer.kube.lease", "kubernetes"), ("rightsizer.kube.cluster", "requests")],
    "rightsizer-pure": [
        ("rightsizer.model", "os"),
        ("rightsizer.planning.decide", "time"),
        ("rightsizer_extender.preemption", "time"),
    ],
    "exporter-pure": [("exporter.model", "os"), ("exporter.http.messages", "socket")],
}


@pytest.fixture(scope="module")
def imports() -> grimp.ImportGraph:
    """Every import of both programs."""
    return grimp.build_graph(
        *CONFIGURATION["session_options"]["root_packages"], include_external_packages=True, cache_dir=None
    )


def _is_kept(contract: str, imports: grimp.ImportGraph) -> bool:
    options = CONTRACTS[contract]
    checked = TYPES[options["type"]](options["name"], CONFIGURATION["session_options"], options)
    return checked.check(copy.deepcopy(imports), verbose=False).kept


@pytest.mark.parametrize("contract", CONTRACTS)
def test_contract_of_the_present_code_is_kept(contract: str, imports: grimp.ImportGraph) -> None:
    """`make check` shows the import that breaks a contract."""
    assert _is_kept(contract, imports)


@pytest.mark.parametrize(
    ("contract", "importer", "imported"),
    [(contract, *pair) for contract, pairs in FORBIDDEN_IMPORTS.items() for pair in pairs],
)
def test_contract_with_a_forbidden_import_is_broken(
    contract: str, importer: str, imported: str, imports: grimp.ImportGraph
) -> None:
    """One import is enough."""
    changed = copy.deepcopy(imports)
    if imported not in changed.modules:
        changed.add_module(imported, is_squashed=True)
    changed.add_import(importer=importer, imported=imported)
    assert not _is_kept(contract, changed)


@pytest.mark.parametrize("contract", [name for name in CONTRACTS if name.endswith("-layers")])
def test_layers_with_an_unlisted_package_are_broken(contract: str, imports: grimp.ImportGraph) -> None:
    """A new package needs a place in the order."""
    changed = copy.deepcopy(imports)
    changed.add_module(f"{contract.removesuffix('-layers')}.unlisted")
    assert not _is_kept(contract, changed)


def test_every_contract_has_a_forbidden_import() -> None:
    """A contract that cannot fail is worth nothing."""
    assert FORBIDDEN_IMPORTS.keys() == CONTRACTS.keys()
