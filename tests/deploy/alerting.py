"""A real Prometheus with the alert rules in made-short time, and pages of metrics that a test writes.

An alert waits for minutes or hours. Here every duration of a group (`for`, windows, offsets, intervals, seconds that
are compared with) is divided by the group's factor; nothing else of a rule is changed, but for the budget, which is
the user's to set.
"""

import contextlib
import copy
import http.server
import json
import pathlib
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import yaml

from simulator.processes import Server

DEPLOY = pathlib.Path(__file__).parents[2] / "deploy/prometheus"
SCRAPE_S = 1
FACTORS = {
    "gpu-rightsizer-alerts-devices": 60,  # 10m are 10 s, 10 scrapes
    "gpu-rightsizer-alerts-xid": 60,
    "gpu-rightsizer-alerts-exporters": 40,  # readings that are 60 s old are 1.5 s old, 3 intervals
    "gpu-rightsizer-alerts-waste": 300,  # 4h are 48 s, 5m are 1 s
    "gpu-rightsizer-alerts-rightsizer": 200,
}
DASHBOARD_FACTOR = 60  # 5m are 5 s, 5 scrapes
BUDGET = 1
PATIENCE_S = 150.0
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"\b(\d+)([smhd])\b")


def _shorter(text: str, factor: float) -> str:
    return _DURATION.sub(lambda found: f"{round(int(found[1]) * _SECONDS[found[2]] * 1000 / factor)}ms", text)


def _expression(text: str, factor: float) -> str:
    compared = re.compile(r"(time\(\) - |_seconds > )([1-9]\d*)\b")
    text = compared.sub(lambda found: f"{found[1]}{int(found[2]) / factor:g}", text)
    return _shorter(text, factor).replace("vector(100)", f"vector({BUDGET})")


def scaled(group: Mapping[str, Any], factor: float) -> dict[str, Any]:
    """A group of rules whose time goes so many times faster."""
    found: dict[str, Any] = copy.deepcopy(dict(group))
    found["interval"] = _shorter(found.get("interval", f"{SCRAPE_S * factor}s"), factor)
    for rule in found["rules"]:
        rule["expr"] = _expression(rule["expr"], factor)
        if "for" in rule:
            rule["for"] = _shorter(rule["for"], factor)
    return found


def scaled_rules() -> dict[str, Any]:
    """The rules of alerts.yaml and of dashboard-rules.yaml."""
    alerts = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"]
    shapes = yaml.safe_load((DEPLOY / "dashboard-rules.yaml").read_text())["groups"]
    fast = [scaled(one, DASHBOARD_FACTOR) for one in shapes]
    return {"groups": [*fast, *(scaled(one, FACTORS[one["name"]]) for one in alerts)]}


class Alerting:
    """A Prometheus that scrapes these targets and evaluates the rules.

    Args:
        directory: For its files.
        jobs: Targets as host:port, by the name of their job.
    """

    def __init__(self, directory: pathlib.Path, jobs: Mapping[str, list[str]]) -> None:
        self._directory = directory
        directory.mkdir(parents=True)
        (directory / "rules.yml").write_text(yaml.safe_dump(scaled_rules()))
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "scrape_timeout": f"{SCRAPE_S}s"},
            "rule_files": ["rules.yml"],
            "scrape_configs": [
                {"job_name": job, "honor_labels": True, "static_configs": [{"targets": targets}]}
                for job, targets in jobs.items()
            ],
        }
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._server = Server(
            "alerting", self._command, ready_path="/-/ready", log=directory / "prometheus.log"
        )

    def _command(self, port: int) -> list[str]:
        flags = {
            "config.file": self._directory / "prometheus.yml",
            "storage.tsdb.path": self._directory / "data",
            "web.listen-address": f"127.0.0.1:{port}",
            "log.level": "warn",
        }
        return ["prometheus", *(f"--{name}={value}" for name, value in flags.items())]

    def __enter__(self) -> Self:
        self._server.start(timeout_s=60)
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop()

    def firing(self) -> list[dict[str, Any]]:
        """The alerts that fire now."""
        found = json.loads(self._server.get("/api/v1/alerts")[1])["data"]["alerts"]
        return [one for one in found if one["state"] == "firing"]

    def has(self, expression: str) -> bool:
        """Whether an expression has any result by now."""
        query = urllib.parse.urlencode({"query": expression})
        return bool(json.loads(self._server.get(f"/api/v1/query?{query}")[1])["data"]["result"])

    def until(self, holds: Callable[[set[str]], bool]) -> None:
        """Wait until this holds of what fires, as `told` has it."""
        end = time.monotonic() + PATIENCE_S
        while not holds(names := {told(one) for one in self.firing()}):
            assert time.monotonic() < end, sorted(names)
            time.sleep(0.2)

    def until_each(self, expected: set[str]) -> list[dict[str, Any]]:
        """Wait until each of these has fired, and nothing else has; the alerts, each as it was first seen."""
        end = time.monotonic() + PATIENCE_S
        seen: dict[str, dict[str, Any]] = {}
        while not seen.keys() >= expected:
            seen = {told(one): one for one in self.firing()} | seen
            assert seen.keys() <= expected, sorted(seen.keys() - expected)
            assert time.monotonic() < end, f"not seen: {sorted(expected - seen.keys())}"
            time.sleep(0.2)
        return list(seen.values())


def told(alert: Mapping[str, Any]) -> str:
    """An alert by its name, the GPU that it is about, and its XID error or collector."""
    labels = alert["labels"]
    parts = [labels[name] for name in ("alertname", "gpu", "xid", "cause") if name in labels]
    return " ".join(parts)


class Page:
    """A server of metrics that stands still until the test writes others; without any it fails."""

    def __init__(self, text: str) -> None:
        self.text = text

    @contextlib.contextmanager
    def served(self) -> Iterator[str]:
        """Its address."""
        page = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                with contextlib.suppress(ConnectionError):  # a scrape that took too long
                    self.send_response(200 if page.text else 503)
                    self.send_header("Content-Type", "text/plain; version=0.0.4")
                    self.end_headers()
                    self.wfile.write(page.text.encode())

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
                pass

        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield f"127.0.0.1:{server.server_address[1]}"
            finally:
                server.shutdown()
                thread.join()
