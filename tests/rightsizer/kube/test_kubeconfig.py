"""What a kubeconfig says counts as it does for kubectl."""

import datetime
import json
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import yaml
from kubernetes.config import kube_config

from rightsizer.config import ClusterSettings
from rightsizer.errors import ConfigurationError
from rightsizer.kube.cluster import Cluster
from rightsizer.kube.kubeconfig import connection
from tests.rightsizer.commands import run_command
from tests.rightsizer.fakeprometheus import SCALAR, Answer, serving

START = datetime.datetime(2026, 11, 2, tzinfo=datetime.UTC)
VERSION = "client.authentication.k8s.io/v1"


def _file(
    path: pathlib.Path, user: Mapping[str, Any], *, name: str = "one", **fields: object
) -> pathlib.Path:
    document = {
        "clusters": [{"name": name, "cluster": {"server": f"http://{name}.example"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "jane"}}],
        "users": [{"name": "jane", "user": user}],
        "current-context": name,
        **fields,
    }
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(document))
    return path


def _token(path: pathlib.Path, clock: Callable[[], datetime.datetime] = lambda: START) -> str | None:
    """The Authorization header of the next request."""
    configuration = connection(ClusterSettings(path), clock).configuration
    found: str | None = configuration.get_api_key_with_prefix("BearerToken")
    return found


@pytest.fixture
def files(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> list[pathlib.Path]:
    """Two files of $KUBECONFIG, with a user of the same name."""
    paths = [
        _file(tmp_path / name / "config", {"tokenFile": "token"}, name=name) for name in ("first", "second")
    ]
    for path in paths:
        (path.parent / "token").write_text(path.parent.name)
    joined = ":".join(map(str, [tmp_path / "gone", *paths, paths[0]]))
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", joined)
    return paths


@pytest.mark.usefixtures("files")
def test_kubeconfig_of_several_files_first_current_context_and_user_count() -> None:
    """A missing file is skipped, and the token's path starts at the file that names it."""
    found = connection(ClusterSettings())
    assert (found.context, found.configuration.host) == ("first", "http://first.example")
    assert found.configuration.get_api_key_with_prefix("BearerToken") == "Bearer first"
    other = connection(ClusterSettings(context="second"))
    assert other.configuration.host == "http://second.example"
    assert other.configuration.get_api_key_with_prefix("BearerToken") == "Bearer first"


@pytest.mark.parametrize("text", ["# nothing\n", "current-context: ''\n"], ids=["empty", "unset"])
def test_kubeconfig_first_file_without_current_context_leaves_it_to_the_next(
    text: str, files: list[pathlib.Path]
) -> None:
    """As kubectl config use-context may write it into any of them."""
    files[0].write_text(text)
    assert connection(ClusterSettings()).context == "second"


def test_kubeconfig_token_file_counts_before_token_and_without_its_line_break(tmp_path: pathlib.Path) -> None:
    """An editor ends the file with one."""
    (tmp_path / "token").write_text("rotated\n")
    assert _token(_file(tmp_path / "config", {"token": "old", "tokenFile": "token"})) == "Bearer rotated"


def test_kubeconfig_token_file_is_read_again_after_a_minute(tmp_path: pathlib.Path) -> None:
    """While it cannot be read, the last token is used."""
    now, file = [START], tmp_path / "token"
    file.write_text("first")
    path = _file(tmp_path / "config", {"tokenFile": "token"})
    configuration = connection(ClusterSettings(path), lambda: now[0]).configuration
    seen = []
    for text in ("second", "", "third"):
        file.write_text(text)
        seen.append(configuration.get_api_key_with_prefix("BearerToken"))
        now[0] += datetime.timedelta(minutes=1)
    assert seen == ["Bearer first", "Bearer first", "Bearer third"]


def test_kubeconfig_as_is_sent_with_every_request(tmp_path: pathlib.Path) -> None:
    """Each group is a header of its own, or the API server would see one group with a comma."""
    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"example.org/Project": ["x", "y"]},
    }
    assert connection(ClusterSettings(_file(tmp_path / "config", user))).impersonation == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-example.org%2FProject", "x"),
        ("Impersonate-Extra-example.org%2FProject", "y"),
    )
    with serving() as api:
        api.answers.append(Answer(body='{"metadata": {}}'))
        path = _file(tmp_path / "config", {**user, "as-groups": ["a"]})
        cluster = Cluster(ClusterSettings(path, context="one"))
        cluster.host = api.url
        cluster.get_object("/api/v1/namespaces/n")
        cluster.create("/api/v1/namespaces", {})
        list(cluster.fetch("/api/v1/namespaces/n", {}, headers={}, timeout_s=9)[1])
    assert [(one["method"], one["Impersonate-User"], one["Impersonate-Group"]) for one in api.asked] == [
        ("GET", "jane", "a"),
        ("POST", "jane", "a"),
        ("GET", "jane", "a"),
    ]


def _plugin(folder: pathlib.Path, mode: str | None, **status: object) -> dict[str, Any]:
    """An exec plugin that records its input, and answers."""
    answer = json.dumps({"apiVersion": VERSION, "kind": "ExecCredential", "status": status})
    script = folder / "plugin"
    script.write_text(
        f"#!/bin/sh\necho \"$KUBERNETES_EXEC_INFO\" >>'{folder}/told'\nread -r line\necho '{answer}'\n"
    )
    script.chmod(0o755)
    given = {"apiVersion": VERSION, "command": "./plugin", "provideClusterInfo": True}
    return {"exec": given | ({"interactiveMode": mode} if mode else {})}


def _told(folder: pathlib.Path) -> list[Any]:
    return [json.loads(line)["spec"] for line in (folder / "told").read_text().splitlines()]


@pytest.mark.parametrize(
    ("mode", "is_terminal", "expected"),
    [
        ("Never", True, False),
        ("Never", False, False),
        ("IfAvailable", True, True),
        ("IfAvailable", False, False),
        (None, False, "interactiveMode is not set"),
        ("Always", True, True),
        ("Always", False, "needs a terminal"),
        ("Sometimes", True, "write Never, IfAvailable or Always"),
    ],
)
def test_kubeconfig_plugin_may_ask_as_its_interactive_mode_says(
    mode: str | None,
    is_terminal: bool,
    expected: bool | str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is found beside its kubeconfig, and a plugin that never asks reads nothing of what is typed."""
    path = _file(tmp_path / "config", _plugin(tmp_path, mode, token="t"))
    monkeypatch.setattr("sys.stdin", _Input(is_terminal))
    if isinstance(expected, str):
        with pytest.raises(ConfigurationError, match=expected):
            connection(ClusterSettings(path))
        return
    assert _token(path) == "Bearer t"
    assert _told(tmp_path) == [{"interactive": expected, "cluster": {"server": "http://one.example"}}]


class _Input:
    def __init__(self, is_terminal: bool) -> None:
        self.isatty = lambda: is_terminal


def test_kubeconfig_plugin_is_asked_again_when_its_token_expires(tmp_path: pathlib.Path) -> None:
    """Not before; and what it fails with then ends the request instead of sending an expired token."""
    plugin = _plugin(tmp_path, "Never", token="t", expirationTimestamp="2026-11-02T01:00:00Z")
    now = [START]
    path = _file(tmp_path / "config", plugin)
    configuration = connection(ClusterSettings(path), lambda: now[0]).configuration
    for minute, asked in ((0, 1), (59, 1), (60, 2)):
        now[0] = START + datetime.timedelta(minutes=minute)
        assert configuration.get_api_key_with_prefix("BearerToken") == "Bearer t"
        assert len(_told(tmp_path)) == asked
    (tmp_path / "plugin").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(
        ConfigurationError, match=r"credentials cannot be renewed: the exec plugin .* returned 1"
    ):
        configuration.get_api_key_with_prefix("BearerToken")


_PLUGIN = {"apiVersion": VERSION, "command": "true", "interactiveMode": "Never"}
_SECURE = {"server": "https://one.example"}


def _clusters(**fields: object) -> dict[str, Any]:
    return {"clusters": [{"name": "one", "cluster": fields}]}


def _user_of(context: str | None) -> dict[str, Any]:
    return {"contexts": [{"name": "one", "context": {"cluster": "one", "user": context}}]}


@pytest.mark.parametrize(
    ("user", "fields", "words"),
    [
        ({"as-groups": ["a"]}, {}, "user jane has as-uid, as-groups or as-user-extra without as"),
        ({"as": 1}, {}, r"user jane: Expected `str`, got `int` - at `\$.as`"),
        ({"tokenFile": "blank"}, {}, "the token file .*blank is empty"),
        ({}, {"users": [{"name": "a"}, {"name": "a"}]}, "it has two users of the name a"),
        ({}, {"clusters": []}, "its context one names the cluster one, which it does not have"),
        ({}, _clusters(**{"tls-server-name": "a"}), "its cluster one has no server"),
        ({}, {"users": []}, "its context one names the user jane, which it does not have"),
        ({}, _user_of("") | _clusters(**_SECURE), "its context one names no user"),
        ({}, _clusters(**_SECURE), "user jane has no credentials"),
        ({"password": "p"}, _clusters(**_SECURE), "user jane has no credentials"),
        ({"client-key-data": "YQ=="}, _clusters(**_SECURE), "user jane has no credentials"),
        ({"auth-provider": {"name": "azure"}}, {}, "user jane has the auth-provider azure, which is out of"),
        ({"token": "t", "username": "a"}, {}, "its user jane has both token and username"),
        ({"exec": _PLUGIN, "auth-provider": {"name": "oidc"}}, {}, "both exec and auth-provider"),
        (
            {"client-certificate": "a", "client-certificate-data": "YQ==", "client-key": "a"},
            {},
            "both client-certificate and client-certificate-data",
        ),
        (
            {},
            _clusters(**_SECURE, **{"certificate-authority": "a", "certificate-authority-data": "YQ=="}),
            "its cluster one has both certificate-authority and certificate-authority-data",
        ),
        (
            {},
            _clusters(**_SECURE, **{"certificate-authority-data": "YQ==", "insecure-skip-tls-verify": True}),
            "both certificate-authority-data and insecure-skip-tls-verify",
        ),
        *(
            ({"exec": {**_PLUGIN, **plugin}}, {}, f"user jane: {words}")
            for plugin, words in (
                ({"apiVersion": ""}, r"Expected `str` of length >= 1 - at `\$.exec.apiVersion`"),
                ({"command": ""}, r"Expected `str` of length >= 1 - at `\$.exec.command`"),
                ({"env": [{"value": "a"}]}, "Object missing required field `name`"),
                (
                    {"apiVersion": "client.authentication.k8s.io/v1alpha1"},
                    "apiVersion client.authentication.k8s.io/v1alpha1: write",
                ),
                ({"interactiveMode": ""}, "interactiveMode is not set"),
            )
        ),
    ],
)
def test_kubeconfig_that_kubectl_refuses_is_refused(
    user: dict[str, Any], fields: dict[str, Any], words: str, tmp_path: pathlib.Path
) -> None:
    """With what is wrong, where: nothing is asked anonymously in place of a user that does not exist."""
    (tmp_path / "blank").write_text("\n")
    path = _file(tmp_path / "config", user, **fields)
    with pytest.raises(ConfigurationError, match=f'"{path}": cannot be used: .*{words}'):
        connection(ClusterSettings(path))


@pytest.mark.parametrize(
    ("user", "fields", "token"),
    [
        ({}, _user_of(""), None),
        ({}, {}, None),
        ({"token": "t", "tokenFile": "gone"}, {}, "Bearer t"),
        ({"token": "t", "exec": _PLUGIN}, _clusters(**_SECURE), "Bearer t"),
        (
            {"username": "a", "password": "b", "exec": _PLUGIN},
            _clusters(**_SECURE),
            "Basic YTpi",
        ),
    ],
    ids=["no-user", "empty-user", "token-without-its-file", "token-and-plugin", "password-and-plugin"],
)
def test_kubeconfig_that_kubectl_accepts_is_accepted(
    user: dict[str, Any], fields: dict[str, Any], token: str | None, tmp_path: pathlib.Path
) -> None:
    """Such as kubectl proxy's, which needs no user; a plugin is not asked beside a token or a password."""
    assert _token(_file(tmp_path / "config", user, **fields)) == token


def test_kubeconfig_plugin_of_v1beta1_may_have_no_interactive_mode(tmp_path: pathlib.Path) -> None:
    """It is IfAvailable then, as before v1."""
    beta = "client.authentication.k8s.io/v1beta1"
    plugin = _plugin(tmp_path, None, token="t")["exec"] | {"apiVersion": beta}
    script = tmp_path / "plugin"
    script.write_text(script.read_text().replace(VERSION, beta))
    assert _token(_file(tmp_path / "config", {"exec": plugin})) == "Bearer t"
    assert [one["interactive"] for one in _told(tmp_path)] == [False]


def test_plan_with_impersonation_that_is_refused_names_the_user(tmp_path: pathlib.Path) -> None:
    """The API server's own words."""
    message = 'users "jane" is forbidden: User "admin" cannot impersonate resource "users"'
    with serving() as api, serving() as prometheus:
        prometheus.answers.append(Answer(body=SCALAR))
        api.answers.append(
            Answer(403, json.dumps({"kind": "Status", "reason": "Forbidden", "message": message}))
        )
        clusters = [{"name": "one", "cluster": {"server": api.url}}]
        path = _file(tmp_path / "config", {"as": "jane"}, clusters=clusters)
        run = run_command("plan", "--prometheus-url", prometheus.url, "--kubeconfig", str(path))
    assert (run.code, run.out) == (1, "")
    assert message in run.err
