"""The ways in which clients reach a simulated server, and a clock for it."""

import datetime
from collections.abc import Mapping
from typing import Any, TypeAlias, TypedDict, Unpack

import requests

from simulator.kube import ADMIN_TOKEN

START = datetime.datetime(2026, 11, 20, 12, 0, tzinfo=datetime.UTC)


Official: TypeAlias = (
    Any  # clients and objects of the official library, all of whose fields may be None to mypy
)


class Options(TypedDict, total=False):
    """What a request may carry besides its body."""

    params: Mapping[str, str | int]
    headers: Mapping[str, str]
    token: str
    stream: bool


class Clock:
    """A clock that moves only when told to."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime.datetime:
        """The time."""
        return self.now

    def forward(self, seconds: float) -> None:
        """Move on."""
        self.now += datetime.timedelta(seconds=seconds)


class Http:
    """Plain HTTP, as anybody would speak it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {ADMIN_TOKEN}"

    def __call__(
        self, method: str, path: str, body: object = None, **options: Unpack[Options]
    ) -> requests.Response:
        """Send one request, with a JSON body where there is one."""
        headers = dict(options.get("headers", {}))
        if "token" in options:
            headers["Authorization"] = f"Bearer {options['token']}"
        return self.session.request(
            method,
            self.url + path,
            params=options.get("params"),
            json=body,
            headers=headers,
            stream=options.get("stream", False),
            timeout=300,
        )

    def patch(
        self, path: str, body: object, kind: str = "merge-patch", **options: Unpack[Options]
    ) -> requests.Response:
        """Send a patch of a kind such as "json-patch"."""
        options["headers"] = {**options.get("headers", {}), "Content-Type": f"application/{kind}+json"}
        return self("PATCH", path, body, **options)
