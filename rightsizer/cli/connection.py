"""From the values of flags to settings, times and names. Errors name the flag and the remedy, never a credential."""

import dataclasses
import datetime
import pathlib
import re
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from rightsizer.cli.options import ClusterOptions, InstanceOptions, PrometheusOptions
from rightsizer.config import (
    ClusterSettings,
    InvalidDurationError,
    PrometheusSettings,
    Secret,
    parse_duration,
    read_secret,
)
from rightsizer.errors import RightsizerError, UsageError
from rightsizer.inventory.gpu_requests import parse_gpu_resource
from rightsizer.model.change_record import LONGEST_WORD
from rightsizer.usage.recording_rules import RecordingRules
from rightsizer.usage.sources import SourceSettings, source_named

MOST_PARALLEL = 4
"""A fifth of what Prometheus runs at once by default (`query.max-concurrency` 20): it has other clients, too."""

G = TypeVar("G")
T = TypeVar("T")


def prometheus_settings(arguments: PrometheusOptions) -> PrometheusSettings:
    """The Prometheus to ask.

    Raises:
        UsageError: A flag is missing or invalid, or two conflict; all problems at once.
        ConfigurationError: The one problem is a file that cannot be read.
    """
    problems = _Problems()
    read = problems.attempt
    settings = PrometheusSettings(
        url=read(_url, arguments.prometheus_url, None),
        token_file=arguments.prometheus_token_file,
        user=arguments.prometheus_user or None,
        password_file=arguments.prometheus_password_file,
        sigv4_region=read(_region, arguments.prometheus_sigv4_region, None),
        client_cert_file=arguments.prometheus_client_cert_file,
        client_key_file=arguments.prometheus_client_key_file,
        ca_file=arguments.prometheus_ca_file,
        skip_verify=read(_switch, arguments.prometheus_insecure_skip_verify, False),  # noqa: FBT003
        headers=read(_headers, arguments.prometheus_header, {}),
        labels=read(_labels, arguments.prometheus_label, {}),
        timeout_s=read(_seconds, arguments.prometheus_timeout, 1.0),
        parallel=read(_parallel, arguments.prometheus_parallel, 1),
    )
    problems.found += map(UsageError, _contradictions(settings))
    if not arguments.prometheus_url:
        problems.found += map(UsageError, _missing_url(settings, arguments))
    problems.tell()
    return settings


@dataclasses.dataclass(slots=True)
class _Problems:
    """What is wrong, in the order in which it was found."""

    found: list[RightsizerError] = dataclasses.field(default_factory=list)

    def attempt(self, read: Callable[[G], T], given: G, otherwise: T) -> T:
        """The value of a flag; if it is invalid, record why and use a fallback."""
        try:
            return read(given)
        except RightsizerError as error:
            self.found.append(error)
            return otherwise

    def tell(self) -> None:
        """Raise them, if there are any."""
        if len(self.found) == 1:
            raise self.found[0]
        if self.found:
            lines = "".join(f"\n  {error}" for error in self.found)
            raise UsageError(f"{len(self.found)} problems with the flags about Prometheus:{lines}")


def _contradictions(settings: PrometheusSettings) -> Iterator[str]:
    """Flags that are valid alone, but not together."""
    credentials = _credentials(settings)
    if len(credentials) > 1:
        yield f"{' and '.join(credentials)}: give one of them"
    if settings.user and settings.password_file is None:
        yield "--prometheus-user: give --prometheus-password-file, too"
    if settings.password_file is not None and not settings.user:
        yield "--prometheus-password-file: give --prometheus-user, too"
    if settings.user and (":" in settings.user or not settings.user.isprintable()):
        yield "--prometheus-user: holds a colon or control characters, which basic authentication cannot carry"
    if (settings.client_cert_file is None) != (settings.client_key_file is None):
        yield "--prometheus-client-cert-file and --prometheus-client-key-file: give both, or neither"
    if settings.skip_verify and settings.ca_file is not None:
        yield "--prometheus-ca-file and --prometheus-insecure-skip-verify: give one of them"
    if settings.url is not None and not settings.url.lower().startswith("https:"):
        if settings.client_cert_file is not None:
            yield "--prometheus-client-cert-file: is presented over https only, and --prometheus-url is not"
        if settings.skip_verify:
            yield "--prometheus-insecure-skip-verify: is about https, and --prometheus-url is not"


def _credentials(settings: PrometheusSettings) -> list[str]:
    """The flags that give an Authorization header."""
    given = {
        "--prometheus-token-file": settings.token_file is not None,
        "--prometheus-user": bool(settings.user),
        "--prometheus-sigv4-region": settings.sigv4_region is not None,
        "--prometheus-header Authorization=...": "authorization" in map(str.lower, settings.headers),
    }
    return [flag for flag, is_given in given.items() if is_given]


def _missing_url(settings: PrometheusSettings, arguments: PrometheusOptions) -> Iterator[str]:
    """What cannot go without a URL.

    Whoever may create a Service may label it as a Prometheus. So what is found is sent no credential, and nothing is
    changed on its word.
    """
    if arguments.command == "apply":
        yield (
            "which Prometheus? apply acts on what it says, so name it: give --prometheus-url http://HOST:9090, or set "
            "GPU_RIGHTSIZER_PROMETHEUS_URL"
        )
        return
    secrets = _credentials(settings)
    secrets += [text.partition("=")[0] for text in arguments.prometheus_header if _is_from_file(text)]
    secrets += ["--prometheus-client-cert-file"] if settings.client_cert_file is not None else []
    if secrets:
        yield "which Prometheus? credentials are sent to one that you name only: give --prometheus-url, too"


def _is_from_file(text: str) -> bool:
    given = _HEADER.fullmatch(text)
    return given is not None and bool(given["file"])


def _url(text: str | None) -> str | None:
    """The URL, once it is known to hold nothing that must not be shown; until then it is not repeated."""
    if not text:
        return None
    if "@" in text:
        raise UsageError(
            "--prometheus-url: holds a user or password; put it where no process list shows it: "
            "--prometheus-user with --prometheus-password-file, --prometheus-token-file, or --prometheus-header "
            "NAME=@FILE"
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
        raise UsageError(f'--prometheus-url "{text}": is not a URL such as http://prometheus:9090')
    try:
        port = parts.port
    except ValueError:
        port = 0
    if port == 0:
        raise UsageError(f'--prometheus-url "{text}": its port is not a number from 1 to 65535')
    if page := _PAGE.search(text):
        base = text[: page.start()]
        raise UsageError(f'--prometheus-url "{text}": is the URL of a page; give the base URL: {base}')
    return text


_PAGE = re.compile(r"/(graph|api/v1(/.*)?)/?$")
"""What follows the base URL in a browser's address bar, and in the documentation of the API."""


def _headers(texts: Sequence[str]) -> dict[str, Secret]:
    headers: dict[str, Secret] = {}
    for text in texts:
        name, value = _header(text)
        if name.lower() in map(str.lower, headers):
            raise UsageError(f'--prometheus-header "{name}": is given twice')
        headers[name] = Secret(value)
    return headers


def _header(text: str) -> tuple[str, str]:
    """Name and value; errors repeat neither, because both could be credentials."""
    given = _HEADER.fullmatch(text)
    if given is None:
        raise UsageError(
            "--prometheus-header: write a name and a value, such as 'X-Scope-OrgID: team', or NAME=@FILE; "
            "a name has no blanks, and a value no line breaks"
        )
    name = given["name"]
    if given["file"]:
        return name, read_secret(
            pathlib.Path(given["file"]), f'--prometheus-header "{name}=@{given["file"]}"'
        )
    if _CREDENTIAL.search(name):
        raise UsageError(
            f'--prometheus-header "{name}": looks like a credential, which process lists would show; '
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
    if not equals or not value or not re.fullmatch(r"[^\s\"'{}(),~!]+", name):
        raise UsageError(
            f'--prometheus-label "{text}": write a label\'s name and value, such as cluster=prod'
        )
    return name, value


def _labels(texts: Sequence[str]) -> dict[str, str]:
    return dict(_label(text) for text in texts)


def _seconds(text: str) -> float:
    try:
        return parse_duration(text).total_seconds()
    except InvalidDurationError as error:
        raise UsageError(f'--prometheus-timeout "{text[:40]}": {error.problem}') from error


def _parallel(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or not 1 <= int(text) <= MOST_PARALLEL:
        raise UsageError(f'--prometheus-parallel "{text[:20]}": must be a number from 1 to {MOST_PARALLEL}')
    return int(text)


def _switch(text: str | None) -> bool:
    if text not in {None, "", "true", "false"}:
        raise UsageError("--prometheus-insecure-skip-verify: its variable must be true or false")
    return text == "true"


def _region(text: str | None) -> str | None:
    if text and not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", text):
        raise UsageError(f"--prometheus-sigv4-region {text[:40]}: is not a region such as eu-central-1")
    return text or None


def signal_terms(arguments: PrometheusOptions, labels: Mapping[str, str]) -> SourceSettings:
    """What is given about the signals.

    Raises:
        UsageError, ConfigurationError: A flag or a file is invalid.
    """
    text = arguments.prometheus_max_samples
    if not re.fullmatch(r"[1-9][0-9]{3,17}", text):
        raise UsageError(f'--prometheus-max-samples "{text}": write a whole number from 1000 on')
    recording = RecordingRules(arguments.recording_rules)
    namespaces = _names(arguments.exporter_namespace)
    for name in namespaces:
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name):
            raise UsageError(f'--exporter-namespace "{name}": is not the name of a namespace')
    return SourceSettings(labels, source_named(arguments.signals), int(text), recording, namespaces)


def _names(text: str | None) -> tuple[str, ...]:
    """Names that are separated by commas."""
    return tuple(name.strip() for name in (text or "").split(",") if name.strip())


def cluster_settings(arguments: ClusterOptions) -> ClusterSettings:
    """The API server, and the resources that count as GPUs there.

    Raises:
        UsageError: A resource name is invalid.
    """
    return ClusterSettings(
        arguments.kubeconfig,
        arguments.context or None,
        gpu_resources=gpu_resources(arguments),
        is_read_only=arguments.command == "mcp",
    )


def gpu_resources(arguments: ClusterOptions) -> tuple[str, ...]:
    """Resources that count as GPUs beyond the known ones.

    Raises:
        UsageError: A name is invalid.
    """
    names = _names(arguments.gpu_resource)
    for name in names:
        try:
            parse_gpu_resource(name)
        except ValueError as error:
            raise UsageError(f"--gpu-resource: {error}") from error
    return names


_INSTANCE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")


def instance_of(arguments: InstanceOptions) -> str:
    """The unique name of this instance; empty if none is set.

    Raises:
        UsageError: It is no name.
    """
    name = arguments.instance or ""
    if name and (len(name) > LONGEST_WORD or not _INSTANCE.fullmatch(name)):
        raise UsageError(
            f'--instance "{name}": write up to {LONGEST_WORD} letters and digits, with -_. within'
        )
    return name


def span_of(flag: str, text: str) -> datetime.timedelta:
    """A duration; 0 is one, too.

    Raises:
        UsageError: It is none.
    """
    if text.strip() == "0":
        return datetime.timedelta()
    try:
        return parse_duration(text)
    except InvalidDurationError as error:
        raise UsageError(f'{flag} "{text[:40]}": {error.problem}') from error


def instant_of(flag: str, text: str, now: datetime.datetime) -> datetime.datetime:
    """A time with its zone, or a duration before now.

    Raises:
        UsageError: It is neither.
    """
    try:
        at = datetime.datetime.fromisoformat(text)
    except ValueError:
        at = None
    if at is not None:
        if at.tzinfo is None:
            raise UsageError(f'{flag} "{text}": says no zone; write one, such as 2026-11-20T18:00:00Z')
        return at
    try:
        return now - parse_duration(text)
    except (ValueError, OverflowError) as error:
        message = "write a time with its zone, such as 2026-11-20T18:00:00Z, or how long ago, such as 2h"
        raise UsageError(f'{flag} "{text}": {message}') from error
