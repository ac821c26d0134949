"""Kinds of Kubeflow: training jobs of the Training Operator, MPI Operator and Trainer, Notebooks, Workspaces. Pure.

https://github.com/kubeflow/training-operator/tree/release-1.9/pkg/apis/kubeflow.org/v1 (RunPolicy)
https://github.com/kubeflow/mpi-operator/tree/master/pkg/apis/kubeflow/v2beta1
https://github.com/kubeflow/trainer/tree/master/pkg/apis/trainer/v1alpha1
https://github.com/kubeflow/notebooks
"""

from rightsizer.kinds.core import TEMPLATE_CLASS
from rightsizer.kinds.edits import ANY, Path
from rightsizer.kinds.fields import NOW, Field, Value, annotation
from rightsizer.kinds.kind import Kind, Steering, Stop, suspended
from rightsizer.model import Action

_RUN_POLICY = suspended(Field(("spec", "runPolicy", "suspend"), Value.SWITCH))
_LOST = "work since the last checkpoint of every member"


def _classes(members: str) -> tuple[Path, ...]:
    return (("spec", members, ANY, *TEMPLATE_CLASS[1:]),)


def _training(kind: str, members: str, source: str = "kubeflow.org/v1") -> Kind:
    """What the Training Operator, or the MPI Operator, suspends whole; a changed template reaches no running pod."""
    return Kind("kubeflow.org", kind, source=source, lost=_LOST, stop=_RUN_POLICY, classes=_classes(members))


KINDS = (
    # With an elasticPolicy its workers may come and go, highest index first; without one it needs them all.
    Kind(
        "kubeflow.org",
        "PyTorchJob",
        source="kubeflow.org/v1",
        lost=_LOST,
        stop=_RUN_POLICY,
        replicas=Field(("spec", "pytorchReplicaSpecs", "Worker", "replicas"), Value.COUNT),
        steering=Steering.TAIL,
        needs=("spec", "elasticPolicy"),
        has_scale=True,
        classes=_classes("pytorchReplicaSpecs"),
    ),
    _training("TFJob", "tfReplicaSpecs"),
    _training("MPIJob", "mpiReplicaSpecs", "kubeflow.org/v2beta1 and v1"),
    _training("XGBoostJob", "xgbReplicaSpecs"),
    _training("PaddleJob", "paddleReplicaSpecs"),
    _training("JAXJob", "jaxReplicaSpecs"),
    # spec.trainer cannot be changed, by its validation rules. Its pods are described by its TrainingRuntime.
    Kind(
        "trainer.kubeflow.org",
        "TrainJob",
        source="trainer.kubeflow.org/v1alpha1",
        lost=_LOST,
        stop=suspended(),
    ),
    # What the notebook controller's own culler sets, and its users' interface takes away. A changed template reaches
    # its pod by a StatefulSet of one after the other, which leaves one that cannot start as it is: it is not changed.
    Kind(
        "kubeflow.org",
        "Notebook",
        source="kubeflow.org/v1",
        lost="memory of its kernels; volumes stay",
        stop=Stop(Action.SUSPEND, "Suspended", annotation("kubeflow-resource-stopped"), NOW),
        classes=(TEMPLATE_CLASS,),
    ),
    # Its pods are described by its WorkspaceKind.
    Kind(
        "kubeflow.org",
        "Workspace",
        source="kubeflow.org/v1beta1",
        lost="memory of its kernels; volumes stay",
        stop=suspended(Field(("spec", "paused"), Value.SWITCH)),
    ),
)
