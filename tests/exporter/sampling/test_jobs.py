"""Jobs of a batch system: files that its prolog writes become copies of a device's series with the label hpc_job."""

import os
from pathlib import Path

import pytest

from simulator.spec import GpuSpec, NodeSpec
from tests.exporter.conftest import MakeNode
from tests.exporter.rig import Exporter, Node, eventually, h100, pod, reading

pytestmark = pytest.mark.driver

UTIL = "DCGM_FI_DEV_GPU_UTIL"
USED = "DCGM_FI_DEV_FB_USED"


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """The directory of the prolog."""
    folder = tmp_path / "jobs"
    folder.mkdir()
    return folder


@pytest.fixture
def node(make_node: MakeNode) -> Node:
    """Two GPUs, the first at work."""
    node = make_node(h100(2))
    node.board.set_gpu(0, reading())
    return node


def _jobs(exporter: Exporter, name: str = UTIL) -> list[tuple[str, ...]]:
    """GPU and job of each series."""
    return sorted(exporter.series(name, "gpu", "hpc_job"))


def test_job_has_a_copy_of_its_devices_series(node: Node, jobs: Path) -> None:
    """With the device's values; a device without jobs has its series without the label."""
    (jobs / "0").write_text("4711\n4712\n")
    with node.exporting(f"--hpc-job-mapping-dir={jobs}", pods=False) as exporter:
        assert exporter.series(UTIL, "gpu", "hpc_job") == {("0", "4711"): 87, ("0", "4712"): 87, ("1", ""): 0}
        assert not any(key for (key,) in exporter.series("gpu_up", "hpc_job"))


def test_job_files_are_read_each_cycle(node: Node, jobs: Path) -> None:
    """A file that is written, changed or removed shows in the next cycle; so does the directory."""
    jobs.rmdir()
    with node.exporting(f"--hpc-job-mapping-dir={jobs}", pods=False) as exporter:
        assert _jobs(exporter) == [("0", ""), ("1", "")]
        assert exporter.messages(f"{jobs}: cannot be listed: no such file or directory")
        jobs.mkdir()
        (jobs / "1").write_text("a")
        eventually(lambda: _jobs(exporter) == [("0", ""), ("1", "a")])
        (jobs / "1").write_text("b\nc")
        eventually(lambda: _jobs(exporter) == [("0", ""), ("1", "b"), ("1", "c")])
        (jobs / "1").unlink()
        eventually(lambda: _jobs(exporter) == [("0", ""), ("1", "")])


def test_instance_has_its_own_jobs(make_node: MakeNode, jobs: Path) -> None:
    """`0.1` is GPU instance 1 of GPU 0; jobs on the whole GPU are not copied to its instances."""
    node = make_node(NodeSpec("mig", (GpuSpec("A100-SXM4-40GB", ("3g.20gb", "2g.10gb")),)))
    (jobs / "0").write_text("whole")
    with node.exporting(f"--hpc-job-mapping-dir={jobs}", pods=False) as exporter:
        numbers = {number for (number,) in exporter.series(USED, "GPU_I_ID")}
        first, second = sorted(numbers - {""})
        (jobs / f"0.{first}").write_text("part")
        expected = {("", "whole"), (first, "part"), (second, "")}
        eventually(lambda: exporter.series(USED, "GPU_I_ID", "hpc_job").keys() == expected)


def test_invalid_job_file_costs_only_itself(node: Node, jobs: Path) -> None:
    """Other names, directories, pipes, huge files, too many jobs: said once, and the rest goes on."""
    (jobs / "0").write_text("good")
    (jobs / "README").write_text("x")
    (jobs / "00").write_text("x")
    (jobs / "1").write_bytes(b"x" * (64 * 1024 + 1))
    (jobs / "2").mkdir()
    os.mkfifo(jobs / "3")
    (jobs / "4").write_text("\n".join(map(str, range(101))))
    (jobs / "5").symlink_to("nowhere")
    with node.exporting(f"--hpc-job-mapping-dir={jobs}", pods=False) as exporter:
        assert _jobs(exporter) == [("0", "good"), ("1", "")]
        for message in (
            f'{jobs}/README: the name is not a GPU such as "0" or "0.3"; ignored',
            f'{jobs}/00: the name is not a GPU such as "0" or "0.3"; ignored',
            f"{jobs}/1: larger than 64 KiB; its jobs are omitted",
            f"{jobs}/2: not a file; its jobs are omitted",
            f"{jobs}/3: not a file; its jobs are omitted",
            f"{jobs}/4: 101 jobs, more than 100 per device; its jobs are omitted",
            f"{jobs}/5: a link, which is not followed; its jobs are omitted",
        ):
            assert exporter.messages(message) == [message]
        (jobs / "1").write_text("now")
        eventually(lambda: _jobs(exporter) == [("0", "good"), ("1", "now")])
        assert len(exporter.messages("README")) == 1


def test_job_ids_are_cleaned(node: Node, jobs: Path) -> None:
    """Blank lines, blanks, control characters and bytes that are no UTF-8 go; repetitions and lengths are cut."""
    (jobs / "0").write_bytes(b"\n  \n 17 \r\n17\n\xff\xfe\n\x00\x07\n" + b"y" * 300 + b'\nquote"back\\\n')
    with node.exporting(f"--hpc-job-mapping-dir={jobs}", pods=False) as exporter:
        found = {job for gpu, job in _jobs(exporter) if gpu == "0"}
        assert found == {"17", "\ufffd\ufffd", "y" * 256, 'quote"back\\'}


def test_jobs_and_pods_have_a_series_per_pair(node: Node, jobs: Path) -> None:
    """A device that pods share and jobs share has a series for each pair, with labels in DCGM's order."""
    first = node.spec.gpu_uuid(0)
    node.pods += [pod("a", f"{first}::0"), pod("b", f"{first}::1")]
    node.kubelet.start()
    (jobs / "0").write_text("1\n2\n")
    with node.exporting(f"--hpc-job-mapping-dir={jobs}") as exporter:
        assert exporter.series(UTIL, "gpu", "pod", "hpc_job").keys() == {
            ("0", "a", "1"),
            ("0", "a", "2"),
            ("0", "b", "1"),
            ("0", "b", "2"),
            ("1", "", ""),
        }
        _, text = exporter.get("/metrics")
        assert 'container="main",hpc_job="1",namespace="ml",pod="a"}' in text


def test_job_directory_is_set_by_either_variable(node: Node, jobs: Path) -> None:
    """dcgm-exporter's or gpu-exporter's."""
    (jobs / "0").write_text("7")
    for name in ("DCGM_HPC_JOB_MAPPING_DIR", "GPU_EXPORTER_HPC_JOB_MAPPING_DIR"):
        done = node.once("--once", "--pod-resources-socket=", **{name: str(jobs)})
        assert 'hpc_job="7"' in done.out


def test_job_file_links_are_not_followed(node: Node, jobs: Path, tmp_path: Path) -> None:
    """Whoever may write here shall not publish what only the exporter may read."""
    (tmp_path / "secret").write_text("hunter2")
    (jobs / "0").symlink_to(tmp_path / "secret")
    done = node.once("--once", "--pod-resources-socket=", f"--hpc-job-mapping-dir={jobs}")
    assert "hunter2" not in done.out
    assert "a link, which is not followed" in done.err
