"""Objects from a file instead of an API server, and its error messages."""

import dataclasses
import json
import pathlib
import re
from itertools import pairwise
from typing import Any

import pytest
import yaml

from rightsizer.errors import ConfigurationError
from rightsizer.inventory.objects_file import read_file
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kinds import RECORDABLE_KINDS
from rightsizer.model.fleet import Fleet
from tests.rightsizer.kubectl import Object, fleet_of, node, obj, objects_of, pod

TOP = obj("Deployment", "w", spec={"replicas": 2})
RS = obj("ReplicaSet", "w-1", TOP)
EVERYTHING: list[Object] = [
    TOP,
    RS,
    pod("a", RS),
    pod("b", RS),
    pod("shell", annotations={"note": "2026-11-21T00:00:00Z", "numbers": "12:30"}),
    node(),
    {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team", "annotations": {"x": "y"}}},
    {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "low"}, "value": -5},
    obj(
        "PodDisruptionBudget",
        "guard",
        api_version="policy/v1",
        spec={"selector": {"matchLabels": {}}},
        status={"disruptionsAllowed": 1},
    ),
    obj("HorizontalPodAutoscaler", "h", api_version="autoscaling/v2", spec={"scaleTargetRef": {"name": "x"}}),
    obj("ConfigMap", "unread", api_version="v1", data={"a": "}\n{"}),
]


def _list(*items: Object) -> Object:
    return {"apiVersion": "v1", "kind": "List", "items": list(items)}


def _bare(item: Object) -> Object:
    return {key: value for key, value in item.items() if key not in {"apiVersion", "kind"}}


PODS = [one for one in EVERYTHING if one["kind"] == "Pod"]
OTHERS = [one for one in EVERYTHING if one["kind"] != "Pod"]
FORMS = {
    "json": json.dumps(_list(*EVERYTHING)),
    "json-of-kubectl": json.dumps(_list(*EVERYTHING), indent=4) + "\n",
    "lists-one-after-another": json.dumps(_list(*PODS), indent=4)
    + "\n"
    + json.dumps(_list(*OTHERS), indent=4),
    "a-line-each": "\n".join(json.dumps(one) for one in EVERYTHING),
    "lists-in-a-list": json.dumps(_list(_list(*PODS), _list(*OTHERS))),
    "an-api-servers-own-list": json.dumps(
        {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": [_bare(one) for one in PODS]}
    )
    + "\n"
    + json.dumps(_list(*OTHERS)),
    "yaml": yaml.safe_dump(_list(*EVERYTHING)),
    "yaml-documents": "---\n" + "---\n".join(yaml.safe_dump(one) for one in EVERYTHING),
    "yaml-and-json": yaml.safe_dump(_list(*PODS)) + "---\n" + json.dumps(_list(*OTHERS)),
    "byte-order-mark": "\ufeff" + json.dumps(_list(*EVERYTHING)),
}


def _read(path: pathlib.Path) -> Fleet:
    return _same_bytes(build_fleet(read_file(path, RECORDABLE_KINDS)))


def _same_bytes(fleet: Fleet) -> Fleet:
    """Specs are kept as they were written; what they say is to be the same, not where they have spaces."""
    workloads = tuple(
        dataclasses.replace(
            one, spec=json.dumps(json.loads(one.spec), sort_keys=True).encode() if one.spec else b""
        )
        for one in fleet.workloads
    )
    return dataclasses.replace(fleet, workloads=workloads)


@pytest.mark.parametrize("form", FORMS)
def test_objects_file_in_any_form_gives_the_same_fleet(tmp_path: pathlib.Path, form: str) -> None:
    """JSON or YAML, one list or several; unknown kinds are ignored."""
    path = tmp_path / "objects"
    path.write_text(FORMS[form])
    fleet = _read(path)
    assert fleet == _same_bytes(fleet_of(*EVERYTHING))
    assert [(one.ref.kind, one.ref.name, one.gpus, one.size) for one in fleet.workloads] == [
        ("Deployment", "w", 2, 2),
        ("Pod", "shell", 1, None),
    ]
    shell = fleet.workloads[1]
    assert shell.annotations == {"note": "2026-11-21T00:00:00Z", "numbers": "12:30"}
    assert (shell.namespace_annotations, shell.budgets) == ({"x": "y"}, {"guard": 1})
    assert fleet.classes["low"].value == -5
    assert fleet.problems == ()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_objects_file_from_powershell_is_read(tmp_path: pathlib.Path, encoding: str) -> None:
    """UTF-16 with a byte order mark."""
    path = tmp_path / "objects.json"
    text = FORMS["json-of-kubectl"]
    path.write_bytes((text if encoding == "utf-16" else "\ufeff" + text).encode(encoding))
    assert _read(path) == _same_bytes(fleet_of(*EVERYTHING))


def _broken(**changes: Any) -> str:
    return json.dumps(_list(node(), {**pod("p"), **changes}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no pods; create it with: kubectl get pods,nodes,"),
        ("[]", "is neither JSON nor YAML of Kubernetes objects"),
        ("just words", "is neither JSON nor YAML of Kubernetes objects"),
        ('{"kind": ' + "[" * 100_000, "after item 0: not a Kubernetes object"),
        ("a: " + "[" * 10_000, "is neither JSON nor YAML"),
        ("a: [", "is neither JSON nor YAML: while parsing a flow node"),
        ('{"kind": "List", "items": [', "after item 0: not a Kubernetes object: .*truncated"),
        ('{"apiVersion": "v1", "kind": "List", "items": []}', "contains no pods"),
        (
            '{"apiVersion": "v1", "kind": "List", "items": [7]}',
            "after item 0: not a Kubernetes object",
        ),
        (
            json.dumps(_list(pod("a"))) + "\n{x}",
            "after item 1: not a Kubernetes object: .*malformed",
        ),
        (_broken(kind=""), r"item 2 \(no kind team/p\): kind, apiVersion or name is missing"),
        (_broken(apiVersion=""), r"item 2 \(Pod team/p\): kind, apiVersion or name is missing"),
        (_broken(metadata={}), r"item 2 \(Pod \): kind, apiVersion or name"),
        (_broken(metadata="p"), "item 2: metadata: Expected `object`, got `str`"),
        (_broken(metadata={"name": "p"}), r"item 2 \(Pod p\): namespace is missing"),
        (
            _broken(spec={}),
            r"item 2 \(Pod team/p\): Object missing required field `containers` - at `\$\.spec`",
        ),
        (
            _broken(spec={"containers": [{"name": "a", "resources": {"limits": 3}}]}),
            r"item 2 \(Pod team/p\): Expected `object \| null`, got `int` - at `\$\.spec\.containers",
        ),
        (
            _broken(
                status={
                    "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "yesterday"}}}]
                }
            ),
            r"item 2 \(Pod team/p\): Invalid RFC3339 encoded datetime",
        ),
        (
            json.dumps(
                _list(
                    pod("p"), obj("Deployment", "w", spec="x"), obj("Job", "j", spec={}, metadata={"uid": 1})
                )
            ),
            r"item 3 \(Job team/j\): Expected `str`, got `int` - at `\$\.metadata\.uid`",
        ),
        ("a: &x [*x]\n", r"its YAML aliases \(\*name\) make it endless"),
        (
            "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{to}: &{to} [{', '.join([f'*{of}'] * 10)}]\n" for of, to in pairwise("abcdefghij")),
            r"its YAML aliases \(\*name\) make it endless",
        ),
    ],
)
def test_invalid_object_is_reported_with_its_place(tmp_path: pathlib.Path, text: str, message: str) -> None:
    """File, item, name and reason."""
    path = tmp_path / "objects.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as caught:
        build_fleet(read_file(path, RECORDABLE_KINDS))
    assert re.search(f"^{re.escape(str(path))}:? {message}", str(caught.value)), str(caught.value)
    assert caught.value.exit_code == 2


def test_binary_file_is_refused(tmp_path: pathlib.Path) -> None:
    """With an error message."""
    path = tmp_path / "objects.json"
    for raw in (b'{"kind": "\xff"}', b"\xff\xfe\x00", b"\x00\x01", b"\x1f\x8b\x08\x00"):
        path.write_bytes(raw)
        with pytest.raises(ConfigurationError, match=re.escape(str(path))):
            read_file(path, RECORDABLE_KINDS)


def test_missing_objects_file_is_refused(tmp_path: pathlib.Path) -> None:
    """With file name and reason."""
    with pytest.raises(ConfigurationError, match=r"missing\.json: cannot be read: No such file"):
        read_file(tmp_path / "missing.json", RECORDABLE_KINDS)


def test_missing_kinds_are_reported() -> None:
    """There is still a plan, with its limits."""
    absent = obj("ReplicaSet", "gone")
    problems = [one.split(" ", 1)[1] for one in objects_of(pod("a", absent), pod("b", absent)).problems]
    assert problems == [
        "contains no Node: GPU models, sharing, node pools and free GPUs are unknown",
        "contains no Namespace: opt-outs of namespaces are unknown",
        "contains no PriorityClass: rules about PriorityClasses and their annotations cannot be checked",
        "contains no PodDisruptionBudget: none is taken into account",
        "contains no HorizontalPodAutoscaler: none is taken into account",
        "lacks 1 replicasets that own its pods: each is judged separately, with an unknown owner",
    ]
    (found,) = fleet_of(pod("a", absent), pod("b", absent)).workloads
    assert (found.ref.kind, found.ref.name, found.resource_version) == ("ReplicaSet", "gone", "")


def test_duplicate_object_counts_once() -> None:
    """Lists may overlap."""
    fleet = fleet_of(
        pod("p"), pod("p", limits={"nvidia.com/gpu": "8"}), {**TOP}, {**TOP, "apiVersion": "apps/v1beta1"}
    )
    assert [one.gpus for one in fleet.workloads] == [1]
    assert any("2 duplicate objects are ignored" in problem for problem in fleet.problems)


def test_objects_without_uids_are_matched_by_name() -> None:
    """As in files written by hand."""
    cleaned: list[Object] = json.loads(
        re.sub(r', "uid": "[^"]*"|"uid": "[^"]*", ', "", json.dumps(EVERYTHING))
    )
    assert not any("uid" in one["metadata"] for one in cleaned)
    fleet = fleet_of(*cleaned)
    assert [(one.ref.kind, one.ref.name, one.gpus) for one in fleet.workloads] == [
        ("Deployment", "w", 2),
        ("Pod", "shell", 1),
    ]
