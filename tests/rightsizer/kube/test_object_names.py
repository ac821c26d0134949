"""Names from objects: no impossible one becomes a path or a command."""

import ast
import pathlib
import re
import shlex

import pytest

import rightsizer
from rightsizer.doctor.check_signals import NOT_EXPORTERS
from rightsizer.errors import ClusterError
from rightsizer.kinds.advice import stop_command
from rightsizer.kube.object_names import Output, api_path, is_possible, kubectl, require_direct, shell_command
from rightsizer.model import ObjectRef
from tests.rightsizer.build import workload
from tests.rightsizer.kubectl import fleet_of, obj, pod

GOOD = ("apps/v1", "Deployment", "team-a", "web-0.x", "0c9c5e5e-7a52-4b33-9d11-000000000000")
BAD = (
    "..",
    "../x",
    "a/b",
    "a%2fb",
    "a b",
    "a;b",
    "A",
    "-a",
    "a-",
    "a..b",
    "a\nb",
    "é",
    "x" * 254,
    "$(x)",
    "a?b",
    "a#b",
)


@pytest.mark.parametrize("given", [GOOD, ("v1", "Pod", "a", "b", ""), ("v1", "Node", "", "n1", "")], ids=str)
def test_possible_name_is_accepted(given: tuple[str, str, str, str, str]) -> None:
    """Of objects in a namespace and of the cluster, with and without UID."""
    assert is_possible(ObjectRef(*given))


@pytest.mark.parametrize("text", BAD, ids=ascii)
@pytest.mark.parametrize("place", range(5))
def test_impossible_name_is_refused(place: int, text: str) -> None:
    """In every part, except where upper case, dots or slashes belong."""
    parts = [*GOOD[:place], text, *GOOD[place + 1 :]]
    is_allowed = {("A", 1), ("A", 4), ("a..b", 4)} | {("a/b", 0)}
    assert is_possible(ObjectRef(*parts)) is ((text, place) in is_allowed)


@pytest.mark.parametrize(
    "text", ["", "..", ".", "a/b", "a%2fb", "a b", "a?b", "a#b", "a\nb", "a\\b"], ids=ascii
)
def test_api_path_segment_that_leads_elsewhere_is_refused(text: str) -> None:
    """Nothing is sent; the namespace may be empty."""
    with pytest.raises(ClusterError, match="not sent"):
        api_path("apps/v1", "team", "deployments", text)
    assert api_path("v1", "", "nodes", "n1") == "/api/v1/nodes/n1"
    assert api_path("apps/v1", "team", "deployments", "web", "scale").endswith("/team/deployments/web/scale")


@pytest.mark.parametrize("path", ["/api/v1/../x", "/api/v1/%2e%2E/x", "/api/v1/.", "/.%2e"])
def test_path_to_another_directory_is_not_sent(path: str) -> None:
    """Whoever built it."""
    with pytest.raises(ClusterError, match="leads elsewhere"):
        require_direct(path)


@pytest.mark.parametrize(
    "word", ["a b", "; curl evil | sh #", "$(reboot)", "`x`", "a\nb", "'", '"', "\\", "*"], ids=ascii
)
def test_shell_command_keeps_each_word_whole(word: str) -> None:
    """Also in a command whose output is an argument, and in what is fed."""
    assert shlex.split(shell_command("kubectl", word)) == ["kubectl", word]
    inner = shell_command("get", word)
    outer = shell_command("patch", Output(inner, prefix="at="))
    assert outer == f'patch at="$({inner})"'
    assert shlex.split(shell_command("apply", fed=word))[:2] == ["echo", word]


def test_commands_with_values_are_built_in_one_place() -> None:
    """No other text of the program has a kubectl command with a value in it."""
    found = []
    for path in pathlib.Path(rightsizer.__file__).parents[1].glob("rightsizer*/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr) and path.stem != "object_names":
                fixed = "".join(
                    str(one.value) if isinstance(one, ast.Constant) else "{" for one in node.values
                )
                found += [f"{path.name}: {fixed}"] if re.search(r"kubectl [^;]*\{", fixed) else []
    assert found == []


@pytest.mark.parametrize("word", ["; curl evil | sh #", "$(reboot)", "'; x '", "-x y"], ids=ascii)
def test_commands_of_hostile_objects_do_nothing_else(word: str) -> None:
    """No manager's exception, no advice and no remedy has a second command, or an option that a name brings."""
    ref = ObjectRef("apps/v1", "Deployment", "team", word)
    assert kubectl(ref, "scale", "--replicas", "0") == ""
    assert stop_command(workload(ref=ref)) == ""
    remedy = shlex.split(NOT_EXPORTERS(words="", instance=word).command)
    assert remedy[-2:] == ["--", word]
    top = obj("Deployment", "web", metadata={"labels": {"kueue.x-k8s.io/queue-name": "q"}, "uid": word})
    owner = {"apiVersion": "batch/v1", "kind": "CronJob", "name": word, "uid": "u", "controller": True}
    job = obj("Job", "job", metadata={"ownerReferences": [owner]})
    for item in fleet_of(top, pod("a", top), job, pod("b", job)).workloads:
        for manager in item.managers:
            assert word not in manager.exception
