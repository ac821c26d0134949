"""The command line: what is refused and how, one-shot mode, help, and how it ends."""

import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

import exporter
from exporter.cli import main
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import PATIENCE_S, Exporter, Node, ended, eventually, h100, without_driver

pytestmark = pytest.mark.driver

ROOT = Path(exporter.__file__).parents[1]
COLLECTORS = (
    "clocks, ecc, info, memory, nvlink, pcie, power, processes, profiling, thermal, utilization, video, violations, "
    "xid"
)
DURATION = "is not a duration; write a number and a unit, such as 500ms, 10s or 1m"
UPGRADED = (
    "the loaded driver and libnvidia-ml.so.1 are of different versions: the driver was upgraded underneath. "
    "Restart this container, or reboot the node"
)
ADDRESS = 'is not an address; write ":9400", "127.0.0.1:9400" or "[::1]:9400", with a port up to 65535'


# Sends itself a signal at the moment at which the exporter begins to load its libraries.
EARLY = """
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "exporter.cli":
            os.kill(os.getpid(), int(number))
number = sys.argv.pop(1)
sys.meta_path.insert(0, Finder())
from exporter.__main__ import main
sys.exit(main())
"""


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One GPU."""
    return make_node(h100(1))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--interval", "10"], f'--interval "10": {DURATION}'),
        (["--interval=-1s"], f'--interval "-1s": {DURATION}'),
        (["--interval=0s"], '--interval "0s": is out of range; an interval is between 100ms and 1h'),
        (["--interval=99999h"], '--interval "99999h": is out of range; an interval is between 100ms and 1h'),
        (["--listen=9400"], f'--listen "9400": {ADDRESS}'),
        (["--listen=:99999"], f'--listen ":99999": {ADDRESS}'),
        (["--listen=::1:9400"], f'--listen "::1:9400": {ADDRESS}'),
        (
            ["--collectors=power,termal"],
            '--collectors "power,termal": unknown collector "termal"; did you mean thermal?',
        ),
        (["--collectors=xyz"], f'--collectors "xyz": unknown collector "xyz"; available: {COLLECTORS}'),
        (["--collectors=,"], '--collectors ",": is empty; write names separated by commas, or "all"'),
        (["--log-format=xml"], '--log-format "xml": must be one of text, json'),
        (["--log-level=loud"], '--log-level "loud": must be one of debug, info, warning, error'),
        (
            ["--log-level=warn"],
            '--log-level "warn": must be one of debug, info, warning, error; did you mean warning?',
        ),
        (["--intervall=3s"], "unknown flag --intervall; did you mean --interval?"),
        (["--qwertz"], "unknown flag --qwertz"),
        (["serve"], 'unexpected argument "serve"; gpu-exporter has only flags'),
        (["--completion=tcsh"], '--completion "tcsh": must be one of bash, zsh, fish'),
        (["--interval"], "--interval: expected one argument"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_flags_are_refused_with_a_hint(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong flag is exit code 2 and one line that says what would be right."""
    assert main(flags) == 2
    assert capsys.readouterr() == ("", f"error: {message}\nsee gpu-exporter --help\n")


def test_invalid_settings_are_reported_together() -> None:
    """Nobody has to start the exporter three times to find three mistakes."""
    variables = without_driver() | {"GPU_EXPORTER_INTERVAL": "soon", "DCGM_EXPORTER_LISTEN": "here"}
    done = ended([sys.executable, "-m", "exporter", "--collectors=x"], variables)
    assert done.code == 2
    assert done.err.splitlines() == [
        f'error: DCGM_EXPORTER_LISTEN "here": {ADDRESS}',
        f'error: GPU_EXPORTER_INTERVAL "soon": {DURATION}',
        f'error: --collectors "x": unknown collector "x"; available: {COLLECTORS}',
        "see gpu-exporter --help",
    ]


def test_missing_driver_is_explained() -> None:
    """Without libnvidia-ml.so.1 the exporter says what to install, and does not start."""
    done = ended([sys.executable, "-m", "exporter"], without_driver())
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "error: cannot use the NVIDIA driver: libnvidia-ml.so.1 was not found. On a GPU node, install the "
        "NVIDIA driver; in a container, run it with the NVIDIA runtime (runtimeClassName: nvidia, or docker run "
        "--gpus all)\n"
    )


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            9,
            "the NVIDIA driver is not loaded. Load it (modprobe nvidia) and see whether nvidia-smi works on this node",
        ),
        (18, UPGRADED),
        (999, "Unknown Error (NVML error 999). See whether nvidia-smi works here"),
    ],
)
def test_refusing_driver_is_explained(code: int, message: str, node: Node) -> None:
    """Each way in which the driver can refuse to start has its own advice."""
    node.board.fault("nvmlInitWithFlags", code=code)
    done = node.once("--once", "--pod-resources-socket=")
    assert (done.code, done.err) == (1, f"error: cannot use the NVIDIA driver: {message}\n")


def test_missing_kubelet_directory_is_refused(node: Node) -> None:
    """A socket that somebody took the trouble to name and that is not there is a mistake, not a node without pods."""
    done = node.once("--pod-resources-socket=/nowhere/kubelet.sock")
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "error: no kubelet socket at /nowhere/kubelet.sock: mount the directory /nowhere of the host into the "
        "container, or correct --pod-resources-socket (an empty value turns pod labels off)\n"
    )


def test_missing_proc_root_is_refused(node: Node) -> None:
    """A mount that was forgotten is reported at the start."""
    done = node.once("--pod-resources-socket=", "--proc-root=/nowhere/proc")
    assert (done.code, done.err) == (
        1,
        "error: --proc-root /nowhere/proc: no such directory; mount the host's /proc there\n",
    )


def test_port_in_use_is_explained(node: Node) -> None:
    """Two exporters on one port: the second says why it cannot, and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        done = node.once(f"--listen={address}", "--pod-resources-socket=")
    assert done.code == 1
    assert done.err == (
        f"error: cannot listen on {address}: address already in use; is another exporter running? "
        "dcgm-exporter uses this port too; choose another with --listen\n"
    )


def test_foreign_address_is_explained(node: Node) -> None:
    """An address that this machine does not have is one line, too."""
    done = node.once("--listen=192.0.2.1:9400", "--pod-resources-socket=")
    assert done.code == 1
    assert done.err == (
        "error: cannot listen on 192.0.2.1:9400: cannot assign requested address; choose another address "
        "with --listen\n"
    )


def test_once_prints_metrics_and_ends(node: Node) -> None:
    """`--once` is one complete exposition on standard output, and nothing else there."""
    done = node.once("--once", "--pod-resources-socket=")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("# HELP DCGM_FI_DEV_")
    assert f'UUID="{node.spec.gpu_uuid(0)}"' in done.out


def test_once_with_a_hung_gpu_ends(node: Node) -> None:
    """`--once` ends also where the driver does not, and tells of it."""
    node.board.fault("nvmlDeviceGetPowerUsage", hang=True)
    done = node.once("--once", "--pod-resources-socket=", "--interval=1s")
    assert done.code == 0
    assert 'gpu_up{gpu="0"' in done.out
    assert "the driver call does not return" in done.err


def test_closed_output_pipe_is_no_error(node: Node) -> None:
    """`gpu-exporter --once | head -1` prints one line and no complaint."""
    command = node.command("--once", "--pod-resources-socket=")
    with subprocess.Popen(
        command, env=node.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 0


def test_help_fits_a_screen_of_80_columns() -> None:
    """The help fits a screen, has examples, and names every flag and exit code."""
    done = ended([sys.executable, "-m", "exporter", "--help"], without_driver() | {"COLUMNS": "200"})
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert (max(map(len, lines)) <= 80, len(lines) <= 60) == (True, True)
    for part in (
        "examples:",
        "exit codes:",
        "--once",
        "--proc-root",
        "--help-dcgm",
        "GPU_EXPORTER_",
    ):
        assert part in done.out


def test_help_dcgm_lists_flags_and_variables() -> None:
    """The flags of dcgm-exporter have a list of their own, with their variables and equivalents."""
    done = ended([sys.executable, "-m", "exporter", "--help-dcgm"], without_driver())
    assert (done.code, done.err) == (0, "")
    assert max(map(len, done.out.splitlines())) <= 80
    assert (
        "  -c, --collect-interval\n      DCGM_EXPORTER_INTERVAL\n      as --interval DURATION\n" in done.out
    )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_of_each_shell_names_program(shell: str) -> None:
    """Each shell gets a script that completes gpu-exporter."""
    done = ended([sys.executable, "-m", "exporter", f"--completion={shell}"], without_driver())
    assert (done.code, done.err) == (0, "")
    assert "gpu-exporter" in done.out
    assert "_ARGCOMPLETE" in done.out


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("gpu-exporter --log-f", ["--log-format"]),
        ("gpu-exporter --log-format ", ["text", "json"]),
        ("gpu-exporter --collectors pr", ["processes", "profiling"]),
    ],
)
def test_completion_of_a_partial_line_offers_flags_and_values(
    line: str, expected: list[str], tmp_path: Path
) -> None:
    """The shell's request for completions is answered with flags or their values."""
    answer = tmp_path / "answer"
    request = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_IFS": "\n"}
    variables = without_driver() | request | {"_ARGCOMPLETE_STDOUT_FILENAME": str(answer)}
    ended([sys.executable, "-m", "exporter"], variables)
    assert [found.strip() for found in answer.read_text().split("\n")] == expected


def test_version_is_that_of_the_project() -> None:
    """`--version` says what pyproject.toml says."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    done = ended([sys.executable, "-m", "exporter", "--version"], without_driver())
    assert (done.code, done.out) == (0, f"gpu-exporter {project['version']}\n")


def test_variables_replace_flags_by_priority(node: Node) -> None:
    """A flag wins over its variable, our variable over dcgm-exporter's, and each is understood."""
    variables = {"NODE_NAME": "by-node-name", "DCGM_EXPORTER_INTERVAL": "30000", "GPU_EXPORTER_ONCE": "true"}
    assert 'hostname="by-node-name"' in node.once("--pod-resources-socket=", **variables).out
    variables["GPU_EXPORTER_NODE_NAME"] = "by-our-variable"
    assert 'hostname="by-our-variable"' in node.once("--pod-resources-socket=", **variables).out
    assert (
        'hostname="by-flag"' in node.once("--pod-resources-socket=", "--node-name=by-flag", **variables).out
    )


@pytest.mark.parametrize(
    ("name", "rest"),
    [
        ("GPU_EXPORTER_INTERVALL", "; did you mean GPU_EXPORTER_INTERVAL?"),
        ("GPU_EXPORTER_NODENAME", "; did you mean GPU_EXPORTER_NODE_NAME?"),
        ("GPU_EXPORTER_QWERTZUIOP", ""),
    ],
)
def test_unknown_variable_is_refused_with_a_hint(name: str, rest: str, node: Node) -> None:
    """As a flag would be, with the one that was probably meant, beside all other problems; its value is not shown."""
    done = node.once("--once", "--pod-resources-socket=", **{name: "hunter2", "GPU_EXPORTER_NAMING": "x"})
    assert done.code == 2
    assert f"error: unknown variable {name}{rest}\n" in done.err
    assert "GPU_EXPORTER_NAMING" in done.err
    assert "hunter2" not in done.err


@pytest.mark.parametrize("service", ["GPU_EXPORTER", "DCGM_EXPORTER", "GPU_EXPORTER_CANARY"])
def test_service_link_variables_are_ignored(service: str, node: Node) -> None:
    """The kubelet puts them into every container of the namespace: not a word about them."""
    links = {
        "SERVICE_HOST": "10.96.0.7",
        "SERVICE_PORT": "9400",
        "SERVICE_PORT_METRICS": "9400",
        "PORT": "tcp://10.96.0.7:9400",
        "PORT_9400_TCP": "tcp://10.96.0.7:9400",
        "PORT_9400_TCP_PROTO": "tcp",
        "PORT_9400_TCP_PORT": "9400",
        "PORT_9400_TCP_ADDR": "10.96.0.7",
    }
    variables = {f"{service}_{name}": text for name, text in links.items()}
    done = node.once("--once", "--pod-resources-socket=", **variables)
    assert (done.code, done.err) == (0, "")


def test_unknown_dcgm_variables_have_one_warning(node: Node) -> None:
    """Those of a version that is not known here; empty ones are none, as they are there."""
    variables = {"DCGM_EXPORTER_B": "1", "DCGM_EXPORTER_A": "2", "DCGM_EXPORTER_C": ""}
    done = node.once("--once", "--pod-resources-socket=", **variables)
    assert done.code == 0
    (line,) = done.err.splitlines()
    assert line.endswith(" warning DCGM_EXPORTER_A, DCGM_EXPORTER_B: unknown, ignored")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["sigterm", "sigint"])
def test_signal_stops_the_exporter(number: signal.Signals, node: Node) -> None:
    """A signal ends it cleanly."""
    with node.exporting(pods=False) as running:
        assert running.stop(number) == 0
        assert running.messages("stopping") == ["stopping"]


@pytest.mark.parametrize(
    ("number", "flags", "code"),
    [
        pytest.param(signal.SIGTERM, [], 0, id="sigterm"),
        pytest.param(signal.SIGINT, [], 0, id="sigint"),
        pytest.param(signal.SIGTERM, ["--once"], -signal.SIGTERM, id="once"),
    ],
)
def test_signal_during_loading_stops_the_exporter(
    number: signal.Signals, flags: list[str], code: int, node: Node
) -> None:
    """A signal that comes while the program is being loaded has the effect that it has later."""
    command = node.command("--listen=127.0.0.1:0", "--pod-resources-socket=", *flags)[3:]
    done = ended([sys.executable, "-c", EARLY, str(int(number)), *command], node.environment())
    assert done.code == code
    assert "Traceback" not in done.err


def test_sighup_during_loading_is_harmless(node: Node) -> None:
    """SIGHUP asks for the newest files, which are what is read at the start."""
    command = node.command("--listen=127.0.0.1:0", "--pod-resources-socket=")[3:]
    started = [sys.executable, "-c", EARLY, str(int(signal.SIGHUP)), *command]
    with subprocess.Popen(started, env=node.environment(), stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert " serves " in process.stderr.readline()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


@pytest.mark.parametrize("function", ["nvmlDeviceGetPowerUsage", "nvmlDeviceGetCount_v2"])
def test_exporter_with_a_hung_driver_stops_within_five_seconds(function: str, node: Node) -> None:
    """A hung driver call does not keep the process."""
    with node.exporting(pods=False) as running:
        node.board.fault(function, hang=True)
        eventually(lambda: _in_trouble(running))
        before = time.monotonic()
        assert running.stop() == 0
        assert time.monotonic() - before < 5


def _in_trouble(running: Exporter) -> bool:
    return 0 in running.series("gpu_up").values() or 0 in running.series("gpu_exporter_nvml_up").values()


def test_exporter_with_a_driver_hung_at_start_stops(node: Node) -> None:
    """A driver that does not even initialise does not keep the process, either."""
    node.board.fault("nvmlInitWithFlags", hang=True)
    command = node.command("--listen=127.0.0.1:0", "--pod-resources-socket=")
    with subprocess.Popen(command, env=node.environment(), stderr=subprocess.PIPE) as process:
        # A second thread opens the driver; signals are handled before it starts.
        eventually(lambda: len(list(Path(f"/proc/{process.pid}/task").iterdir())) > 1)
        process.terminate()
        assert process.wait(PATIENCE_S) == 0


def test_exporter_serving_a_hung_driver_stops(node: Node) -> None:
    """Nor does it when that is already being served."""
    node.board.fault("nvmlInitWithFlags", hang=True)
    with node.exporting(pods=False, ready=False) as running:
        eventually(lambda: _in_trouble(running))
        assert running.stop() == 0


def test_text_log_has_time_level_and_message(node: Node) -> None:
    """The text format is time, level and message."""
    node.board.fault("nvmlDeviceGetPowerUsage", code=4)
    done = node.once("--once", "--pod-resources-socket=")
    (line,) = done.err.splitlines()
    assert line.split(" ", 1)[1] == (
        f"warning reading power of GPU 0 ({node.spec.gpu_uuid(0)}): the driver denies it to this user; series omitted"
    )


def test_hostname_that_is_not_utf_8_is_served(make_node: MakeNode) -> None:
    """The kernel takes any bytes; what is no text is replaced."""
    node = make_node(h100(1))
    program = (
        "import runpy, socket; socket.gethostname = lambda: 'n\\udcff1'; "
        "runpy.run_module('exporter', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", program, "--once", "--pod-resources-socket=", "--collectors=thermal"]
    done = ended(command, node.environment())
    assert done.code == 0
    assert 'hostname="n?1"' in done.out
