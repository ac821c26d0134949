"""Who we are to Prometheus: the headers that say so, made for each request. Knows no HTTP library.

At most one kind is in use. Files are read for each request, since tokens and passwords rotate; no message repeats them.
"""

import base64
import importlib
import pathlib
from collections.abc import Callable, Mapping

from rightsizer.config import PrometheusSettings, read_secret
from rightsizer.errors import ConfigurationError

Signer = Callable[[str, str, bytes], Mapping[str, str]]
"""From method, URL and body of a request to the headers that it needs."""


def signer(settings: PrometheusSettings) -> Signer:
    """How requests are to be signed.

    Raises:
        ConfigurationError: There are no AWS credentials, or no library to sign with.
    """
    if settings.token_file is not None:
        return _bearer(settings.token_file)
    if settings.user is not None and settings.password_file is not None:
        return _basic(settings.user, settings.password_file)
    if settings.sigv4_region is not None:
        return _sigv4(settings.sigv4_region)
    return lambda *_: {}


def _bearer(path: pathlib.Path) -> Signer:
    def sign(*_: object) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {read_secret(path, f'--prometheus-token-file {path}')}"}

    return sign


def _basic(user: str, path: pathlib.Path) -> Signer:
    """RFC 7617, with UTF-8 as the user's character set."""

    def sign(*_: object) -> Mapping[str, str]:
        password = read_secret(path, f"--prometheus-password-file {path}")
        pair = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {pair}"}

    return sign


def _sigv4(region: str) -> Signer:
    try:
        module = importlib.import_module("rightsizer.prometheus.sigv4")
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        raise ConfigurationError(
            f"--prometheus-sigv4-region: the library {library} is missing; run in a checkout: pip install "
            "'.[rightsizer,aws]'"
        ) from error
    made: Signer = module.signer(region)
    return made
