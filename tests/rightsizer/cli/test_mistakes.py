"""Mistakes of the first hour with connections, permissions and disks: each has one message with the remedy.

Those that need no server are in test_command_line (flags, files, kubeconfigs), test_connection (flags that contradict
each other) and tests/rightsizer/bad_policies; a missing library is in tests/test_packaging.
"""

import io
import json
import os
import pathlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import trustme
from kubernetes.config import incluster_config, kube_config

from rightsizer.__main__ import main
from simulator.kube import Rule
from tests.rightsizer.commands import Run, run_command
from tests.rightsizer.fakeprometheus import SCALAR, Answer, Fake, serving
from tests.rightsizer.world import DEFAULT_POLICY, World

NOWHERE = "127.0.0.1:9"
"""Nobody listens on the port of `discard`."""
SECRET = "s3cret"

EXEC = {"apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
CREDENTIAL = {"apiVersion": EXEC["apiVersion"], "kind": "ExecCredential", "status": {"token": SECRET}}

CA = trustme.CA()


class Terminal(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        """Yes."""
        return True


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


@pytest.fixture
def fake() -> Iterator[Fake]:
    """One that knows the time."""
    with serving() as server:
        server.answers.append(Answer(body=SCALAR))
        yield server


def _tls(*hosts: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    CA.issue_cert(*hosts).configure_cert(context)
    return context


def _kubeconfig(
    folder: pathlib.Path,
    server: str,
    *,
    user: Mapping[str, object] | None = None,
    **cluster: object,
) -> pathlib.Path:
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "clusters": [{"name": "c", "cluster": {"server": server, **cluster}}],
        "contexts": [{"name": "test", "context": {"cluster": "c", "user": "jane"}}],
        "users": [{"name": "jane", "user": user or {"token": "t"}}],
    }
    path.write_text(json.dumps(document))
    return path


def _plan(url: str, kubeconfig: pathlib.Path, *flags: str) -> Run:
    run = run_command("plan", "--prometheus-url", url, "--kubeconfig", str(kubeconfig), *flags)
    assert run.out == ""
    assert run.err.startswith("error: "), run.err
    assert len(run.err.splitlines()) <= 2, "one message, and where to look"
    assert "Traceback" not in run.err
    assert SECRET not in run.err
    return run


# --- Prometheus


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (
            Answer(401, "no org id\n"),
            "HTTP 401: not allowed; it asks for a tenant: give --prometheus-header 'X-Scope-OrgID: TENANT'",
        ),
        (
            Answer(403, SECRET),
            "HTTP 403: not allowed; see the --prometheus flags for credentials: -token-file, -user, ",
        ),
        (Answer(405, "only GET and HEAD"), "HTTP 405, but this is not a Prometheus API: only GET and HEAD"),
        (Answer(200, '{"status":"suc'), 'HTTP 200, but this is not a Prometheus API: {"status":"suc'),
        (
            Answer(400, "Client sent an HTTP request to an HTTPS server."),
            "HTTP 400, but this is not a Prometheus API: Client sent an HTTP request to an HTTPS server.",
        ),
        (
            Answer(
                422,
                '{"status":"error","errorType":"execution","error":"query processing would load too many samples"}',
            ),
            "too many samples; set --prometheus-max-samples to the server's limit, which gpu-rightsizer doctor names",
        ),
    ],
    ids=["mimir-without-tenant", "denied", "exporter", "cut-off", "http-to-https", "too-many-samples"],
)
def test_plan_refused_by_prometheus_names_the_remedy(
    answer: Answer, words: str, tmp_path: pathlib.Path
) -> None:
    """What the server said, and which flag is the remedy."""
    with serving() as server:
        server.answers.append(answer)
        run = _plan(server.url, _kubeconfig(tmp_path, f"http://{NOWHERE}"))
        assert run.code == 1
        assert run.err.startswith(f"error: querying Prometheus at {server.url}: ")
        assert words in run.err


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("http://prom", "run kubectl -n NAMESPACE port-forward service/prom 9090:80, and"),
        (
            "http://prom.monitoring:9090",
            "run kubectl -n monitoring port-forward service/prom 9090:9090, and give --prometheus-url http://localhost:9090",
        ),
        (
            "https://prom.monitoring.svc.cluster.local",
            "run kubectl -n monitoring port-forward service/prom 9090:443, and give --prometheus-url https://localhost",
        ),
        ("http://prom.example.com", "is the URL right, and reachable from here?"),
    ],
)
def test_plan_of_a_service_from_outside_names_port_forward(
    url: str, words: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command for that Service, for names that only the cluster's DNS knows."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    run = _plan(url, _kubeconfig(tmp_path, f"http://{NOWHERE}"))
    assert run.code == 1
    assert f"querying Prometheus at {url}: Name or service not known; " in run.err
    assert words in run.err


@pytest.mark.parametrize(
    ("hosts", "flags", "words"),
    [
        (["127.0.0.1"], [], "give the CA that signed it, or that of a TLS-inspecting proxy"),
        (["other.example"], ["--prometheus-ca-file", "ca.pem"], "is the host of the URL right?"),
    ],
    ids=["private-ca", "other-host"],
)
def test_plan_untrusted_certificate_of_prometheus_names_the_flag(
    hosts: list[str], flags: list[str], words: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CA of a company, and a certificate of another host, have different remedies."""
    monkeypatch.chdir(tmp_path)
    CA.cert_pem.write_to_path("ca.pem")
    with serving(_tls(*hosts)) as server:
        run = _plan(server.url, _kubeconfig(tmp_path, f"http://{NOWHERE}"), *flags)
    assert run.code == 1
    assert "TLS failed: " in run.err
    assert words in run.err


# --- The kubeconfig


@pytest.mark.parametrize(
    ("user", "words"),
    [
        (
            {"exec": {**EXEC, "command": "no-such-plugin", "installHint": "Install it\nwith: brew"}},
            "the exec plugin no-such-plugin of user jane is not installed; Install it with: brew",
        ),
        (
            {"exec": {**EXEC, "command": "no-such-plugin"}},
            "the exec plugin no-such-plugin of user jane is not installed; install it, or add it to $PATH",
        ),
        (
            {"exec": {**EXEC, "command": "sh", "args": ["-c", "echo log in first >&2; exit 3"]}},
            "the exec plugin sh of user jane failed: process returned 3. log in first",
        ),
        (
            {"exec": {**EXEC, "command": "echo", "args": [SECRET]}},
            "the exec plugin echo of user jane failed: failed to decode process output",
        ),
        ({"tokenFile": "/no/token"}, "No such file or directory: '/no/token'"),
    ],
    ids=["plugin-missing-with-hint", "plugin-missing", "plugin-fails", "plugin-without-json", "no-token"],
)
def test_plan_kubeconfig_without_credentials_is_refused_before_requests(
    user: dict[str, Any], words: str, fake: Fake, tmp_path: pathlib.Path
) -> None:
    """The plugin and its user are named, and nothing is sent without the credentials."""
    path = _kubeconfig(tmp_path, f"http://{NOWHERE}", user=user)
    run = _plan(fake.url, path)
    assert run.code == 2
    assert run.err.startswith(f'error: --kubeconfig "{path}": cannot be used: ')
    assert words in run.err
    assert fake.asked == []


def test_plan_exec_plugin_that_fails_on_a_terminal_is_named(
    fake: Fake, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the plugin's own message goes to the terminal, and the client knows only the exit code."""
    plugin = {**EXEC, "interactiveMode": "IfAvailable", "command": "sh", "args": ["-c", "exit 3"]}
    path = _kubeconfig(tmp_path, f"http://{NOWHERE}", user={"exec": plugin})
    monkeypatch.setattr("sys.stdin", Terminal())
    with (tmp_path / "stderr").open("w+") as file:
        monkeypatch.setattr("sys.stderr", file)
        code = main(["plan", "--prometheus-url", fake.url, "--kubeconfig", str(path)])
        file.seek(0)
        assert "the exec plugin sh of user jane failed: see its message\n" in file.read()
    assert code == 2


def test_plan_exec_plugin_that_works_is_used(fake: Fake, tmp_path: pathlib.Path) -> None:
    """Its token is sent, and never shown."""
    plugin = {**EXEC, "command": "echo", "args": [json.dumps(CREDENTIAL)]}
    with serving() as api:
        api.answers.append(Answer(500, "{}"))
        run = _plan(fake.url, _kubeconfig(tmp_path, api.url, user={"exec": plugin}))
        assert run.code == 1
        assert {one["authorization"] for one in api.asked} == {f"Bearer {SECRET}"}


@pytest.mark.parametrize("given", ["gone", "folder"])
def test_plan_context_without_any_kubeconfig_asks_which_cluster(
    given: str, fake: Fake, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without a context."""
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / given))
    for flags in ([], ["--context", "prod"]):
        run = run_command("plan", "--prometheus-url", fake.url, *flags)
        assert run.code == 2
        assert run.err.startswith(
            "error: which cluster? found no kubeconfig in $KUBECONFIG or ~/.kube/config"
        )


def test_plan_context_in_a_pod_without_kubeconfig_is_refused(
    fake: Fake, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod's own cluster is not the one that was named."""
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "gone"))
    monkeypatch.setattr(incluster_config, "load_incluster_config", lambda **_: None)
    run = run_command("plan", "--prometheus-url", fake.url, "--context", "prod")
    assert (run.code, run.err.startswith("error: which cluster?")) == (2, True)


def test_plan_empty_kubeconfig_is_refused_as_empty(fake: Fake, tmp_path: pathlib.Path) -> None:
    """With the commands that make one."""
    path = tmp_path / "empty"
    path.write_text("# nothing\n")
    run = _plan(fake.url, path)
    assert run.code == 2
    assert f'--kubeconfig "{path}": cannot be used: it is empty; create a kubeconfig with' in run.err


# --- The API server


def test_plan_unreachable_api_server_names_kubeconfig(fake: Fake, tmp_path: pathlib.Path) -> None:
    """The request, the server, the cause and where its URL is from; none of the library's words."""
    path = _kubeconfig(tmp_path, f"http://{NOWHERE}")
    run = _plan(fake.url, path)
    assert run.code == 1
    words = (
        f'Connection refused; is the server URL of --kubeconfig "{path}" right, and reachable from here?\n'
    )
    assert f" at http://{NOWHERE}: {words}" in run.err


def test_plan_api_server_that_hangs_up_is_named_without_words_of_the_library(
    fake: Fake, tmp_path: pathlib.Path
) -> None:
    """As one with TLS does that is asked without."""
    with serving(_tls("127.0.0.1")) as api:
        run = _plan(fake.url, _kubeconfig(tmp_path, api.url.replace("https", "http")))
        assert run.code == 1
        assert run.err.endswith(f" at http://{api.url[8:]}: Remote end closed connection without response\n")


@pytest.mark.parametrize("way", ["variable", "kubeconfig"])
def test_plan_dead_proxy_of_the_api_server_is_named(
    way: str, fake: Fake, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the variable or by the kubeconfig; without its password."""
    url = f"http://user:{SECRET}@{NOWHERE}"
    cluster: dict[str, Any] = {}
    if way == "variable":
        monkeypatch.setenv("HTTPS_PROXY", url)
    else:
        cluster["proxy-url"] = url
    path = _kubeconfig(tmp_path, "https://api.example:6443", **cluster)
    run = _plan(fake.url, path)
    assert run.code == 1
    words = f"Connection refused (the proxy {NOWHERE}); check HTTPS_PROXY, NO_PROXY, and proxy-url of --kubeconfig"
    assert words in run.err


def test_plan_api_server_without_tls_hints_at_http(fake: Fake, tmp_path: pathlib.Path) -> None:
    """The certificates are not the problem."""
    path = _kubeconfig(tmp_path, fake.url.replace("http", "https"))
    run = _plan(fake.url, path)
    assert run.code == 1
    assert f'the server has no TLS; does the server URL of --kubeconfig "{path}" need http://?' in run.err


def test_plan_untrusted_certificate_of_the_api_server_names_the_field(
    fake: Fake, tmp_path: pathlib.Path
) -> None:
    """As behind a proxy that inspects TLS."""
    with serving(_tls("127.0.0.1")) as api:
        path = _kubeconfig(tmp_path, api.url)
        run = _plan(fake.url, path)
    assert run.code == 1
    assert f'is certificate-authority-data of --kubeconfig "{path}" right, and no TLS-inspecting' in run.err


@pytest.mark.prometheus
def test_plan_without_permission_names_doctor_roles(world: World) -> None:
    """What may not be read, by whom, and where the roles are."""
    world.api.add_user("t", "poor")
    world.api.allow(Rule("poor", verbs=("get", "list"), resources=("nodes",)))
    world.write_kubeconfig("t")
    run = world.run("plan")
    assert (run.code, run.out) == (1, "")
    problem, hint = run.err.splitlines()
    assert 'pods is forbidden: User "poor" cannot list resource "pods"' in problem
    assert hint == "see gpu-rightsizer doctor --roles, the permissions of each command"


# --- The policy and the disk


@pytest.mark.prometheus
def test_plan_policy_of_an_unknown_namespace_is_a_warning(world: World) -> None:
    """With its line and the nearest name; the plan is made all the same."""
    world.add("Deployment", world.team, "idle", {})
    match = f"match: {{namespaces: [{world.team}s, {world.team}], priorityClasses: [low-priority]}}"
    policy = DEFAULT_POLICY.replace("match: {priorityClasses: [low-priority]}", match)
    run = world.run("plan", policy=policy)
    assert run.code == 0
    number = next(number for number, line in enumerate(policy.splitlines(), 1) if match in line)
    words = f"line {number}: rules[2].match.namespaces[0]: the cluster has no namespace {world.team}s; did you mean"
    assert words in " ".join(run.out.split())
    assert run.out.count("has no namespace") == 1


@pytest.mark.skipif(not os.access("/dev/full", os.W_OK), reason="no /dev/full")
@pytest.mark.prometheus
def test_full_disk_names_the_flag(world: World) -> None:
    """Of a document."""
    world.add("Deployment", world.team, "idle", {})
    run = world.run("plan", "--save", "/dev/full")
    assert (run.code, run.out) == (1, "")
    assert run.err == 'error: --save "/dev/full": cannot be written: No space left on device\n'
