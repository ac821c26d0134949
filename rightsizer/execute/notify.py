"""Sends notifications to the targets of the policy; a failure has no effect on the run.

Redirects are not followed, and a message holds only what its function has of outcomes, changes or figures.
"""

import datetime
import logging
import pathlib
import re
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import requests

from rightsizer.config import FIELD_MANAGER, library, read_secret
from rightsizer.errors import ConfigurationError
from rightsizer.model import Fleet, FoundChange, ObjectRef, Outcome, Workload
from rightsizer.policy.match import is_any
from rightsizer.policy.schema import Target, checked_address
from rightsizer.report.chat_messages import CHATS, Chat, changes_message, digest_message
from rightsizer.report.events import (
    digest_webhook_message,
    occasion_of,
    webhook_message,
)

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_WHOLE_S = 3 * _TIMEOUT_S
"""Time for a message in all: one to each receiver of a mail."""
_WARNINGS = {"WARNING", "ERROR", "CRITICAL"}
_SHORTEST = 4
"""Minimum length of a part of an address that is looked for in a message: a shorter one is in every word."""
_Message = Mapping[str, Any]


def notify(
    targets: Sequence[Target], cluster: str, run: str, outcomes: Sequence[Outcome], fleet: Fleet | None = None
) -> list[str]:
    """Send each target its outcomes on the cluster of this name in one message; return the failures.

    The labels and annotations of the fleet's workloads select among the targets; none of them is an address.
    """
    workloads = {str(workload.ref): workload for workload in fleet.workloads} if fleet else {}

    def message_for(target: Target) -> _Message | None:
        concerned = [outcome for outcome in outcomes if _concerns(target, outcome, workloads)]
        if not concerned:
            return None
        if chat := CHATS.get(target.type):
            return changes_message(chat, cluster, run, concerned, answer_url=target.answerURL or "")
        return webhook_message(cluster, run, concerned)

    return _send_each(targets, message_for)


def notify_of_changes(
    targets: Sequence[Target], cluster: str, changes: Sequence[FoundChange], since: datetime.datetime
) -> list[str]:
    """Send the digest of the changes since a time, each target those of its namespaces; return the failures."""

    def message_for(target: Target) -> _Message | None:
        if "digest" not in target.occasions or target.owners is not None:
            return None
        of_target = [change for change in changes if _is_in(target, change.ref)]
        if not of_target:
            return None
        if chat := CHATS.get(target.type):
            return digest_message(chat, cluster, of_target, since)
        return digest_webhook_message(cluster, of_target, since)

    return _send_each(targets, message_for)


def notify_of_all_namespaces(
    targets: Sequence[Target], occasion: str, chat_message: Callable[[Chat], _Message], document: _Message
) -> list[str]:
    """Send figures of all namespaces, which targets of some namespaces or owners do not get; return the failures."""

    def message_for(target: Target) -> _Message | None:
        is_of_all = target.namespaces is None and target.owners is None
        if not is_of_all or occasion not in target.occasions:
            return None
        chat = CHATS.get(target.type)
        return chat_message(chat) if chat else document

    return _send_each(targets, message_for)


def _send_each(targets: Sequence[Target], message_for: Callable[[Target], _Message | None]) -> list[str]:
    problems = []
    for number, target in enumerate(targets):
        message = message_for(target)
        if message is not None:
            try:
                _send(target, f"notifications[{number}]", message)
            except (ConfigurationError, requests.RequestException) as error:
                problems.append(f"notifications[{number}]: {_cause(error)}")
    return problems


def _concerns(target: Target, outcome: Outcome, workloads: Mapping[str, Workload]) -> bool:
    is_there = _is_in(target, outcome.ref) and occasion_of(outcome) in target.occasions
    workload = workloads.get(str(outcome.ref))
    return is_there and (target.owners is None or (workload is not None and _is_of(target.owners, workload)))


def _is_in(target: Target, ref: ObjectRef) -> bool:
    return target.namespaces is None or is_any(ref.namespace, target.namespaces)


def _is_of(owners: Mapping[str, str], workload: Workload) -> bool:
    """Whether labels or annotations are as wanted; where a key is in several places, the first counts."""
    places = (
        workload.labels,
        workload.annotations,
        workload.namespace_labels,
        workload.namespace_annotations,
    )
    found = {key: next((place[key] for place in places if key in place), None) for key in owners}
    return all(value is not None and is_any(value, (owners[key],)) for key, value in found.items())


def _send(target: Target, place: str, message: _Message) -> None:
    if target.type == "apprise":
        _send_by_apprise(target, place, message)
        return
    url = target.url or _read_address(target, place)
    headers = {"User-Agent": "gpu-rightsizer"}
    if target.tokenFile is not None:
        headers["Authorization"] = "Bearer " + read_secret(
            pathlib.Path(target.tokenFile), f"{place}.tokenFile"
        )
    with requests.Session() as session:
        # Proxies and CAs of the environment, but never the credentials of a .netrc.
        found = session.merge_environment_settings(url, {}, stream=False, verify=True, cert=None)
        session.proxies, session.verify, session.trust_env = found["proxies"], found["verify"], False
        answer = session.post(
            url,
            json=message,
            headers=headers,
            timeout=_TIMEOUT_S,
            allow_redirects=False,
        )
    log.info("%s: sent a message: %d", place, answer.status_code)
    if not answer.ok or answer.is_redirect:
        raise ConfigurationError(f"the receiver answered {answer.status_code}")


def _send_by_apprise(target: Target, place: str, message: _Message) -> None:
    """Send a text by Apprise, of whose logs only causes of a failure are shown, without the parts of the address."""
    flag = f"{place}.urlFile"
    url = read_secret(pathlib.Path(target.urlFile or ""), flag)
    apprise = library("apprise", "messages", f"{place}.type")
    logging.getLogger("apprise").propagate = False
    asset = apprise.AppriseAsset(
        app_id=FIELD_MANAGER, http_redirects=False, image_url_mask=None, service_timeout=_WHOLE_S
    )
    with apprise.LogCapture(level=logging.DEBUG, fmt="%(levelname)s:%(message)s") as said:
        service = apprise.Apprise.instantiate(url, asset=asset)
        if service is None:
            why = _causes(url, said.getvalue())
            raise ConfigurationError(
                f"{flag}: Apprise takes no such URL; see https://appriseit.com/services: {why}"
            )
        if getattr(service, "secure_mode", "") == "insecure":
            raise ConfigurationError(
                f"{flag}: it sends user and text without TLS; write mailtos, without mode=insecure"
            )
        if "overflow=" not in url:
            service.overflow_mode = apprise.OverflowMode.SPLIT
        service.socket_connect_timeout = service.socket_read_timeout = _TIMEOUT_S
        sender = apprise.Apprise(service, asset=asset)
        is_sent = sender.notify(**message, body_format=apprise.NotifyFormat.TEXT)
        causes = _causes(url, said.getvalue())
    if not is_sent:
        raise ConfigurationError(f"Apprise did not deliver it: {causes}")
    log.info("%s: sent a message by Apprise", place)


def _causes(url: str, said: str) -> str:
    """Warnings and what a mail server answered, on one line and without anything that the URL names."""
    lines = [line.partition(":") for line in said.splitlines()]
    told = (
        message for level, _, message in lines if level in _WARNINGS or message.startswith("Socket Exception")
    )
    return _without(url, " ".join(told))


def _without(url: str, text: str) -> str:
    """One line of text without anything that a URL names."""
    parts = {part for whole in (url, urllib.parse.unquote(url)) for part in re.split(r"[/:@?&=,]+", whole)}
    for part in sorted((part for part in parts if len(part) >= _SHORTEST), key=len, reverse=True):
        text = text.replace(part, "***")
    return " ".join(text.split())


def _read_address(target: Target, place: str) -> str:
    flag = f"{place}.urlFile"
    text = read_secret(pathlib.Path(target.urlFile or ""), flag)
    try:
        return checked_address(text)
    except ValueError as error:
        raise ConfigurationError(f"{flag}: {error}") from error


def _cause(error: Exception) -> str:
    """State the cause without the URL, which may be a secret."""
    match error:
        case ConfigurationError():
            words = str(error)
        case requests.Timeout():
            words = f"the receiver did not answer within {_TIMEOUT_S:g} s"
        case _:
            words = f"the receiver could not be reached ({type(error).__name__})"
    return words
