"""Parsing of the web configuration file: values, refusals and messages."""

import contextlib
import ssl
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.errors import ConfigFileError
from exporter.http.webconfig import Rate, WebConfig, parse

FILE = Path("/etc/exporter/web.yml")
HASH = "$2y$10$X0h1gDsPszWURQaxFh.zoubFi6DXncSjhoQNJgRrnGs7EsimhC7zG"
PAIR = "tls_server_config:\n  cert_file: a.crt\n  key_file: a.key\n"


def _parsed(text: str) -> WebConfig:
    return parse(textwrap.dedent(text).encode(), FILE)


def _problems(text: str) -> list[str]:
    with pytest.raises(ConfigFileError) as refused:
        _parsed(text)
    return [line.removeprefix(f"web configuration {FILE}") for line in str(refused.value).splitlines()]


def test_webconfig_with_every_field_is_parsed() -> None:
    """Each supported field of exporter-toolkit's format has its meaning; paths are relative to the file."""
    config = _parsed(f"""\
        tls_server_config:
          cert_file: server.crt
          key_file: /keys/server.key
          client_ca_file: "../ca.pem"
          client_auth_type: "RequireAndVerifyClientCert"
          client_allowed_sans: [prometheus, 10.0.0.1]
          min_version: TLS12
          max_version: TLS12
          cipher_suites:
          - TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384
          - TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA
          prefer_server_cipher_suites: false
          curve_preferences: [CurveP384]
        http_server_config:
          http2: true
          headers:
            X-Frame-Options: deny
            X-XSS-Protection: 1
            Content-Security-Policy: "default-src 'self'"
            Strict-Transport-Security:
        basic_auth_users:
          alice: {HASH}
        rate_limit:
          interval: 1m0.5s
          burst: 20
        """)
    tls = config.tls
    assert tls is not None
    assert (tls.cert, tls.key, tls.client_ca) == (
        Path("/etc/exporter/server.crt"), Path("/keys/server.key"), Path("/etc/exporter/../ca.pem")
    )  # fmt: skip
    assert (tls.client_auth_type, tls.client_allowed_sans) == (
        ssl.CERT_REQUIRED,
        frozenset({"prometheus", "10.0.0.1"}),
    )
    assert (tls.min_version, tls.max_version) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2)
    assert tls.cipher_suites == ("ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-ECDSA-AES128-SHA")
    assert (tls.prefer_server_cipher_suites, tls.curve_preferences) == (False, "secp384r1")
    assert config.headers == {
        "X-Frame-Options": "deny", "X-XSS-Protection": "1", "Content-Security-Policy": "default-src 'self'"
    }  # fmt: skip
    assert (config.users, config.rate) == ({"alice": HASH}, Rate(60.5, 20))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing\n",
        "{}",
        "tls_server_config:\nbasic_auth_users:\n",
        "rate_limit:\n  interval: 0\n  burst: 0\n",
    ],
)
def test_webconfig_without_content_is_plain_http(text: str) -> None:
    """An empty file means plain HTTP without protection, as in exporter-toolkit."""
    assert _parsed(text) == WebConfig()


def test_webconfig_defaults_are_exporter_toolkits() -> None:
    """A certificate and its key are enough."""
    tls = _parsed(PAIR).tls
    assert tls is not None
    assert (tls.min_version, tls.max_version, tls.client_auth_type) == (
        ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3, ssl.CERT_NONE
    )  # fmt: skip
    assert (tls.cipher_suites, tls.curve_preferences, tls.prefer_server_cipher_suites) == ((), "", True)


def test_webconfig_repr_hides_inline_keys() -> None:
    """Certificate and key can be inline; the key is in no representation of the configuration."""
    config = _parsed("tls_server_config:\n  cert: |\n    CERT\n  key: |\n    SECRET\n")
    assert config.tls is not None
    assert config.tls.key == b"SECRET\n"
    assert "SECRET" not in repr(config)


def test_webconfig_accepts_all_suites_of_go() -> None:
    """The list of exporter-toolkit's own tests, which includes TLS 1.3, selects the suites of TLS 1.2."""
    suites = [
        f"TLS_ECDHE_{key}_WITH_{rest}"
        for key in ("ECDSA", "RSA")
        for rest in (
            "AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "CHACHA20_POLY1305_SHA256", "AES_128_CBC_SHA", "AES_256_CBC_SHA"
        )
    ]  # fmt: skip
    suites += ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"]
    tls = _parsed(f"{PAIR}  cipher_suites: [{', '.join(suites)}]\n").tls
    assert tls is not None
    assert len(tls.cipher_suites) == 10


NAMES = "tls_server_config, http_server_config, basic_auth_users, rate_limit"
UNVERIFIED = (
    "is not supported: Python's TLS cannot accept a certificate without verifying it. Use "
    "VerifyClientCertIfGiven or RequireAndVerifyClientCert, with client_ca_file"
)
NOT_A_HASH = "not a bcrypt hash; create one with: htpasswd -nBC 10 '' | tr -d ':\\n'"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("tls_config:\n", ", line 1: tls_config: unknown field; did you mean tls_server_config?"),
        ("xyz: 1\n", f", line 1: xyz: unknown field; available: {NAMES}"),
        ("- a\n", ", line 1: not a mapping; write fields and their values"),
        ("a: [\n", ", line 2: not valid YAML: expected the node content, but found ..."),
        ("\x00", ": not valid YAML: not UTF-8 text"),
        ("rate_limit: &a\n  interval: *a\n", ", line 1: rate_limit.interval: not a text"),
        (
            f"{PAIR}  cert_fil: b.crt\n",
            ", line 4: cert_fil: unknown field of tls_server_config; did you mean cert_file?",
        ),
        (f"{PAIR}  key_file: b.key\n", ", line 4: tls_server_config.key_file: appears twice"),
        (
            "tls_server_config:\n  key_file: a.key\n",
            ", line 2: tls_server_config: cert_file (or cert) is missing",
        ),
        (f"{PAIR}  key: x\n", ", line 2: tls_server_config: has both key and key_file; drop one"),
        (
            f"{PAIR}  min_version: TLS11\n",
            (
                ", line 4: tls_server_config.min_version: TLS11 is insecure and not supported; use TLS12 or TLS13"
            ),
        ),
        (
            f"{PAIR}  min_version: TLS111\n",
            (
                ', line 4: tls_server_config.min_version: "TLS111" is unknown; did you mean TLS13? available: '
                'TLS12, TLS13'
            ),
        ),
        (
            f"{PAIR}  min_version: TLS13\n  max_version: TLS12\n",
            ", line 2: tls_server_config: min_version is above max_version",
        ),
        (
            f"{PAIR}  client_auth_type: RequestClientCert\n",
            (
                f", line 4: tls_server_config.client_auth_type: RequestClientCert {UNVERIFIED}"
            ),
        ),
        (
            f"{PAIR}  client_auth_type: RequireAnyClientCert\n",
            (
                f", line 4: tls_server_config.client_auth_type: RequireAnyClientCert {UNVERIFIED}"
            ),
        ),
        (
            f"{PAIR}  client_ca_file: ca.pem\n",
            (
                ", line 2: tls_server_config: client_ca_file has no effect without client_auth_type: "
                "RequireAndVerifyClientCert"
            ),
        ),
        (
            f"{PAIR}  client_allowed_sans: [a]\n",
            (
                ", line 2: tls_server_config: client_allowed_sans has no effect without client_auth_type: "
                "RequireAndVerifyClientCert"
            ),
        ),
        (
            f"{PAIR}  client_auth_type: RequireAndVerifyClientCert\n",
            (
                ", line 2: tls_server_config: client_auth_type RequireAndVerifyClientCert needs client_ca_file, "
                "the clients' CA"
            ),
        ),
        (
            f"{PAIR}  curve_preferences: [X25519, CurveP256]\n",
            (
                ", line 4: tls_server_config.curve_preferences: Python's TLS supports one curve; name one, "
                "or drop the field for OpenSSL's choice"
            ),
        ),
        (
            f"{PAIR}  cipher_suites: [TLS_AES_128_GCM_SHA256]\n",
            (
                ", line 4: tls_server_config.cipher_suites: suites of TLS 1.3 cannot be selected; "
                "name all three or none"
            ),
        ),
        (
            f"{PAIR}  prefer_server_cipher_suites: maybe\n",
            (
                ", line 4: tls_server_config.prefer_server_cipher_suites: neither true nor false"
            ),
        ),
        (
            "http_server_config:\n  headers:\n    X-Frame-Options: never\n",
            (
                ", line 3: http_server_config.headers.X-Frame-Options: must be one of deny, sameorigin"
            ),
        ),
        (
            "http_server_config:\n  headers:\n    Server: mine\n",
            (", line 3: Server: unknown field of http_server_config.headers; available: Strict-Transport-Security, "
            "X-Content-Type-Options, X-Frame-Options, X-XSS-Protection, Content-Security-Policy"),
        ),
        (
            'http_server_config:\n  headers:\n    X-XSS-Protection: "1\\r\\nSet-Cookie: a"\n',
            (
                ", line 3: http_server_config.headers.X-XSS-Protection: not printable ASCII on one line"
            ),
        ),
        ("basic_auth_users:\n  alice: secret\n", f", line 2: basic_auth_users.alice: {NOT_A_HASH}"),
        ("basic_auth_users:\n  alice:\n", ", line 2: basic_auth_users.alice: has no hash"),
        (
            f"basic_auth_users:\n  alice: {HASH}\n  alice: {HASH}\n",
            (
                ", line 3: basic_auth_users.alice: appears twice"
            ),
        ),
        (
            f"basic_auth_users:\n  'a:b': {HASH}\n",
            (
                ", line 2: basic_auth_users: a user name must not be empty or have a colon"
            ),
        ),
        (
            f"basic_auth_users:\n  alice: {HASH.replace('$10$', '$31$')}\n",
            ", line 2: basic_auth_users.alice: a bcrypt cost of 31; use 4 to 18, usually 10",
        ),
        (
            "rate_limit:\n  interval: 5\n  burst: 1\n",
            (
                ", line 2: rate_limit.interval: not a duration; use numbers with units, such as 100ms, 1s "
                "or 1m30s"
            ),
        ),
        (
            "rate_limit:\n  interval: 5s\n",
            (
                ", line 2: rate_limit.burst: must be at least 1, or every request is refused"
            ),
        ),
    ],
)  # fmt: skip
def test_webconfig_problem_names_line_and_field(text: str, problem: str) -> None:
    """One line has the file, its line, the field, the problem and the remedy."""
    assert _problems(text) == [problem]


def test_webconfig_reports_all_problems_together() -> None:
    """All problems are reported at once."""
    found = _problems(
        "tls_server_config:\n  min_version: x\n  cert_fil: y\nrate_limit:\n  burst: z\nabc: 1\n"
    )
    assert [line.split(": ")[1].split(".")[-1] for line in found] == [
        "abc",
        "min_version",
        "cert_fil",
        "burst",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "basic_auth_users:\n  alice: 'hunter2 hunter2'\n",
        "basic_auth_users: hunter2 hunter2\n",
        "basic_auth_users:\n  alice: [hunter2 hunter2]\n",
        "basic_auth_users:\n  alice: *hunter2\n",
        "basic_auth_users:\n  alice: &hunter2 a\n  bob: &hunter2 b\n",
        'basic_auth_users:\n  alice: "hunter2\n',
        "basic_auth_users:\n$hunter2 hunter2: a\n",
        "tls_server_config:\n  key: |\n  hunter2 hunter2\n  cert: b\n",
        "tls_server_config:\n  key_file: a\n  key: hunter2\n",
        "tls_server_config:\n  min_version: hunter2 hunter2\n",
        "\thunter2\n",
    ],
)
def test_webconfig_messages_repeat_no_secret(text: str) -> None:
    """No message repeats a text that may be a secret."""
    assert "hunter2" not in "\n".join(_problems(text))


def test_webconfig_with_nested_aliases_is_refused_quickly() -> None:
    """A few lines that expand to billions of nodes are refused quickly."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    assert len(_problems("\n".join(lines))) == 12


@pytest.mark.parametrize(
    "text", ["[" * 10_000, "a: " + "[" * 10_000, "? {a: [b]}\n: c\n"], ids=["many", "many-below", "as-a-key"]
)
def test_webconfig_with_deep_nesting_is_refused(text: str) -> None:
    """Very deep nesting is one ordinary error."""
    assert len(_problems(text)) == 1


WORDS = (
    "tls_server_config", "cert_file", "key", "client_auth_type", "headers", "basic_auth_users", "rate_limit", "burst",
    "interval", "http2", "true", "null", "1", "-1", "1s", "TLS12", "[]", "{}", "[a]", "&a", "*a", "!!int", "|", ">",
    "'", '"', "#", "<<",
)  # fmt: skip


@given(st.lists(st.tuples(st.sampled_from(["", "  ", "- "]), st.sampled_from(WORDS), st.sampled_from(WORDS))))
def test_webconfig_of_any_text_is_parsed_or_refused(lines: list[tuple[str, str, str]]) -> None:
    """Any text is a configuration or a list of problems."""
    with contextlib.suppress(ConfigFileError):
        assert isinstance(
            _parsed("\n".join(f"{indent}{name}: {value}" for indent, name, value in lines)), WebConfig
        )
