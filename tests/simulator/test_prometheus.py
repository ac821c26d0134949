"""A real Prometheus takes what is written, attaches labels as we say it does, and says what is wrong."""

import http.server
import math
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from simulator.processes import ProcessError
from simulator.prometheus import JOB, Prometheus, ScrapeTarget
from simulator.series_store import Series

pytestmark = pytest.mark.prometheus
NOW_S = int(time.time())

EXPOSITION = b"""\
# HELP gpu_busy Whether it is.
# TYPE gpu_busy gauge
gpu_busy{UUID="GPU-1",namespace="ml",pod="trainer",container="main"} 1
"""


@pytest.fixture(scope="module")
def exporter() -> Iterator[str]:
    """The address of something that serves an exposition."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(EXPOSITION)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_written_series_are_readable(prometheus: Prometheus) -> None:
    """Values, timestamps and labels arrive as they were given."""
    seconds = range(NOW_S - 7200, NOW_S, 15)
    values = [index / 3 for index in range(len(seconds))]
    written = prometheus.write([Series({"__name__": "kept", "café": "ü", "a": "1"}, seconds, values)])
    assert written == len(seconds)
    [found] = prometheus.query("kept[3h]", at_s=NOW_S)
    assert found["metric"] == {"__name__": "kept", "café": "ü", "a": "1"}
    assert [second for second, _ in found["values"]] == list(seconds)
    assert [float(value) for _, value in found["values"]] == pytest.approx(values)


def test_written_series_over_many_requests_are_complete(prometheus: Prometheus) -> None:
    """Series that do not fit into one request lose no sample."""
    seconds = range(NOW_S - 86400, NOW_S, 30)
    series = [
        Series({"__name__": "bulk", "n": str(n)}, seconds, [float(n)] * len(seconds)) for n in range(100)
    ]
    assert prometheus.write(series) == 100 * len(seconds)
    assert prometheus.query("sum(count_over_time(bulk[25h]))")[0]["value"][1] == str(100 * len(seconds))


def test_written_samples_older_than_present_are_accepted(prometheus: Prometheus) -> None:
    """Samples older than what a series already has are accepted."""
    labels = {"__name__": "backwards"}
    prometheus.write([Series(labels, range(NOW_S - 60, NOW_S, 15), [1.0] * 4)])
    prometheus.write([Series(labels, range(NOW_S - 86400, NOW_S - 86340, 15), [2.0] * 4)])
    assert prometheus.query("count_over_time(backwards[25h])", at_s=NOW_S)[0]["value"][1] == "8"


def test_refused_write_reports_reason(prometheus: Prometheus) -> None:
    """What Prometheus does not accept is an error that carries its words."""
    prometheus.write([Series({"__name__": "ancient"}, range(NOW_S, NOW_S + 15, 15), [1.0])])
    with pytest.raises(ProcessError, match=r"writing history to http://127.*: [45]00 too old sample"):
        prometheus.write([Series({"__name__": "ancient"}, range(1_000_000_000, 1_000_000_015, 15), [1.0])])
    with pytest.raises(ProcessError, match=r"for not\(valid: .*parse error"):
        prometheus.query("not(valid")


def test_wait_for_missing_result_raises_error(prometheus: Prometheus) -> None:
    """Waiting for an expression ends with an error that names it."""
    with pytest.raises(ProcessError, match="no result for never_seen within"):
        prometheus.wait_for("never_seen", timeout_s=0.2)


@pytest.mark.slow
@pytest.mark.parametrize("honor_labels", [False, True], ids=["exported_pod", "pod"])
def test_scraped_labels_equal_attached_labels(exporter: str, tmp_path: Path, *, honor_labels: bool) -> None:
    """In both label forms a scraped series has exactly the labels that `ScrapeTarget.attach` gives a written one."""
    target = ScrapeTarget(
        exporter, {"namespace": "gpu-monitoring", "pod": "exporter-1", "container": "e", "node": "a"}
    )
    with Prometheus(tmp_path, targets=[target], scrape_interval_s=1, honor_labels=honor_labels) as running:
        [scraped] = running.wait_for("gpu_busy")
        own = {"UUID": "GPU-1", "namespace": "ml", "pod": "trainer", "container": "main"}
        assert scraped["metric"] == target.attach({"__name__": "gpu_busy", **own}, honor_labels=honor_labels)
        assert scraped["metric"]["pod" if honor_labels else "exported_pod"] == "trainer"
        assert running.wait_for("up == 1")[0]["metric"]["job"] == JOB
        # Past and present of a series are one series.
        past = range(NOW_S - 3600, NOW_S - 1800, 15)
        running.write([Series(scraped["metric"], past, [1.0] * len(past))])
        assert len(running.query("max_over_time(gpu_busy[2h])")) == 1
        assert math.isclose(float(running.query("max_over_time(gpu_busy[2h])")[0]["value"][1]), 1)


def test_missing_prometheus_error_names_install_command(tmp_path: Path) -> None:
    """Where the program is missing, the error says which command brings it."""
    with pytest.raises(
        ProcessError, match=r"prometheus-that-is-not is not on the path.*apt-get install -y prometheus"
    ):
        Prometheus(tmp_path, binary="prometheus-that-is-not").start()


def test_failing_prometheus_reports_its_log(tmp_path: Path) -> None:
    """An unusable data directory ends the start with Prometheus's own words."""
    (tmp_path / "data").write_text("not a directory")
    with pytest.raises(ProcessError, match=r"prometheus ended at start.*\n(.*\n)*.*not a directory"):
        Prometheus(tmp_path).start()
