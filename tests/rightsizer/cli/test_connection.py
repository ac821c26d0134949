"""Flags for the connection to Prometheus: which may be combined, and what the settings are."""

import pathlib

import pytest

from rightsizer.__main__ import parser
from rightsizer.cli.connection import cluster_settings, prometheus_settings
from rightsizer.config import PrometheusSettings
from rightsizer.errors import ClusterError, UsageError
from rightsizer.kube.cluster import Cluster
from tests.rightsizer.world import World

HTTP, HTTPS = ["--prometheus-url", "http://h"], ["--prometheus-url", "https://h"]
USER = ["--prometheus-user", "u", "--prometheus-password-file", "f"]
CERTIFICATE = ["--prometheus-client-cert-file", "c", "--prometheus-client-key-file", "k"]
REGION = ["--prometheus-sigv4-region", "eu-central-1"]
SKIP = ["--prometheus-insecure-skip-verify"]
REFUSED = {
    "two-credentials": (
        [*HTTP, *USER, "--prometheus-token-file", "t"],
        "--prometheus-token-file and --prometheus-user: give one of them",
    ),
    "three-credentials": (
        [*HTTP, *USER, *REGION, "--prometheus-token-file", "t"],
        "--prometheus-token-file and --prometheus-user and --prometheus-sigv4-region: give one of them",
    ),
    "a-user-alone": ([*HTTP, "--prometheus-user", "u"], "give --prometheus-password-file, too"),
    "a-password-alone": ([*HTTP, "--prometheus-password-file", "f"], "give --prometheus-user, too"),
    "a-user-with-a-colon": (
        [*HTTP, "--prometheus-user", "u:p4ssw0rd", "--prometheus-password-file", "f"],
        "--prometheus-user: holds a colon",
    ),
    "a-certificate-alone": ([*HTTPS, "--prometheus-client-cert-file", "c"], "give both, or neither"),
    "a-key-alone": ([*HTTPS, "--prometheus-client-key-file", "k"], "give both, or neither"),
    "a-certificate-over-http": ([*HTTP, *CERTIFICATE], "is presented over https only"),
    "skipping-what-http-has-not": ([*HTTP, *SKIP], "is about https, and --prometheus-url is not"),
    "an-authority-for-nothing": (
        [*HTTPS, *SKIP, "--prometheus-ca-file", "c"],
        "--prometheus-ca-file and --prometheus-insecure-skip-verify: give one of them",
    ),
    "a-region-that-is-none": (
        [*HTTPS, "--prometheus-sigv4-region", "https://aps"],
        "is not a region such as eu-central-1",
    ),
    "too-parallel": ([*HTTP, "--prometheus-parallel", "5"], "must be a number from 1 to 4"),
    "not-parallel": ([*HTTP, "--prometheus-parallel", "two"], "must be a number from 1 to 4"),
    "none-parallel": ([*HTTP, "--prometheus-parallel", "0"], "must be a number from 1 to 4"),
    "a-token-for-nobody": (["--prometheus-token-file", "t"], "sent to one that you name only"),
    "a-password-for-nobody": (USER, "sent to one that you name only"),
    "a-signature-for-nobody": (REGION, "sent to one that you name only"),
    "a-certificate-for-nobody": (CERTIFICATE, "sent to one that you name only"),
    "a-secret-header-for-nobody": (
        ["--prometheus-header", f"X-Scope-OrgID=@{__file__}.gone"],
        "sent to one that you name only",
    ),
}


@pytest.mark.parametrize(("flags", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_settings_contradictory_flags_raise_without_secrets(flags: list[str], words: str) -> None:
    """Before anything is read or sent, and without any secret in the error."""
    with pytest.raises(UsageError) as caught:
        prometheus_settings(parser().parse_args(["plan", *flags]))
    assert words in str(caught.value)
    assert caught.value.exit_code == 2
    assert "p4ssw0rd" not in str(caught.value)


def test_settings_several_problems_raise_single_error() -> None:
    """Each problem is on its own line."""
    flags = [*HTTP, *SKIP, *REGION, "--prometheus-user", "u", "--prometheus-timeout", "soon"]
    with pytest.raises(UsageError) as caught:
        prometheus_settings(
            parser().parse_args(["plan", *flags, "--prometheus-header", "X-Api-Key: p4ssw0rd"])
        )
    first, *lines = str(caught.value).splitlines()
    assert first == "5 problems with the flags about Prometheus:"
    assert [line.split(":")[0].strip() for line in lines] == [
        '--prometheus-header "X-Api-Key"',
        '--prometheus-timeout "soon"',
        "--prometheus-user and --prometheus-sigv4-region",
        "--prometheus-user",
        "--prometheus-insecure-skip-verify",
    ]
    assert "p4ssw0rd" not in str(caught.value)


def test_settings_flags_and_environment_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command line and from the environment."""
    monkeypatch.setenv("GPU_RIGHTSIZER_PROMETHEUS_INSECURE_SKIP_VERIFY", "true")
    monkeypatch.setenv("GPU_RIGHTSIZER_PROMETHEUS_USER", "u")
    monkeypatch.setenv("GPU_RIGHTSIZER_PROMETHEUS_PASSWORD_FILE", "f")
    flags = [*HTTPS, *CERTIFICATE, "--prometheus-parallel", "3", "--prometheus-label", "cluster=prod"]
    assert prometheus_settings(parser().parse_args(["plan", *flags])) == PrometheusSettings(
        "https://h",
        user="u",
        password_file=pathlib.Path("f"),
        client_cert_file=pathlib.Path("c"),
        client_key_file=pathlib.Path("k"),
        skip_verify=True,
        labels={"cluster": "prod"},
        parallel=3,
    )
    monkeypatch.setenv("GPU_RIGHTSIZER_PROMETHEUS_INSECURE_SKIP_VERIFY", "perhaps")
    with pytest.raises(UsageError, match="its variable must be true or false"):
        prometheus_settings(parser().parse_args(["plan", *flags]))


def test_settings_sigv4_region_is_read() -> None:
    """It is in the settings."""
    settings = prometheus_settings(parser().parse_args(["plan", *HTTPS, *REGION]))
    assert settings.sigv4_region == "eu-central-1"


@pytest.mark.prometheus
def test_connection_of_mcp_refuses_to_write(world: World) -> None:
    """Whatever an assistant brings a tool to do; not even a dry run is sent."""
    flags = ["--kubeconfig", str(world.directory / "kubeconfig")]
    cluster = Cluster(cluster_settings(parser().parse_args(["mcp", *flags])))
    for is_dry in (True, False):
        with pytest.raises(ClusterError, match="only reads"):
            cluster.patch("/api/v1/namespaces/gpu-rightsizer", {}, dry_run=is_dry)
    assert world.api.requests.mutating(include_dry_run=True) == []
