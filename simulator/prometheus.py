"""A real Prometheus (2.42 or later) on this machine that scrapes the exporters and takes a written history."""

import contextlib
import dataclasses
import functools
import http.client
import itertools
import json
import os
import shutil
import signal
import struct
import time
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import cramjam
import yaml

from simulator.processes import ProcessError, Server

MAX_SAMPLES = 60_000
"""Samples per request: about 1 MB before compression."""
_SAMPLE = 0x12
_DOUBLE, _VARINT = b"\x09", b"\x10"


@dataclasses.dataclass(frozen=True, slots=True)
class Series:
    """A series: its labels with `__name__`, and a value for each of `seconds` (Unix time)."""

    labels: Mapping[str, str]
    seconds: range
    values: Sequence[float]


def write_requests(series: Iterable[Series]) -> Iterator[bytes]:
    """Bodies of write requests that together carry `series`."""
    parts: list[bytes] = []
    samples = 0
    for one in series:
        if one.seconds:
            parts.append(_field(0x0A, _timeseries(one)))
            samples += len(one.seconds)
        if samples >= MAX_SAMPLES:
            yield _compressed(parts)
            parts, samples = [], 0
    if parts:
        yield _compressed(parts)


def _compressed(parts: list[bytes]) -> bytes:
    return bytes(cramjam.snappy.compress_raw(b"".join(parts)))


def _timeseries(series: Series) -> bytes:
    labels = b"".join(_label(name, value) for name, value in sorted(series.labels.items()))
    times, layout, head = _times(series.seconds)
    values = zip(itertools.repeat(head), series.values, times, strict=False)
    return labels + layout.pack(*itertools.chain.from_iterable(values))


@functools.lru_cache(maxsize=64)
def _label(name: str, value: str) -> bytes:
    return _field(0x0A, _field(0x0A, name.encode()) + _field(0x12, value.encode()))


@functools.lru_cache(maxsize=64)
def _times(seconds: range) -> tuple[list[bytes], struct.Struct, bytes]:
    """For each sample its timestamp field; how a whole column is packed; and what each sample begins with."""
    times = [_VARINT + _varint(second * 1000) for second in seconds]
    width = len(times[0])
    if any(len(time) != width for time in times):
        raise ValueError(f"timestamps of unequal length from {seconds[0]} to {seconds[-1]}")
    head = bytes([_SAMPLE, len(_DOUBLE) + 8 + width]) + _DOUBLE
    return times, struct.Struct("<" + f"{len(head)}sd{width}s" * len(times)), head


def _field(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + _varint(len(body)) + body


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


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


class Prometheus:
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
        self._server = Server(
            "prometheus", self._command, ready_path="/-/ready", log=directory / "prometheus.log"
        )

    @property
    def url(self) -> str:
        """Where its HTTP API is."""
        return self._server.url

    @property
    def pid(self) -> int:
        """Its process id, while it runs."""
        return self._server.pid

    def start(self, *, timeout_s: float = 100.0) -> None:
        """Start it and wait until it answers."""
        if shutil.which(self._binary) is None:
            raise ProcessError(
                f"{self._binary} is not on the path; install it with: sudo apt-get install -y prometheus "
                "(and stop the service that Debian starts: sudo systemctl disable --now prometheus)"
            )
        self._write_config()
        self._server.start(timeout_s=timeout_s)

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

    def stop(self) -> None:
        """End it; its data stay."""
        self._server.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def query(self, expression: str, *, at_s: float | None = None) -> list[dict[str, Any]]:
        """The result of an instant query at `at_s` (Unix seconds; now by default)."""
        return self._ask("query", {"query": expression} | ({} if at_s is None else {"time": f"{at_s:.3f}"}))

    def query_range(self, expression: str, seconds: range) -> list[dict[str, Any]]:
        """The result of a range query at `seconds` (Unix time)."""
        span = {"start": f"{seconds[0]}", "end": f"{seconds[-1]}", "step": f"{seconds.step}"}
        return self._ask("query_range", {"query": expression, **span})

    def _ask(self, path: str, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
        answer = json.loads(self._server.get(f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")[1])
        if answer["status"] != "success":
            raise ProcessError(f"asking {self.url} for {parameters['query']}: {answer.get('error')}")
        return answer["data"]["result"]  # type: ignore[no-any-return]

    def write(self, series: Iterable[Series]) -> int:
        """Store `series` beside what is scraped; how many samples that were."""
        total = 0

        def counted() -> Iterable[Series]:
            nonlocal total
            for one in series:
                total += len(one.seconds)
                yield one

        with contextlib.closing(
            http.client.HTTPConnection("127.0.0.1", self._server.port, timeout=60)
        ) as connection:
            for body in write_requests(counted()):
                self._post(connection, body)
        return total

    def wait_for(self, expression: str, *, timeout_s: float = 100.0) -> list[dict[str, Any]]:
        """The result of `expression` as soon as there is one."""
        deadline = time.monotonic() + timeout_s
        while not (result := self.query(expression)):
            if time.monotonic() > deadline:
                raise ProcessError(f"{self.url} has no result for {expression} within {timeout_s:g} s")
            time.sleep(0.1)
        return result

    def _post(self, connection: http.client.HTTPConnection, body: bytes) -> None:
        headers = {
            "Content-Type": "application/x-protobuf",
            "Content-Encoding": "snappy",
            "X-Prometheus-Remote-Write-Version": "0.1.0",
        }
        connection.request("POST", "/api/v1/write", body=body, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace").strip()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise ProcessError(f"writing history to {self.url}: {answer.status} {text}")

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
