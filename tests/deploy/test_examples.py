"""Examples offline: valid by Kubernetes's own schemas, all in the index, of known classes; of a stated shape."""

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
"""The oldest that has all kinds of the examples (resource.k8s.io/v1), and the newest whose schemas there are."""
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
"""As far as the examples use it: api/config/v1 of https://github.com/NVIDIA/k8s-device-plugin."""
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
"""As far as the examples use it: api/spec/v1 of https://github.com/NVIDIA/mig-parted."""
H100_SLICES, H100_GB = 7, 80


def _maps(key: str) -> Iterator[tuple[str, Any]]:
    """Each entry of the examples' ConfigMaps of that name, parsed."""
    for file, found in all_objects():
        if found["kind"] == "ConfigMap" and found["metadata"]["name"] == key:
            for name, text in found["data"].items():
                yield f"{file}: {name}", yaml.load(text, Loader=yaml.CSafeLoader)


def _pods(found: Any) -> Iterator[dict[str, Any]]:
    """Each pod's spec in an object, wherever its kind has it: what has containers, or KServe's model."""
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
def test_kubernetes_takes_it(file: str, minor: str) -> None:
    """Each object of a built-in kind has no field that its schema does not know, and none of another type."""
    for found in objects(file):
        group = found["apiVersion"].rpartition("/")[0]
        if not THIRD_PARTIES.fullmatch(group):
            kubernetes_validate.validate(found, minor, strict=True)


def test_the_index_has_all_files() -> None:
    """Nothing stands there that the index does not explain, and nothing is missing."""
    assert indexed() == files()


@pytest.mark.parametrize("file", files())
def test_it_begins_with_what_it_is(file: str) -> None:
    """The first line is a comment, in a whole sentence's beginning."""
    assert re.match(r"# [A-Z][^\n]{20,}", (EXAMPLES / file).read_text())


def test_every_pod_names_a_class_of_ours() -> None:
    """Named <level>-priority-<gpu> as the chart names them; all levels and both models are in use or offered."""
    named = {pod["priorityClassName"] for _, found in all_objects() for pod in _pods(found)}
    assert named <= CLASSES
    assert {
        f"{level}-priority-{gpu}" for level in ("high", "medium", "low") for gpu in ("h100", "t4")
    } == CLASSES
    assert {row.priority_class for row in said().values()} <= CLASSES


@pytest.mark.parametrize("file", sorted(POLICIES))
def test_a_policy_can_be_read(file: str) -> None:
    """As gpu-rightsizer reads it."""
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
def test_the_device_plugins_configurations_have_its_shape(config: Any) -> None:
    """Only fields that it knows, with values that it takes."""
    jsonschema.validate(config, DEVICE_PLUGIN)


def test_mig_configurations_fit_the_card() -> None:
    """Only fields that mig-parted knows; the instances of each fill no more than an H100 has."""
    ((_, config),) = _maps("mig-parted-config")
    jsonschema.validate(config, MIG_PARTED)
    for name, groups in config["mig-configs"].items():
        for group in groups:
            profiles = group.get("mig-devices", {})
            assert bool(profiles) == group["mig-enabled"], name
            sizes = [(re.findall(r"\d+", profile), count) for profile, count in profiles.items()]
            assert sum(int(slices) * count for (slices, _), count in sizes) <= H100_SLICES
            assert sum(int(memory) * count for (_, memory), count in sizes) <= H100_GB


def test_the_cluster_policy_names_the_configurations() -> None:
    """What it names is what the other files define."""
    (policy,) = objects("sharing/mig-cluster-policy.yaml")
    plugin, manager = policy["spec"]["devicePlugin"]["config"], policy["spec"]["migManager"]["config"]
    assert plugin["default"] in {name.partition(": ")[2] for name, _ in _maps(plugin["name"])}
    ((_, config),) = _maps(manager["name"])
    assert manager["default"] in config["mig-configs"]
