"""Values that the command line and files are turned into, and the small languages that they are written in.

Durations are parsed and files of secrets read here; where they are named is the composition root's business.
"""

import dataclasses
import datetime
import importlib
import pathlib
import re
import types
from collections.abc import Mapping

from rightsizer.errors import ConfigurationError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)")

LONGEST = datetime.timedelta(days=36525)
"""Longest accepted duration; longer ones are typing errors and may overflow."""
_SHOWN = 60

PREFIX = "gpu-rightsizer.io/"
"""Prefix of every annotation and label of gpu-rightsizer."""

FIND_OUT = "auto"
"""Value of --signals that detects the source of metrics."""

MAX_SAMPLES = 50_000_000
"""Prometheus's own default for --query.max-samples."""

FIELD_MANAGER = "gpu-rightsizer"
"""Name of gpu-rightsizer in `metadata.managedFields`."""


class InvalidDurationError(ValueError):
    """A text is not a duration; `problem` is the message without the text."""

    def __init__(self, text: str, problem: str) -> None:
        super().__init__(f"{_cut(text)!r} {problem}")
        self.problem = problem


def parse_duration(text: str) -> datetime.timedelta:
    """A duration in Prometheus's notation, such as "90s", "24h" or "1d12h".

    Raises:
        InvalidDurationError: It is not one, or it is not positive; the message says what would be right.
    """
    cleaned = text.strip()
    # findall takes time in the square of a long number.
    parts = _PART.findall(cleaned) if len(cleaned) <= _SHOWN else []
    if not parts or "".join(number + unit for number, unit in parts) != cleaned:
        raise InvalidDurationError(
            text, "is not a duration; write a number and a unit, such as 30m, 24h or 7d"
        )
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds > LONGEST.total_seconds():
        raise InvalidDurationError(text, "is longer than 100 years")
    span = datetime.timedelta(seconds=seconds)
    if not span:
        raise InvalidDurationError(text, "must be longer than zero")
    return span


def _cut(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def format_duration(seconds: float) -> str:
    """A duration for people, in one or two units: "45s", "3h 20m", "1d 30m"."""
    left = round(seconds)
    words: list[str] = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, left = divmod(left, size)
        if count:
            words.append(f"{count}{unit}")
    is_far = len(words) > 1 and words[0].endswith("d") and words[1].endswith("s")
    return " ".join(words[: 1 if is_far else 2]) or "0s"


def write_duration(span: datetime.timedelta) -> str:
    """A duration as `parse_duration` reads it, to the minute: "31h10m"."""
    hours, minutes = divmod(max(round(span.total_seconds() / 60), 1), 60)
    return f"{hours}h{minutes}m"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A token or password: usable, never printed."""

    _value: str

    def reveal(self) -> str:
        """The secret itself, for the one place that puts it on the wire."""
        return self._value

    def __repr__(self) -> str:
        """What logs and error messages see."""
        return "***"


def library(name: str, extra: str, user: str) -> types.ModuleType:
    """A module that only an extra installs, for a flag or field that needs it.

    Raises:
        ConfigurationError: It is missing.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = str(error.name).partition(".")[0]
        raise ConfigurationError(
            f"{user}: the library {missing} is missing; run: pip install 'gpu-rightsizer[{extra}]', or in a checkout: "
            f"pip install '.[{extra}]'"
        ) from error


def read_secret(path: pathlib.Path, flag: str) -> str:
    """The only line of a file, to be sent in a header; messages name `flag` and never repeat the line.

    Raises:
        ConfigurationError: It cannot be read, or cannot be sent.
    """
    try:
        text = path.read_text(encoding="ascii").strip()
    except UnicodeDecodeError:
        raise ConfigurationError(f"{flag}: is not ASCII text") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "is not a path"
        raise ConfigurationError(f"{flag}: {reason}") from error
    if not text:
        raise ConfigurationError(f"{flag}: is empty")
    if not text.isprintable():
        raise ConfigurationError(
            f"{flag}: holds more than one line, or control characters; one line is what is sent"
        )
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class PrometheusSettings:
    """How to reach Prometheus's HTTP API, and as whom.

    At most one of token, user and SigV4 is given; what goes together is checked where flags are read.

    Attributes:
        url: Base URL; a path is kept, as Mimir's "/prometheus" needs it. None: it is found in the cluster.
        token_file: Bearer token; read for each request, since projected tokens rotate.
        password_file: Of basic authentication (RFC 7617); read for each request.
        sigv4_region: AWS region of an Amazon Managed Service for Prometheus; requests are signed for it.
        client_cert_file: For mutual TLS (PEM); so is client_key_file, without a passphrase.
        ca_file: Certificates that sign Prometheus's own, instead of the system's.
        headers: Sent with every request, such as X-Scope-OrgID.
        labels: What every series must carry, such as the cluster's name.
        timeout_s: Deadline of one query, in seconds; the server is asked to stop a little earlier.
        parallel: How many queries may be under way at once.
    """

    url: str | None = None
    token_file: pathlib.Path | None = None
    user: str | None = None
    password_file: pathlib.Path | None = None
    sigv4_region: str | None = None
    client_cert_file: pathlib.Path | None = None
    client_key_file: pathlib.Path | None = None
    ca_file: pathlib.Path | None = None
    skip_verify: bool = False
    headers: Mapping[str, Secret] = dataclasses.field(default_factory=dict)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeout_s: float = 100.0
    parallel: int = 2


@dataclasses.dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How to reach the Kubernetes API server: as kubectl would, or from inside a pod.

    Attributes:
        kubeconfig: File to use instead of $KUBECONFIG, ~/.kube/config and the in-cluster account.
        gpu_resources: Names of resources that are GPUs beyond the known ones, as `--gpu-resource` takes them.
        is_read_only: Whether requests that may change something are refused before they are sent.
    """

    kubeconfig: pathlib.Path | None = None
    context: str | None = None
    timeout_s: float = 30.0
    gpu_resources: tuple[str, ...] = ()
    is_read_only: bool = False
