"""What is kept of a pod, whatever the API server sends."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.errors import ApiServerError
from exporter.pods.podfacts import WantedPodFacts, label_names, pod_fact

ALL = WantedPodFacts(uid=True, labels=(re.compile(""),))
keys = st.text(st.characters(codec="ascii", exclude_characters="\n"), max_size=12) | st.sampled_from(
    ["a.b", "a_b", "a/b", "a-b", "a_b_conflict1", "a.b_conflict1", "é", "e"]
)
json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(exclude_categories=[])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def _pod(**metadata: object) -> dict[str, object]:
    return {
        "metadata": {"namespace": "ml", "name": "p", "uid": "u", **metadata},
        "status": {"phase": "Running"},
    }


@pytest.mark.parametrize(
    ("found", "names"),
    [
        pytest.param([], {}, id="none"),
        pytest.param(["team"], {"team": "pod_label_team"}, id="plain"),
        pytest.param(["app.kubernetes.io/name"], {"app.kubernetes.io/name": "pod_label_app_kubernetes_io_name"}),
        pytest.param(
            ["a.b", "a/b", "c"],
            {"a.b": "pod_label_a_b_conflict1", "a/b": "pod_label_a_b_conflict2", "c": "pod_label_c"},
            id="two-of-a-name",
        ),
        pytest.param(
            ["a_b", "a/b", "a_b_conflict1"],
            {
                "a/b": "pod_label_a_b_conflict2",
                "a_b": "pod_label_a_b_conflict3",
                "a_b_conflict1": "pod_label_a_b_conflict1",
            },
            id="the-number-is-taken",
        ),
    ],
)  # fmt: skip
def test_label_names_replace_invalid_characters(found: list[str], names: dict[str, str]) -> None:
    """A label name has gpu-exporter's prefix; keys with the same name get numbers."""
    assert label_names(found) == names


@given(st.lists(keys, unique=True, max_size=8))
def test_label_names_are_distinct(found: list[str]) -> None:
    """Each key has a name of its own, fit for Prometheus, whatever the order in which they come."""
    names = label_names(found)
    assert set(names) == set(found)
    assert len(set(names.values())) == len(found)
    assert all(re.fullmatch(r"pod_label_[a-zA-Z0-9_]*", name) for name in names.values())
    assert label_names(reversed(found)) == names


@given(json, json, json)
def test_any_pod_document_is_parsed_or_refused(pod: object, labels: object, status: object) -> None:
    """Anything that JSON can hold raises the declared error or gives labels that UTF-8 can hold."""
    for document in (pod, {**_pod(labels=labels), "status": status}, _pod(uid=labels, name=status)):
        try:
            (namespace, name), fact = pod_fact(document, ALL)
        except ApiServerError:
            continue
        for text in (namespace, name, fact.uid, *(value for _, value in fact.details.labels)):
            text.encode()


def test_pod_fact_keeps_only_requested_details() -> None:
    """Labels and UIDs that are not requested are not kept."""
    pod = _pod(labels={"team": "a", "secret": "b", "teams": "c"})
    wanted = WantedPodFacts(labels=(re.compile(r"^team$"),))
    _, fact = pod_fact(pod, wanted)
    assert (fact.details.uid, fact.details.labels) == ("", (("pod_label_team", "a"),))
    assert "secret" not in repr(fact)


def test_pod_fact_bounds_number_and_length() -> None:
    """A pod with thousands of labels, or one of a megabyte, costs what an ordinary one costs."""
    labels = {f"k{n:05}": "v" * 10**4 for n in range(5000)} | {"k" * 10**6: "v"}
    _, fact = pod_fact(_pod(labels=labels), ALL)
    assert len(fact.details.labels) == 64
    assert max(len(value) for _, value in fact.details.labels) < 400


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        pytest.param("0" * 32, "0" * 32, id="md5"),
        pytest.param("0f7b3c2a-1111-2222-3333-444455556666", "", id="uid"),
        pytest.param("0" * 33, "", id="longer"),
    ],
)
def test_pod_fact_hash_of_a_static_pod_is_no_uid(text: str, kept: str) -> None:
    """A pod whose annotation is the UID of another one takes nothing of it, listed or not."""
    assert pod_fact(_pod(annotations={"kubernetes.io/config.hash": text}), ALL)[1].config_hash == kept


@pytest.mark.parametrize(
    ("phase", "has_ended"),
    [("Pending", False), ("Running", False), ("Succeeded", True), ("Failed", True), ("Unknown", False), (None, False)],
)  # fmt: skip
def test_pod_fact_of_each_phase_knows_its_end(phase: object, has_ended: bool) -> None:
    """Succeeded and Failed are for good; everything else may still run."""
    assert pod_fact({**_pod(), "status": {"phase": phase}}, ALL)[1].has_ended is has_ended


def test_pod_fact_knows_containers_of_each_kind() -> None:
    """Init containers and ephemeral ones have processes, too."""
    kinds = ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
    status = {kind: [{"name": kind[:4].lower(), "containerID": f"containerd://{kind}"}] for kind in kinds}
    _, fact = pod_fact(_pod() | {"status": status}, WantedPodFacts(uid=True))
    assert fact.containers == {kind: kind[:4].lower() for kind in kinds}
