"""Kinds of Argo Rollouts and Argo Workflows. Pure.

https://argo-rollouts.readthedocs.io/en/stable/features/specification/
https://argo-workflows.readthedocs.io/en/latest/fields/#workflowspec
"""

from rightsizer.kinds.core import CLASS, ROLLING, TEMPLATE, TEMPLATE_CLASS
from rightsizer.kinds.edits import NAMED
from rightsizer.kinds.fields import REPLICAS, Field, Value
from rightsizer.kinds.kind import Kind, Steering, Stop, scaled, suspended
from rightsizer.model import Action

KINDS = (
    # A changed template starts a canary, as any other release does.
    Kind(
        "argoproj.io",
        "Rollout",
        source="argoproj.io/v1alpha1",
        lost="memory of its pods",
        stop=scaled(),
        replicas=REPLICAS,
        steering=Steering.DELETION_COST,
        containers=(TEMPLATE,),
        rolls=ROLLING,
        has_scale=True,
        classes=(TEMPLATE_CLASS,),
    ),
    # spec.suspend only keeps further steps from starting: running pods keep their GPUs. Exit handlers still run.
    Kind(
        "argoproj.io",
        "Workflow",
        source="argoproj.io/v1alpha1",
        lost="running and later steps; it cannot be resumed, only retried",
        stop=Stop(Action.EVICT, "Stopped", Field(("spec", "shutdown"), Value.TEXT), "Stop", is_final=True),
        classes=(("spec", "templates", NAMED, CLASS),),
        class_of_all=("spec", "podPriorityClassName"),
    ),
    # Stopped along with a Workflow that it made.
    Kind(
        "argoproj.io",
        "CronWorkflow",
        source="argoproj.io/v1alpha1",
        lost="runs that would start meanwhile",
        stop=suspended(),
        classes=(("spec", "workflowSpec", "templates", NAMED, CLASS),),
        class_of_all=("spec", "workflowSpec", "podPriorityClassName"),
    ),
)
