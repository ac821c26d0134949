"""Sends notifications about outcomes and backtests to the targets of the policy; a failure has no effect on the run.

Redirects are not followed, and a message holds only what is in the outcome or the backtest.
"""

import logging
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import requests

from rightsizer.config import read_secret
from rightsizer.errors import ConfigurationError
from rightsizer.model import Outcome
from rightsizer.policy.match import is_any
from rightsizer.policy.schema import Target, checked_address
from rightsizer.report.backtest import Backtest
from rightsizer.report.chat_messages import CHATS, backtest_message, changes_message
from rightsizer.report.events import backtest_webhook_message, occasion_of, webhook_message

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
_Message = Mapping[str, Any]


def notify(targets: Sequence[Target], run: str, outcomes: Sequence[Outcome]) -> list[str]:
    """Send each target its outcomes in one message; return the failures."""

    def message_for(target: Target) -> _Message | None:
        concerned = [one for one in outcomes if _concerns(target, one)]
        if not concerned:
            return None
        if chat := CHATS.get(target.type):
            return changes_message(chat, run, concerned, answer_url=target.answerURL or "")
        return webhook_message(run, concerned)

    return _send_each(targets, message_for)


def notify_of_backtest(targets: Sequence[Target], result: Backtest, place: str) -> list[str]:
    """Send the figures of a backtest, whose report is at `place`; return the failures.

    They are of all namespaces, so targets of some namespaces get none.
    """

    def message_for(target: Target) -> _Message | None:
        if target.namespaces is not None or "backtest" not in target.occasions:
            return None
        if chat := CHATS.get(target.type):
            return backtest_message(chat, result, place)
        return backtest_webhook_message(result, place)

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


def _concerns(target: Target, outcome: Outcome) -> bool:
    is_there = target.namespaces is None or is_any(outcome.ref.namespace, target.namespaces)
    return is_there and occasion_of(outcome) in target.occasions


def _send(target: Target, place: str, message: _Message) -> None:
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


def _read_address(target: Target, place: str) -> str:
    flag = f"{place}.urlFile"
    text = read_secret(pathlib.Path(target.urlFile or ""), flag)
    try:
        return checked_address(text)
    except ValueError as error:
        raise ConfigurationError(f"{flag}: {error}") from error


def _cause(error: Exception) -> str:
    """Without the URL, which may be a secret."""
    if isinstance(error, ConfigurationError):
        return str(error)
    if isinstance(error, requests.Timeout):
        return f"the receiver did not answer within {_TIMEOUT_S:g} s"
    return f"the receiver could not be reached ({type(error).__name__})"
