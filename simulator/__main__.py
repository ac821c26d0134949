"""Starts a simulated cluster by hand: `python -m simulator --help`."""

import argparse
import contextlib
import dataclasses
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from simulator import specfile
from simulator.cache import CacheError
from simulator.cluster import Cluster
from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import MissingProgramsError, find
from simulator.controlplane.thirdparty import install, third_party_kinds
from simulator.gpus import DriverError
from simulator.kubeclient import KubeClient, KubeClientError
from simulator.processes import ProcessError
from simulator.prometheus import Prometheus
from simulator.spec import ClusterSpec

_USAGE = 2
_EPILOG = f"""\
ready-made clusters:
  demo    5 nodes, 32 GPUs, 23 workloads: every archetype, kind and way of sharing
  small   2 nodes, 6 GPUs, 5 workloads
  fleet   6 empty nodes, 30 GPUs, with the labels, taints and resources of clouds and racks

a cluster of one's own, for --spec (all fields: simulator/spec.py):
{"".join(f"  {line}" for line in specfile.EXAMPLE.splitlines(keepends=True))}
examples:
  python -m simulator                               the demo cluster with a day of history
  python -m simulator --cluster small --history 2   less of everything, up at once
  python -m simulator --no-prometheus               exporters and API server only
  python -m simulator --real --cluster fleet        empty nodes on a real control plane (`make cluster`)
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a cluster until Ctrl-C or SIGTERM; the exit status."""
    parser = _parser()
    args = parser.parse_args(argv)
    if args.third_party and not args.real:
        parser.error(
            "--third-party needs --real: the simulated API server serves no CustomResourceDefinitions"
        )
    try:
        spec = _spec(args)
    except specfile.SpecError as error:
        print(f"simulator: {error}", file=sys.stderr)
        return _USAGE
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _directory(args.directory) as directory:
            _run(args, spec, directory)
    except KeyboardInterrupt:
        _say("ended")
    except (
        ProcessError,
        KubeClientError,
        DriverError,
        MissingProgramsError,
        CacheError,
        OSError,
        ValueError,
    ) as error:
        print(f"simulator: {error}", file=sys.stderr)
        return 1
    return 0


def _run(args: argparse.Namespace, spec: ClusterSpec, directory: Path) -> None:
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        kubeconfig = None
        if args.real:
            kubeconfig = _control_plane(stack, directory, with_third_party=args.third_party)
        cluster = stack.enter_context(Cluster(spec, directory, kubeconfig=kubeconfig, say=_say))
        prometheus = None
        if args.prometheus:
            prometheus = stack.enter_context(
                Prometheus(
                    directory / "prometheus",
                    targets=cluster.targets,
                    scrape_interval_s=args.step,
                    honor_labels=args.honor_labels,
                )
            )
            cluster.announce(prometheus)
            if args.history:
                _say(f"writing {args.history:g} h of history")
                count = cluster.write_history(prometheus, hours=args.history, step_s=args.step)
                _say(f"wrote {count:,} samples")
        _say(f"up after {time.monotonic() - began:.1f} s")
        _describe(cluster, prometheus)
        threading.Event().wait()


def _control_plane(stack: contextlib.ExitStack, directory: Path, *, with_third_party: bool) -> Path:
    _say("starting etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok")
    plane = stack.enter_context(ControlPlane(directory / "controlplane", find()))
    if with_third_party:
        kinds = third_party_kinds()
        _say(f"installing {len(kinds)} CustomResourceDefinitions")
        install(KubeClient(plane.endpoint), kinds)
    return plane.kubeconfig


def _describe(cluster: Cluster, prometheus: Prometheus | None) -> None:
    print(f"\n  KUBECONFIG   {cluster.kubeconfig}")
    if prometheus is not None:
        print(f"  Prometheus   {prometheus.url}")
    for node, exporter in cluster.exporters.items():
        print(f"  exporter     {exporter.url}/metrics   ({node})")
    print(f"  logs         {cluster.directory}\n\nCtrl-C ends all of it.", flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulator",
        description="A GPU cluster on this machine: simulated GPUs, nodes and Kubernetes API, real exporters, "
        "a real Prometheus with a past.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--cluster", choices=specfile.PRESETS, default="demo", help="a ready-made one (default: demo)"
    )
    which.add_argument("--spec", type=Path, metavar="FILE", help="one described in a YAML file, see below")
    parser.add_argument("--seed", type=int, help="another course of events for the same cluster")
    parser.add_argument(
        "--real",
        action="store_true",
        help="on a real control plane, built by `make controlplane`, instead of the simulated API server",
    )
    parser.add_argument(
        "--third-party",
        action="store_true",
        help="with --real: also the kinds of JobSet, Kubeflow, KServe, Ray, Argo, Volcano, Kueue, KEDA and others",
    )
    parser.add_argument(
        "--no-prometheus", dest="prometheus", action="store_false", help="do not start a Prometheus"
    )
    parser.add_argument(
        "--history", type=_hours, default=24.0, metavar="HOURS", help="how much past it gets (default: 24)"
    )
    parser.add_argument(
        "--step",
        type=_step,
        default=15,
        metavar="SECONDS",
        help="scrape interval, past and live (default: 15)",
    )
    parser.add_argument(
        "--honor-labels", action="store_true", help="store pods as pod=, not as exported_pod="
    )
    parser.add_argument(
        "--directory",
        type=Path,
        help="for logs, kubeconfig and data (default: a temporary one, removed at the end)",
    )
    return parser


def _hours(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 24 * 28:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 672 hours")
    return value


def _step(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 120:  # noqa: PLR2004 - beyond two minutes Prometheus shows gaps
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and 120 seconds")
    return value


def _spec(args: argparse.Namespace) -> ClusterSpec:
    spec = specfile.load(args.spec) if args.spec else specfile.preset(args.cluster)
    return spec if args.seed is None else dataclasses.replace(spec, seed=args.seed)


@contextlib.contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    if given is not None:
        yield given.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="gpusim-") as made:
        yield Path(made)


def _say(line: str) -> None:
    print(f"[simulator] {line}", flush=True)


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
