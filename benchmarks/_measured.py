"""`gpu-rightsizer`, with each stage of a plan measured: what it took of the processor and of memory, and what it asked.

A program: the file for the figures, the process id of Prometheus, and then gpu-rightsizer's own arguments.
"""

import contextlib
import dataclasses
import datetime
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import rightsizer.cli.plan_command
import rightsizer.planning.measure
import rightsizer.planning.plan
from rightsizer.__main__ import main as gpu_rightsizer
from rightsizer.cli import plan_session
from rightsizer.kube.cluster import Cluster
from rightsizer.prometheus.transport import HttpTransport
from rightsizer.usage.usage_source import PrometheusUsage


@dataclasses.dataclass(slots=True)
class Stage:
    """What a stage took.

    Attributes:
        own_s: Seconds of the processor, of our process.
        server_s: The same of Prometheus's.
        wall_s: Seconds that passed.
        waited_s: Seconds for which answers were waited for or read; of several at a time each counts.
        peak_mib: The most resident memory while it lasted.
        queries: Sent to Prometheus, and `calls` to the API server.
        bytes: Of their answers.
    """

    name: str
    own_s: float = 0.0
    server_s: float = 0.0
    wall_s: float = 0.0
    waited_s: float = 0.0
    peak_mib: float = 0.0
    queries: int = 0
    calls: int = 0
    bytes: int = 0


class Meter:
    """Measures stages, one at a time; what happens between them counts as the rest."""

    def __init__(self, server: int) -> None:
        self._server = Path(f"/proc/{server}/stat")
        self.rest = Stage("rest")
        self.stages: list[Stage] = []
        self._now = self.rest
        self._began = self._clocks()

    def _clocks(self) -> tuple[float, float, float]:
        fields = self._server.read_text().rpartition(")")[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return time.process_time(), ticks / os.sysconf("SC_CLK_TCK"), time.monotonic()

    def switch(self, stage: Stage) -> Stage:
        """From now on it is this stage; which it was before."""
        ended, before = self._clocks(), self._now
        before.own_s += ended[0] - self._began[0]
        before.server_s += ended[1] - self._began[1]
        before.wall_s += ended[2] - self._began[2]
        before.peak_mib = max(before.peak_mib, _peak_mib())
        Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is resident now
        self._now, self._began = stage, ended
        return before

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """A stage."""
        self.stages.append(Stage(name))
        before = self.switch(self.stages[-1])
        try:
            yield
        finally:
            self.switch(before)

    def stage(self, owner: Any, attribute: str, name: str) -> None:  # noqa: ANN401
        """Measure whatever is called there."""
        called = getattr(owner, attribute)

        @functools.wraps(called)
        def measured(*given: Any, **named: Any) -> Any:  # noqa: ANN401
            words = f"{name}, {given[1] // _HOUR}h" if attribute == "usages" else name
            with self.during(words):
                return called(*given, **named)

        setattr(owner, attribute, measured)

    def asked(self, owner: Any, attribute: str, counter: str, size: Callable[[Any], int]) -> None:  # noqa: ANN401
        """Count what is asked there, and for how long the answer is waited for."""
        called = getattr(owner, attribute)

        @functools.wraps(called)
        def measured(*given: Any, **named: Any) -> Any:  # noqa: ANN401
            began = time.monotonic()
            answer = called(*given, **named)
            now = self._now
            now.waited_s += time.monotonic() - began
            setattr(now, counter, getattr(now, counter) + 1)
            now.bytes += size(answer)
            return answer

        setattr(owner, attribute, measured)


def _peak_mib() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


_HOUR = datetime.timedelta(hours=1)


def main() -> int:
    """Run the command that is given."""
    figures, server, *arguments = sys.argv[1:]
    meter = Meter(int(server))
    signal = PrometheusUsage
    for owner, attribute, name in (
        (plan_session, "read_cluster", "read"),
        (rightsizer.planning.plan, "build_fleet", "build the fleet"),
        (signal, "usages", "usages"),
        (signal, "nodes", "nodes"),
        (rightsizer.planning.measure, "followup_queries", "follow-up queries"),
        (signal, "waits", "waits"),
        (signal, "histories", "histories"),
        (signal, "concurrency", "concurrency"),
        (signal, "begins", "begins"),
        (rightsizer.planning.plan, "decide", "assess and decide"),
        (rightsizer.planning.plan, "within_budgets", "budgets"),
        (plan_session, "node_prices", "prices"),
        (plan_session, "cost_summary_of", "accounts"),
        (rightsizer.cli.plan_command, "_print", "render"),
    ):
        meter.stage(owner, attribute, name)
    meter.asked(HttpTransport, "send", "queries", lambda answer: len(answer[1]))
    meter.asked(Cluster, "_send", "calls", len)
    code = gpu_rightsizer(arguments)
    meter.switch(meter.rest)
    Path(figures).write_text(json.dumps([dataclasses.asdict(one) for one in (*meter.stages, meter.rest)]))
    return code


if __name__ == "__main__":
    sys.exit(main())
