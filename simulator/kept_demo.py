"""What watches the demo's cluster while it is kept: kube-state-metrics' series, rules, alerts, `run`, the dashboard."""

import contextlib
import functools
import http.server
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from dashboards.rows import ROWS
from simulator.dashboard_page import page
from simulator.kube_state import JOB, KINDS, Objects, exposition, kube_state_end, kube_state_past
from simulator.kubeclient import KubeClient, KubeClientError
from simulator.processes import ProcessError, Server, free_port
from simulator.prometheus import Prometheus
from simulator.recorded_rules import RULES, record

_RULES = tuple(RULES.parent / name for name in (RULES.name, "recording-rules.yaml", "alerts.yaml"))
_PAST_S = 2 * 3600
_REFRESH_S = 30
_EVERY = "1m"


def objects_of(client: KubeClient) -> Objects:
    """What kube-state-metrics reads."""
    return {kind: client.get(path)["items"] for kind, path in KINDS.items()}


class KeptDemo:
    """A context manager; `run` only plans, so that the person at the terminal may apply.

    Args:
        directory: For the log of `run`.
        client: Of the API server.
        prometheus: Reads rules and scrapes everything here.
        settings: Environment of gpu-rightsizer.
        before: The objects before the demo's changes.
        changed_s: When those were made, in Unix time.

    Attributes:
        ledger: Where `run` keeps its cycles.
    """

    def __init__(
        self,
        directory: Path,
        client: KubeClient,
        prometheus: Prometheus,
        settings: Mapping[str, str],
        *,
        before: Objects,
        changed_s: float,
    ) -> None:
        self._before = before
        self._changed_s = changed_s
        self.ledger = directory.resolve() / "ledger"
        self._prometheus = prometheus
        self._client = client
        port = free_port()
        self._address = f"127.0.0.1:{port}"
        self._pages = http.server.ThreadingHTTPServer(
            ("127.0.0.1", port),
            functools.partial(_Handler, {"/": self._dashboard, "/metrics": self._kube_state}),
        )
        self.run = Server(
            "gpu-rightsizer run",
            lambda port: [
                *(sys.executable, "-m", "rightsizer", "run", "--every", _EVERY),
                *("--listen", f"127.0.0.1:{port}", "--log-level", "info"),
                *("--ledger", str(self.ledger)),
            ],
            ready_path="/healthz",
            log=directory / "run.log",
            env={**os.environ, **settings},
        )
        self._stack = contextlib.ExitStack()

    @property
    def dashboard_url(self) -> str:
        """Where the dashboard is."""
        return f"http://{self._address}/"

    def __enter__(self) -> Self:
        with self._stack:
            threading.Thread(target=self._pages.serve_forever, name="dashboard", daemon=True).start()
            self._stack.callback(self._pages.shutdown)
            self._stack.callback(self.run.stop)
            self.run.start()
            self._record_past()
            self._prometheus.rule_files = _RULES
            self._prometheus.more_jobs = {JOB: self._address, "gpu-rightsizer": self.run.address}
            self._prometheus.reload()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _record_past(self) -> None:
        """Results of before and after the demo's changes, until the rules have their own."""
        now_s, after = int(time.time()), objects_of(self._client)
        # The last of them is now: what the changes ended is not there any more.
        minutes = range(now_s - _PAST_S, now_s + 1, 60)
        unchanged = range(minutes.start, int(self._changed_s), 60)
        self._prometheus.write(
            [
                *kube_state_past(self._before, unchanged),
                *kube_state_end(self._before, after, unchanged[-1] + 1),
                *kube_state_past(after, range(unchanged[-1] + 60, minutes.stop, 60)),
            ]
        )
        record(self._prometheus, minutes)

    def _dashboard(self) -> tuple[str, str]:
        now_s = int(time.time()) // 60 * 60
        minutes = range(now_s - _PAST_S, now_s + 1, 60)
        return "text/html; charset=utf-8", page(ROWS, self._prometheus, minutes, refresh_s=_REFRESH_S)

    def _kube_state(self) -> tuple[str, str]:
        return "text/plain; version=0.0.4; charset=utf-8", exposition(objects_of(self._client))


class _Handler(http.server.BaseHTTPRequestHandler):
    def __init__(
        self, pages: Mapping[str, Callable[[], tuple[str, str]]], *args: object, **more: object
    ) -> None:
        self._pages = pages
        super().__init__(*args, **more)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        """Answer with the page, or say that there is none."""
        code, kind = 200, "text/plain; charset=utf-8"
        try:
            kind, text = self._pages[self.path]()
        except KeyError:
            code, text = 404, f"here are {' and '.join(self._pages)}\n"
        except (OSError, KubeClientError, ProcessError) as error:
            code, text = 503, f"{error}\n"
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - BaseHTTPRequestHandler's name
        """Nothing on stderr."""
