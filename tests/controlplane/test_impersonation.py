"""A real API server takes the user and groups of a kubeconfig's `as` and `as-groups` as kubectl's."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from rightsizer.config import ClusterSettings
from rightsizer.kube.cluster import Cluster
from simulator.controlplane.plane import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.xdist_group("controlplane")]


@pytest.mark.parametrize(
    ("groups", "is_allowed"),
    [((), False), (("a,system:masters",), False), (("a", "system:masters"), True)],
    ids=["user-alone", "one-group", "two-groups"],
)
def test_kubeconfig_with_as_has_the_rights_of_that_user_and_its_groups(
    groups: Sequence[str], is_allowed: bool, plane: ControlPlane, tmp_path: Path
) -> None:
    """Not those of the administrator whose certificate it holds."""
    document = yaml.safe_load(plane.kubeconfig.read_text())
    document["users"][0]["user"] |= {"as": "jane", "as-groups": list(groups)}
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    cluster = Cluster(ClusterSettings(path))
    assert cluster.is_allowed({"verb": "delete", "resource": "pods"}) is is_allowed
    cluster.close()
