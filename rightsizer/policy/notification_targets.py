"""Who is told of changes, and how, as it stands in the policy file. Pure.

Addresses and tokens that are secrets stand in files of their own; an address that no message would go to safely is
refused.
"""

import ipaddress
import re
import urllib.parse
from typing import Annotated, Final, Literal, Self

import pydantic

from rightsizer.policy.values import Namespaces, Part

OCCASIONS: Final = ("notice", "change", "rollback", "failure")
Occasion = Literal["notice", "change", "rollback", "failure"]

_METADATA_HOSTS = frozenset({"metadata.google.internal", "metadata", "instance-data"})


def _address(url: str) -> str:
    """An address that a notice may go to.

    Raises:
        ValueError: It is none; the message says why.
    """
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        message = "must be an address such as https://hooks.example.com/gpu"
        raise ValueError(message)
    if parts.username or parts.password:
        message = "contains credentials; put the address into a file and set urlFile"
        raise ValueError(message)
    if parts.hostname.lower().rstrip(".") in _METADATA_HOSTS or _is_link_local(parts.hostname):
        message = "is a cloud's metadata service; messages are not sent there"
        raise ValueError(message)
    return url


def _is_link_local(host: str) -> bool:
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return False
    return found.is_link_local or found == ipaddress.ip_address("fd00:ec2::254")


def checked_address(text: str) -> str:
    """What stands in a file of an address.

    Raises:
        ValueError: It cannot be meant.
    """
    if not re.fullmatch(r"[!-~]{1,2000}", text):
        message = "must be one line of ASCII text: an address such as https://hooks.example.com/gpu"
        raise ValueError(message)
    return _address(text)


_Address = Annotated[
    str,
    pydantic.AfterValidator(checked_address),
    pydantic.WithJsonSchema({"type": "string", "pattern": "^https?://[!-?A-~]+$"}),
]


class Target(Part):
    """One receiver of messages."""

    model_config = pydantic.ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["url"]}, {"required": ["urlFile"]}]}
    )

    type: Literal["webhook", "slack"] = pydantic.Field(
        description="webhook: a JSON document of kind Notification; slack: a text for Slack and Mattermost."
    )
    url: _Address | None = pydantic.Field(None, description="Address, if it is not secret.")
    urlFile: str | None = pydantic.Field(
        None, min_length=1, description="File with the address, read for each message."
    )
    tokenFile: str | None = pydantic.Field(
        None, min_length=1, description="File with a bearer token, read for each message."
    )
    namespaces: Namespaces | None = pydantic.Field(
        None,
        description="Only workloads in these namespaces, with wildcards; default: all.",
    )
    occasions: tuple[Occasion, ...] = pydantic.Field(
        OCCASIONS,
        strict=False,
        min_length=1,
        json_schema_extra={"uniqueItems": True},
        description="notice: a change is planned; change: it was made; rollback: it was rolled back; failure: an "
        "error, or the breaker opened.",
    )

    @pydantic.model_validator(mode="after")
    def _one_address(self) -> Self:
        if (self.url is None) == (self.urlFile is None):
            message = "write either url, or urlFile if the address is secret"
            raise ValueError(message)
        return self
