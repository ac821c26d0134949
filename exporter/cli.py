"""The composition root: reads argv and the environment, wires the parts, starts and stops them, does nothing else."""

import argparse
import difflib
import functools
import logging
import os
import platform
import random
import signal
import socket
import sys
import textwrap
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from exporter import __version__, process
from exporter.attribution.attributor import HostContext
from exporter.attribution.podnames import PodLogFolders
from exporter.attribution.procfs import ProcessScanner
from exporter.dcgm.flags import FLAGS
from exporter.errors import ExporterError, NoLibraryError, StartError, UsageError
from exporter.http import systemd
from exporter.http.handlers import Handlers
from exporter.http.server import Server, listen
from exporter.http.webfile import WebFile
from exporter.nvml.meter import Clocks
from exporter.nvml.session import Session
from exporter.pods.apiaccess import from_kubeconfig, in_cluster
from exporter.pods.apihttp import PodApi
from exporter.pods.apiserver import PodWatch
from exporter.pods.podfacts import WantedPodFacts
from exporter.pods.podresources import Kubelet
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
from exporter.settings import (
    DCGM_EXPORTERS_LISTS,
    GivenFlags,
    LogFormat,
    Settings,
    all_settings,
    flag,
    resolve,
)

_LOG = logging.getLogger(__name__)
_JOIN_S = 1.0  # at shutdown; a thread in a hung driver call is left behind
_GRACE_S = 1.0  # at shutdown, for answers under way
_OPEN_S = 60.0  # for --once: longer than the 45 s that a driver call takes with XID 119
_SERVE_S = 2.0  # after which it is served that the driver does not answer; healthy ones do sooner
_POLL_S = 0.05
_LOOK_S = 0.5  # between two looks at whether the sampler goes on
_SECOND_SAMPLE_S = 0.2  # NVML wants 100 ms between two samples of performance counters
_FIRST_LIST_S = 2.0  # so that series do not begin without the labels that they have a cycle later
_WIDTH = 80

_EXAMPLES = """\
examples:
  gpu-exporter                                 serve on port 9400
  gpu-exporter --once                          print all metrics now, and exit
  gpu-exporter --once --collectors power,memory
  gpu-exporter --listen 127.0.0.1:9401 --interval 2s
  GPU_EXPORTER_LOG_FORMAT=json gpu-exporter    the same as --log-format json

exit codes: 0 ended when told to; 1 failed; 2 wrong flags, variables or files

"""
_VARIABLES = (
    "Each flag has an environment variable, as in the last example; a flag wins over it. Variables of dcgm-exporter "
    "are understood where they mean the same: "
)


class _Help(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_WIDTH, max_help_position=24)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


class _Twin(argparse.Action):
    """Keeps a flag of dcgm-exporter as it was typed, beside its value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,  # noqa: ARG002 - argparse's signature
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        """Keep both."""
        setattr(namespace, self.dest, (option_string, values))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, with the flag that was probably meant."""
        _, unrecognized, rest = message.partition("unrecognized arguments: ")
        if not unrecognized:
            raise UsageError([f"{message.removeprefix('argument ')}; see gpu-exporter --help"])
        unknown = rest.split(" ", maxsplit=1)[0].split("=", maxsplit=1)[0]
        near = difflib.get_close_matches(unknown, [*map(flag, all_settings()), "--version", "--help"], n=1)
        if near:
            raise UsageError([f"{unknown}: no such flag; did you mean {near[0]}?"])
        raise UsageError([f"{unknown}: no such flag; see gpu-exporter --help"])


def _parser() -> argparse.ArgumentParser:
    settings = all_settings()
    dcgm = ", ".join(name for setting in settings.values() for name in setting.also)
    parser = _Parser(
        prog="gpu-exporter",
        description="What each GPU of this node does, and for which pod, as Prometheus metrics.",
        epilog=_EXAMPLES + textwrap.fill(_VARIABLES + dcgm + ".", _WIDTH),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    for name, setting in settings.items():
        help_ = setting.help.format(collectors=", ".join(catalogue.collectors()))
        if setting.metavar is None:
            parser.add_argument(flag(name), nargs="?", const="true", metavar="BOOL", default=None, help=help_)
        else:
            default = f" Default: {setting.default}" if setting.default else ""
            parser.add_argument(flag(name), metavar=setting.metavar, default=None, help=help_ + default)
    parser.add_argument("-v", "--version", action="version", version=f"gpu-exporter {__version__}")
    ours = set(map(flag, settings))
    for twin in FLAGS:
        if names := [name for name in twin.names if name not in ours]:
            nargs = "?" if twin.is_switch else None
            parser.add_argument(
                *names, action=_Twin, dest=twin.variable, nargs=nargs, const="true", help=argparse.SUPPRESS
            )
    return parser


def _two_dashes(argv: Sequence[str]) -> list[str]:
    """`argv` with two dashes before long flags: dcgm-exporter, being written in Go, takes one as well."""
    long = {name[1:] for twin in FLAGS for name in twin.names if name.startswith("--")}
    long |= {flag(name)[1:] for name in all_settings()}
    return [f"-{text}" if text.partition("=")[0] in long else text for text in argv]


def _settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    said = vars(_parser().parse_args(_two_dashes(argv)))
    flags = {name: text for name, text in said.items() if isinstance(text, str)}
    dcgm = {name: twin for name, twin in said.items() if isinstance(twin, tuple)}
    return resolve(GivenFlags(flags, dcgm), environment, collectors=tuple(catalogue.collectors()))


def _is_open(sampler: Sampler, settings: Settings, signals: Signals) -> bool:
    """Open the driver; False where we are told to stop meanwhile.

    Raises:
        StartError: For `--once` there is no usable driver, or not in time; for a server, no library. It goes on without
            a driver: it is to tell of it, and what is away may come back.
    """
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
            f"the NVIDIA driver has not answered within {_OPEN_S:g} s; see dmesg for NVRM and Xid lines"
        )
    return True


def _kubelet(settings: Settings) -> Kubelet | None:
    if not settings.pod_resources_socket:
        return None
    named = "pod_resources_socket" in settings.given
    return Kubelet(Path(settings.pod_resources_socket), required=named, clock=time.monotonic)


def _watch(settings: Settings, environment: Mapping[str, str]) -> PodWatch | None:
    """What knows labels and UIDs of pods; None where nobody wants them: then the API server is never asked."""
    wanted = WantedPodFacts(uid=settings.pod_uid, labels=settings.pod_labels)
    if not wanted:
        return None
    if not settings.pod_resources_socket:
        raise StartError(
            "labels and UIDs of pods are wanted, but --pod-resources-socket is empty: without it no pod is known"
        )
    path = settings.kubeconfig
    access = from_kubeconfig(Path(path)) if path else in_cluster(environment)
    return PodWatch(PodApi(access, settings.node_name), wanted, clock=time.monotonic, chance=random.random)


def _choice(settings: Settings) -> EnabledCollectors:
    known = catalogue.collectors()
    chosen = (known[name].within(settings.metrics) for name in settings.collectors)
    return EnabledCollectors(tuple(collector for collector in chosen if collector.rows))


def _metrics_file(settings: Settings) -> MetricsFile | None:
    """The file that lists the metrics, if one is named."""
    if not settings.metrics_file:
        return None
    path = Path(settings.metrics_file)
    if str(path) in DCGM_EXPORTERS_LISTS and not path.exists():
        _LOG.info("%s is dcgm-exporter's own list and not here: serving what --metrics says", path)
        return None
    if clash := {"metrics", "collectors"} & settings.given:
        flags = " and ".join(sorted(map(flag, clash)))
        raise UsageError([f"{flags}: the metrics file {path} says what is served; leave out one of them"])
    understand = functools.partial(
        select_metrics,
        collectors=tuple(catalogue.collectors().values()),
        naming=settings.naming if "naming" in settings.given else None,
    )
    return MetricsFile(path, understand, unix_time=time.time)


def _run(settings: Settings, environment: Mapping[str, str]) -> None:
    """Start everything, serve until told to stop, end everything."""
    signals = Signals(once=settings.once)
    process.use_one_heap()
    for name, host in (("proc_root", "/proc"), ("pod_logs", "/var/log")):
        folder = getattr(settings, name)
        if name in settings.given and not Path(folder).is_dir():
            raise StartError(f"{flag(name)} {folder}: no such directory; mount the host's {host} there")
    file = _metrics_file(settings)
    web = WebFile(Path(settings.web_config_file)) if settings.web_config_file else None
    kubelet = _kubelet(settings)
    watch = _watch(settings, environment)
    plan = SamplingConfig(
        choice=_choice(settings) if file is None else file.choice,
        interval_s=settings.interval,
        give_up_s=settings.give_up_after,
        proc_root=Path(settings.proc_root),
        metrics_file=file,
        devices=settings.devices,
        jobs=JobDirectory(Path(settings.hpc_job_mapping_dir)) if settings.hpc_job_mapping_dir else None,
        host=HostContext(
            processes=ProcessScanner(Path(settings.proc_root)),
            names=PodLogFolders(Path(settings.pod_logs)),
            boot_ns=lambda: time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            unix_ns=time.time_ns,
            ticks_per_s=os.sysconf("SC_CLK_TCK"),
        ),
    )
    pods = PodTracker(kubelet, watch, resource_names=settings.resource_names)
    session = Session(Clocks(time.monotonic_ns, time.time_ns), serial_numbers=settings.serial_numbers)
    sampler = Sampler(session, pods, plan, clock=time.monotonic)
    if not _is_open(sampler, settings, signals):
        return
    if watch is not None:
        watch.start(wait_s=_FIRST_LIST_S)
    scrape = Scrape(
        now=0.0,
        hostname=settings.node_name or socket.gethostname(),
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
        listener = systemd.inherited(environment) or listen(settings.listen)
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
    systemd.notify(environment, "STOPPING=1")
    server.stop(_GRACE_S)
    sampling.join(_JOIN_S)
    if sampler.gave_up is not None:
        raise sampler.gave_up


def _attend(
    sampler: Sampler, signals: Signals, wake: threading.Event, environment: Mapping[str, str]
) -> None:
    """Tell systemd when there is something to scrape, and return when it is time to end."""
    is_ready = False
    while sampler.gave_up is None:
        if not is_ready and sampler.latest() is not None:
            systemd.notify(environment, "READY=1")
            process.trim_heap()
            is_ready = True
        number = signals.wait(_LOOK_S if is_ready else _POLL_S)
        if number == signal.SIGHUP:
            wake.set()
        elif number is not None:
            return


def main(argv: Sequence[str] | None = None) -> int:
    """Run the exporter and return its exit code; whatever goes wrong is one message on standard error."""
    try:
        settings = _settings(sys.argv[1:] if argv is None else argv, os.environ)
        process.log_to_stderr(settings.log_level.name, as_json=settings.log_format is LogFormat.JSON)
        for warning in settings.warnings:
            _LOG.warning("%s", warning)
        _run(settings, os.environ)
    except ExporterError as error:
        for problem in str(error).splitlines():
            sys.stderr.write(f"gpu-exporter: {problem}\n")
        return error.exit_code
    except BrokenPipeError:
        # `--once | head`: the reader has had enough, and Python shall not complain at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        logging.getLogger(__name__).debug("traceback", exc_info=True)
        words = f"{type(error).__name__}: {error}: a defect of the exporter, please report it"
        sys.stderr.write(f"gpu-exporter: {words}; --log-level debug shows where\n")
        return 1
    return 0
