"""What the API server says instead of what was asked for: its Status objects, as errors for people. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
"""

import http
import re

import msgspec

from rightsizer.errors import RequestRefused

MAX_DETAIL = 500
"""How much of an API server's words goes into a message."""

_REPEATED = re.compile(r'Invalid value: ("?)(?:\{|map\[|core\.).*[\]}]\1: ')
"""Where a field, or a whole object that a patch made, is repeated as JSON or as Go prints it."""
_FAILED = re.compile(r"expression '.*' resulted in error: ")
_FALSE = re.compile(r"failed expression: .*")
"""Where an admission policy's expression is repeated, which may take kilobytes and hides what it came to."""


class _Cause(msgspec.Struct):
    reason: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] | None = None


class _Status(msgspec.Struct):
    kind: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    code: int = 0
    details: _Details | None = None


def raise_for(code: int, data: bytes, attempted: str, *, source: str, retry_after: str = "") -> None:
    """Errors as the API server tells them; a Status with a code of its own stands above HTTP's.

    Args:
        code: HTTP's.
        data: The body.
        attempted: What was asked.
        source: Whose credentials were sent.
        retry_after: The header of that name.

    Raises:
        RequestRefused: The answer is an error.
    """
    if code < http.HTTPStatus.MULTIPLE_CHOICES and b'"Failure"' not in data:
        return  # lists are long, and read once anyhow
    try:
        status = msgspec.json.decode(data, type=_Status)
    except msgspec.DecodeError:
        status = _Status()
    is_failure = status.kind == "Status" and status.status == "Failure"
    if code < http.HTTPStatus.MULTIPLE_CHOICES and not is_failure:
        return
    causes = tuple(cause.reason for cause in (status.details or _Details()).causes or [])
    detail = _without_values(status.message or data.decode(errors="replace"))
    if http.HTTPStatus.MULTIPLE_CHOICES <= code < http.HTTPStatus.BAD_REQUEST:
        detail = "sends elsewhere, as no API server does: is something else at the kubeconfig's server?"
    if code == http.HTTPStatus.UNAUTHORIZED:
        detail += f"; the credentials of {source} are not accepted"
    if code == http.HTTPStatus.TOO_MANY_REQUESTS and re.fullmatch("[0-9]{1,6}", retry_after):
        detail += f" (Retry-After: {retry_after} s)"
    raise RequestRefused(
        attempted, code=status.code or code, reason=status.reason, detail=detail, causes=causes
    )


def _without_values(message: str) -> str:
    """A message on one line without the objects that the API server repeats in it: their fields may be credentials."""
    text = _REPEATED.sub("Invalid value (left out here): ", " ".join(message.split()))
    text = _FAILED.sub("an expression resulted in error: ", _FALSE.sub("its expression is false", text))
    return text if len(text) <= MAX_DETAIL else f"{text[:MAX_DETAIL]} ..."
