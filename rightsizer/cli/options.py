"""Flags that several commands share, their environment twins, and the settings that they become."""

import argparse
import dataclasses
import os
import pathlib
import re
import urllib.parse
from typing import TextIO

from rightsizer.config import ClusterSettings, PrometheusSettings, Secret, parse_duration
from rightsizer.errors import UsageError

ENVIRONMENT_PREFIX = "GPU_RIGHTSIZER_"
WIDTH = 80


class Formatter(argparse.RawDescriptionHelpFormatter):
    """Help of 80 columns whatever the terminal, so that it reads the same everywhere."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28, width=WIDTH)


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One flag.

    Attributes:
        metavar: What its value is called in the help.
        default: Its value where neither flag nor environment gives one; a string, as the environment's would be.
    """

    flag: str
    metavar: str
    help: str
    default: str | None = None

    @property
    def variable(self) -> str:
        """Its environment twin."""
        return ENVIRONMENT_PREFIX + self.flag.removeprefix("--").replace("-", "_").upper()


PROMETHEUS = (
    Option("--prometheus-url", "URL", "base URL of Prometheus, or of what speaks its API"),
    Option("--prometheus-token-file", "FILE", "file with a bearer token; read for each request"),
    Option("--prometheus-ca-file", "FILE", "certificates (PEM) that sign Prometheus's own"),
    Option("--prometheus-timeout", "DURATION", "deadline of one query", default="100s"),
)
CLUSTER = (
    Option("--kubeconfig", "FILE", "instead of $KUBECONFIG, ~/.kube/config and the pod's account"),
    Option("--context", "NAME", "context of the kubeconfig"),
)
POLICY = (Option("--policy", "FILE", "policy file; without one everything is only advised on"),)
STATE = (
    Option(
        "--state-namespace",
        "NAME",
        "our own namespace, where manifests of evicted pods are kept",
        default="gpu-rightsizer",
    ),
)


def add_options(parser: argparse.ArgumentParser, title: str, options: tuple[Option, ...]) -> None:
    """Add a group of flags; the environment's value is the default of each."""
    group = parser.add_argument_group(title)
    for option in options:
        default = os.environ.get(option.variable, option.default)
        words = f"{option.help} [env: {option.variable}]"
        if option.default:
            words += f" (default: {option.default})"
        group.add_argument(option.flag, metavar=option.metavar, default=default, help=words)
    if options is PROMETHEUS:
        group.add_argument(
            "--prometheus-header",
            metavar="'NAME: VALUE'",
            action="append",
            default=[],
            help="sent with each query, such as 'X-Scope-OrgID: team'; repeatable",
        )
        group.add_argument(
            "--prometheus-label",
            metavar="NAME=VALUE",
            action="append",
            default=[],
            help="what every series must carry, such as cluster=prod; repeatable",
        )


def add_common(parser: argparse.ArgumentParser, *, formats: bool = True) -> None:
    """Add the flags about what is printed."""
    group = parser.add_argument_group("output")
    if formats:
        group.add_argument(
            "-o", "--output", choices=("table", "json", "yaml"), default="table", help="(default: table)"
        )
    group.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: on a terminal, unless NO_COLOR is set (default: auto)",
    )
    group.add_argument("--verbose", "-v", action="store_true", help="log what is done, on stderr")


def prometheus_settings(arguments: argparse.Namespace) -> PrometheusSettings:
    """The Prometheus to ask.

    Raises:
        UsageError: A flag is missing or cannot be meant.
    """
    url = arguments.prometheus_url
    if not url:
        raise UsageError(
            "which Prometheus? give --prometheus-url http://HOST:9090, or set GPU_RIGHTSIZER_PROMETHEUS_URL"
        )
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise UsageError(f"--prometheus-url {_shown(url)}: is not a URL such as http://prometheus:9090")
    if parts.username or parts.password:
        raise UsageError(
            "--prometheus-url: holds a password; put it where no process list shows it: --prometheus-token-file"
        )
    return PrometheusSettings(
        url=url,
        token_file=_path(arguments.prometheus_token_file),
        ca_file=_path(arguments.prometheus_ca_file),
        headers=dict(_header(text) for text in arguments.prometheus_header),
        labels=dict(_label(text) for text in arguments.prometheus_label),
        timeout_s=_seconds("--prometheus-timeout", arguments.prometheus_timeout),
    )


def cluster_settings(arguments: argparse.Namespace) -> ClusterSettings:
    """The API server to ask."""
    return ClusterSettings(_path(arguments.kubeconfig), arguments.context or None)


def wants_colour(arguments: argparse.Namespace, stream: TextIO) -> bool:
    """Whether to colour what goes to a stream; NO_COLOR is respected (https://no-color.org)."""
    if arguments.color != "auto":
        return bool(arguments.color == "always")
    return stream.isatty() and not os.environ.get("NO_COLOR")


def _header(text: str) -> tuple[str, Secret]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip() or not value.strip() or not text.isprintable() or not text.isascii():
        raise UsageError("--prometheus-header: write a name and a value, such as 'X-Scope-OrgID: team'")
    return name.strip(), Secret(value.strip())


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not value or not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
        raise UsageError(f"--prometheus-label {text}: write a label's name and value, such as cluster=prod")
    return name, value


def _seconds(flag: str, text: str) -> float:
    try:
        return parse_duration(text).total_seconds()
    except ValueError as error:
        raise UsageError(f"{flag}: {error}") from error


def _path(text: str | None) -> pathlib.Path | None:
    return pathlib.Path(text) if text else None


def _shown(url: str) -> str:
    return url.rsplit("@", maxsplit=1)[-1]
