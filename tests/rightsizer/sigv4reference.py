"""AWS Signature Version 4 as its documentation tells it, independent of any library.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-create-signed-request.html
"""

import hashlib
import hmac
import urllib.parse
from collections.abc import Mapping


def signature(
    secret: str, scope: str, method: str, url: str, *, headers: Mapping[str, str], body: bytes
) -> str:
    """The signature of a request without a query.

    Args:
        secret: The secret access key.
        scope: Date, region, service and "aws4_request", with slashes between.
        method: Of the request.
        url: Of the request.
        headers: Those that are signed, by name in lower case; x-amz-date among them.
        body: Of the request.
    """
    path = urllib.parse.quote(urllib.parse.urlsplit(url).path or "/", safe="/-_.~")
    names = sorted(headers)
    canonical = "\n".join(
        [
            method,
            path,
            "",
            *(f"{name}:{' '.join(headers[name].split())}" for name in names),
            "",
            ";".join(names),
            hashlib.sha256(body).hexdigest(),
        ]
    )
    text = "\n".join(
        ["AWS4-HMAC-SHA256", headers["x-amz-date"], scope, hashlib.sha256(canonical.encode()).hexdigest()]
    )
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return hmac.digest(key, text.encode(), "sha256").hex()
