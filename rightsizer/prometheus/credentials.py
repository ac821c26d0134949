"""Credentials for Prometheus: the headers of each request, for a bearer token, basic authentication or AWS SigV4.

Files are read for each request because tokens and passwords rotate. No message contains a secret.
"""

import base64
import importlib
import types
from collections.abc import Callable, Mapping

from rightsizer.config import PrometheusSettings, read_secret
from rightsizer.errors import ConfigurationError, PrometheusError

Signer = Callable[[str, str, bytes], Mapping[str, str]]
"""From the method, URL and body of a request to the headers that authenticate it."""

AWS_SERVICE = "aps"
"""The name of Amazon Managed Service for Prometheus in the scope of a signature."""


def signer(settings: PrometheusSettings) -> Signer:
    """The signer for the credentials in the settings, of which at most one kind is set.

    Raises:
        ConfigurationError: There are no AWS credentials, or botocore is not installed.
    """
    if (token := settings.token_file) is not None:
        return lambda *_: {
            "Authorization": f"Bearer {read_secret(token, f'--prometheus-token-file {token}')}"
        }
    if settings.user is not None and (path := settings.password_file) is not None:
        return lambda *_: {
            "Authorization": _basic(
                f"{settings.user}:{read_secret(path, f'--prometheus-password-file {path}')}"
            )
        }
    if settings.sigv4_region is not None:
        return _SigV4Signer(settings.sigv4_region)
    return lambda *_: {}


def _basic(pair: str) -> str:
    """RFC 7617, with UTF-8 as the charset of the user name."""
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


class _SigV4Signer:
    """AWS Signature Version 4 for the workspaces of one region.

    botocore finds and renews the credentials: environment, profile, SSO, web identity (IRSA), container (EKS Pod
    Identity) or instance. https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html
    """

    def __init__(self, region: str) -> None:
        self._region = region
        session = _botocore("session").Session()
        session.set_config_variable("region", region)  # also of the security token service
        exceptions = _botocore("exceptions")
        self._errors = (exceptions.BotoCoreError, exceptions.ClientError)
        try:
            self._credentials = session.get_credentials()
        except self._errors as error:
            raise ConfigurationError(f"--prometheus-sigv4-region: AWS credentials: {error}") from error
        if self._credentials is None:
            raise ConfigurationError(
                "--prometheus-sigv4-region: no AWS credentials in environment, profile, web identity, container or "
                "instance; set AWS_PROFILE, or give the pod a role"
            )

    def __call__(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        """The headers of one request; the signature covers host, path, query and body."""
        try:
            credentials = self._credentials.get_frozen_credentials()
        except self._errors as error:
            raise PrometheusError(f"signing a query for AWS: getting credentials failed: {error}") from error
        request = _botocore("awsrequest").AWSRequest(method=method, url=url, data=body)
        _botocore("auth").SigV4Auth(credentials, AWS_SERVICE, self._region).add_auth(request)
        return dict(request.headers.items())


def _botocore(module: str) -> types.ModuleType:
    """A module of botocore, which only the extra aws installs."""
    try:
        return importlib.import_module(f"botocore.{module}")
    except ModuleNotFoundError as error:
        library = str(error.name).partition(".")[0]
        raise ConfigurationError(
            f"--prometheus-sigv4-region: the library {library} is missing; run in a checkout: pip install "
            "'.[rightsizer,aws]'"
        ) from error
