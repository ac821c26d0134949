"""Messages by email, to the receivers of an owner, and as a digest."""

import datetime
import pathlib
from collections.abc import Iterator

import pydantic
import pytest
import yaml

from rightsizer.changes.record_codec import HISTORY_ANNOTATION
from rightsizer.execute.notify import notify
from rightsizer.model import ObjectRef, Outcome, Result
from rightsizer.policy.schema import Target
from tests.rightsizer.mailserver import MailServer, receiving_mail
from tests.rightsizer.receiver import Receiver
from tests.rightsizer.world import DEFAULT_POLICY, World

AT = datetime.datetime(2026, 11, 21, 12, 0, tzinfo=datetime.UTC)
"""Of every outcome."""


def _outcome(name: str = "eval", action: str = "suspend") -> Outcome:
    ref = ObjectRef("batch/v1", "Job", "research", name, "uid")
    return Outcome(ref, action, Result.DONE, "spec.suspend: false → true", 8, AT)


@pytest.fixture
def mail(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    """A server with a certificate that is trusted."""
    with receiving_mail() as made:
        made.authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        yield made


def _target(mail: MailServer, tmp_path: pathlib.Path, login: str = "") -> Target:
    (tmp_path / "url").write_text(
        f"mailtos://{login}{mail.address}?from=gpus@example.com&to=a@example.com,b@example.com"
    )
    return Target(type="apprise", urlFile=str(tmp_path / "url"))


def test_email_run_is_one_message_over_tls(mail: MailServer, tmp_path: pathlib.Path) -> None:
    """A text with a line for each change; user, password and message only after STARTTLS; no name adds a header."""
    hostile = _outcome("x\r\nBcc: evil@example.com")
    target = _target(mail, tmp_path, "gpus:s3cret@")
    assert notify([target], "prod-eu", "run-1", [_outcome("told", "notice"), hostile]) == []
    got = mail.got[0]
    assert (got["Subject"], got["From"]) == ("gpu-rightsizer on prod-eu, run run-1", "gpus@example.com")
    assert {message["To"] for message in mail.got} == {"a@example.com", "b@example.com"}
    assert got["Bcc"] is None
    text = got.get_content()
    assert "research/Job/told" in text
    assert "Undo: `gpu-rightsizer undo --run run-1`" in text
    assert {word for word, is_tls in ((said.split()[0], tls) for said, tls in mail.said) if not is_tls} == {
        "ehlo",
        "STARTTLS",
    }
    assert any(said.startswith("AUTH PLAIN") for said, _ in mail.said)


@pytest.mark.parametrize(
    ("broken", "words"),
    [({"has_starttls": False}, "STARTTLS"), ({"accepts_login": False}, "535"), ({}, "CERTIFICATE_VERIFY")],
)
def test_email_without_tls_login_or_trust_is_not_sent(
    mail: MailServer,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: dict[str, bool],
    words: str,
) -> None:
    """Whoever stands in between gets nothing; the problem names the target, the cause and no secret."""
    for name, value in broken.items():
        setattr(mail, name, value)
    if not broken:
        monkeypatch.delenv("SSL_CERT_FILE")
    (problem,) = notify([_target(mail, tmp_path, "gpus:s3cret@")], "prod-eu", "r", [_outcome()])
    assert problem.startswith("notifications[0]: Apprise did not deliver it: Connection error")
    assert words in problem
    assert (mail.got, "s3cret" in problem) == ([], False)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("MAILTO://gpus:s3cret@{}?to=a@example.com", "without TLS"),
        ("mailtos://gpus:s3cret@{}?to=a@example.com&mode=insecure", "without TLS"),
        ("nothing://gpus:s3cret@{}", "no such URL"),
    ],
)
def test_email_by_a_url_without_tls_or_sense_is_not_sent(
    mail: MailServer, tmp_path: pathlib.Path, url: str, words: str
) -> None:
    """However the URL says it."""
    target = _target(mail, tmp_path)
    (tmp_path / "url").write_text(url.format(mail.address))
    (problem,) = notify([target], "prod-eu", "r", [_outcome()])
    assert words in problem
    assert (mail.said, "s3cret" in problem) == ([], False)


@pytest.mark.parametrize(
    ("kind", "words"), [("email", "urlFile with a file that holds mailtos://"), ("teams", "workflows://")]
)
def test_target_type_of_before_names_the_url_for_apprise(kind: str, words: str) -> None:
    """It is refused, not sent to nobody."""
    with pytest.raises(pydantic.ValidationError, match=words):
        Target.model_validate({"type": kind, "url": "https://x.example.com"})


@pytest.mark.prometheus
def test_owner_selects_among_the_receivers_of_the_policy(world: World, receiver: Receiver) -> None:
    """By label or annotation, of the workload before those of its namespace; an address in one is only a value."""
    evil = "https://evil.example/hook"
    world.namespace(f"{world.team}-2", {"team": "vision"})
    for namespace, name, annotations in (
        (world.team, "by-annotation", {"team": "vision"}),
        (world.team, "elsewhere", {"team": evil}),
        (f"{world.team}-2", "by-namespace", {}),
        (f"{world.team}-2", "of-others", {"team": "speech"}),
    ):
        world.add("Deployment", namespace, name, {})
        world.api.patch("Deployment", namespace, name, {"metadata": {"annotations": annotations}})
    targets = [
        {"type": "webhook", "url": f"{receiver.url}/vision", "owners": {"team": "vis*"}},
        {"type": "webhook", "url": f"{receiver.url}/both", "owners": {"team": "speech", "tier": "*"}},
        {"type": "webhook", "url": f"{receiver.url}/all"},
    ]
    policy = yaml.safe_dump({**yaml.safe_load(DEFAULT_POLICY), "notifications": targets})
    run = world.run("apply", "--yes", "--verify-for", "0", policy=policy)
    assert run.code == 0, run.err
    got = {path: {item["name"] for item in body["items"]} for path, _, body in receiver.got}
    assert got == {
        "/vision": {"by-annotation", "by-namespace"},
        "/all": {"by-annotation", "by-namespace", "elsewhere", "of-others"},
    }


@pytest.mark.prometheus
def test_history_notify_sends_a_digest(world: World, receiver: Receiver) -> None:
    """What was changed since a time, with its sums, to targets of its namespaces; without changes, nothing.

    What only an object says was not changed: its owner may have written it.
    """
    for name in ("a", "b"):
        world.add("Deployment", world.team, name, {"gpus": 2})
    targets = [
        {"type": "slack", "url": f"{receiver.url}/slack", "occasions": ["digest"]},
        {
            "type": "webhook",
            "url": f"{receiver.url}/hook",
            "occasions": ["digest"],
            "namespaces": [world.team],
        },
        {"type": "webhook", "url": f"{receiver.url}/no", "occasions": ["digest"], "namespaces": ["other-*"]},
        {"type": "webhook", "url": f"{receiver.url}/owner", "owners": {"team": "*"}, "occasions": ["digest"]},
    ]
    policy = yaml.safe_dump({**yaml.safe_load(DEFAULT_POLICY), "notifications": targets})
    assert world.run("history", "--since", "1d", "--notify", policy=policy).code == 0
    assert receiver.got == []
    assert world.run("apply", "--yes", "--verify-for", "0", policy=policy).code == 0
    world.run("undo", f"{world.team}/Deployment/a", "--yes")
    changed = world.api.get("Deployment", world.team, "b")
    assert changed is not None
    forged = changed["metadata"]["annotations"][HISTORY_ANNOTATION]
    world.add("Deployment", world.team, "forged", {})
    world.api.patch(
        "Deployment", world.team, "forged", {"metadata": {"annotations": {HISTORY_ANNOTATION: forged}}}
    )
    run = world.run("history", "--since", "1d", "--notify", "--cluster-name", "prod-eu", policy=policy)
    assert (run.code, run.err) == (0, "")
    bodies = {path: body for path, _, body in receiver.got}
    assert bodies.keys() == {"/slack", "/hook"}
    lines = bodies["/slack"]["text"].splitlines()
    assert lines[0].startswith("*gpu-rightsizer* on prod-eu, changes since ")
    assert lines[1] == "2 changes, 1 undone: 4 GPUs freed, of which 2 GPUs returned"
    assert bodies["/hook"]["cluster"] == "prod-eu"
    assert any(f"{world.team}/Deployment/a: scale-to-zero (2 GPUs), undone, run" in line for line in lines)
    assert {(item["name"], item["occasion"]) for item in bodies["/hook"]["items"]} == {
        ("a", "digest"),
        ("b", "digest"),
    }
    for flags in (["--since", "1d"], ["--policy", "x"]):
        refused = world.run("history", "--notify", *flags)
        assert (refused.code, "--notify: give --since" in refused.err) == (2, True)
