"""Messages about outcomes: what arrives where, what never does, and that nothing depends on it."""

import dataclasses
import datetime
import json
import logging
import pathlib
from typing import Any

import pydantic
import pytest

from rightsizer.execute.notify import notify
from rightsizer.model import ObjectRef, Outcome, Result
from rightsizer.policy.schema import Target
from rightsizer_history.cli.backtest_command import notify_of_backtest
from tests.rightsizer.receiver import Receiver
from tests.rightsizer_history.report.test_backtest_forms import result

AT = datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.UTC)


def _outcome(
    name: str = "eval", namespace: str = "research", action: str = "suspend", result: Result = Result.DONE
) -> Outcome:
    ref = ObjectRef("batch/v1", "Job", namespace, name, "uid")
    return Outcome(ref, action, result, "spec.suspend: false → true", 8, AT)


EVERY = [
    _outcome("told", action="notice"),
    _outcome("stopped"),
    _outcome("back", action="undo"),
    _outcome("failed", result=Result.UNKNOWN),
    _outcome("gone", result=Result.CHANGED),
    _outcome("skipped", result=Result.SKIPPED),
]


def test_webhook_run_is_posted_as_one_json_document(receiver: Receiver) -> None:
    """One for each run, with the occasion of each item; what nobody need know is left out."""
    assert notify([Target(type="webhook", url=receiver.url + "/hook")], "prod-eu", "run-1", EVERY) == []
    ((path, headers, body),) = receiver.got
    assert body["cluster"] == "prod-eu"
    assert (path, headers["User-Agent"], body["kind"], body["metadata"]["run"]) == (
        "/hook",
        "gpu-rightsizer",
        "Notification",
        "run-1",
    )
    assert {item["name"]: item["occasion"] for item in body["items"]} == {
        "told": "notice",
        "stopped": "change",
        "back": "rollback",
        "failed": "failure",
    }


def test_slack_workload_names_are_escaped(receiver: Receiver) -> None:
    """No mention, link or emphasis comes of what a workload is called; the way back stands in it."""
    hostile = _outcome("<!channel> *x* `y` @here")
    notify([Target(type="slack", url=receiver.url)], "prod-eu", "run-1", [hostile, _outcome()])
    text = receiver.got[0][2]["text"]
    assert "<!channel>" not in text
    assert "&lt;!channel&gt;" in text
    assert "*x*" not in text
    assert "gpu-rightsizer undo --run run-1" in text
    assert "research/Job/eval changed: suspend (8 GPUs)" in text


def test_slack_notice_links_to_where_its_owner_answers(receiver: Receiver) -> None:
    """Names are quoted, so that nothing ends the link; other outcomes and webhooks have none."""
    template = "https://portal.example.com/?a=1&of={namespace}/{kind}/{name}"
    target = Target(type="slack", url=receiver.url, answerURL=template)
    notify([target], "prod-eu", "r", [_outcome("a|b> {kind}", action="notice"), _outcome()])
    told, changed = receiver.got[0][2]["text"].splitlines()[1:3]
    link = "<https://portal.example.com/?a=1&amp;of=research/Job/a%7Cb%3E%20%7Bkind%7D|Answer>"
    assert told.endswith(f" {link}")
    assert "Answer" not in changed


def _apprise(tmp_path: pathlib.Path, url: str, **fields: Any) -> Target:
    (tmp_path / "url").write_text(f"{url}\n")
    return Target(type="apprise", urlFile=str(tmp_path / "url"), **fields)


def test_apprise_message_has_no_markup_of_others(receiver: Receiver, tmp_path: pathlib.Path) -> None:
    """A title and a line for each outcome, none of which ends a line, mentions or links; the answer's link is ours."""
    hostile = _outcome("[x](https://evil.example) <at>all</at>\n# y", action="notice")
    target = _apprise(
        tmp_path,
        receiver.url.replace("http:", "json:") + "/hook",
        answerURL="https://portal.example.com/?a=1&of={name}",
    )
    assert notify([target], "prod-eu", "run-1", [hostile, *EVERY]) == []
    ((path, _, body),) = receiver.got
    assert (path, body["title"]) == ("/hook", "gpu-rightsizer on prod-eu, run run-1")
    lines = body["message"].splitlines()
    assert "](" not in lines[0]
    assert "<at>" not in lines[0]
    assert lines[0].endswith(
        " Answer: https://portal.example.com/?a=1&of=%5Bx%5D%28https%3A%2F%2Fevil.example%29%20%3Cat%3Eall%3C%2Fat%3E%0A%23%20y"
    )
    assert "changed: suspend (8 GPUs)" in lines[2]
    assert lines[-1] == "Undo: `gpu-rightsizer undo --run run-1`"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("json://{host}/s3cr3t", "Apprise did not deliver it: Failed to send JSON POST notification"),
        ("json://127.0.0.1:9/s3cr3t", "Apprise did not deliver it: A Connection error occurred"),
        ("nonsense://s3cr3t", "notifications[0].urlFile: Apprise takes no such URL"),
        (
            "mailto://x:s3cr3t@mail.example.com",
            "notifications[0].urlFile: it sends user and text without TLS",
        ),
    ],
)
def test_apprise_failure_is_told_without_secrets_and_stops_no_other(
    receiver: Receiver, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture, url: str, words: str
) -> None:
    """No problem or log has a part of the address; a redirect is a failure; the next target gets its message."""
    caplog.set_level("DEBUG")
    receiver.code = 307
    broken = _apprise(tmp_path, url.format(host=receiver.url.removeprefix("http://")))
    problems = notify([broken, Target(type="slack", url=receiver.url)], "prod-eu", "r", [_outcome()])
    assert problems[0].startswith(f"notifications[0]: {words}")
    assert problems[1] == "notifications[1]: the receiver answered 307"
    told = [record.getMessage() for record in caplog.records if record.name.startswith("rightsizer")]
    assert "s3cr3t" not in " ".join(problems + told)
    assert not logging.getLogger("apprise").propagate


def test_message_goes_through_the_proxy_of_the_environment(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But without what a .netrc has for the receiver."""
    monkeypatch.setenv("http_proxy", receiver.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert (
        notify([Target(type="slack", url="http://hooks.example.com/gpu")], "prod-eu", "r", [_outcome()]) == []
    )
    ((path, headers, _),) = receiver.got
    assert path == "http://hooks.example.com/gpu"
    assert "Authorization" not in headers


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"answerURL": "https://x/{uid}"}, "as the only fields"),
        ({"answerURL": "https://x/{name"}, "as the only fields"),
        ({"answerURL": "https://x/|{name}"}, "as the only fields"),
        ({"answerURL": "https://{name}/x"}, "after its host"),
        ({"answerURL": "javascript:{name}"}, "must be an address"),
        ({"answerURL": "https://x/{name}", "type": "webhook"}, "answerURL is for chats"),
    ],
)
def test_answer_url_that_is_no_link_is_refused(fields: dict[str, str], words: str) -> None:
    """By name, before anything is sent."""
    with pytest.raises(pydantic.ValidationError, match=words):
        Target.model_validate({"type": "slack", "url": "https://hooks.example.com/x", **fields})


def test_slack_long_run_is_cut_to_twenty_lines(receiver: Receiver) -> None:
    """Twenty lines, and how many more there are."""
    notify(
        [Target(type="slack", url=receiver.url)],
        "prod-eu",
        "r",
        [_outcome(f"w-{number}") for number in range(500)],
    )
    assert "… and 480 more" in receiver.got[0][2]["text"]


def test_notify_targets_are_filtered_by_namespace_and_occasion(receiver: Receiver) -> None:
    """By namespace and occasion; who is not concerned gets nothing at all."""
    targets = [
        Target(type="webhook", url=f"{receiver.url}/team", namespaces=("team-*",)),
        Target(type="webhook", url=f"{receiver.url}/notices", occasions=("notice",)),
        Target(type="webhook", url=f"{receiver.url}/failures", occasions=("failure",)),
    ]
    outcomes = [_outcome("a", "team-x"), _outcome("b", "other", action="notice")]
    assert notify(targets, "prod-eu", "r", outcomes) == []
    assert {path: [item["name"] for item in body["items"]] for path, _, body in receiver.got} == {
        "/team": ["a"],
        "/notices": ["b"],
    }


def test_notify_secrets_are_read_from_files_and_not_leaked(
    receiver: Receiver, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Address and token are read for each message; no problem repeats them."""
    caplog.set_level("DEBUG")
    address, token = tmp_path / "url", tmp_path / "token"
    address.write_text(f"{receiver.url}/s3cr3t-path\n")
    token.write_text("t0k3n\n")
    target = Target(type="webhook", urlFile=str(address), tokenFile=str(token))
    assert notify([target], "prod-eu", "r", [_outcome()]) == []
    assert receiver.got[0][0] == "/s3cr3t-path"
    assert receiver.got[0][1]["Authorization"] == "Bearer t0k3n"
    receiver.code = 500
    problems = notify([target], "prod-eu", "r", [_outcome()])
    address.write_text("http://127.0.0.1:9/s3cr3t-path\n")
    problems += notify([target], "prod-eu", "r", [_outcome()])
    address.write_text("http://169.254.169.254/s3cr3t-path\n")
    problems += notify([target], "prod-eu", "r", [_outcome()])
    address.unlink()
    problems += notify([target], "prod-eu", "r", [_outcome()])
    assert len(problems) == 4
    said = " ".join(problems) + "".join(
        record.getMessage() for record in caplog.records if record.name.startswith("rightsizer")
    )
    assert "s3cr3t" not in said
    assert "t0k3n" not in said


def test_backtest_slack_message_says_what_each_policy_frees(receiver: Receiver) -> None:
    """GPU-hours, price, stops and returns, over which time, and where the report is; names are no markup."""
    found = dataclasses.replace(result(), currency="<USD>")
    assert (
        notify_of_backtest([Target(type="slack", url=receiver.url)], "prod-eu", found, "report.html of h_1")
        == []
    )
    assert receiver.got[0][2]["text"].splitlines() == [
        "*gpu-rightsizer* on prod-eu, backtest of 2 days to 2026-11-04 00:00 UTC",
        (
            "• mine.yaml would have freed 68 GPU-hours (34 a day, 20% of those held, 169 &lt;USD&gt;): "
            "1 of 2 stops returned (90 %: 0 to 2), half of them within 4.0 h; 1 was followed for less "
            "than 7d, and may yet return"
        ),
        "Report: report.html of h\u200b_1",
    ]
    unpriced = [dataclasses.replace(one, saved=None) for one in found.summaries]
    notify_of_backtest(
        [Target(type="slack", url=receiver.url)], "", dataclasses.replace(found, summaries=unpriced), "x"
    )
    assert "of those held, of unknown price)" in receiver.got[1][2]["text"]
    assert receiver.got[1][2]["text"].startswith("*gpu-rightsizer*, backtest of "), "the cluster has no name"


def test_backtest_slack_message_of_less_than_an_hour_has_no_rate(receiver: Receiver) -> None:
    """Nothing is divided by zero days."""
    short = dataclasses.replace(result(), begin=result().end)
    assert notify_of_backtest([Target(type="slack", url=receiver.url)], "prod-eu", short, "x") == []
    assert "freed 68 GPU-hours (20% of those held" in receiver.got[0][2]["text"]


def test_backtest_webhook_message_has_the_sums_of_each_policy(receiver: Receiver) -> None:
    """As `backtest -o json` has them, but no workload: the report names those."""
    notify_of_backtest([Target(type="webhook", url=receiver.url)], "prod-eu", result(), "report.html of host")
    body = receiver.got[0][2]
    assert (body["kind"], body["days"], body["report"]) == ("Notification", 2.0, "report.html of host")
    assert body["cluster"] == "prod-eu"
    ((item),) = body["items"]
    assert (item["name"], item["occasion"], item["returned"]["value"]) == ("mine.yaml", "backtest", 1)
    assert item["freedGpuHours"].keys() == {"value", "low", "high"}
    assert "notes" not in json.dumps(body)


def test_backtest_goes_to_no_target_of_some_namespaces_or_other_occasions(receiver: Receiver) -> None:
    """Its sums are of all namespaces."""
    targets = [
        Target(type="webhook", url=f"{receiver.url}/team", namespaces=("team-*",)),
        Target(type="webhook", url=f"{receiver.url}/failures", occasions=("failure",)),
        Target(type="webhook", url=f"{receiver.url}/backtests", occasions=("backtest",)),
    ]
    assert notify_of_backtest(targets, "prod-eu", result(), "x") == []
    assert [path for path, _, _ in receiver.got] == ["/backtests"]


@pytest.mark.parametrize("code", [301, 307, 404, 500])
def test_notify_redirect_is_reported_and_not_followed(receiver: Receiver, code: int) -> None:
    """Redirects could lead anywhere."""
    receiver.code = code
    problems = notify([Target(type="slack", url=receiver.url)], "prod-eu", "r", [_outcome()])
    assert problems == [f"notifications[0]: the receiver answered {code}"]
    assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "ftp://hooks.example.com"},
        {"url": "file:///etc/passwd"},
        {"url": "hooks.example.com"},
        {"url": "https://user:password@hooks.example.com"},
        {"url": "http://169.254.169.254/latest"},
        {"url": "http://[fe80::1]/"},
        {"url": "http://[fd00:ec2::254]/"},
        {"url": "http://metadata.google.internal/"},
        {"url": "https://hooks.example.com/a b"},
        {"url": "https://a.example.com", "urlFile": "/etc/x"},
        {},
        {"url": "https://a.example.com", "occasions": ("undo",)},
        {"url": "https://a.example.com", "occasions": ()},
        {"url": "https://a.example.com", "namespaces": ("*",)},
        {"url": "https://a.example.com", "type": "apprise"},
        {"urlFile": "/x", "tokenFile": "/y", "type": "apprise"},
    ],
)
def test_notify_config_invalid_address_is_refused(fields: dict[str, Any]) -> None:
    """They are refused with the file, not when the first message is due."""
    with pytest.raises(pydantic.ValidationError):
        Target.model_validate({"type": "webhook", **fields})
