"""Examples, offline: valid by Kubernetes's schemas, in the index, and with known classes."""

import re
from collections.abc import Iterator
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from rightsizer.policy.schema import Policy
from tests.deploy.examples import EXAMPLES, POLICIES, all_objects, files, indexed, objects, said

MINORS = ("1.34", "1.37")
"""The oldest release with all kinds of the examples (resource.k8s.io/v1), and the newest known one."""
THIRD_PARTIES = re.compile(
    r"argoproj\.io|.*\.toolkit\.fluxcd\.io|kueue\.x-k8s\.io|(trainer\.)?kubeflow\.org|serving\.kserve\.io|nvidia\.com"
    r"|kubescheduler\.config\.k8s\.io|gpu-rightsizer\.io"
)
CLASSES = {found["metadata"]["name"] for found in objects("priority-classes.yaml")}
_REPLICATED = {
    "type": "object",
    "additionalProperties": False,
    "required": ["resources"],
    "properties": {
        "renameByDefault": {"type": "boolean"},
        "failRequestsGreaterThanOne": {"type": "boolean"},
        "resources": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "replicas"],
                "properties": {
                    "name": {"pattern": r"^nvidia\.com/(gpu|mig-\d+g\.\d+gb)$"},
                    "replicas": {"type": "integer", "minimum": 2},
                },
            },
        },
    },
}
DEVICE_PLUGIN = {
    "type": "object",
    "additionalProperties": False,
    "required": ["version"],
    "properties": {
        "version": {"const": "v1"},
        "flags": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"migStrategy": {"enum": ["none", "single", "mixed"]}},
        },
        "sharing": {
            "type": "object",
            "additionalProperties": False,
            "minProperties": 1,
            "maxProperties": 1,
            "properties": {"timeSlicing": _REPLICATED, "mps": _REPLICATED},
        },
    },
}
"""The part that the examples use: api/config/v1 of https://github.com/NVIDIA/k8s-device-plugin."""
MIG_PARTED = {
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "mig-configs"],
    "properties": {
        "version": {"const": "v1"},
        "mig-configs": {
            "type": "object",
            "additionalProperties": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": ["devices", "mig-enabled"],
                    "properties": {
                        "devices": {
                            "oneOf": [{"const": "all"}, {"type": "array", "items": {"type": "integer"}}]
                        },
                        "mig-enabled": {"type": "boolean"},
                        "mig-devices": {
                            "type": "object",
                            "additionalProperties": False,
                            "patternProperties": {r"^\dg\.\d+gb$": {"type": "integer", "minimum": 1}},
                        },
                    },
                },
            },
        },
    },
}
"""The part that the examples use: api/spec/v1 of https://github.com/NVIDIA/mig-parted."""
H100_SLICES, H100_GB = 7, 80


def _maps(key: str) -> Iterator[tuple[str, Any]]:
    """Parsed entries of the examples' ConfigMaps with this name."""
    for file, found in all_objects():
        if found["kind"] == "ConfigMap" and found["metadata"]["name"] == key:
            for name, text in found["data"].items():
                yield f"{file}: {name}", yaml.load(text, Loader=yaml.CSafeLoader)


def _pods(found: Any) -> Iterator[dict[str, Any]]:
    """The pod specs of an object of any kind: mappings with containers, or KServe's model."""
    if isinstance(found, dict):
        if "containers" in found or "model" in found:
            yield found
        for below in found.values():
            yield from _pods(below)
    elif isinstance(found, list):
        for below in found:
            yield from _pods(below)


@pytest.mark.parametrize("minor", MINORS)
@pytest.mark.parametrize("file", files())
def test_example_is_valid_kubernetes(file: str, minor: str) -> None:
    """Objects of built-in kinds have only known fields, of the right types."""
    for found in objects(file):
        group = found["apiVersion"].rpartition("/")[0]
        if not THIRD_PARTIES.fullmatch(group):
            kubernetes_validate.validate(found, minor, strict=True)


def test_examples_index_lists_all_files() -> None:
    """The index has every file and no other."""
    assert indexed() == files()


@pytest.mark.parametrize("file", files())
def test_example_begins_with_comment(file: str) -> None:
    """The first line is a comment with a sentence."""
    assert re.match(r"# [A-Z][^\n]{20,}", (EXAMPLES / file).read_text())


def test_example_pods_have_priority_class_of_examples() -> None:
    """Named <level>-priority-<gpu> as in the chart, for all levels and both models."""
    named = {pod["priorityClassName"] for _, found in all_objects() for pod in _pods(found)}
    assert named <= CLASSES
    assert {
        f"{level}-priority-{gpu}" for level in ("high", "medium", "low") for gpu in ("h100", "t4")
    } == CLASSES
    assert {row.priority_class for row in said().values()} <= CLASSES


@pytest.mark.parametrize("file", sorted(POLICIES))
def test_example_policy_loads(file: str) -> None:
    """gpu-rightsizer reads it without errors."""
    (found,) = objects(file)
    assert Policy.model_validate(found).rules


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(config, id=name)
        for plugin in ("device-plugin-config", "device-plugin-config-mps")
        for name, config in _maps(plugin)
    ],
)
def test_device_plugin_configuration_has_valid_shape(config: Any) -> None:
    """Only known fields with valid values."""
    jsonschema.validate(config, DEVICE_PLUGIN)


def test_mig_configurations_fit_card() -> None:
    """Only fields of mig-parted; the instances fit on an H100."""
    ((_, config),) = _maps("mig-parted-config")
    jsonschema.validate(config, MIG_PARTED)
    for name, groups in config["mig-configs"].items():
        for group in groups:
            profiles = group.get("mig-devices", {})
            assert bool(profiles) == group["mig-enabled"], name
            sizes = [(re.findall(r"\d+", profile), count) for profile, count in profiles.items()]
            assert sum(int(slices) * count for (slices, _), count in sizes) <= H100_SLICES
            assert sum(int(memory) * count for (_, memory), count in sizes) <= H100_GB


def test_cluster_policy_names_existing_configurations() -> None:
    """The other files define the names that it uses."""
    (policy,) = objects("sharing/mig-cluster-policy.yaml")
    plugin, manager = policy["spec"]["devicePlugin"]["config"], policy["spec"]["migManager"]["config"]
    assert plugin["default"] in {name.partition(": ")[2] for name, _ in _maps(plugin["name"])}
    ((_, config),) = _maps(manager["name"])
    assert manager["default"] in config["mig-configs"]
