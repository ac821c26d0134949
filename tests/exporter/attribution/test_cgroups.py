"""From the text of /proc/<pid>/cgroup to the pod: a corpus of layouts, and whatever else may stand there."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from exporter.attribution import records
from exporter.attribution.cgroups import NoPodReason, Placement, placement

CORPUS: list[dict[str, Any]] = yaml.load(
    (Path(__file__).parent / "data/cgroups.yaml").read_text(), Loader=yaml.CSafeLoader
)

hexes = st.text("0123456789abcdef", min_size=64, max_size=64)
uids = st.uuids().map(str) | st.text("0123456789abcdef", min_size=32, max_size=32)
classes = st.sampled_from(["", "burstable", "besteffort"])
prefixes = st.sampled_from(["", "/docker/0a", "/system.slice/containerd.service", "/tenants", "/a/b-c"])
roots = st.sampled_from(["", "kubelet", "a-b", "my_root"])
runtimes = st.sampled_from(["cri-containerd", "crio", "docker"])
inside = st.sampled_from(["", "/init.scope", "/container", "/docker/" + "5" * 64, "/kubepods/pod" + "7" * 32])
controllers = st.lists(
    st.sampled_from(["memory", "cpu,cpuacct", "name=systemd", "pids"]), unique=True, min_size=1
)
names = st.text(
    st.characters(exclude_characters="/\n", exclude_categories=["Cs"]), max_size=20
) | st.sampled_from(
    [
        "..",
        "system.slice",
        "burstable",
        "pod" + "7" * 32,
        "5" * 64,
        f"crio-{'5' * 64}.scope",
        "kube",
        "pods",
        "\\x2d",
    ]
)


def _place(case: dict[str, Any]) -> Placement:
    why = NoPodReason(case["no_pod_reason"]) if "no_pod_reason" in case else None
    return Placement(case.get("pod", ""), case.get("container", ""), why)


def _systemd(root: str, quality: str, uid: str) -> str:
    """The path of a pod's slice, each slice in the one that its name asks for."""
    parts = [*root.split("-"), "kubepods", quality, "pod" + uid.replace("-", "_")]
    parts = [part for part in parts if part]
    return "".join(f"/{'-'.join(parts[:count])}.slice" for count in range(1, len(parts) + 1))


@pytest.mark.parametrize("case", CORPUS, ids=[case["id"] for case in CORPUS])
def test_placement_of_each_known_layout_is_correct(case: dict[str, Any]) -> None:
    """Each layout gives its pod and container, or the reason why it has none."""
    assert placement(case["text"]) == _place(case)


def test_cgroup_corpus_has_distinct_and_complete_cases() -> None:
    """No case occurs twice, and each has either a pod or a reason."""
    assert len({case["id"] for case in CORPUS}) == len({case["text"] for case in CORPUS}) == len(CORPUS) > 60
    assert all(("pod" in case) != ("no_pod_reason" in case) for case in CORPUS)
    assert all(set(case) <= {"id", "text", "pod", "container", "no_pod_reason"} for case in CORPUS)


@pytest.mark.parametrize("case", CORPUS, ids=[case["id"] for case in CORPUS])
def test_placement_with_a_trailing_newline_is_unchanged(case: dict[str, Any]) -> None:
    """The kernel ends each line; whether the last one is ended does not matter."""
    assert placement(case["text"].rstrip("\n") + "\n") == placement(case["text"].rstrip("\n")) == _place(case)


@given(prefixes, roots, classes, uids, st.tuples(runtimes, hexes, inside))
def test_placement_of_a_systemd_path_has_the_pod_uid(
    prefix: str, root: str, quality: str, uid: str, container: tuple[str, str, str]
) -> None:
    """Under any root, in any class and whatever the container makes below itself, a pod's UID comes back."""
    runtime, id_, below = container
    path = f"{prefix}{_systemd(root, quality, uid)}/{runtime}-{id_}.scope{below}"
    assert placement(f"0::{path}\n") == Placement(uid, id_)


@given(prefixes, classes, uids, st.tuples(st.sampled_from(["", "crio-"]), hexes, inside), controllers)
def test_placement_of_a_cgroupfs_path_has_the_pod_uid(
    prefix: str, quality: str, uid: str, container: tuple[str, str, str], named: list[str]
) -> None:
    """The same with cgroup v1's hierarchies, some of which may know nothing of pods."""
    runtime, id_, below = container
    path = f"{prefix}/kubepods{quality and '/' + quality}/pod{uid}/{runtime}{id_}{below}"
    lines = [f"{number}:{name}:{path}" for number, name in enumerate(named, 2)]
    assert placement(
        "\n".join(["12:rdma:/", *lines, "0::/system.slice/containerd.service", ""])
    ) == Placement(uid, id_)


@given(st.text())
def test_placement_of_any_text_is_a_pod_or_a_reason(text: str) -> None:
    """Whatever is read gives a placement, with a pod or with a reason, never both."""
    found = placement(text)
    assert bool(found.pod_uid) != bool(found.no_pod_reason)


@given(st.lists(names, max_size=8))
def test_placement_of_any_path_is_a_pod_or_a_reason(parts: list[str]) -> None:
    """The same of texts that look like the kernel's."""
    found = placement(f"0::/{'/'.join(parts)}\n")
    assert bool(found.pod_uid) != bool(found.no_pod_reason)


@given(st.lists(names.filter(lambda name: name != ".." and "kubepods" not in name), max_size=8))
def test_placement_without_kubepods_has_no_pod(parts: list[str]) -> None:
    """A path that does not name the kubelet's cgroup, and from which nothing is cut off, is never a pod's."""
    assert placement(f"0::/{'/'.join(parts)}\n").no_pod_reason is not None


@given(st.integers(1, 6), classes, uids, hexes, st.sampled_from(["x", "..", "kube", "pod", ""]))
def test_placement_in_a_hidden_path_needs_pod_and_container(
    ups: int, quality: str, uid: str, id_: str, between: str
) -> None:
    """Where a namespace hides "kubepods", only the exact rest of a path of cgroupfs's driver is taken for a pod's."""
    head = "/.." * ups + (quality and "/" + quality)
    assert placement(f"0::{head}/pod{uid}/{id_}").pod_uid == (uid if ups > 1 else "")
    assert placement(f"0::{head}/pod{uid}").pod_uid == ""
    assert placement(f"0::{head}/x/pod{uid}/{id_}").pod_uid == ""
    assert placement(f"0::{head}/pod{uid}/x{between}/{id_}").pod_uid == ""


@given(
    st.integers(1, 6),
    classes,
    uids,
    hexes,
    inside | st.builds("/kubepods/burstable/pod{}/{}".format, uids, hexes),
)
def test_placement_in_a_hidden_path_is_of_the_outer_pod_or_none(
    ups: int, quality: str, uid: str, id_: str, below: str
) -> None:
    """Whatever a container makes below itself, it is no other pod's; nor is what a second container of ours makes."""
    head = "/.." * ups + (quality and "/" + quality)
    found = placement(f"0::{head}/pod{uid}/{id_}{below}")
    assert (found.pod_uid, found.container_id) == (uid if ups > 1 else "", id_)
    assert placement(f"0::{head}/pod{uid}/x{below}").pod_uid == ""
    assert placement(f"0::{'/..' * ups}/{id_}{below}").pod_uid == ""
    assert placement(f"0::{'/..' * ups}/docker/{id_}{below}").pod_uid == ""


def test_no_pod_reasons_are_all_documented() -> None:
    """The page on attribution has a row for each reason, and none for another."""
    page = (Path(__file__).parents[3] / "docs/attribution.md").read_text()
    rows = page.partition("## What is not attributed")[2].partition("\n## ")[0].splitlines()
    documented = [row.split("`")[1] for row in rows if row.startswith("| `")]
    of_accounts = {
        records.UNKNOWN_POD, records.MPS_SERVER, records.UNSAMPLED, records.SHARED, records.MIG_INSTANCES, records.GAP,
        records.NO_PROCESS, records.ATTRIBUTION_OFF,
    }  # fmt: skip
    assert sorted(documented) == sorted({why.value for why in NoPodReason} | of_accounts)
