"""Sends notifications about outcomes to the targets of the policy; a failure has no effect on the run.

Redirects are not followed, and a message holds only what is in the outcome.
"""

import logging
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import requests

from rightsizer.config import read_secret
from rightsizer.errors import ConfigurationError
from rightsizer.model import Outcome
from rightsizer.policy.match import is_any
from rightsizer.policy.schema import Target, checked_address
from rightsizer.report.events import occasion_of, slack_message, webhook_message

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0


def notify(targets: Sequence[Target], run: str, outcomes: Sequence[Outcome]) -> list[str]:
    """Send each target its outcomes in one message; return the failures."""
    problems = []
    for number, target in enumerate(targets):
        concerned = [one for one in outcomes if _concerns(target, one)]
        if concerned:
            try:
                _send(target, f"notifications[{number}]", run=run, outcomes=concerned)
            except (ConfigurationError, requests.RequestException) as error:
                problems.append(f"notifications[{number}]: {_cause(error)}")
    return problems


def _concerns(target: Target, outcome: Outcome) -> bool:
    is_there = target.namespaces is None or is_any(outcome.ref.namespace, target.namespaces)
    return is_there and occasion_of(outcome) in target.occasions


def _send(target: Target, place: str, *, run: str, outcomes: Sequence[Outcome]) -> None:
    url = target.url or _read_address(target, place)
    headers = {"User-Agent": "gpu-rightsizer"}
    if target.tokenFile is not None:
        headers["Authorization"] = "Bearer " + read_secret(
            pathlib.Path(target.tokenFile), f"{place}.tokenFile"
        )
    with requests.Session() as session:
        session.trust_env = False  # never send credentials of the environment
        answer = session.post(
            url,
            json=_message(target, run, outcomes),
            headers=headers,
            timeout=_TIMEOUT_S,
            allow_redirects=False,
        )
    log.info("%s: sent %d outcomes: %d", place, len(outcomes), answer.status_code)
    if not answer.ok or answer.is_redirect:
        raise ConfigurationError(f"the receiver answered {answer.status_code}")


def _message(target: Target, run: str, outcomes: Sequence[Outcome]) -> Mapping[str, Any]:
    if target.type == "slack":
        return slack_message(run, outcomes, answer_url=target.answerURL or "")
    return webhook_message(run, outcomes)


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
