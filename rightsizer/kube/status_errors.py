"""Turns error responses of the API server (Status objects) into RequestRefused. Pure.

https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/status/
"""

import http
import re

import msgspec

from rightsizer.errors import RequestRefused

MAX_DETAIL = 500
"""Maximum number of characters of the API server's message that an error repeats."""

_REPEATED = re.compile(r'Invalid value: ("?)(?:\{|map\[|core\.).*[\]}]\1: ')
"""Where the API server repeats a field or a whole patched object, as JSON or as Go prints it."""
_FAILED = re.compile(r"expression '.*' resulted in error: ")
_FALSE = re.compile(r"failed expression: .*")
"""Where the message repeats an admission policy's expression: kilobytes that hide its result."""


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


def raise_for_status(code: int, data: bytes, attempted: str, *, source: str, retry_after: str = "") -> None:
    """Raise if a response is an error; a Status object's own code takes precedence over the HTTP status.

    Args:
        code: HTTP status.
        data: The body.
        attempted: The request, for the message.
        source: Where the credentials come from, for the message.
        retry_after: The header of that name.

    Raises:
        RequestRefused: The response is an error.
    """
    if code < http.HTTPStatus.MULTIPLE_CHOICES and b'"Failure"' not in data:
        return  # saves decoding long lists twice
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
        detail = "redirected, which an API server never does; is the kubeconfig's server URL right?"
    if code == http.HTTPStatus.UNAUTHORIZED:
        detail += f"; the credentials of {source} are not accepted"
    if code == http.HTTPStatus.TOO_MANY_REQUESTS and re.fullmatch("[0-9]{1,6}", retry_after):
        detail += f" (Retry-After: {retry_after} s)"
    raise RequestRefused(
        attempted, code=status.code or code, reason=status.reason, detail=detail, causes=causes
    )


def _without_values(message: str) -> str:
    """A message on one line, without the objects that it repeats: their fields may be credentials."""
    text = _REPEATED.sub("Invalid value (left out here): ", " ".join(message.split()))
    text = _FAILED.sub("an expression resulted in error: ", _FALSE.sub("its expression is false", text))
    return text if len(text) <= MAX_DETAIL else f"{text[:MAX_DETAIL]} ..."
