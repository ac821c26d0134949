"""A program that looks at the devices of a node as the exporter's sampler does, and says what each look costs it.

Its lines of input are "look", for what is done between the cycles, and "cycle", for reading everything; its lines of
output the seconds of CPU time, of the program's own and of the kernel's, that this took.
"""

import os
import sys
import time
from pathlib import Path

from exporter.attribution.attributor import Attributor, HostContext
from exporter.attribution.podnames import PodLogFolders
from exporter.attribution.procfs import ProcessScanner
from exporter.model import ALL_DEVICES, MetricSet
from exporter.nvml.meter import Clocks
from exporter.nvml.session import Session
from exporter.pods.podresources import Kubelet
from exporter.pods.tracker import PodAssignments, PodTracker
from exporter.sampling import catalogue
from exporter.sampling.catalogue import EnabledCollectors
from exporter.sampling.sweep import GpuReader

_LONGEST_S = 3600.0


def main(socket: str, proc: str, logs: str) -> None:
    """Look as often as told."""
    session = Session(Clocks(time.monotonic_ns, time.time_ns))
    known = (collector.within(MetricSet.DEFAULT) for collector in catalogue.collectors().values())
    enabled = EnabledCollectors(tuple(collector for collector in known if collector.rows))
    gpus = GpuReader(session, enabled, ALL_DEVICES, clock=time.monotonic)
    host = HostContext(
        ProcessScanner(Path(proc)),
        PodLogFolders(Path(logs)),
        lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        time.time_ns,
        os.sysconf("SC_CLK_TCK"),
    )
    attributor = Attributor(gpus.observe, host, session.usage)
    pods = PodTracker(Kubelet(Path(socket), required=True, clock=time.monotonic))
    gpus.open().result()
    attribution = PodAssignments(up=None)
    until = time.monotonic() + _LONGEST_S
    for line in sys.stdin:
        began = time.process_time()
        attributor.poll(attribution, until=until)
        if line == "cycle\n":
            attributor.publish()
            gpus.begin(until=until)
            attribution = pods.poll()
            gpus.finish(until=until)
        sys.stdout.write(f"{time.process_time() - began}\n")
        sys.stdout.flush()
    pods.close()
    gpus.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
