"""Kinds of batch and machine-learning frameworks: JobSet, Kubeflow, Ray, Argo, Volcano, AppWrapper, Kueue. Pure.

https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/
https://github.com/kubeflow/training-operator/tree/release-1.9/pkg/apis/kubeflow.org/v1 (RunPolicy)
https://github.com/kubeflow/mpi-operator/tree/master/pkg/apis/kubeflow/v2beta1
https://github.com/kubeflow/trainer/tree/master/pkg/apis/trainer/v1alpha1
https://github.com/kubeflow/notebooks
https://ray-project.github.io/kuberay/reference/api/
https://argo-workflows.readthedocs.io/en/latest/fields/#workflowspec
https://github.com/volcano-sh/apis/tree/master/pkg/apis/bus/v1alpha1
https://project-codeflare.github.io/appwrapper/
https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/ (WorkloadSpec.active)
"""

from rightsizer.changes.record_codec import ORDER_ANNOTATION
from rightsizer.kinds.core import CLASS, TEMPLATE_CLASS
from rightsizer.kinds.edits import ANY, GROUP, ITEM, NAMED, Path
from rightsizer.kinds.kind import (
    LEFT_OVER,
    NOW,
    PERSON_START_S,
    SET,
    SUSPEND,
    TRAINING_START_S,
    BlockingField,
    CommandObject,
    Field,
    Kind,
    Steering,
    Stop,
    StopState,
    Value,
    WorkerGroups,
    annotation,
    suspended,
)
from rightsizer.kube.owner_kinds import ENDED, KUEUE, VOLCANO_JOB
from rightsizer.model import Action

_RUN_POLICY = suspended(Field(("spec", "runPolicy", "suspend"), Value.SWITCH))
# Once it has ended, the operators return before they look at suspend; by default, they leave running pods alone.
_CLEANED = Stop(
    Action.SUSPEND, "CleanedUp", Field(("spec", "runPolicy", "cleanPodPolicy"), Value.TEXT), "Running"
)
_LOST = "work since the last checkpoint of every member"


def _training(kind: str, members: str) -> Kind:
    """A job that its operator suspends as a whole; a changed template does not affect running pods."""
    classes = (("spec", members, ANY, *TEMPLATE_CLASS[1:]),)
    return Kind(
        "kubeflow.org",
        kind,
        lost=_LOST,
        has_checkpoints=True,
        restart_s=TRAINING_START_S,
        stop=_RUN_POLICY,
        states=(
            StopState(
                "ended",
                frozenset({ENDED}),
                _CLEANED,
                lost="nothing of the job, which has ended; its running pods are deleted, and undo starts none",
            ),
        ),
        classes=classes,
    )


_WORKERS = WorkerGroups(
    pattern=("spec", "workerGroupSpecs", GROUP),
    label="ray.io/group",
    hosts=("numOfHosts",),
    replica="ray.io/worker-group-replica-name",  # as a rule from KubeRay 1.6 on
    least=("minReplicas",),
    going=("scaleStrategy", "workersToDelete"),
)
# KubeRay's ValidateRayJobSpec rejects suspend with these: such a job fails for good, and keeps its GPUs.
_KEPT = ("spec", "shutdownAfterJobFinishes")
_NOT_SUSPENDED = (
    BlockingField(_KEPT, value=None, why="KubeRay does not suspend it"),  # same as false
    BlockingField(_KEPT, value=False, why="KubeRay does not suspend it"),
    BlockingField(
        ("spec", "clusterSelector"), SET, "KubeRay does not suspend it: its cluster is not its own"
    ),
)


# In other states KubeRay ignores suspend, and obeys it once the job runs. It leaves a suspended cluster alone; its ttl
# would delete the cluster for good.
_RAY_JOB = suspended(unless=_NOT_SUSPENDED)
_RAY_JOB_BETWEEN = "its status.jobDeploymentStatus is none in which KubeRay heeds a stop"
_RAY_JOB_STATES = (
    StopState("running", frozenset({"Initializing", "Running"}), _RAY_JOB),
    StopState(
        "waiting or ended",
        frozenset({"Waiting", ENDED}),
        Stop(Action.SUSPEND, "Suspended", SUSPEND, to=True, owned="RayCluster"),
        lost="no running job: it waits, or has ended",
    ),
    StopState("otherwise", frozenset(), why=_RAY_JOB_BETWEEN),
)


# KubeRay resumes a cluster that it has suspended only by false, not by an absent field.
_RAY_CLUSTER = suspended(Field(SUSPEND.path, SUSPEND.value, absent=False))


def _ray_classes(*cluster: str) -> tuple[Path, ...]:
    """PriorityClass paths of head and workers in a RayCluster spec."""
    groups = (("headGroupSpec",), ("workerGroupSpecs", GROUP))
    return tuple((*cluster, *group, *TEMPLATE_CLASS[1:]) for group in groups)


_COMMANDS = CommandObject(
    "bus.volcano.sh/v1alpha1",
    "Command",
    "commands",
    undo_verb="ResumeJob",
    state=("status", "state", "phase"),
    stopped=frozenset({"Aborting", "Aborted", *VOLCANO_JOB.ended}),
)

KINDS = (
    # The templates of a JobSet cannot be changed, suspended or not, but for where its pods may run.
    Kind(
        "jobset.x-k8s.io",
        "JobSet",
        lost="work since the last checkpoint of every pod; its Jobs restart",
        has_checkpoints=True,
        restart_s=TRAINING_START_S,
        stop=suspended(),
        states=(LEFT_OVER,),
        classes=(("spec", "replicatedJobs", NAMED, "template", *TEMPLATE_CLASS),),
    ),
    _training("PyTorchJob", "pytorchReplicaSpecs"),
    _training("TFJob", "tfReplicaSpecs"),
    _training("MPIJob", "mpiReplicaSpecs"),
    _training("XGBoostJob", "xgbReplicaSpecs"),
    _training("PaddleJob", "paddleReplicaSpecs"),
    _training("JAXJob", "jaxReplicaSpecs"),
    # spec.trainer cannot be changed, by its validation rules. Its pods are described by its TrainingRuntime.
    Kind(
        "trainer.kubeflow.org",
        "TrainJob",
        lost=_LOST,
        has_checkpoints=True,
        restart_s=TRAINING_START_S,
        stop=suspended(),
        states=(LEFT_OVER,),
    ),
    # The notebook controller's own culler sets it, and its user interface removes it. Its template is not
    # changed: its StatefulSet rolls out in order, and never replaces a pod that cannot start.
    Kind(
        "kubeflow.org",
        "Notebook",
        lost="memory of its kernels; volumes stay",
        restart_s=PERSON_START_S,
        stop=Stop(Action.SUSPEND, "Suspended", annotation("kubeflow-resource-stopped"), NOW),
        classes=(TEMPLATE_CLASS,),
    ),
    # Its pods are described by its WorkspaceKind.
    Kind(
        "kubeflow.org",
        "Workspace",
        lost="memory of its kernels; volumes stay",
        restart_s=PERSON_START_S,
        stop=suspended(Field(("spec", "paused"), Value.SWITCH)),
    ),
    # The autoscaler controls the numbers of workers if it is on, and removes idle ones.
    Kind(
        "ray.io",
        "RayCluster",
        lost="everything on its head and workers: actors, objects, tasks and, unless stored outside, its jobs",
        restart_s=TRAINING_START_S,
        stop=_RAY_CLUSTER,
        groups=_WORKERS,
        steering=Steering.NAMED,
        unless=(BlockingField(("spec", "enableInTreeAutoscaling"), value=True),),
        classes=_ray_classes("spec"),
    ),
    Kind(
        "ray.io",
        "RayJob",
        lost="work beyond the job's own checkpoints; it starts from the beginning on a new cluster",
        has_checkpoints=True,
        restart_s=TRAINING_START_S,
        stop=_RAY_JOB,
        states=_RAY_JOB_STATES,
        classes=(
            *_ray_classes("spec", "rayClusterSpec"),
            ("spec", "submitterPodTemplate", *TEMPLATE_CLASS[2:]),
        ),
    ),
    # The field came with KubeRay 1.7; where the definition is older, the API server refuses the dry run.
    Kind(
        "ray.io",
        "RayService",
        lost="memory of its cluster; its applications are deployed again",
        restart_s=TRAINING_START_S,
        stop=_RAY_CLUSTER,
        classes=_ray_classes("spec", "rayClusterConfig"),
    ),
    # spec.suspend only keeps further steps from starting: running pods keep their GPUs. Exit handlers still run.
    Kind(
        "argoproj.io",
        "Workflow",
        lost="running and later steps; it cannot be resumed, only retried",
        restart_s=TRAINING_START_S,
        stop=Stop(Action.EVICT, "Stopped", Field(("spec", "shutdown"), Value.TEXT), "Stop", is_final=True),
        states=(LEFT_OVER,),
        classes=(("spec", "templates", NAMED, CLASS),),
        class_of_all=("spec", "podPriorityClassName"),
    ),
    # Stopped with a Workflow that it started.
    Kind(
        "argoproj.io",
        "CronWorkflow",
        lost="runs that would start meanwhile",
        stop=suspended(),
        classes=(("spec", "workflowSpec", "templates", NAMED, CLASS),),
        class_of_all=("spec", "workflowSpec", "podPriorityClassName"),
    ),
    Kind(
        "batch.volcano.sh",
        "Job",
        lost="work since the last checkpoint of every task; the job restarts",
        has_checkpoints=True,
        restart_s=TRAINING_START_S,
        stop=Stop(Action.SUSPEND, "Suspended", annotation(ORDER_ANNOTATION), "AbortJob", command=_COMMANDS),
        states=(LEFT_OVER,),
        classes=(("spec", "tasks", NAMED, *TEMPLATE_CLASS[1:]),),
        class_of_all=("spec", CLASS),
    ),
    # It deletes the objects that it wraps, and creates them again on resume. They may be of any kind.
    Kind(
        "workload.codeflare.dev",
        "AppWrapper",
        lost="everything not stored outside of its objects, which are deleted and created again",
        has_checkpoints=True,
        restart_s=TRAINING_START_S,
        stop=suspended(),
        states=(LEFT_OVER,),
        classes=tuple(
            ("spec", "components", ITEM, "template", *path) for path in (("spec", CLASS), TEMPLATE_CLASS)
        ),
    ),
)

# Kueue evicts the workload and does not queue it again; active again, it waits for its turn.
KUEUE_WORKLOAD = Kind(
    KUEUE.group,
    KUEUE.kind,
    lost="what the job itself loses, and its place in the queue",
    stop=suspended(Field(("spec", "active"), Value.SWITCH), to=False),
    classes=(("spec", "podSets", NAMED, *TEMPLATE_CLASS[1:]),),
    where=KUEUE,
)
