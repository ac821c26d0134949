"""One real control plane for the whole test session; what it logged is shown with a test that fails."""

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from rightsizer.guardrails.template_admission import PARAM_KIND, PARAM_REF
from simulator.controlplane.plane import ControlPlane
from simulator.controlplane.programs import find
from simulator.controlplane.thirdparty import install, third_party_kinds
from simulator.kubeclient import KubeClient
from simulator.prometheus import Prometheus
from tests.controlplane.world import RealWorld

_SHOWN_LINES = 30
_SHOWN_FAILURES = 3
"""Where many tests fail, they mostly do so for one reason."""
_shown: set[str] = set()


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running control plane without nodes; for tests with the marker `controlplane`."""
    with ControlPlane(tmp_path_factory.mktemp("controlplane"), find()) as running:
        _keep_informer(KubeClient(running.endpoint))
        yield running


def _keep_informer(client: KubeClient) -> None:
    """Bind a policy with the parameters of ours for good.

    An API server stops to watch parameters with the last binding that names their kind, and never starts again:
    https://github.com/kubernetes/kubernetes/issues/130887
    """
    group, name = "/apis/admissionregistration.k8s.io/v1", {"name": "keep-informer"}
    rule = {"apiGroups": ["none"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["nothing"]}
    spec = {
        "paramKind": PARAM_KIND,
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "true"}],
    }
    client.create(f"{group}/validatingadmissionpolicies", {"metadata": name, "spec": spec})
    binding = {"policyName": name["name"], "paramRef": PARAM_REF, "validationActions": ["Deny"]}
    client.create(f"{group}/validatingadmissionpolicybindings", {"metadata": name, "spec": binding})


@pytest.fixture(scope="session")
def third_parties(plane: ControlPlane) -> ControlPlane:
    """The control plane with the kinds of third parties."""
    install(KubeClient(plane.endpoint), third_party_kinds())
    return plane


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One for all teams, as there is one control plane: what one team has stopped is not all that there is."""
    with Prometheus(tmp_path_factory.mktemp("prometheus")) as running:
        yield running


@pytest.fixture
def world(plane: ControlPlane, prometheus: Prometheus, tmp_path: Path) -> Iterator[RealWorld]:
    """A team with a namespace and, once it has made one, a node of its own."""
    with RealWorld(plane, prometheus, tmp_path) as made:
        yield made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach the end of the control plane's logs to the report of a test that failed while it ran."""
    report = yield
    plane = getattr(item, "funcargs", {}).get("plane")
    if report.failed and isinstance(plane, ControlPlane) and len(_shown) < _SHOWN_FAILURES:
        _shown.add(item.nodeid)
        for log in plane.logs:
            lines = log.read_text(errors="replace").splitlines()[-_SHOWN_LINES:]
            report.sections.append((f"end of {log}", "\n".join(lines)))
    return report
