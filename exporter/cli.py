"""The composition root: reads argv and the environment, wires the parts, starts and stops them; nothing else."""

import functools
import logging
import os
import platform
import random
import signal
import socket
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from exporter import __version__, process
from exporter.attribution.attributor import HostContext
from exporter.attribution.podnames import PodLogFolders
from exporter.attribution.procfs import ProcessScanner
from exporter.errors import ConfigFileError, ExporterError, NoLibraryError, StartError, UsageError
from exporter.flags import read_settings
from exporter.http.handlers import Handlers
from exporter.http.server import Server, listen
from exporter.http.webfile import WebFile
from exporter.nvml.meter import Clocks
from exporter.nvml.session import Session
from exporter.pods.apiaccess import from_kubeconfig, in_cluster
from exporter.pods.apihttp import PodApi
from exporter.pods.apiserver import PodWatch
from exporter.pods.podfacts import WantedPodFacts
from exporter.pods.podresources import ExpectedPods, Kubelet
from exporter.pods.tracker import PodTracker
from exporter.process import STOPPING, Signals
from exporter.render.exposition import BuildInfo, Scrape
from exporter.render.textformat import Format
from exporter.sampling import catalogue
from exporter.sampling.catalogue import EnabledCollectors
from exporter.sampling.jobs import JobDirectory
from exporter.sampling.metricsfile import MetricsFile
from exporter.sampling.metricslist import select_metrics
from exporter.sampling.sampler import Sampler, SamplingConfig
from exporter.settings import DCGM_EXPORTERS_LISTS, LogFormat, Settings, flag

_LOG = logging.getLogger(__name__)
_JOIN_S = 1.0  # at shutdown; a thread in a hung driver call is left behind
_GRACE_S = 1.0  # at shutdown, for requests in progress
_OPEN_S = 60.0  # for --once: longer than the 45 s of a driver call with XID 119
_SERVE_S = 2.0  # until the exporter serves without a driver; a healthy one answers sooner
_POLL_S = 0.05
_CHECK_S = 2.0  # between two checks of the sampler
_SECOND_SAMPLE_S = 0.2  # NVML needs 100 ms between two samples of performance counters
_FIRST_LIST_S = 2.0  # so that the first series already have their pod labels


def _is_open(sampler: Sampler, settings: Settings, signals: Signals) -> bool:
    """Open the driver; False if a signal stops the exporter meanwhile."""
    opening = sampler.open()
    until = time.monotonic() + (_OPEN_S if settings.once else _SERVE_S)
    while not opening.done() and time.monotonic() < until:
        if signals.wait(_POLL_S) in STOPPING:
            return False
    if opening.done():
        error = opening.exception()
        is_away = isinstance(error, StartError) and not isinstance(error, NoLibraryError)
        if settings.once or not is_away:
            opening.result()
    elif settings.once:
        raise StartError(
            f"the NVIDIA driver did not answer within {_OPEN_S:g} s; see dmesg for NVRM and Xid lines"
        )
    return True


def _kubelet(settings: Settings, names: PodLogFolders, environment: Mapping[str, str]) -> Kubelet | None:
    if not settings.pod_resources_socket:
        return None
    own = settings.own_pod
    # The kubelet appends the node's name to a static pod's, which it lists before it knows others.
    if own and own[1].endswith(f"-{settings.node_name or socket.gethostname()}"):
        own = ()
    return Kubelet(
        Path(settings.pod_resources_socket),
        required="pod_resources_socket" in settings.given,
        clock=time.monotonic,
        interval_s=settings.interval,
        expected=ExpectedPods(
            own=own,
            in_cluster="KUBERNETES_SERVICE_HOST" in environment,
            known=names.not_static,
        ),
    )


def _watch(settings: Settings, environment: Mapping[str, str]) -> PodWatch | None:
    """The watch for pod labels and UIDs; None if they are not requested: then the API server is never queried."""
    wanted = WantedPodFacts(uid=settings.pod_uid, labels=settings.pod_labels)
    if not wanted:
        return None
    if not settings.pod_resources_socket:
        raise StartError("--pod-labels and --pod-uid need --pod-resources-socket, which is empty")
    path = settings.kubeconfig
    access = from_kubeconfig(Path(path)) if path else in_cluster(environment)
    return PodWatch(PodApi(access, settings.node_name), wanted, clock=time.monotonic, chance=random.random)


def _enabled(settings: Settings) -> EnabledCollectors:
    known = catalogue.collectors()
    chosen = (known[name].within(settings.metrics) for name in settings.collectors)
    return EnabledCollectors(tuple(collector for collector in chosen if collector.rows))


def _metrics_file(settings: Settings) -> MetricsFile | None:
    if not settings.metrics_file:
        return None
    path = Path(settings.metrics_file)
    is_named = "metrics_file" in settings.given
    if str(path) in DCGM_EXPORTERS_LISTS and not os.path.exists(path):  # noqa: PTH110 - raises nothing
        if is_named:
            _LOG.info("%s, dcgm-exporter's default list, does not exist: serving the set of --metrics", path)
        return None
    if not is_named:
        _LOG.info("serving only the metrics of %s, dcgm-exporter's default list; --metrics ignores it", path)
    if clash := {"metrics", "collectors"} & settings.given:
        flags = " and ".join(sorted(map(flag, clash)))
        raise UsageError([f"{flags}: the metrics file {path} selects the metrics; drop one of them"])
    parse = functools.partial(
        select_metrics,
        collectors=tuple(catalogue.collectors().values()),
        naming=settings.naming if "naming" in settings.given else None,
    )
    return MetricsFile(path, parse, unix_time=time.time)


def _run(settings: Settings, environment: Mapping[str, str]) -> None:
    """Start everything, serve until a signal, stop everything."""
    signals = Signals(once=settings.once)
    process.use_one_heap()
    for name, host in (("proc_root", "/proc"), ("pod_logs", "/var/log")):
        folder = getattr(settings, name)
        if name in settings.given and not os.path.isdir(folder):  # noqa: PTH112 - raises nothing
            raise StartError(f"{flag(name)} {folder}: no such directory; mount the host's {host} there")
    file = _metrics_file(settings)
    web = WebFile(Path(settings.web_config_file)) if settings.web_config_file else None
    names = PodLogFolders(Path(settings.pod_logs))
    kubelet = _kubelet(settings, names, environment)
    watch = _watch(settings, environment)
    plan = SamplingConfig(
        enabled=_enabled(settings) if file is None else file.enabled,
        interval_s=settings.interval,
        give_up_s=settings.give_up_after,
        proc_root=Path(settings.proc_root),
        metrics_file=file,
        devices=settings.devices,
        jobs=JobDirectory(Path(settings.hpc_job_mapping_dir)) if settings.hpc_job_mapping_dir else None,
        host=HostContext(
            processes=ProcessScanner(Path(settings.proc_root)),
            names=names,
            boot_ns=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            unix_ns=time.time_ns,
            ticks_per_s=os.sysconf("SC_CLK_TCK"),
        ),
    )
    observers = settings.admin_access_namespaces
    pods = PodTracker(kubelet, watch, resource_names=settings.resource_names, observers=observers)
    session = Session(Clocks(time.monotonic_ns, time.time_ns), serial_numbers=settings.serial_numbers)
    sampler = Sampler(session, pods, plan, clock=time.monotonic)
    if not _is_open(sampler, settings, signals):
        return
    if watch is not None:
        watch.start(wait_s=_FIRST_LIST_S)
    scrape = Scrape(
        now=0.0,
        # the kernel takes any bytes
        hostname=settings.node_name or socket.gethostname().encode(errors="replace").decode(),
        build=BuildInfo(__version__, platform.python_version()),
        stale_after_s=plan.stale_after_s,
        naming=settings.naming,
        hostname_labels=settings.hostname_label.labels,
        blanks="-" if settings.replace_blanks_in_model_name else None,
        shared_gpus=settings.shared_gpus,
    )
    handlers = Handlers(sampler, scrape, clock=time.monotonic)
    if settings.once:
        sampler.cycle()
        if not sampler.is_settled:
            time.sleep(_SECOND_SAMPLE_S)
            sampler.cycle()
        sys.stdout.write(handlers.metrics(Format.TEXT).decode())
        sys.stdout.flush()
    else:
        listener = process.inherited_socket(environment) or listen(settings.listen)
        _serve(Server(listener, handlers, web, clock=time.monotonic), sampler, signals, environment)
    sampler.close()


def _serve(server: Server, sampler: Sampler, signals: Signals, environment: Mapping[str, str]) -> None:
    stop, wake = threading.Event(), threading.Event()
    sampling = threading.Thread(target=sampler.run, args=(stop, wake), name="sampler", daemon=True)
    serving = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    sampling.start()
    serving.start()
    _LOG.info("gpu-exporter %s serves %s/metrics", __version__, server.url)
    _attend(sampler, signals, wake, environment)
    stop.set()
    wake.set()
    _LOG.info("stopping")
    process.notify_systemd(environment, "STOPPING=1")
    server.stop(_GRACE_S)
    sampling.join(_JOIN_S)
    if sampler.gave_up is not None:
        raise sampler.gave_up


def _attend(
    sampler: Sampler, signals: Signals, wake: threading.Event, environment: Mapping[str, str]
) -> None:
    """Notify systemd after the first cycle, and return when the exporter must stop."""
    is_ready = False
    while sampler.gave_up is None:
        if not is_ready and sampler.latest() is not None:
            process.notify_systemd(environment, "READY=1")
            process.trim_heap()
            is_ready = True
        number = signals.wait(_CHECK_S if is_ready else _POLL_S)
        if number == signal.SIGHUP:
            wake.set()
        elif number is not None:
            return


def main(argv: Sequence[str] | None = None) -> int:
    """Run the exporter; returns its exit code. A failure is one message on standard error."""
    try:
        settings = read_settings(sys.argv[1:] if argv is None else argv, os.environ)
        process.log_to_stderr(settings.log_level.name, as_json=settings.log_format is LogFormat.JSON)
        for warning in settings.warnings:
            _LOG.warning("%s", warning)
        _run(settings, os.environ)
    except ExporterError as error:
        for problem in str(error).splitlines():
            sys.stderr.write(f"error: {problem}\n")
        if isinstance(error, UsageError) and not isinstance(error, ConfigFileError):
            sys.stderr.write("see gpu-exporter --help\n")
        return error.exit_code
    except BrokenPipeError:
        # `--once | head` closed the pipe: Python must not complain at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        logging.getLogger(__name__).debug("traceback", exc_info=True)
        problem = f"{type(error).__name__}: {error}: a bug in gpu-exporter, please report it"
        sys.stderr.write(f"error: {problem}; --log-level debug shows where\n")
        return 1
    return 0
