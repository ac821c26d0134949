"""Requests to Amazon Managed Service for Prometheus are signed as AWS documents, with its usual credentials."""

import datetime
import pathlib
import re
import sys
from collections.abc import Iterator

import pytest

from rightsizer.config import PrometheusSettings
from rightsizer.errors import ConfigurationError, PrometheusError
from rightsizer.prometheus.query_api import Prometheus
from tests.rightsizer.fakeprometheus import Answer, Fake, serving
from tests.rightsizer.sigv4reference import signature

AT = datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC)
KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
STS = """<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>
<AccessKeyId>ASIAROLE</AccessKeyId><SecretAccessKey>of-the-role</SecretAccessKey><SessionToken>s3ssion</SessionToken>
<Expiration>2099-01-01T00:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""


@pytest.fixture
def fake() -> Iterator[Fake]:
    """A server that keeps what it was asked."""
    with serving() as server:
        server.answers.append(Answer())
        yield server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    """No credentials of this machine's."""
    pytest.importorskip("botocore", reason="the extra aws is not installed")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


def _settings(url: str) -> PrometheusSettings:
    return PrometheusSettings(f"{url}/workspaces/ws-1", sigv4_region="eu-central-1", timeout_s=30.0)


def _require_signed(fake: Fake, asked: dict[str, str], key: str, secret: str) -> None:
    """The request's signature is the one that the reference finds."""
    parts = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\S+), SignedHeaders=(\S+), Signature=([0-9a-f]{64})",
        asked["Authorization"],
    )
    assert parts is not None
    date = asked["X-Amz-Date"]
    assert (parts[1], parts[2]) == (key, f"{date[:8]}/eu-central-1/aps/aws4_request")
    sent = {name.lower(): value for name, value in asked.items()}
    signed = {name: sent[name] for name in parts[3].split(";")}
    assert {"host", "x-amz-date"} <= signed.keys()
    url, body = f"{fake.url}{asked['path']}", asked["form"].encode()
    assert parts[4] == signature(secret, parts[2], asked["method"], url, headers=signed, body=body)


@pytest.mark.parametrize(
    ("method", "more", "body", "expected"),
    [
        ("GET", {}, b"", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
        ("POST", {}, b"", "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"),
        (
            "POST",
            {"content-type": "application/x-www-form-urlencoded"},
            b"Param1=value1",
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        ),
    ],
    ids=["get-vanilla", "post-vanilla", "post-x-www-form-urlencoded"],
)
def test_reference_signature_matches_the_aws_test_suite(
    method: str, more: dict[str, str], body: bytes, expected: str
) -> None:
    """So it can be trusted to check gpu-rightsizer's signatures."""
    headers = {"host": "example.amazonaws.com", "x-amz-date": "20150830T123600Z", **more}
    scope = "20150830/us-east-1/service/aws4_request"
    found = signature(SECRET, scope, method, "https://example.amazonaws.com/", headers=headers, body=body)
    assert found == expected


def test_sigv4_environment_credentials_sign_each_request(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scope is aps; path, date, body and session token are signed."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t0ken")
    prometheus = Prometheus(_settings(fake.url))
    prometheus.query('max by (pod) ({a="ü b+c/d"})', AT)
    prometheus.query("other", AT)
    for asked in fake.asked:
        assert (asked["path"], asked["X-Amz-Security-Token"]) == ("/workspaces/ws-1/api/v1/query", "t0ken")
        _require_signed(fake, asked, KEY, SECRET)
    assert len({asked["Authorization"] for asked in fake.asked}) == 2


def test_sigv4_profile_credentials_sign_the_request(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """AWS_PROFILE names the profile."""
    text = "[metrics]\naws_access_key_id = AKIDPROFILE\naws_secret_access_key = of-the-profile\n"
    (tmp_path / "credentials").write_text(text)
    monkeypatch.setenv("AWS_PROFILE", "metrics")
    Prometheus(_settings(fake.url)).query("x", AT)
    _require_signed(fake, fake.asked[0], "AKIDPROFILE", "of-the-profile")


def test_sigv4_web_identity_credentials_sign_the_request(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The pod's service account token is exchanged for credentials of a role (IRSA)."""
    (tmp_path / "token").write_text("web-token")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/metrics")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    with serving() as sts:
        sts.answers.append(Answer(body=STS, headers={"Content-Type": "text/xml"}))
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        Prometheus(_settings(fake.url)).query("x", AT)
        assert sts.forms()[0]["WebIdentityToken"] == "web-token"
    assert fake.asked[0]["X-Amz-Security-Token"] == "s3ssion"
    _require_signed(fake, fake.asked[0], "ASIAROLE", "of-the-role")


def test_sigv4_refused_role_raises_without_token(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """The error has AWS's reason but not the token, and Prometheus receives no request."""
    (tmp_path / "token").write_text("s3cret-jwt")
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/metrics")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    error = "<ErrorResponse><Error><Code>AccessDenied</Code><Message>no</Message></Error></ErrorResponse>"
    with serving() as sts:
        sts.answers.append(Answer(403, error, headers={"Content-Type": "text/xml"}))
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", sts.url)
        with pytest.raises(PrometheusError, match=r"getting credentials failed: .*AccessDenied") as caught:
            Prometheus(_settings(fake.url)).query("x", AT)
    assert "s3cret-jwt" not in str(caught.value)
    assert fake.asked == []


def test_sigv4_without_credentials_raises(fake: Fake) -> None:
    """The error says where they were looked for, before any request."""
    with pytest.raises(ConfigurationError, match="no AWS credentials in environment, profile, web identity"):
        Prometheus(_settings(fake.url))


def test_sigv4_unknown_profile_raises(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the profile."""
    monkeypatch.setenv("AWS_PROFILE", "nowhere")
    with pytest.raises(ConfigurationError, match=r"AWS credentials: .*nowhere"):
        Prometheus(_settings(fake.url))


def test_sigv4_without_botocore_raises(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install; other credentials do not need it."""
    monkeypatch.delitem(sys.modules, "botocore.session", raising=False)
    monkeypatch.setitem(sys.modules, "botocore", None)
    words = r"the library botocore is missing; run: pip install 'gpu-rightsizer\[aws\]'"
    with pytest.raises(ConfigurationError, match=words):
        Prometheus(_settings(fake.url))
    Prometheus(PrometheusSettings(fake.url, timeout_s=30.0)).query("x", AT)
