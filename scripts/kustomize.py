"""Writes deploy/kustomize from the rendered Helm chart: a base, and a component for each choice.

The chart stays the only source. A component contains the difference between two renderings: additional objects, and
JSON patches of changed objects. This script uses only the chart's values and rendered objects.

    .venv/bin/python -m scripts.kustomize        needs helm, which `make controlplane` builds
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from simulator.controlplane.programs import HELM, find

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy" / "helm" / "gpu-rightsizer"
KUSTOMIZE = ROOT / "deploy" / "kustomize"
NAME = "gpu-rightsizer"
PLATFORMS = ("oke", "eks", "aks", "gke", "openshift", "gpu-operator", "device-plugin")

Object = dict[str, Any]
Key = tuple[str, str]
Values = Mapping[str, Any]

_POLICY = yaml.safe_load((ROOT / "deploy" / "examples" / "policy.yaml").read_text())
_ACTING = {"act": True, "policy": _POLICY, "prometheus": {"url": "http://prometheus.monitoring:9090"}}
_SENDING = {
    **_ACTING,
    "policy": {**_POLICY, "notifications": [{"type": "webhook", "url": "https://hooks.example.com/gpu"}]},
}
_ASKING = {"rightsizer": {"prometheus": _ACTING["prometheus"]}}
_RULES = {name: {"enabled": True} for name in ("recording", "dashboard", "alerts")}
_MONITORING = {"serviceMonitor": {"enabled": True}, "rules": _RULES, "dashboard": {"enabled": True}}
COMPONENTS: Mapping[str, Values] = {
    **{name: {"platform": name} for name in PLATFORMS},
    "deployment": {"rightsizer": {"mode": "deployment"}},
    "acting": {"rightsizer": _ACTING},
    "acting-deployment": {"rightsizer": {**_ACTING, "mode": "deployment"}},
    "monitoring": {"monitoring": _MONITORING},
    "monitoring-deployment": {"monitoring": _MONITORING, "rightsizer": {"mode": "deployment"}},
    "backtest": {**_ASKING, "backtest": {"enabled": True, "policies": {"example": _POLICY}}},
    "digest": {"rightsizer": _SENDING, "digest": {"enabled": True}},
}
"""The chart's values of each component."""
_UPON = {"acting-deployment": "acting", "monitoring-deployment": "monitoring"}
"""Components that include another one and patch it."""
GIVEN: Mapping[str, Values] = {"backtest": _ASKING, "digest": {"rightsizer": _SENDING}}
"""Values of components that only add objects, but whose chart needs these, which also change others."""
BESIDE = {"monitoring-deployment": "deployment"}
"""Components that patch objects of another one; an overlay must list that one first."""

_PATCHED = ("deployment", "backtest", "digest")
"""Components with pods, which a platform patches, too."""
_ACCOUNT = "request.userInfo.username"
_OURS = f'{_ACCOUNT} == "system:serviceaccount:{NAME}:{NAME}"'
_OURS_ANYWHERE = f'{_ACCOUNT}.matches("^system:serviceaccount:[^:]+:([^:]*-)?{NAME}(-[^:]*)?$")'
_AT_HOME = f'{_ACCOUNT}.startsWith("system:serviceaccount:" + request.namespace + ":")'
"""CEL parts of the admission guardrails that name the service account; kustomize does not rewrite them in an overlay
with another namespace or name prefix."""

_HELMS_OWN = {"app.kubernetes.io/managed-by", "helm.sh/chart"}
_HEAD = "# Written by scripts/kustomize.py from the Helm chart{what}; do not edit.\n"
_NAMESPACES = {"GPU_RIGHTSIZER_STATE_NAMESPACE", "GPU_RIGHTSIZER_EXPORTER_NAMESPACE"}
_OF_POD = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
"""Follows the namespace that an overlay sets."""


def render(values: Values) -> dict[Key, Object]:
    """The chart's objects with these values, by kind and name, without Helm's own labels."""
    command = [str(find((HELM,))["helm"]), "template", NAME, str(CHART), "--namespace", NAME, "--values", "-"]
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr)
    found = [_plain(one) for one in yaml.load_all(done.stdout, yaml.CSafeLoader) if one]
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def _expression(text: str) -> str:
    """A CEL expression of an admission policy, independent of the namespace's name."""
    if text == _OURS:
        return _OURS_ANYWHERE
    if text == f'request.namespace == "{NAME}"':
        return _AT_HOME
    return f"{text} && !{_AT_HOME}" if text.startswith("!(request.namespace in [") else text


def _plain(found: Any) -> Any:
    if isinstance(found, dict):
        if found.get("name") in _NAMESPACES and found.get("value", NAME) == NAME:
            return {"name": found["name"], **_OF_POD}
        return {
            key: _expression(below) if key == "expression" else _plain(below)
            for key, below in found.items()
            if key not in _HELMS_OWN
        }
    if isinstance(found, list):
        return [_plain(below) for below in found]
    return found


def files() -> dict[str, str]:
    """All generated files, by their paths below deploy/kustomize."""
    base = render({})
    # Even baseline forbids the exporter's hostPath.
    labels = {"pod-security.kubernetes.io/enforce": "privileged"}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAME, "labels": labels}}
    image = {
        "name": NAME,
        "newName": NAME,
        "newTag": yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"],
    }
    kustomization: Object = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": NAME,
        "resources": ["objects.yaml"],
        "images": [image],
    }
    written = {
        "base/objects.yaml": _text([namespace, *base.values()], ""),
        "base/kustomization.yaml": _text([kustomization], ""),
    }
    beside = {one: render(COMPONENTS[one]) for one in _PATCHED}
    for name, values in COMPONENTS.items():
        for file, text in _component(name, values, base, beside):
            written[f"components/{name}/{file}"] = text
    return written


def _component(
    name: str, values: Values, base: Mapping[Key, Object], others: Mapping[str, Mapping[Key, Object]]
) -> Iterator[tuple[str, str]]:
    """The files of one component; a platform's patches also cover the pods of other components."""
    below = _UPON.get(name)
    given = COMPONENTS[below] if below else GIVEN.get(name)
    before = render(given) if given else base
    if beside := BESIDE.get(name):
        before = _together(base, before, render(COMPONENTS[beside]))
    patches, added = _changes(before, render(values))
    if name in PLATFORMS:
        for other, objects in others.items():
            of_other, _ = _changes(objects, render({**values, **COMPONENTS[other]}))
            patches += [patch for patch in of_other if patch not in patches]
    kustomization: Object = {"apiVersion": "kustomize.config.k8s.io/v1alpha1", "kind": "Component"}
    if below:
        kustomization["components"] = [f"../{below}"]
    if added:
        kustomization["resources"] = ["objects.yaml"]
        yield "objects.yaml", _text(added, f", {_words(values)}")
    yield "kustomization.yaml", _text([{**kustomization, "patches": patches}], f", {_words(values)}")


def _together(
    base: Mapping[Key, Object], one: Mapping[Key, Object], other: Mapping[Key, Object]
) -> dict[Key, Object]:
    """The objects of the base with two components that change different objects."""
    gone = (base.keys() - one.keys()) | (base.keys() - other.keys())
    changed = {key: found for key, found in other.items() if found != base.get(key)}
    return {key: found for key, found in {**one, **changed}.items() if key not in gone}


def _words(values: Values) -> str:
    return "; ".join(
        f"{top}: {inner}" if isinstance(inner, str) else f"{top}: {', '.join(sorted(inner))}"
        for top, inner in values.items()
    )


def _changes(before: Mapping[Key, Object], after: Mapping[Key, Object]) -> tuple[list[Object], list[Object]]:
    """Patches from the objects of one rendering to those of another, and additional objects."""
    patches: list[Object] = []
    for key, found in before.items():
        target = {"kind": key[0], "name": key[1]}
        if key not in after:
            gone = {"apiVersion": found["apiVersion"], "kind": key[0], "metadata": {"name": key[1]}}
            text = yaml.safe_dump({"$patch": "delete", **gone}, sort_keys=False)
            patches.append({"target": target, "patch": text})
        elif steps := list(_steps(found, after[key])):
            patches.append({"target": target, "patch": yaml.safe_dump(steps, sort_keys=False)})
    return patches, [found for key, found in after.items() if key not in before]


def _steps(before: Any, after: Any, path: str = "") -> Iterator[Object]:
    """The RFC 6902 operations from one value to the other; lists without names are replaced whole."""
    if before == after:
        return
    if _names(before) and _names(after):
        yield from _item_steps(before, after, path)
        return
    if not (isinstance(before, dict) and isinstance(after, dict)):
        yield {"op": "replace", "path": path, "value": after}
        return
    for key in sorted(before.keys() - after.keys()):
        yield {"op": "remove", "path": f"{path}/{_escaped(key)}"}
    for key, value in after.items():
        if key in before:
            yield from _steps(before[key], value, f"{path}/{_escaped(key)}")
        else:
            yield {"op": "add", "path": f"{path}/{_escaped(key)}", "value": value}


def _item_steps(before: list[Any], after: list[Any], path: str) -> Iterator[Object]:
    """Operations per item, so that two components can change different items of one list."""
    old, new = _names(before), _names(after)
    kept = [name for name in old if name in new]
    assert kept == [name for name in new if name in old], f"{path}: the order changes"  # noqa: S101 - of our own chart
    for number in reversed([number for number, name in enumerate(old) if name not in new]):
        yield {"op": "remove", "path": f"{path}/{number}"}
    for number, name in enumerate(new):
        if name in old:
            yield from _steps(before[old.index(name)], after[number], f"{path}/{number}")
        else:
            yield {"op": "add", "path": f"{path}/{number}", "value": after[number]}


def _names(found: Any) -> list[str]:
    """The names of a list's items, such as containers; empty if they have none."""
    if not (isinstance(found, list) and all(isinstance(one, dict) and "name" in one for one in found)):
        return []
    return [one["name"] for one in found]


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


class _Dumper(yaml.CSafeDumper):
    """Writes multi-line strings as YAML blocks."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - as PyYAML calls it
        return True


def _as_block(dumper: yaml.CSafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _as_block)


def _text(objects: Sequence[Object], what: str) -> str:
    return _HEAD.format(what=what) + yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, width=120)


def main() -> int:
    """Delete the generated files, and write them again."""
    written = files()
    for name in ("base", "components"):
        shutil.rmtree(KUSTOMIZE / name, ignore_errors=True)
    for file, text in written.items():
        path = KUSTOMIZE / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
