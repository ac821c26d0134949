"""AWS Signature Version 4 for Amazon Managed Service for Prometheus; `botocore` finds the credentials and signs.

Credentials come from where AWS's own tools take them: environment, profile, SSO, web identity (IRSA), container (EKS
Pod Identity) or instance. They are renewed as they expire.
https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv.html
"""

from collections.abc import Mapping

import botocore.auth
import botocore.awsrequest
import botocore.exceptions
import botocore.session

from rightsizer.errors import ConfigurationError, PrometheusError

SERVICE = "aps"
"""What Amazon Managed Service for Prometheus is called in a signature's scope."""

_FAILED = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)


class _Signer:
    """Signs for one region."""

    def __init__(self, region: str) -> None:
        self._region = region
        session = botocore.session.Session()
        session.set_config_variable("region", region)  # of the security token service, too
        try:
            self._credentials = session.get_credentials()
        except _FAILED as error:
            raise ConfigurationError(f"--prometheus-sigv4-region: AWS credentials: {error}") from error
        if self._credentials is None:
            raise ConfigurationError(
                "--prometheus-sigv4-region: no AWS credentials in environment, profile, web identity, container or "
                "instance; set AWS_PROFILE, or give the pod a role"
            )

    def __call__(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        """The headers of one request; nothing else of it is signed but host, path, query and body."""
        try:
            credentials = self._credentials.get_frozen_credentials()
        except _FAILED as error:
            raise PrometheusError(f"signing a query for AWS: credentials cannot be had: {error}") from error
        request = botocore.awsrequest.AWSRequest(method=method, url=url, data=body)
        botocore.auth.SigV4Auth(credentials, SERVICE, self._region).add_auth(request)
        return dict(request.headers.items())


def signer(region: str) -> _Signer:
    """What signs requests to the workspaces of a region.

    Raises:
        ConfigurationError: There are no credentials.
    """
    return _Signer(region)
