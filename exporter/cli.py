"""The composition root: reads argv and the environment, wires the parts, starts and stops them, does nothing else."""

import argparse
import difflib
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

from exporter import __version__, catalog, logs
from exporter.errors import ExporterError, StartError, UsageError
from exporter.exposition import Build, Scrape
from exporter.nvml.session import Session
from exporter.nvml.workers import Worker
from exporter.pods.apiaccess import from_kubeconfig, in_cluster
from exporter.pods.apihttp import PodApi
from exporter.pods.apiserver import PodWatch
from exporter.pods.attribution import Pods
from exporter.pods.podfacts import Wanted
from exporter.pods.podresources import Kubelet
from exporter.sampler import Plan, Sampler
from exporter.server import Server, Site
from exporter.settings import Settings, flag, resolve, table

_LOG = logging.getLogger(__name__)
_JOIN_S = 1.0  # at shutdown; a thread in a hung driver call is left behind
_OPEN_S = 60.0  # longer than the 45 s that a driver call takes with XID 119
_POLL_S = 0.05
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

exit codes: 0 ended when told to; 1 failed; 2 wrong flags or variables

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


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line, with the flag that was probably meant."""
        _, unrecognized, rest = message.partition("unrecognized arguments: ")
        if not unrecognized:
            raise UsageError([f"{message.removeprefix('argument ')}; see gpu-exporter --help"])
        unknown = rest.split(" ", maxsplit=1)[0].split("=", maxsplit=1)[0]
        near = difflib.get_close_matches(unknown, [*map(flag, table()), "--version", "--help"], n=1)
        if near:
            raise UsageError([f"{unknown}: no such flag; did you mean {near[0]}?"])
        raise UsageError([f"{unknown}: no such flag; see gpu-exporter --help"])


def _parser() -> argparse.ArgumentParser:
    settings = table()
    dcgm = ", ".join(name for setting in settings.values() for name in setting.also)
    parser = _Parser(
        prog="gpu-exporter",
        description="What each GPU of this node does, and for which pod, as Prometheus metrics.",
        epilog=_EXAMPLES + textwrap.fill(_VARIABLES + dcgm + ".", _WIDTH),
        formatter_class=_Help,
        allow_abbrev=False,
    )
    for name, setting in settings.items():
        help_ = setting.help.format(collectors=", ".join(catalog.collectors()))
        if setting.metavar is None:
            parser.add_argument(flag(name), action="store_const", const="true", default=None, help=help_)
        else:
            default = f" Default: {setting.default}" if setting.default else ""
            parser.add_argument(flag(name), metavar=setting.metavar, default=None, help=help_ + default)
    parser.add_argument("--version", action="version", version=f"gpu-exporter {__version__}")
    return parser


def _settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    given = vars(_parser().parse_args(argv))
    flags = {name: text for name, text in given.items() if text is not None}
    return resolve(flags, environment, collectors=tuple(catalog.collectors()))


def _session(stop: threading.Event) -> Session | None:
    """The driver, opened by another thread, so that a driver which hangs does not keep us from being told to stop."""
    worker = Worker[Session]("opening", time.monotonic)
    opening = worker.submit(Session)
    worker.stop()
    until = time.monotonic() + _OPEN_S
    while not opening.done() and time.monotonic() < until:
        if stop.wait(_POLL_S):
            return None
    if not opening.done():
        raise StartError(
            f"the NVIDIA driver has not answered within {_OPEN_S:g} s; see dmesg for NVRM and Xid lines"
        )
    return opening.result()


def _kubelet(settings: Settings) -> Kubelet | None:
    if not settings.pod_resources_socket:
        return None
    named = "pod_resources_socket" in settings.given
    return Kubelet(Path(settings.pod_resources_socket), required=named, clock=time.monotonic)


def _watch(settings: Settings) -> PodWatch | None:
    """What knows labels and UIDs of pods; None where nobody wants them: then the API server is never asked."""
    wanted = Wanted(uid=settings.pod_uid, labels=settings.pod_labels)
    if not wanted:
        return None
    if not settings.pod_resources_socket:
        raise StartError(
            "labels and UIDs of pods are wanted, but --pod-resources-socket is empty: without it no pod is known"
        )
    path = settings.kubeconfig
    access = from_kubeconfig(Path(path)) if path else in_cluster(os.environ)
    return PodWatch(PodApi(access, settings.node_name), wanted, clock=time.monotonic, chance=random.random)


def _run(settings: Settings) -> None:
    """Start everything, serve until told to stop, end everything."""
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if settings.once else lambda *_: stop.set())
    if "proc_root" in settings.given and not Path(settings.proc_root).is_dir():
        raise StartError(f"--proc-root {settings.proc_root}: no such directory; mount the host's /proc there")
    kubelet = _kubelet(settings)
    watch = _watch(settings)
    session = _session(stop)
    if session is None:
        return
    known = catalog.collectors()
    plan = Plan(
        collectors=tuple(
            chosen for name in settings.collectors if (chosen := known[name].within(settings.metrics)).rows
        ),
        interval_s=settings.interval,
        proc_root=Path(settings.proc_root),
    )
    if watch is not None:
        watch.start(wait_s=_FIRST_LIST_S)
    pods = Pods(kubelet, watch, resource_names=settings.resource_names)
    sampler = Sampler(session, pods, plan, clock=time.monotonic)
    scrape = Scrape(
        now=0.0,
        hostname=settings.node_name or socket.gethostname(),
        build=Build(__version__, platform.python_version()),
        stale_after_s=plan.stale_after_s,
        naming=settings.naming,
        hostname_labels=settings.hostname_label.labels,
    )
    site = Site(sampler, scrape, clock=time.monotonic)
    if settings.once:
        sampler.cycle()
        if not sampler.is_settled:
            time.sleep(_SECOND_SAMPLE_S)
            sampler.cycle()
        sys.stdout.write(site.metrics("").body.decode())
        sys.stdout.flush()
    else:
        _serve(Server(settings.listen, site), sampler, stop)
    sampler.close()


def _serve(server: Server, sampler: Sampler, stop: threading.Event) -> None:
    sampling = threading.Thread(target=sampler.run, args=(stop,), name="sampler", daemon=True)
    serving = threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True
    )
    sampling.start()
    serving.start()
    _LOG.info("gpu-exporter %s serves %s/metrics", __version__, server.url)
    stop.wait()
    _LOG.info("stopping")
    server.shutdown()
    server.server_close()
    sampling.join(_JOIN_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the exporter and return its exit code; whatever goes wrong is one message on standard error."""
    try:
        settings = _settings(sys.argv[1:] if argv is None else argv, os.environ)
        logs.configure(settings.log_format, settings.log_level)
        _run(settings)
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
