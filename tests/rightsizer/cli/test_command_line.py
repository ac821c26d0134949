"""The command line as a person meets it: help, wrong flags, wrong files, interrupts; never a traceback."""

import datetime
import io
import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Callable

import jsonschema
import pytest

from rightsizer.__main__ import main
from rightsizer.config import ClusterSettings
from rightsizer.kube.cluster import Cluster
from rightsizer.model import ClusterName
from simulator.kube import Fault, Rule
from simulator.prometheus import Prometheus
from tests.rightsizer.fakeprometheus import SCALAR, Answer, serving
from tests.rightsizer.world import DEFAULT_POLICY, World, created

ROOT = pathlib.Path(__file__).parents[3]
NOWHERE = "http://127.0.0.1:9"
GONE = "removed; --log-format json writes each change to the log, and history lists the changes"


COMMANDS = (
    *(
        "plan",
        "doctor",
        "apply",
        "undo",
        "policy",
        "run",
        "history",
        "pause",
        "resume",
        "breaker",
        "mcp",
        "completion",
        "backtest",
        "tune",
        "report",
        "extend",
    ),
    *("policy check", "policy explain", "policy init", "policy rbac", "policy admission"),
)


def test_command_line_is_parsed_without_libraries_of_commands() -> None:
    """At each completion, too."""
    script = (
        "import sys; from rightsizer.__main__ import parser; parser(); print(*sys.modules.keys() & {'pydantic', "
        "'kubernetes', 'requests', 'numpy', 'yaml', 'apscheduler'})"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize(
    "command",
    ["", *COMMANDS],
)
def test_help_of_each_command_fits_80_by_60(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """At most 80 columns and 60 lines; exit code 0."""
    with pytest.raises(SystemExit) as caught:
        main([*command.split(), "--help"])
    out = capsys.readouterr().out
    assert caught.value.code == 0
    assert max(map(len, out.splitlines())) <= 80
    assert "usage: gpu-rightsizer" in out
    assert 10 <= len(out.splitlines()) <= 60


@pytest.mark.parametrize("command", ["plan", "apply", "run", "extend", "backtest", "tune", "doctor", "mcp"])
def test_help_prometheus_shows_what_help_leaves_out(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Credentials, TLS and limits; `--help` names the flag."""
    shown = {}
    for flag in ("--help", "--help-prometheus"):
        with pytest.raises(SystemExit) as caught:
            main([command, flag])
        assert caught.value.code == 0
        shown[flag] = capsys.readouterr().out
    rare = ("--prometheus-token-file", "--prometheus-ca-file", "--prometheus-header", "--prometheus-label")
    assert "--help-prometheus" in shown["--help"]
    assert not any(flag in shown["--help"] for flag in rare)
    assert all(flag in shown["--help-prometheus"] for flag in (*rare, "--prometheus-url"))


@pytest.mark.parametrize(
    ("line", "problem", "command"),
    [
        ("", f"a command is missing: {', '.join(one for one in COMMANDS if ' ' not in one)}", ""),
        ("policy", "a command is missing: check, explain, init, rbac, admission", " policy"),
        ("plan --foo", "unknown flag --foo", " plan"),
        ("apply --journal=x", f"--journal: {GONE}", " apply"),
        ("undo --all --journal x", f"--journal: {GONE}", " undo"),
        ("history --journal x", f"--journal: {GONE}", " history"),
        ("aply", "unknown command aply; did you mean apply?", ""),
        (
            "explain",
            "unknown command explain; plan -o explain shows the evidence, policy explain the rules",
            "",
        ),
        ("policy chek", "unknown command chek; did you mean check?", " policy"),
        ("breaker clear", "unknown command clear: must be one of show, reset, accept-growth", " breaker"),
        ("plan --polcy x", "unknown flag --polcy; did you mean --policy?", " plan"),
        ("policy check --ofline", "unknown flag --ofline; did you mean --offline?", " policy check"),
        ("plan --pol x", "unknown flag --pol; did you mean --policy?", " plan"),
        ("doctor -n research", "unknown flag -n; plan, apply, pause and resume have it", " doctor"),
        ("doctor research", 'unexpected argument "research"', " doctor"),
        ("doctor -o jsn", '--output "jsn": must be one of table, json, yaml; did you mean json?', " doctor"),
        ("plan --log-level x", '--log-level "x": must be one of debug, info, warning, error', " plan"),
        ("plan --policy", "--policy: expected one argument", " plan"),
    ],
)
def test_cli_typo_is_refused_with_suggestion(
    line: str, problem: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two lines, one with the word that was probably meant; exit code 2."""
    with pytest.raises(SystemExit) as caught:
        main(line.split())
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: {problem}\nsee gpu-rightsizer{command} --help\n"


def test_log_level_from_environment_is_validated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As the flag is."""
    monkeypatch.setenv("GPU_RIGHTSIZER_LOG_LEVEL", "warn")
    with pytest.raises(SystemExit) as caught:
        main(["plan"])
    assert caught.value.code == 2
    assert '--log-level "warn": must be one of' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        (
            "GPU_RIGHTSIZER_SCHEDUL",
            "unknown variable GPU_RIGHTSIZER_SCHEDUL; did you mean GPU_RIGHTSIZER_SCHEDULE?",
        ),
        ("GPU_RIGHTSIZER_JOURNAL", f"GPU_RIGHTSIZER_JOURNAL: {GONE}"),
    ],
)
def test_unknown_variable_exits_2_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, problem: str
) -> None:
    """A Service named like the program is none: the kubelet sets its variables in each container."""
    monkeypatch.setenv("GPU_RIGHTSIZER_PORT_9401_TCP_ADDR", "10.0.0.1")
    monkeypatch.setenv("GPU_RIGHTSIZER_METRICS_SERVICE_PORT_HTTP", "9401")
    monkeypatch.setenv(name, "@daily")
    assert main(["plan"]) == 2
    assert capsys.readouterr().err == f"error: {problem}\nsee gpu-rightsizer plan --help\n"


def test_output_to_full_disk_exits_1_with_reason() -> None:
    """The reason is named; exit code 1."""
    with pathlib.Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "rightsizer", "doctor", "--roles"]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (run.returncode, run.stderr) == (1, "error: writing the output: No space left on device\n")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_each_shell_names_program(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each shell gets a script that completes gpu-rightsizer."""
    with pytest.raises(SystemExit) as caught:
        main(["completion", shell])
    out = capsys.readouterr().out
    assert (caught.value.code, "gpu-rightsizer" in out, "_ARGCOMPLETE" in out) == (0, True, True)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gpu-rightsizer app", ["apply"]),
        ("gpu-rightsizer policy ex", ["explain"]),
        ("gpu-rightsizer plan --log-f", ["--log-format"]),
        ("gpu-rightsizer plan --log-format ", ["text", "json"]),
        ("gpu-rightsizer breaker acc", ["accept-growth"]),
    ],
)
def test_completion_of_partial_line_offers_candidates(
    line: str, expected: list[str], tmp_path: pathlib.Path
) -> None:
    """The shell's request for completions is answered."""
    answer = tmp_path / "answer"
    request = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    variables = {**os.environ, **request, "_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    subprocess.run([sys.executable, "-m", "rightsizer"], env=variables, check=False)
    assert [found.strip() for found in answer.read_text().split("\n")] == expected


BEFORE_ANYTHING_IS_ASKED: dict[str, tuple[list[str], str]] = {
    "no-prometheus": (
        ["apply", "--yes"],
        "which Prometheus? apply acts on what it says, so name it: give --prometheus-url",
    ),
    "url-without-scheme": (["plan", "--prometheus-url", "prometheus:9090"], "is not a URL such as http://"),
    "url-of-a-file": (["plan", "--prometheus-url", "file:///etc/passwd"], "is not a URL such as http://"),
    "url-with-password": (["plan", "--prometheus-url", "http://u:p4ssw0rd@h"], "holds a user or password"),
    "url-with-password-and-no-scheme": (
        ["plan", "--prometheus-url", "u:p4ssw0rd@h"],
        "holds a user or password",
    ),
    "url-with-query": (["plan", "--prometheus-url", "http://h/?token=p4ssw0rd"], "holds a query or fragment"),
    "url-with-query-and-no-scheme": (["plan", "--prometheus-url", "h?p4ssw0rd"], "holds a query or fragment"),
    "url-with-fragment": (["plan", "--prometheus-url", "http://h#p4ssw0rd"], "holds a query or fragment"),
    "url-with-half-an-address": (["plan", "--prometheus-url", "http://[::1"], "is not a URL such as http://"),
    "url-with-blank": (["plan", "--prometheus-url", "http://a b"], "is not a URL such as http://"),
    "url-with-port-too-high": (
        ["plan", "--prometheus-url", "http://127.0.0.1:99999"],
        '--prometheus-url "http://127.0.0.1:99999": its port is not a number from 1 to 65535',
    ),
    "url-with-port-that-is-none": (["plan", "--prometheus-url", "http://h:x"], "its port is not a number"),
    "url-with-escape": (
        ["plan", "--prometheus-url", "http://h\x1b]0;x\x07"],
        'http://h\ufffd]0;x\ufffd": is not',
    ),
    "header-name-with-blank": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-header", "X Y: p4ssw0rd"],
        "a name has no blanks",
    ),
    "header-with-credential": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-header", "Authorization: Bearer p4ssw0rd"],
        "which process lists would show; put its value into a file: --prometheus-header Authorization=@FILE",
    ),
    "header-with-key": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-header", "X-Api-Key:p4ssw0rd"],
        "looks like a credential",
    ),
    "header-from-no-file": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-header", "X-Api-Key=@nowhere"],
        '--prometheus-header "X-Api-Key=@nowhere": No such file',
    ),
    "header-from-two-lines": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-header", "X-Api-Key=@two-lines"],
        '--prometheus-header "X-Api-Key=@two-lines": holds more than one line',
    ),
    "header-from-an-empty-file": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-header", "X-Api-Key=@empty"],
        '--prometheus-header "X-Api-Key=@empty": is empty',
    ),
    "header-twice": (
        [
            "plan",
            "--prometheus-url",
            NOWHERE,
            *["--prometheus-header", "A: b", "--prometheus-header", "a: c"],
        ],
        '--prometheus-header "a": is given twice',
    ),
    "two-authorizations": (
        [
            *["plan", "--prometheus-url", NOWHERE, "--prometheus-token-file", "one-line"],
            *["--prometheus-header", "authorization=@one-line"],
        ],
        "give one of them",
    ),
    "endless-timeout": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-timeout", "99999999999w"],
        '--prometheus-timeout "99999999999w": is longer than 100 years',
    ),
    "endless-digits": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-timeout", "9" * 400 + "w"],
        "is not a duration",
    ),
    "no-time-at-all": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-timeout", "0.0001ms"],
        "must be longer than zero",
    ),
    "plan-file-with-a-list-for-uid": (
        ["apply", "--yes", "--plan", "odd-plan.json"],
        "plan file odd-plan.json: cannot be read: it is not a plan",
    ),
    "header-without-colon": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-header", "X-Scope-OrgID"],
        "--prometheus-header: write a name and a value",
    ),
    "header-injection": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-header", "A: b\r\nC: d"],
        "--prometheus-header: write a name and a value",
    ),
    "label-without-value": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-label", "cluster"],
        '--prometheus-label "cluster": write a label\'s name and value',
    ),
    "label-injection": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-label", 'a"}) or vector(0=x'],
        "write a label's name and value",
    ),
    "gpu-resource-of-what": (
        ["plan", "--prometheus-url", NOWHERE, "--gpu-resource", "example.com/gpu,example.com/mem=some"],
        "--gpu-resource: 'example.com/mem=some': the unit must be one of devices, shares, amount, part",
    ),
    "timeout-without-unit": (
        ["plan", "--prometheus-url", NOWHERE, "--prometheus-timeout", "30"],
        '--prometheus-timeout "30": is not a duration',
    ),
    "no-policy-file": (
        ["plan", "--prometheus-url", NOWHERE, "--policy", "nowhere.yaml"],
        "policy file nowhere.yaml",
    ),
    "policy-is-a-folder": (
        ["plan", "--prometheus-url", NOWHERE, "--policy", "."],
        "cannot be read: Is a directory",
    ),
    "no-kubeconfig": (
        ["plan", "--prometheus-url", NOWHERE, "--kubeconfig", "nowhere"],
        '--kubeconfig "nowhere": no such file',
    ),
    "kubeconfig-is-a-folder": (
        ["plan", "--prometheus-url", NOWHERE, "--kubeconfig", "."],
        '--kubeconfig ".": is not a regular file',
    ),
    "kubeconfig-not-yaml": (
        ["plan", "--prometheus-url", NOWHERE, "--kubeconfig", "junk"],
        '--kubeconfig "junk": cannot be used',
    ),
    "kubeconfig-with-a-wrong-tag": (
        ["plan", "--prometheus-url", NOWHERE, "--kubeconfig", "tagged"],
        '--kubeconfig "tagged": cannot be used',
    ),
    "kubeconfig-without-contexts": (
        ["plan", "--prometheus-url", NOWHERE, "--kubeconfig", "empty-kubeconfig", "--context", "prod"],
        '--kubeconfig "empty-kubeconfig": cannot be used: it has no contexts; create a kubeconfig with',
    ),
    "no-such-context": (
        ["plan", "--prometheus-url", NOWHERE, "--kubeconfig", "kubeconfig", "--context", "prod"],
        '--kubeconfig "kubeconfig": cannot be used: it has no context prod; give one with --context: gke, test',
    ),
    "no-current-context": (
        ["plan", "--prometheus-url", NOWHERE, "--kubeconfig", "kubeconfig"],
        '--kubeconfig "kubeconfig": cannot be used: it sets no current-context; give one with --context: gke, test',
    ),
    "auth-provider-of-old": (
        ["plan", "--prometheus-url", NOWHERE, "--kubeconfig", "kubeconfig", "--context", "gke"],
        "user jane has the auth-provider gcp, which is out of date; create a kubeconfig with your cloud's command",
    ),
    "prometheus-page": (
        ["plan", "--prometheus-url", f"{NOWHERE}/prefix/graph"],
        f'--prometheus-url "{NOWHERE}/prefix/graph": is the URL of a page; give the base URL: {NOWHERE}/prefix\n',
    ),
    "prometheus-api-path": (
        ["doctor", "--prometheus-url", f"{NOWHERE}/api/v1/query"],
        f"is the URL of a page; give the base URL: {NOWHERE}\n",
    ),
    "no-price-table": (
        ["plan", "--prometheus-url", NOWHERE, "--prices", "nowhere.yaml"],
        "price table file nowhere.yaml: cannot be read: No such file",
    ),
    "signals-of-nobody": (
        ["plan", "--prometheus-url", NOWHERE, "--signals", "gpu-exportr"],
        '--signals "gpu-exportr": is neither one of auto, dcgm, dcgm-4.9, gpu-exporter, nor a file',
    ),
    "save-into-no-folder": (
        ["plan", "--prometheus-url", NOWHERE, "--save", "nowhere/plan.json"],
        '--save "nowhere/plan.json": cannot be written: No such file or directory',
    ),
    "ipv6-without-brackets": (
        ["plan", "--prometheus-url", "http://::1:9090"],
        '--prometheus-url "http://::1:9090": is not a URL such as http://',
    ),
    "time-that-is-a-date": (
        ["plan", "--prometheus-url", NOWHERE, "--at", "2026-11-20"],
        '--at "2026-11-20": says no zone; write one, such as 2026-11-20T18:00:00Z',
    ),
    "time-that-is-none": (
        ["plan", "--prometheus-url", NOWHERE, "--at", "2 hours"],
        "write a time with its zone, such as 2026-11-20T18:00:00Z, or how long ago, such as 2h",
    ),
    "explain-of-a-bare-name": (
        ["policy", "explain", "web"],
        "web: write NAMESPACE/KIND/NAME, such as research/Deployment/eval-server",
    ),
    "policy-is-a-plan": (
        ["plan", "--prometheus-url", NOWHERE, "--policy", "odd-plan.json"],
        "line 1: kind: must be Policy, not Plan, which gpu-rightsizer writes; see docs/policy.md",
    ),
    "no-plan-file": (
        ["apply", "--yes", "--plan", "nowhere.json"],
        '--plan "nowhere.json": cannot be read: No such',
    ),
    "plan-file-is-no-text": (
        ["apply", "--yes", "--plan", "bytes"],
        '--plan "bytes": cannot be read: it is not UTF-8 text',
    ),
    "plan-file-is-no-plan": (
        ["apply", "--yes", "--plan", "junk"],
        "plan file junk: cannot be read: it is not a plan",
    ),
    "plan-file-is-an-outcome": (["apply", "--yes", "--plan", "outcome.json"], "is of kind Outcome"),
    "nobody-to-ask": (["apply", "--prometheus-url", NOWHERE], "for scripts: --yes"),
    "undo-of-two-things": (["undo", "--all", "--run", "x", "--yes"], "--all, or else workloads, --run"),
}


def _kubeconfig(server: str, **fields: str) -> dict[str, object]:
    """Two contexts, of which the second has a user of old."""
    contexts = [{"name": name, "context": {"cluster": "c", "user": user}} for name, user in _USERS.items()]
    users = [{"name": "nobody"}, {"name": "jane", "user": {"auth-provider": {"name": "gcp"}}}]
    clusters = [{"name": "c", "cluster": {"server": server}}]
    return {"kind": "Config", "clusters": clusters, "contexts": contexts, "users": users, **fields}


_USERS = {"test": "nobody", "gke": "jane"}


@pytest.mark.parametrize(
    ("arguments", "words"), BEFORE_ANYTHING_IS_ASKED.values(), ids=BEFORE_ANYTHING_IS_ASKED.keys()
)
def test_cli_configuration_error_exits_2_without_requests(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One clear message, exit code 2, and nothing was asked of anybody."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    (tmp_path / "junk").write_text("\x00{[")
    (tmp_path / "tagged").write_text('clusters: !!int ""\n')
    (tmp_path / "empty-kubeconfig").write_text("apiVersion: v1\nkind: Config\n")
    (tmp_path / "kubeconfig").write_text(json.dumps(_kubeconfig(NOWHERE)))
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff")
    (tmp_path / "one-line").write_text("p4ssw0rd")
    (tmp_path / "two-lines").write_text("p4ssw0rd\np4ssw0rd\n")
    item = {"uid": [], "generation": 1, "action": "evict", "pods": {}, "verdict": "act", "mode": "enforce"}
    plan = {"apiVersion": "gpu-rightsizer.io/v1alpha1", "kind": "Plan", "items": [item]}
    (tmp_path / "odd-plan.json").write_text(json.dumps(plan))
    (tmp_path / "outcome.json").write_text('{"apiVersion": "gpu-rightsizer.io/v1alpha1", "kind": "Outcome"}')
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.err.startswith("error: ")
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert "p4ssw0rd" not in captured.err


_STATUS = '{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the server could not find it","code":404}'
_LOGIN = "<html>Login with SSO</html>"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(404, "404 page not found"), "give the base URL, such as http://prometheus:9090"),
        (
            Answer(404, _STATUS),
            "could not find it; a Kubernetes API server replied, not Prometheus: is the URL right?",
        ),
        (Answer(200, _LOGIN), "Login with SSO</html>; if it is a login page, see the --prometheus flags"),
        (
            Answer(302, "", {"Location": "https://user:s3cret@sso.example/login?token=s3cret"}),
            "HTTP 302: redirected to https://sso.example/login; redirects are not followed: give the final URL",
        ),
    ],
    ids=["a-page", "the-api-server", "a-login-page", "a-redirect"],
)
def test_plan_of_another_server_than_prometheus_names_the_remedy(
    answer: Answer, words: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message with what would be right, exit code 1; no part of a redirect that may be a credential."""
    (tmp_path / "kubeconfig").write_text(json.dumps(_kubeconfig(NOWHERE, **{"current-context": "test"})))
    with serving() as server:
        server.answers.append(answer)
        flags = ["--prometheus-url", server.url, "--kubeconfig", str(tmp_path / "kubeconfig")]
        assert main(["plan", *flags]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: querying Prometheus at {server.url}: HTTP {answer.status}")
    assert words in err
    assert "s3cret" not in err


def test_plan_login_page_in_place_of_the_api_server_is_named(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server of the kubeconfig is the remedy, not what a JSON parser says."""
    with serving() as prometheus, serving() as api:
        prometheus.answers.append(Answer(body=SCALAR))
        api.answers.append(Answer(200, _LOGIN))
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(_kubeconfig(api.url, **{"current-context": "test"})))
        assert main(["plan", "--prometheus-url", prometheus.url, "--kubeconfig", str(path)]) == 1
    words = f'a web page, not an API server\'s response; is the server URL of --kubeconfig "{path}" right?'
    assert words in capsys.readouterr().err


@pytest.mark.covers("P1")
@pytest.mark.prometheus
def test_plan_unreachable_prometheus_exits_1(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1, and the URL and the reason are named."""
    flags = ["--prometheus-url", NOWHERE, "--kubeconfig", str(world.directory / "kubeconfig")]
    assert main(["plan", *flags]) == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error: querying Prometheus at {NOWHERE}: Connection refused")


@pytest.mark.prometheus
def test_policy_unknown_class_is_refused_with_line_and_hint(world: World) -> None:
    """Told with file, line and the nearest name, by plan, apply and policy check alike; nothing is written."""
    policy = DEFAULT_POLICY.replace("[high-priority]", "[hi-priority]")
    world.add("Deployment", world.team, "idle", {})
    for arguments in (["plan"], ["apply", "--yes"]):
        run = world.run(*arguments, policy=policy)
        assert run.code == 2
        assert "the cluster has no PriorityClass hi-priority; did you mean high-priority?" in run.err
        assert f"policy {world.directory / 'policy.yaml'} cannot be used (1 problem):\n  line " in run.err
    check = world.run("policy", "check", str(world.directory / "policy.yaml"))
    assert (check.code, "did you mean high-priority?" in check.err) == (2, True)
    assert world.run("policy", "check", "--offline", str(world.directory / "policy.yaml")).code == 0
    writes = world.api.requests.mutating(include_dry_run=True)
    assert [one.path for one in writes if "/leases" not in one.path] == []


@pytest.mark.prometheus
def test_kubeconfig_rejected_with_401_names_file_not_token(world: World) -> None:
    """401 is a matter of configuration: the file is named, and its token is not shown."""
    path = world.write_kubeconfig("wrong-secret-token")
    run = world.run("plan")
    assert run.code == 2
    assert f'the credentials of --kubeconfig "{path}" are not accepted' in run.err
    assert "wrong-secret-token" not in run.err


@pytest.mark.prometheus
@pytest.mark.parametrize("token", ["s3cret\ns3cret", "s3cret\u20ac"])
def test_kubeconfig_invalid_token_is_refused_without_leak(world: World, token: str) -> None:
    """The HTTP library would repeat it in its error; the kubeconfig is named instead."""
    path = world.write_kubeconfig(token)
    run = world.run("plan")
    assert run.code == 2
    assert f'--kubeconfig "{path}": its credentials cannot be sent' in run.err
    assert "s3cret" not in run.err


@pytest.mark.slow
@pytest.mark.prometheus
def test_log_level_info_logs_requests_debug_logs_queries(world: World) -> None:
    """`info` logs requests and counts, `debug` also queries and each decision; never a secret."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.api.add_user("s3cret", "admin-too")
    world.api.allow(Rule("admin-too", verbs=("*",), resources=("*",)))
    world.write_kubeconfig("s3cret")
    header = world.directory / "header"
    header.write_text("s3cret")
    flags = ["-o", "json", "--prometheus-header", f"X-Api-Key=@{header}"]
    quiet = world.run("plan", *flags, policy=DEFAULT_POLICY)
    assert quiet.err == ""
    once = world.run("plan", "--log-level=info", *flags, policy=DEFAULT_POLICY)
    for words in (
        f"Z info    GET /api/v1/pods at {world.api.url}: 200, ",
        f"Z info    query at {world.prometheus.url}: 200, ",
        "Z info    2 pods of 1 workload ask for GPUs",
        "Z info    window 1d: usage of ",
        "Z info    1 workload judged: 1 act; 1 to be acted upon",
    ):
        assert words in once.err, once.err
    assert " debug " not in once.err
    twice = world.run("plan", "--log-level=debug", *flags, policy=DEFAULT_POLICY)
    assert "Z debug   query: max by (cluster, " in twice.err
    assert f"Z debug   {world.team}/Deployment/idle: act, idle, rule scavengers" in twice.err
    assert "s3cret" not in once.err + twice.err


@pytest.mark.prometheus
def test_log_level_info_logs_each_write_with_response(world: World) -> None:
    """Each with its answer, dry runs among them."""
    world.add("Deployment", world.team, "idle", {})
    run = world.run("apply", "--yes", "--log-level=info", policy=DEFAULT_POLICY)
    path = f"/apis/apps/v1/namespaces/{world.team}/deployments/idle"
    assert f"Z info    PATCH {path} at {world.api.url} (dry run): 200, " in run.err
    assert f"Z info    PATCH {path} at {world.api.url}: 200, " in run.err


@pytest.mark.prometheus
def test_log_format_json_writes_one_object_per_line(world: World) -> None:
    """With time, level, logger and message."""
    world.add("Deployment", world.team, "idle", {})
    run = world.run("plan", "--log-level=info", "--log-format=json", policy=DEFAULT_POLICY)
    entries = [json.loads(line) for line in run.err.splitlines()]
    assert {tuple(entry) for entry in entries} == {("time", "level", "logger", "message")}
    assert {entry["level"] for entry in entries} == {"info"}


@pytest.mark.prometheus
def test_log_format_json_has_each_change_at_any_level(world: World) -> None:
    """Before it, after it, and with its effect: run, workload, action, result and why. Text has it from level info."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    run = world.run("apply", "--yes", "-o", "json", "--log-format=json", policy=DEFAULT_POLICY).logged()
    uid = created(world.api, "Deployment", world.team, "idle")["metadata"]["uid"]
    ref = {"namespace": world.team, "kind": "Deployment", "name": "idle", "uid": uid}
    change = {"run": json.loads(run.out)["metadata"]["run"], **ref, "action": "scale-to-zero", "gpus": 2}
    intent, outcome, effect = run.changes
    for step in run.changes:
        assert change.items() <= step.items()
        assert (step["level"], step["logger"]) == ("info", "gpu-rightsizer")
    assert (intent["step"], intent["rule"]) == ("intent", "scavengers")
    assert "stayed at or below 1% utilization" in intent["reason"]
    assert (outcome["step"], outcome["result"]) == ("outcome", "done")
    assert outcome["reason"] == "spec.replicas: 2 → 0"
    assert (effect["step"], effect["result"]) == ("effect", "done")
    assert effect["reason"].startswith("2 of 2 pods gone")
    text = world.run("undo", "--all", "--yes", "--log-level=info").err
    assert f"Z info    begin      undo  {world.team}/Deployment/idle\n" in text
    assert f"Z info    done       undo  {world.team}/Deployment/idle\n" in text


HOSTILE = "\x1b]0;owned\x07\x9b2J\r\u202e"


@pytest.mark.prometheus
def test_cli_foreign_control_characters_are_escaped(world: World) -> None:
    """Neither from an API server's errors, nor from labels of series, nor in documents."""
    with Prometheus(world.directory / "own") as own:
        world.prometheus = own
        for name, cluster in (("idle", "ours"), ("other", HOSTILE)):
            world.labels = {"cluster": cluster}
            world.add("Deployment", world.team, name, {})
        told = world.run("plan", policy=DEFAULT_POLICY)
    assert "GPU series of several clusters" in told.err
    status = {"kind": "Status", "status": "Failure", "code": 500, "reason": HOSTILE, "message": HOSTILE}
    world.api.inject(Fault("namespaces", "GET", 1, status=500, body=status))
    refused = world.run("plan", policy=DEFAULT_POLICY)
    assert "owned" in told.err
    for text in (told.err, refused.err):
        assert text.replace("\n", "").isprintable(), repr(text)


@pytest.mark.prometheus
def test_plan_forbidden_read_reports_403_without_plan(world: World) -> None:
    """403 names what may not be read, and there is no plan from half of the cluster."""
    world.api.add_user("t", "poor")
    world.api.allow(Rule("poor", verbs=("get", "list"), resources=("pods", "nodes", "namespaces")))
    world.write_kubeconfig("t")
    run = world.run("plan")
    assert (run.code, run.out) == (1, "")
    assert "403 Forbidden" in run.err
    assert 'User "poor" cannot list resource' in run.err


@pytest.mark.prometheus
def test_plan_redirecting_api_server_is_refused(world: World) -> None:
    """A login page in between is no answer that was cut off."""
    world.api.inject(Fault(status=302, headers={"Location": f"{NOWHERE}/login"}, body={}, times=None))
    run = world.run("plan")
    assert (run.code, run.out) == (1, "")
    assert "302" in run.err
    assert "redirected, which an API server never does; is the kubeconfig's server URL right?" in run.err


@pytest.mark.prometheus
def test_plan_unreachable_api_server_exits_1(world: World) -> None:
    """Exit code 1 with the address and the reason."""
    world.api.inject(Fault(drop=True, times=None))
    run = world.run("plan")
    assert run.code == 1
    assert world.api.url in run.err


@pytest.mark.covers("P13")
@pytest.mark.prometheus
def test_plan_without_gpu_series_reports_what_to_check(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said that there are none, and what to look at."""
    world.add("Deployment", world.team, "idle", {"usage": "absent"})
    monkeypatch.setattr("tests.rightsizer.given.DAY_S", 0)
    with Prometheus(world.directory / "empty") as empty:
        world.prometheus = empty
        run = world.run("plan")
    assert (run.code, run.out) == (1, "")
    assert "Prometheus holds no GPU series (such as DCGM_FI_DEV_GPU_UTIL) in the 24h to 20" in run.err


@pytest.mark.prometheus
def test_plan_future_time_is_refused(world: World) -> None:
    """It is refused as what cannot be meant, with the clock that says so."""
    world.add("Deployment", world.team, "idle", {})
    at = datetime.datetime.now(datetime.UTC).replace(microsecond=0) + datetime.timedelta(hours=1)
    run = world.run("plan", "--at", at.isoformat())
    assert (run.code, run.out) == (2, "")
    assert f'--at "{at:%Y-%m-%d %H:%M:%S} UTC": that is yet to come: Prometheus\'s clock says 20' in run.err


@pytest.mark.prometheus
def test_plan_at_with_duration_means_that_long_ago(world: World) -> None:
    """As --since does."""
    world.add("Deployment", world.team, "idle", {})
    run = world.run("plan", "--at", "2h", "-o", "json")
    at = datetime.datetime.fromisoformat(json.loads(run.out)["metadata"]["at"])
    ago = datetime.datetime.now(datetime.UTC) - at
    assert datetime.timedelta(hours=1.9) < ago < datetime.timedelta(hours=2.5)


@pytest.mark.prometheus
def test_plan_time_before_first_sample_names_flag(world: World) -> None:
    """The flag is named, and where the record begins; not the exporter, which is well."""
    world.labels = {"cluster": world.team}
    world.add("Deployment", world.team, "idle", {})
    at = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=3)
    flags = ["--prometheus-label", f"cluster={world.team}"]
    run = world.run("plan", "--at", at.isoformat(), *flags)
    assert (run.code, run.out) == (1, "")
    begins = re.search(r"--at \"20.* UTC\": Prometheus's record of GPUs begins later, (.*) UTC\n", run.err)
    assert begins
    first = datetime.datetime.fromisoformat(f"{begins[1]}+00:00")
    assert datetime.timedelta(days=1) <= first - at < datetime.timedelta(days=3)
    run = world.run("plan", "--at", (at + datetime.timedelta(days=2.99)).isoformat(), *flags)
    assert run.code == 0, run.err
    assert "This plan cannot be applied: it is about a past moment" in run.out


@pytest.mark.prometheus
def test_plan_document_json_and_yaml_match_schema(world: World) -> None:
    """The published schema fits what is printed, as JSON and as YAML."""
    world.add("Deployment", world.team, "idle", {"replicas": 2})
    world.add("Job", world.team, "young", {"age_h": 1})
    schema = json.loads((ROOT / "docs/plan.schema.json").read_text())
    document = json.loads(world.run("plan", "-o", "json", policy=DEFAULT_POLICY).out)
    jsonschema.Draft202012Validator(schema).validate(document)
    item = next(item for item in document["items"] if item["name"] == "idle")
    for field in (
        "namespace",
        "kind",
        "name",
        "priorityClass",
        "gpus",
        "verdict",
        "finding",
        "rule",
        "action",
    ):
        assert item[field]
    assert document["totals"]["gpus"] == 3
    as_yaml = world.run("plan", "-o", "yaml", policy=DEFAULT_POLICY).out
    assert as_yaml.startswith("apiVersion: gpu-rightsizer.io/v1alpha1\nkind: Plan\n")


@pytest.mark.prometheus
@pytest.mark.parametrize(("answer", "replicas"), [("y\n", 0), ("n\n", 1), ("\n", 1)])
def test_apply_on_terminal_requires_yes(world: World, answer: str, replicas: int) -> None:
    """Only yes is yes; the plan was shown before the question."""
    world.add("Deployment", world.team, "idle", {})
    (world.directory / "policy.yaml").write_text(DEFAULT_POLICY)
    output = _on_a_terminal(world, ["apply"], lambda: answer)
    server = json.loads(world.run("plan", "-o", "json").out)["metadata"]["cluster"]["server"]
    name = re.escape(f"Cluster: context simulator ({server})")
    listed = rf"{name}\n\nAPPLY CHANGES \(1\).*\n.*/idle .*\n(.+\n)+\nApplying this plan .*\n"
    assert re.search(rf"{listed}{name}\nStop 1 workload", output), output
    assert "Stop 1 workload, freeing 1 GPU? [y/N]" in output
    deployment = world.api.get("Deployment", world.team, "idle")
    assert deployment is not None
    assert deployment["spec"]["replicas"] == replicas


def _on_a_terminal(world: World, arguments: list[str], answer: Callable[[], str]) -> str:
    """Run a command with a terminal for standard input, and answer its question."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "rightsizer", *arguments, "--color", "never"]
    command += ["--kubeconfig", str(world.directory / "kubeconfig"), "--prometheus-url", world.prometheus.url]
    command += ["--policy", str(world.directory / "policy.yaml")]
    run = subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    os.close(theirs)
    os.write(ours, answer().encode())
    output, _ = run.communicate(timeout=60)
    os.close(ours)
    return output


@pytest.mark.prometheus
def test_apply_interrupted_finishes_current_skips_rest(world: World) -> None:
    """Ctrl-C while one workload is being changed: that one is finished, the others are skipped; exit code 1."""
    for name in ("a", "b", "c"):
        world.add("Deployment", world.team, name, {"replicas": 2})
    (world.directory / "policy.yaml").write_text(DEFAULT_POLICY)
    command = [sys.executable, "-m", "rightsizer", "apply", "--yes", "-o", "json"]
    command += ["--kubeconfig", str(world.directory / "kubeconfig"), "--prometheus-url", world.prometheus.url]
    with subprocess.Popen(
        [*command, "--policy", str(world.directory / "policy.yaml")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    ) as run:
        # The API server answers the dry run of the first change after the interrupt.
        world.after("deployments/a", lambda: run.send_signal(signal.SIGINT), method="PATCH")
        out, err = run.communicate(timeout=100)
    results = [(item["name"], item["result"]) for item in json.loads(out)["items"]]
    assert (run.returncode, results) == (1, [("a", "done"), ("b", "skipped"), ("c", "skipped")]), err
    assert "stopping after the change in flight" in err
    left = {name: world.api.get("Deployment", world.team, name) for name in "abc"}
    assert [item and item["spec"]["replicas"] for item in left.values()] == [0, 2, 2]


def test_output_to_closed_pipe_is_silent(tmp_path: pathlib.Path) -> None:
    """Help into head ends without a complaint."""
    command = f"{sys.executable} -m rightsizer --help | head -c 1; exit ${{PIPESTATUS[0]}}"
    run = subprocess.run(["bash", "-c", command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (run.returncode, run.stderr) == (0, ""), tmp_path


@pytest.mark.parametrize(
    ("server", "context", "words"),
    [
        (NOWHERE, "test", f"context test ({NOWHERE})"),
        ("http://jane:s3cret@127.0.0.1:9/k8s", "test", "context test (http://127.0.0.1:9/k8s)"),
    ],
    ids=["current-context", "with-a-password"],
)
def test_cluster_name_has_context_and_server_without_credentials(
    server: str, context: str, words: str, tmp_path: pathlib.Path
) -> None:
    """As the kubeconfig has them."""
    path = tmp_path / "kubeconfig"
    path.write_text(json.dumps(_kubeconfig(server, **{"current-context": context})))
    assert Cluster(ClusterSettings(path)).name.words == words


def test_cluster_name_in_a_pod_is_in_cluster() -> None:
    """There it has no context."""
    assert (
        ClusterName("", "https://10.96.0.1:443", is_inside=True).words == "in-cluster (https://10.96.0.1:443)"
    )
