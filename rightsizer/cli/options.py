"""Flags that several commands share, their environment twins, and the settings that they become."""

import argparse
import dataclasses
import os
import pathlib
import re
import urllib.parse
from collections.abc import Sequence
from typing import TextIO

from rightsizer.config import ClusterSettings, PrometheusSettings, Secret, parse_duration, read_secret
from rightsizer.errors import UsageError
from rightsizer.observe.resources import parse_gpu_resource

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
    Option(
        "--gpu-resource",
        "NAMES",
        "resources that are GPUs besides the known ones, with commas between; * is a wildcard, NAME=shares, amount or "
        "part says what is counted",
    ),
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
            help="sent with each query, such as 'X-Scope-OrgID: team'; NAME=@FILE takes the value from a file, as "
            "credentials must be; repeatable",
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
    group.add_argument(
        "--verbose",
        "-v",
        action="count",
        default=0,
        help="log what is done, on stderr; twice: also queries, answers and each decision",
    )


def prometheus_settings(arguments: argparse.Namespace) -> PrometheusSettings:
    """The Prometheus to ask.

    Raises:
        UsageError: A flag is missing or cannot be meant.
    """
    token_file = _path(arguments.prometheus_token_file)
    headers = _headers(arguments.prometheus_header)
    if token_file is not None and "authorization" in map(str.lower, headers):
        raise UsageError(
            "--prometheus-token-file and --prometheus-header Authorization=...: give one of them"
        )
    return PrometheusSettings(
        url=_url(arguments.prometheus_url),
        token_file=token_file,
        ca_file=_path(arguments.prometheus_ca_file),
        headers=headers,
        labels=dict(_label(text) for text in arguments.prometheus_label),
        timeout_s=_seconds("--prometheus-timeout", arguments.prometheus_timeout),
    )


def cluster_settings(arguments: argparse.Namespace) -> ClusterSettings:
    """The API server to ask, and what counts as a GPU there.

    Raises:
        UsageError: A name of a resource cannot be meant.
    """
    names = tuple(name.strip() for name in (arguments.gpu_resource or "").split(",") if name.strip())
    for name in names:
        try:
            parse_gpu_resource(name)
        except ValueError as error:
            raise UsageError(f"--gpu-resource: {error}") from error
    return ClusterSettings(_path(arguments.kubeconfig), arguments.context or None, gpu_resources=names)


def wants_colour(arguments: argparse.Namespace, stream: TextIO) -> bool:
    """Whether to colour what goes to a stream; NO_COLOR is respected (https://no-color.org)."""
    if arguments.color != "auto":
        return bool(arguments.color == "always")
    return stream.isatty() and not os.environ.get("NO_COLOR")


def _url(text: str | None) -> str:
    """The URL, once it is known to hold nothing that must not be shown; until then it is not repeated."""
    if not text:
        raise UsageError(
            "which Prometheus? give --prometheus-url http://HOST:9090, or set GPU_RIGHTSIZER_PROMETHEUS_URL"
        )
    if "@" in text:
        raise UsageError(
            "--prometheus-url: holds a user or password; put it where no process list shows it: "
            "--prometheus-token-file, or --prometheus-header NAME=@FILE"
        )
    if "?" in text or "#" in text:
        raise UsageError(
            "--prometheus-url: holds a query or fragment (? or #), which no request would carry; where it is a "
            "credential, put it into a file: --prometheus-token-file, or --prometheus-header NAME=@FILE"
        )
    try:
        parts = urllib.parse.urlsplit(text)
        is_url = parts.scheme in {"http", "https"} and bool(parts.hostname) and re.fullmatch(r"[!-~]+", text)
    except ValueError:
        is_url = False
    if not is_url:
        raise UsageError(f"--prometheus-url {text}: is not a URL such as http://prometheus:9090")
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UsageError(f"--prometheus-url {text}: its port is not a number from 1 to 65535")
    return text


def _headers(texts: Sequence[str]) -> dict[str, Secret]:
    headers: dict[str, Secret] = {}
    for text in texts:
        name, value = _header(text)
        if name.lower() in map(str.lower, headers):
            raise UsageError(f"--prometheus-header {name}: stands twice")
        headers[name] = Secret(value)
    return headers


def _header(text: str) -> tuple[str, str]:
    """Name and value; what is wrong is told without either part that could be a credential."""
    given = _HEADER.fullmatch(text)
    if given is None:
        raise UsageError(
            "--prometheus-header: write a name and a value, such as 'X-Scope-OrgID: team', or NAME=@FILE; "
            "a name has no blanks, and a value no line breaks"
        )
    name = given["name"]
    if given["file"]:
        return name, read_secret(pathlib.Path(given["file"]), f"--prometheus-header {name}=@{given['file']}")
    if _CREDENTIAL.search(name):
        raise UsageError(
            f"--prometheus-header {name}: looks like a credential, which process lists would show; "
            f"put its value into a file: --prometheus-header {name}=@FILE"
        )
    return name, given["value"].strip()


# RFC 9110, 5.1 (a name is a token) and 5.5 (a value is visible characters and blanks).
_HEADER = re.compile(
    r"\s*(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+)(?:=@(?P<file>.+)|:(?P<value>[ -~]*[!-~][ -~]*))", re.DOTALL
)
_CREDENTIAL = re.compile(r"auth|token|secret|cookie|passw|credential|session|key", re.IGNORECASE)


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
