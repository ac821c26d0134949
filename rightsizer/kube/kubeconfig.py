"""Connection to an API server: by a kubeconfig, read as kubectl reads it, or the account of the pod.

The `kubernetes` package then connects. Its own reader (37.0.2) lets the last file's current-context count, drops `as`,
prefers `token` to `tokenFile`, keeps a token file's line break, never reads it again, and ignores `interactiveMode`.
https://kubernetes.io/docs/concepts/configuration/organize-cluster-access-kubeconfig/#merging-kubeconfig-files
https://kubernetes.io/docs/reference/config-api/kubeconfig.v1/
https://kubernetes.io/docs/reference/config-api/client-authentication.v1/
"""

import base64
import dataclasses
import datetime
import functools
import json
import os
import pathlib
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec
import yaml
from kubernetes import client
from kubernetes.config import ConfigException, incluster_config, kube_config

from rightsizer.config import ClusterSettings
from rightsizer.errors import ConfigurationError

IN_CLUSTER = "the in-cluster service account (no --kubeconfig, $KUBECONFIG or ~/.kube/config)"

_CREATE_KUBECONFIG = (
    "create a kubeconfig with your cloud's command, such as: gcloud container clusters get-credentials, "
    "aws eks update-kubeconfig, az aks get-credentials"
)
_NO_KUBECONFIG = (
    "which cluster? found no kubeconfig in $KUBECONFIG or ~/.kube/config, and no service account of a pod; "
    f"use --kubeconfig FILE, or {_CREATE_KUBECONFIG}"
)
MAX_DETAIL = 500
"""Maximum number of characters of another program's message that an error repeats."""

_PATHS = ("certificate-authority", "client-certificate", "client-key", "tokenFile")
"""Fields whose relative paths start at the folder of their file."""

_REREAD = datetime.timedelta(minutes=1)
"""Interval in which client-go reads token files again: projected tokens rotate."""

_MARGIN = datetime.timedelta(seconds=10)
"""Time that a request with a token may take to reach the API server before the token expires."""

_EXTENSION = "client.authentication.k8s.io/exec"
_PLAIN_KEY = "!#$&'*+-.^_`|~"
"""Characters of a header's name beside letters and digits (RFC 9110, 5.6.2) without the percent sign."""


class _UnusableError(Exception):
    """A kubeconfig cannot be used; the message says why."""


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_MODES = ("Never", "IfAvailable", "Always")
_DEFAULT_MODES = {
    "client.authentication.k8s.io/v1": "",
    "client.authentication.k8s.io/v1beta1": "IfAvailable",
}
"""Modes by version: https://github.com/kubernetes/client-go/blob/v0.36.3/tools/clientcmd/api/v1/defaults.go"""


class _Variable(msgspec.Struct):
    name: _Text
    value: str = ""


class _Exec(msgspec.Struct, rename="camel"):
    """clientcmd/v1.ExecConfig."""

    command: _Text
    api_version: _Text
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = ""

    def __post_init__(self) -> None:
        if self.api_version not in _DEFAULT_MODES:
            message = f"apiVersion {self.api_version}: write {' or '.join(_DEFAULT_MODES)}"
            raise ValueError(message)
        self.interactive_mode = self.interactive_mode or _DEFAULT_MODES[self.api_version]
        if self.interactive_mode not in _MODES:
            message = (
                f"interactiveMode {self.interactive_mode or 'is not set'}: write Never, IfAvailable or Always"
            )
            raise ValueError(message)


class _User(msgspec.Struct, rename="kebab"):
    """The fields of clientcmd/v1.AuthInfo that the client does not read as kubectl does."""

    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    as_: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None
    exec: _Exec | None = None
    auth_provider: dict[str, Any] | None = None
    username: str = ""


_EXCLUSIVE = (
    ("certificate-authority", "certificate-authority-data"),
    ("certificate-authority", "insecure-skip-tls-verify"),
    ("certificate-authority-data", "insecure-skip-tls-verify"),
    ("client-certificate", "client-certificate-data"),
    ("client-key", "client-key-data"),
    ("token", "username"),
    ("token", "password"),
    ("exec", "auth-provider"),
)
"""Fields of a cluster or a user that kubectl refuses together.

https://github.com/kubernetes/client-go/blob/v0.36.3/tools/clientcmd/validation.go
"""


class _Entry(msgspec.Struct):
    """clientcmd/v1.NamedCluster, NamedContext or NamedAuthInfo."""

    name: str
    cluster: dict[str, Any] | None = None
    context: dict[str, Any] | None = None
    user: dict[str, Any] | None = None


class _Kubeconfig(msgspec.Struct, rename="kebab"):
    """clientcmd/v1.Config."""

    current_context: str | None = None
    clusters: list[_Entry] | None = None
    contexts: list[_Entry] | None = None
    users: list[_Entry] | None = None


class _Context(msgspec.Struct):
    cluster: str = ""
    user: str = ""


class _Credential(msgspec.Struct, rename="camel"):
    """clientauthentication/v1.ExecCredentialStatus."""

    token: str = ""
    client_certificate_data: str = ""
    client_key_data: str = ""
    expiration_timestamp: datetime.datetime | None = None


class _ExecCredential(msgspec.Struct, rename="camel"):
    api_version: str
    status: _Credential


@dataclasses.dataclass(frozen=True, slots=True)
class Connection:
    """Client configuration and identity for one API server.

    Attributes:
        configuration: Of the client.
        source: Where it comes from, for messages.
        context: Name of the kubeconfig's context; empty inside a pod.
        impersonation: Headers that ask the API server to act as another user, one for each value.
    """

    configuration: client.Configuration
    source: str
    context: str = ""
    impersonation: tuple[tuple[str, str], ...] = ()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def connection(settings: ClusterSettings, clock: Callable[[], datetime.datetime] = _now) -> Connection:
    """The connection that kubectl would use, or that of the pod's account.

    Raises:
        ConfigurationError: There is no usable kubeconfig, context or in-cluster account.
    """
    path = settings.kubeconfig
    if path is not None and not path.is_file():
        problem = "is not a regular file" if path.exists() else "no such file"
        raise ConfigurationError(f'--kubeconfig "{path}": {problem}')
    paths = [path] if path else list(_default_paths())
    if not paths:
        return _inside(settings)
    source = f'--kubeconfig "{path}"' if path else "the default kubeconfig"
    try:
        return _of_context(_merged(paths), settings.context, source, clock)
    except (*_UNUSABLE, _UnusableError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise ConfigurationError(f"{source}: cannot be used: {words}") from error


_UNUSABLE = (
    ConfigException,
    yaml.YAMLError,
    msgspec.ValidationError,
    OSError,
    LookupError,
    TypeError,
    ValueError,
)
"""Exceptions of the libraries for a kubeconfig that is malformed or incomplete."""


def _default_paths() -> Iterator[pathlib.Path]:
    """The files of $KUBECONFIG that exist, or ~/.kube/config."""
    paths = kube_config.KUBE_CONFIG_DEFAULT_LOCATION.split(kube_config.ENV_KUBECONFIG_PATH_SEPARATOR)
    found = (pathlib.Path(path).expanduser() for path in dict.fromkeys(paths) if path)
    return (path for path in found if path.is_file())


def _inside(settings: ClusterSettings) -> Connection:
    configuration = client.Configuration()
    try:
        if settings.context is not None:
            raise ConfigurationError(_NO_KUBECONFIG)
        incluster_config.load_incluster_config(client_configuration=configuration)
    except ConfigException as error:
        raise ConfigurationError(_NO_KUBECONFIG) from error
    return Connection(configuration, IN_CLUSTER)


@dataclasses.dataclass(slots=True)
class _Merged:
    """Several files as one: the first to set a value, or to have an entry of a name, counts."""

    current: str = ""
    entries: dict[str, dict[str, dict[str, Any]]] = dataclasses.field(
        default_factory=lambda: {"cluster": {}, "context": {}, "user": {}}
    )

    def entry(self, section: str, name: str, *, by: str) -> dict[str, Any]:
        """The cluster or user that a context names.

        Raises:
            _UnusableError: It does not exist, or has fields that exclude each other.
        """
        found = self.entries[section].get(name)
        if found is None:
            words = f"the {section} {name}, which it does not have" if name else f"no {section}"
            raise _UnusableError(f"its context {by} names {words}")
        for field, other in _EXCLUSIVE:
            if found.get(field) and found.get(other):
                raise _UnusableError(f"its {section} {name} has both {field} and {other}")
        return found


def _merged(paths: Sequence[pathlib.Path]) -> _Merged:
    """Files read one after another.

    Raises:
        _UnusableError: All are empty, or one has two entries of one name.
    """
    merged, is_empty = _Merged(), True
    for path in paths:
        document = yaml.safe_load(path.read_bytes())
        if document is None:
            continue
        is_empty = False
        read = msgspec.convert(document, _Kubeconfig)
        merged.current = merged.current or read.current_context or ""
        for section, known in merged.entries.items():
            own: dict[str, dict[str, Any]] = {}
            for entry in getattr(read, f"{section}s") or ():
                if entry.name in own:
                    raise _UnusableError(f"it has two {section}s of the name {entry.name}")
                own[entry.name] = _placed(getattr(entry, section) or {}, path.absolute().parent)
            merged.entries[section] = own | known
    if is_empty:
        raise _UnusableError(f"it is empty; {_CREATE_KUBECONFIG}")
    return merged


def _placed(entry: Mapping[str, Any], folder: pathlib.Path) -> dict[str, Any]:
    """An entry with absolute paths."""
    paths: dict[str, Any] = {key: str(folder / entry[key]) for key in _PATHS if entry.get(key)}
    plugin = entry.get("exec")
    if isinstance(plugin, dict) and "/" in str(plugin.get("command")):
        paths["exec"] = {**plugin, "command": str(folder / plugin["command"])}
    return {**entry, **paths}


def _of_context(
    merged: _Merged, chosen: str | None, source: str, clock: Callable[[], datetime.datetime]
) -> Connection:
    name, contexts = chosen or merged.current, merged.entries["context"]
    if not contexts:
        raise _UnusableError(f"it has no contexts; {_CREATE_KUBECONFIG}")
    if name not in contexts:
        problem = f"it has no context {name}" if name else "it sets no current-context"
        raise _UnusableError(f"{problem}; give one with --context: {', '.join(sorted(contexts))}")
    context = msgspec.convert(contexts[name], _Context)
    cluster = merged.entry("cluster", context.cluster, by=name)
    if not cluster.get("server"):
        raise _UnusableError(f"its cluster {context.cluster} has no server")
    is_secure = str(cluster["server"]).startswith("https")
    entry = merged.entry("user", context.user, by=name) if context.user or is_secure else {}
    user, known, token = _user(context.user, entry), dict(entry), None
    if user.token_file:
        read = functools.partial(_token_in, pathlib.Path(user.token_file), clock)
        token = _Token((user.token, clock()) if user.token else read(), read, clock, is_kept=True)
    elif user.exec is not None and not user.token and not user.username:
        ask = functools.partial(_asked, context.user, user.exec, cluster)
        credential = ask()
        token = _Token(_token_of(credential), lambda: _token_of(ask()), clock)
        known |= _certificate_of(credential)
    for field in ("tokenFile", "exec", *(("token",) if token else ())):
        known.pop(field, None)
    configuration = client.Configuration()
    kube_config.load_kube_config_from_dict(
        {
            "current-context": name,
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": known}],
        },
        client_configuration=configuration,
    )
    if token is not None:
        token.refresh(configuration)
        configuration.refresh_api_key_hook = token.refresh  # type: ignore[assignment]
    if is_secure and not configuration.api_key and not configuration.cert_file:
        raise _UnusableError(f"user {context.user} has no credentials")
    return Connection(configuration, source, name, tuple(_impersonation(context.user, user)))


def _user(name: str, entry: Mapping[str, Any]) -> _User:
    """The user of an entry, which kubectl would accept.

    Raises:
        _UnusableError: It would not.
    """
    try:
        user = msgspec.convert(entry, _User)
    except msgspec.ValidationError as error:
        raise _UnusableError(f"user {name}: {error}") from error
    provider = (user.auth_provider or {}).get("name", "oidc")
    if provider != "oidc":
        words = f"user {name} has the auth-provider {provider}, which is out of date; {_CREATE_KUBECONFIG}"
        raise _UnusableError(words)
    return user


def _impersonation(name: str, user: _User) -> Iterator[tuple[str, str]]:
    """The headers for a user's `as` fields.

    https://kubernetes.io/docs/reference/access-authn-authz/user-impersonation/
    """
    if not user.as_:
        if user.as_uid or user.as_groups or user.as_user_extra:
            raise _UnusableError(f"user {name} has as-uid, as-groups or as-user-extra without as")
        return
    yield "Impersonate-User", user.as_
    if user.as_uid:
        yield "Impersonate-Uid", user.as_uid
    for group in user.as_groups or ():
        yield "Impersonate-Group", group
    for key, values in (user.as_user_extra or {}).items():
        for value in values:
            yield f"Impersonate-Extra-{urllib.parse.quote(key, safe=_PLAIN_KEY)}", value


# --- Tokens that change


class _Token:
    """A bearer token that is read again once it may have changed.

    Args:
        first: The token, and when to read it again; never, if that is None.
        read: Reads both again.
        is_kept: Whether the last token is used for as long as it cannot be read.
    """

    def __init__(
        self,
        first: tuple[str, datetime.datetime | None],
        read: Callable[[], tuple[str, datetime.datetime | None]],
        clock: Callable[[], datetime.datetime],
        *,
        is_kept: bool = False,
    ) -> None:
        self._token, self._until = first
        self._read = read
        self._clock = clock
        self._is_kept = is_kept
        self._lock = threading.Lock()

    def refresh(self, configuration: client.Configuration) -> None:
        """Set the token that is valid now.

        Raises:
            ConfigurationError: It cannot be read again.
        """
        with self._lock:
            if self._until is not None and self._clock() >= self._until:
                try:
                    self._token, self._until = self._read()
                except (_UnusableError, OSError, ValueError) as error:
                    if not self._is_kept:
                        raise ConfigurationError(f"credentials cannot be renewed: {error}") from error
            if self._token:
                configuration.api_key["BearerToken"] = f"Bearer {self._token}"


def _token_in(path: pathlib.Path, clock: Callable[[], datetime.datetime]) -> tuple[str, datetime.datetime]:
    token = path.read_text(encoding="utf-8").strip()
    if not token:
        raise _UnusableError(f"the token file {path} is empty")
    return token, clock() + _REREAD


def _token_of(credential: _Credential) -> tuple[str, datetime.datetime | None]:
    expires = credential.expiration_timestamp
    return credential.token, expires - _MARGIN if expires and credential.token else None


def _certificate_of(credential: _Credential) -> dict[str, str]:
    """The plugin's certificate as the client reads it from a user; none if it gave only a token."""
    data = {
        "client-certificate-data": credential.client_certificate_data,
        "client-key-data": credential.client_key_data,
    }
    return {key: base64.b64encode(text.encode()).decode() for key, text in data.items() if text}


# --- Exec plugins


def _asked(user: str, plugin: _Exec, cluster: Mapping[str, Any]) -> _Credential:
    """Run an exec plugin, and return the credential that it prints.

    Raises:
        _UnusableError: It cannot be started, fails, or gives no credential; its output is never repeated.
    """
    named = f"the exec plugin {plugin.command} of user {user}"
    is_interactive = _is_interactive(plugin, named)
    spec: dict[str, Any] = {"interactive": is_interactive}
    if plugin.provide_cluster_info:
        spec["cluster"] = _described(cluster)
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    given = {variable.name: variable.value for variable in plugin.env or ()}
    try:
        done = subprocess.run(
            [plugin.command, *(plugin.args or ())],
            stdin=None if is_interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if is_interactive else subprocess.PIPE,
            env={**os.environ, **given, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            check=False,
        )
    except FileNotFoundError as error:
        hint = " ".join(plugin.install_hint.split()) or "install it, or add it to $PATH"
        raise _UnusableError(f"{named} is not installed; {hint[:MAX_DETAIL]}") from error
    except OSError as error:
        raise _UnusableError(f"{named} cannot be started: {error.strerror}") from error
    if done.returncode:
        said = " ".join((done.stderr or b"").decode(errors="replace").split())[:MAX_DETAIL]
        why = "see its message" if is_interactive else f"process returned {done.returncode}. {said}".strip()
        raise _UnusableError(f"{named} failed: {why}")
    try:
        answer = msgspec.json.decode(done.stdout, type=_ExecCredential)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _UnusableError(f"{named} failed: failed to decode process output") from None
    if answer.api_version != plugin.api_version:
        raise _UnusableError(f"{named} answered in another apiVersion than {plugin.api_version}")
    status = answer.status
    if bool(status.client_certificate_data) != bool(status.client_key_data):
        raise _UnusableError(f"{named} gave a certificate without its key, or a key without its certificate")
    if not status.token and not status.client_certificate_data:
        raise _UnusableError(f"{named} gave neither a token nor a certificate")
    return status


def _is_interactive(plugin: _Exec, named: str) -> bool:
    """Whether a plugin may ask the person at the terminal."""
    is_terminal = sys.stdin is not None and sys.stdin.isatty()
    if plugin.interactive_mode == "Always" and not is_terminal:
        raise _UnusableError(f"{named} needs a terminal (interactiveMode Always), and standard input is none")
    return is_terminal and plugin.interactive_mode != "Never"


def _described(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """A cluster as clientauthentication/v1.Cluster."""
    keys = (
        "server",
        "tls-server-name",
        "insecure-skip-tls-verify",
        "certificate-authority-data",
        "proxy-url",
    )
    found = {key: cluster[key] for key in keys if key in cluster}
    if authority := cluster.get("certificate-authority"):
        data = pathlib.Path(authority).read_bytes()
        found.setdefault("certificate-authority-data", base64.b64encode(data).decode())
    for extension in cluster.get("extensions") or ():
        if extension.get("name") == _EXTENSION:
            found["config"] = extension.get("extension")
    return found
