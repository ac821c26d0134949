"""A real Prometheus (2.42 or later) on this machine that scrapes the exporters and takes a written history."""

import dataclasses
import json
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from simulator.processes import ProcessError, Server
from simulator.series_store import SeriesStore

JOB = "gpu-exporter"


@dataclasses.dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """An exporter to scrape: host:port, and the labels that service discovery adds."""

    address: str
    labels: Mapping[str, str]

    def attach(self, labels: Mapping[str, str], *, honor_labels: bool) -> dict[str, str]:
        """The labels of a series as Prometheus stores it: where both have one, one of them becomes exported_*."""
        mine = {"job": JOB, "instance": self.address, **self.labels}
        if honor_labels:
            return {**mine, **labels}
        moved = {(f"exported_{name}" if name in mine else name): value for name, value in labels.items()}
        return {**moved, **mine}


class Prometheus(SeriesStore):
    """A Prometheus process.

    Args:
        directory: For its configuration, data and log.
        targets: What it scrapes.
        scrape_interval_s: Scrape interval.
        honor_labels: Whether a series' own labels override the target's; by default a pod arrives as exported_pod.
        binary: Name or path of the program.
        flags: More flags, such as query.max-samples.
    """

    def __init__(
        self,
        directory: Path,
        *,
        targets: Sequence[ScrapeTarget] = (),
        scrape_interval_s: int = 15,
        honor_labels: bool = False,
        binary: str = "prometheus",
        flags: Mapping[str, str] | None = None,
    ) -> None:
        self.rule_files: Sequence[Path] = ()  # of rules that it evaluates; set before it starts, or reload
        self.more_jobs: Mapping[
            str, str
        ] = {}  # host:port of one more target by job, whose labels are kept; likewise
        self.directory = directory
        self.targets = tuple(targets)
        self.scrape_interval_s = scrape_interval_s
        self.honor_labels = honor_labels
        self._binary = binary
        self._flags = dict(flags or {})
        log = directory / "prometheus.log"
        super().__init__(Server("prometheus", self._command, ready_path="/-/ready", log=log))

    def start(self, *, timeout_s: float = 100.0) -> None:
        """Start it and wait until it answers."""
        if shutil.which(self._binary) is None:
            raise ProcessError(
                f"{self._binary} is not on the path; install it with: sudo apt-get install -y prometheus "
                "(and stop the service that Debian starts: sudo systemctl disable --now prometheus)"
            )
        self._write_config()
        super().start(timeout_s=timeout_s)

    def reload(self, *, timeout_s: float = 100.0) -> None:
        """Read the configuration again, with changed rules and jobs; wait until they are there."""
        self._write_config()
        os.kill(self.pid, signal.SIGHUP)
        deadline = time.monotonic() + timeout_s
        while not self.more_jobs.keys() <= self._jobs():
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.url} has not read its configuration within {timeout_s:g} s")
            time.sleep(0.1)

    def _jobs(self) -> set[str]:
        targets = json.loads(self._server.get("/api/v1/targets?state=active")[1])["data"]["activeTargets"]
        return {target["scrapePool"] for target in targets}

    def _write_config(self) -> None:
        scrape = {
            "job_name": JOB,
            "honor_labels": self.honor_labels,
            "static_configs": [
                {"targets": [target.address], "labels": dict(target.labels)} for target in self.targets
            ],
        }
        more = [
            {"job_name": job, "honor_labels": True, "static_configs": [{"targets": [address]}]}
            for job, address in self.more_jobs.items()
        ]
        interval = f"{self.scrape_interval_s}s"
        timeout = f"{min(10, self.scrape_interval_s)}s"
        config = {
            "global": {
                "scrape_interval": interval,
                "scrape_timeout": timeout,
                "evaluation_interval": interval,
            },
            "rule_files": [str(path.resolve()) for path in self.rule_files],
            "scrape_configs": [scrape, *more],
            # What is written about the past is older than what has just been scraped.
            "storage": {"tsdb": {"out_of_order_time_window": "30d"}},
        }
        self.directory.mkdir(parents=True, exist_ok=True)
        (self.directory / "prometheus.yml").write_text(yaml.safe_dump(config, sort_keys=False))

    def _command(self, port: int) -> list[str]:
        flags = {
            "config.file": self.directory / "prometheus.yml",
            "storage.tsdb.path": self.directory / "data",
            "storage.tsdb.retention.time": "40d",
            # A past that is written at once would be cut into blocks at once, under the queries that come next;
            # 2.42 then answers some of them with "cannot populate chunk".
            "storage.tsdb.min-block-duration": "40d",
            "storage.tsdb.max-block-duration": "40d",
            "web.listen-address": f"127.0.0.1:{port}",
            "log.level": "warn",
            **self._flags,
        }
        switches = ["--web.enable-remote-write-receiver"]
        return [self._binary, *(f"--{name}={value}" for name, value in flags.items()), *switches]
