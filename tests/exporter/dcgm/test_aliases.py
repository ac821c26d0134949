"""What somebody typed for dcgm-exporter: taken as it was meant, or ignored with a warning."""

import re
import signal
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.dcgm.aliases import Ignored, Supported, dcgm_flags
from exporter.settings import GivenFlags, all_settings, flag, resolve
from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import PATIENCE_S, Exporter, Node, h100, pod

pytestmark = pytest.mark.driver

UTIL = "DCGM_FI_DEV_GPU_UTIL"
USED = "DCGM_FI_DEV_FB_USED"
GUIDE = Path(__file__).parents[3] / "docs/from-dcgm-exporter.md"


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """One GPU, held by a pod."""
    node = make_node(h100(1))
    node.pods.append(pod("trainer", node.spec.gpu_uuid(0)))
    node.kubelet.start()
    return node


def test_dcgm_charts_arguments_and_variables_start(node: Node, tmp_path: Path) -> None:
    """As in dcgm-exporter's own DaemonSet and chart, with an address that is free."""
    path = tmp_path / "dcgm-metrics.csv"
    path.write_text(
        "DCGM_FI_DEV_GPU_UTIL, gauge, GPU utilization (in %).\nDCGM_FI_DRIVER_VERSION, label, Driver\n"
    )
    done = node.once(
        "--once",
        "-f",
        str(path),
        DCGM_EXPORTER_LISTEN=":9400",
        DCGM_EXPORTER_KUBERNETES="true",
        DCGM_EXPORTER_INTERVAL="30000",
        DCGM_POD_RESOURCES_KUBELET_SOCKET=str(node.kubelet.socket),
        DCGM_EXPORTER_CONFIGMAP_DATA="none",
        DCGM_REMOTE_HOSTENGINE_INFO="",
        NODE_NAME="node-7",
    )
    assert (done.code, done.err) == (0, "")
    (line,) = [line for line in done.out.splitlines() if line.startswith(UTIL)]
    for label in ('hostname="node-7"', 'DCGM_FI_DRIVER_VERSION="570.133.20"', 'pod="trainer"'):
        assert label in line


@pytest.mark.parametrize(
    ("flags", "environment", "is_read"),
    [
        ({}, {"DCGM_EXPORTER_LISTEN": ":9400"}, True),
        ({"naming": "both"}, {"DCGM_EXPORTER_KUBERNETES": "true"}, True),
        ({}, {"DCGM_EXPORTER_KUBERNETES": ""}, False),
        ({}, {"DCGM_EXPORTER_SERVICE_HOST": "10.96.0.7"}, False),
        ({}, {"GPU_EXPORTER_LISTEN": ":9400"}, False),
        ({"metrics": "full"}, {"DCGM_EXPORTER_LISTEN": ":9400"}, False),
        ({}, {"DCGM_EXPORTER_LISTEN": ":9400", "GPU_EXPORTER_COLLECTORS": "power"}, False),
    ],
)
def test_list_at_dcgm_exporters_default_path_is_read_under_its_manifests(
    flags: dict[str, str], environment: dict[str, str], is_read: bool
) -> None:
    """Its chart mounts `customMetrics` there since 4.8.3, and sets no `-f`."""
    settings = resolve(GivenFlags(flags, {}), environment, collectors=("power",))
    assert settings.metrics_file == ("/etc/dcgm-exporter/default-counters.csv" if is_read else "")
    assert "metrics_file" not in settings.given


def test_dcgm_short_flags_keep_their_meaning(make_node: MakeNode, tmp_path: Path) -> None:
    """-a, -c in milliseconds, -k, -n, -d, -f, -rbmn, and long flags with one dash, as Go's programs take them."""
    node = make_node(h100(2))
    path = tmp_path / "c.csv"
    path.write_text("DCGM_FI_DEV_GPU_UTIL, gauge, x\n")
    with node.exporting(
        "-a", "127.0.0.1:0", "-c=250", "-k=true", "-n", "-d", "g:1", "-f", str(path), "-rbmn", "-debug=false",
        pods=False,
    ) as exporter:  # fmt: skip
        labels = ("gpu", "modelName", "hostname")
        assert exporter.series(UTIL, *labels).keys() == {("1", "NVIDIA-H100-80GB-HBM3", "")}
        assert exporter.series("gpu_up", "gpu", "hostname") == {("1", ""): 1}


@pytest.mark.slow
def test_kubernetes_flag_set_to_false_turns_pods_off(node: Node) -> None:
    """By flag or variable, though there is a kubelet; switched on it says nothing new."""
    socket = f"--pod-resources-kubelet-socket={node.kubelet.socket}"
    assert 'pod="trainer"' in node.once("--once", socket, "--kubernetes").out
    assert "pod=" not in node.once("--once", socket, "--kubernetes=false").out
    named = {"DCGM_POD_RESOURCES_KUBELET_SOCKET": str(node.kubelet.socket)}
    assert "pod=" not in node.once("--once", DCGM_EXPORTER_KUBERNETES="false", **named).out
    assert 'pod="trainer"' in node.once("--once", DCGM_EXPORTER_KUBERNETES="true", **named).out


def test_resource_names_add_other_resources(node: Node) -> None:
    """Pods that hold a GPU under a name that is not nvidia.com's."""
    node.pods[:] = [pod("renamed", node.spec.gpu_uuid(0), resource="gpu.example.com/h100")]
    socket = f"--pod-resources-socket={node.kubelet.socket}"
    assert "pod=" not in node.once("--once", socket).out
    for flag_ in ("--nvidia-resource-names", "--resource-names"):
        assert 'pod="renamed"' in node.once("--once", socket, flag_, "a.example/x, gpu.example.com/h100").out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ("f", {"0:", "0:first", "0:second", "1:", "2:", "2:third"}),
        ("g", {"0:", "1:", "2:"}),
        ("g:0,2", {"0:", "2:"}),
        ("g:1-2", {"1:", "2:"}),
        ("i", {"0:first", "0:second", "2:third"}),
        ("i:1,16", {"0:second", "2:third"}),
        ("i:0-1", {"0:first", "0:second"}),
        ("g+i", {"0:", "0:first", "0:second", "1:", "2:", "2:third"}),
        ("g:1+i:16", {"1:", "2:third"}),
        ("i:0.SECOND", {"0:second"}),
    ],
)
def test_devices_flag_selects_by_dcgms_numbers(make_node: MakeNode, devices: str, expected: set[str]) -> None:
    """GPUs by index; MIG instances by DCGM's number, eight to a GPU, or by GPU and GPU_I_ID."""
    gpus = (("3g.20gb", "2g.10gb"), (), ("3g.20gb",))
    node = make_node(NodeSpec("mig", tuple(GpuSpec("A100-SXM4-40GB", profiles) for profiles in gpus)))
    with node.exporting(pods=False) as exporter:
        found = sorted(key for key in exporter.series(USED, "gpu", "GPU_I_ID") if key[1])
    names = dict(zip(found, ("first", "second", "third"), strict=True))
    second = found[1][1]
    with node.exporting("--devices", devices.replace("SECOND", second), pods=False) as exporter:
        served = exporter.series(USED, "gpu", "GPU_I_ID").keys()
        assert {f"{gpu}:{names.get((gpu, number), '')}" for gpu, number in served} == expected
        assert exporter.messages("which --devices names") == []


def test_selected_gpu_that_is_missing_is_reported(make_node: MakeNode) -> None:
    """Once in the log, and as a failure of discovery; the others are served."""
    node = make_node(h100(2))
    with node.exporting("-d", "g:1,5", pods=False) as exporter:
        assert list(exporter.series(UTIL, "gpu")) == [("1",)]
        assert exporter.messages("GPU 5") == [
            "GPU 5, which --devices names, is not among 2 GPUs; series omitted"
        ]
        assert exporter.series("gpu_exporter_collector_success", "collector")["discovery",] == 0


def test_selected_instance_that_is_missing_is_reported(make_node: MakeNode) -> None:
    """By DCGM's number or by GPU and GPU_I_ID, each by the name that was given."""
    node = make_node(NodeSpec("mig", (GpuSpec("A100-SXM4-40GB", ("3g.20gb",)),)))
    with node.exporting("-d", "i:0,3,0.13", pods=False) as exporter:
        assert len(exporter.series(USED, "GPU_I_ID")) == 1
        for name in ("i:3", "i:0.13"):
            message = f"{name}, which --devices names, is not on GPU 0; series omitted"
            assert exporter.messages(f"{name},") == [message]


DEVICES = (
    "is not a device selection; write f for all, g for GPUs, i for MIG instances, g:0,2-3 or i:0,8 for some of them, "
    "or i:0.3 for instance 3 (GPU_I_ID) of GPU 0"
)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-d", "x"], f'-d "x": {DEVICES}'),
        (["--devices", "g:"], f'--devices "g:": {DEVICES}'),
        (["--devices", "f:0"], f'--devices "f:0": {DEVICES}'),
        (["--devices", ""], f'--devices "": {DEVICES}'),
        (["-d", "g:3-1"], '-d "g:3-1": the range 3-1 ends before it begins'),
        (
            ["-c", "1s"],
            '-c "1s": is not a whole number of milliseconds, which is dcgm-exporter\'s form of an interval',
        ),
        (["-k=perhaps"], '-k "perhaps": must be true or false'),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_invalid_value_of_dcgm_flag_is_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit 2, in words that name the flag as it was typed."""
    assert main(flags) == 2
    assert capsys.readouterr() == ("", f"error: {message}\nsee gpu-exporter --help\n")


QUIET = {"-r": "", "--kubernetes-gpu-id-type": "uid", "-p": "f", "-s": "f", "--dcgm-log-level": "NONE"}


def test_ignored_dcgm_flag_has_one_warning(node: Node) -> None:
    """Each ignored flag starts with one warning; with a value that asks for nothing, or false, with none."""
    ignored = [each for each in dcgm_flags() if isinstance(each.handling, Ignored)]
    loud = [argument for each in ignored for argument in _typed(each.names[0], "7", is_switch=each.is_switch)]
    done = node.once("--once", "--pod-resources-socket=", *loud)
    assert done.code == 0, done.err
    warnings = [line.split(" warning ")[1] for line in done.err.splitlines()]
    assert [line.split()[0] for line in warnings] == [each.names[0] for each in ignored]
    assert all(" is ignored; in dcgm-exporter it " in line for line in warnings)
    quiet = [f"{each.names[0]}=false" for each in ignored if each.is_switch]
    quiet += [argument for pair in QUIET.items() for argument in pair]
    assert node.once("--once", "--pod-resources-socket=", *quiet).err == ""


def _typed(name: str, value: str, *, is_switch: bool) -> list[str]:
    return [name] if is_switch else [name, value]


def test_ignored_dcgm_variable_has_a_warning(node: Node) -> None:
    """The GPU operator sets the host engine's address."""
    done = node.once("--once", "--pod-resources-socket=", DCGM_REMOTE_HOSTENGINE_INFO="nvidia-dcgm:5555")
    assert done.code == 0
    assert (
        "DCGM_REMOTE_HOSTENGINE_INFO is ignored; in dcgm-exporter it reads the GPUs of a DCGM host engine: run "
        "gpu-exporter on the machine with the GPUs" in done.err
    )


def test_empty_dcgm_variable_is_ignored(node: Node) -> None:
    """As it is there."""
    done = node.once("--once", "--pod-resources-socket=", DCGM_EXPORTER_LISTEN="", DCGM_EXPORTER_INTERVAL="")
    assert (done.code, done.err) == (0, "")


def test_dcgm_flags_are_complete_and_distinct() -> None:
    """No name or variable twice, none that is ours with another meaning, and what is the same has a setting."""
    names = [name for each in dcgm_flags() for name in each.names]
    variables = [each.variable for each in dcgm_flags()]
    assert len(set(names)) == len(names)
    assert len(set(variables)) == len(variables)
    settings = {flag(name): setting for name, setting in all_settings().items()}
    known = {variable for setting in settings.values() for variable in setting.dcgm}
    assert {each.variable for each in dcgm_flags() if isinstance(each.handling, Supported)} == known - {
        "NODE_NAME"
    }
    for each in dcgm_flags():
        for name in set(each.names) & settings.keys():
            assert name == "--collectors" or each.variable in settings[name].dcgm


def test_migration_guide_lists_every_supported_flag() -> None:
    """docs/from-dcgm-exporter.md names each flag and each variable that has an effect."""
    text = GUIDE.read_text()
    flags = [flag for flag in dcgm_flags() if isinstance(flag.handling, Supported)]
    assert [name for flag in flags for name in (*flag.names, flag.variable) if f"`{name}`" not in text] == []


def test_signals_during_start_are_not_lost(node: Node) -> None:
    """Told to stop, or to read again and then to stop, as soon as it serves."""
    for numbers in ([signal.SIGTERM], [signal.SIGHUP, signal.SIGTERM]):
        with node.exporting(ready=False) as exporter:
            assert re.match(r"http://", exporter.url)
            for number in numbers:
                exporter.process.send_signal(number)
            assert _ends(exporter)


def _ends(exporter: Exporter) -> bool:
    return exporter.process.wait(PATIENCE_S) == 0
