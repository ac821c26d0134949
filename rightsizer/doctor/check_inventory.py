"""Checks of what the API server says: can it be read, and is there anything to judge. Pure."""

from collections.abc import Iterator

from rightsizer.doctor.diagnosis import Check, Diagnosis, Family, Message, Status, known
from rightsizer.doctor.facts import Facts, Failure
from rightsizer.text import count

READ = Message(Status.OK, "{host}: {workloads} with {gpus}, {nodes} with GPUs")
UNREADABLE = Message(
    Status.ERROR,
    "{why}",
    "use another --kubeconfig FILE or --context NAME; if Forbidden, see permissions; to compare:",
    "kubectl get pods -A",
)
NO_WORKLOADS = Message(
    Status.WARNING,
    "{host}: no workload holds or waits for GPUs",
    "use another --context NAME, or name other GPU resources: --gpu-resource NAMES (docs/inventory.md)",
)

WHOLE = Message(Status.OK, "all objects were read")
LEFT_OUT = Message(
    Status.WARNING,
    "{why}",
    "if Forbidden, see permissions; otherwise fix the named object: its workloads are judged without it",
)


def _cluster(facts: Facts) -> Iterator[Diagnosis]:
    fleet = facts.fleet
    if isinstance(fleet, Failure):
        yield UNREADABLE(why=fleet.words)
        return
    host = known(facts.host)
    gpus = sum(workload.gpus for workload in fleet.workloads)
    if fleet.workloads:
        workloads, nodes = count(len(fleet.workloads), "workload"), count(len(fleet.nodes), "node")
        yield READ(host=host, workloads=workloads, gpus=count(gpus), nodes=nodes)
    else:
        yield NO_WORKLOADS(host=host)


def _problems(facts: Facts) -> Iterator[Diagnosis]:
    problems = known(facts.fleet).problems
    for why in problems:
        yield LEFT_OUT(why=why)
    if not problems:
        yield WHOLE()


FAMILY = Family(
    "inventory",
    (
        Check(
            "cluster",
            "Objects can be read from the API server.",
            _cluster,
            (READ, UNREADABLE, NO_WORKLOADS),
        ),
        Check("objects", "Objects that could not be read or parsed.", _problems, (WHOLE, LEFT_OUT)),
    ),
)
