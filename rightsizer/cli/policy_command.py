"""`gpu-rightsizer policy`: check a policy file, explain what it says about a workload, or write one to start from."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import yaml

from rightsizer.cli.connection import cluster_settings
from rightsizer.cli.flags import AdmissionOptions, CheckOptions, ExplainOptions, InitOptions, RbacOptions
from rightsizer.cli.messages import note
from rightsizer.cli.options import StateOptions
from rightsizer.cli.plan_session import policy_of, utc_now
from rightsizer.errors import UsageError
from rightsizer.guardrails.admission import admission_gaps, admission_policies, grant_gaps
from rightsizer.guardrails.rbac import grants
from rightsizer.inventory.cluster_reader import read_cluster, read_priority_classes
from rightsizer.inventory.workload_builder import build_fleet
from rightsizer.kinds import RECORDABLE_KINDS
from rightsizer.kube.cluster import Cluster
from rightsizer.model import Fleet
from rightsizer.policy.effective import PolicyEvaluator
from rightsizer.policy.explain import explain
from rightsizer.policy.policy_file import (
    LoadedPolicy,
    class_problems,
    load,
    namespace_problems,
    require_classes,
    starting_policy,
    workloads_by_rule,
)
from rightsizer.policy.schema import Policy
from rightsizer.text import count, safe, safe_lines


def run(arguments: CheckOptions | ExplainOptions | InitOptions | RbacOptions | AdmissionOptions) -> int:
    """Run the subcommand."""
    match arguments:
        case CheckOptions():
            text = _check(arguments)
        case ExplainOptions():
            text = _explain(arguments)
        case InitOptions():
            text = starting_policy(read_priority_classes(Cluster(cluster_settings(arguments))))
        case RbacOptions():
            text = _rbac(arguments)
        case AdmissionOptions():
            text = _admission(arguments)
    sys.stdout.write(safe_lines(text))
    return 0


def _check(arguments: CheckOptions) -> str:
    """Check the file, and its names against the cluster; say whom each rule is about.

    Raises:
        UsageError: No file is named.
    """
    path = arguments.file or arguments.policy
    if not path:
        raise UsageError("which policy file? policy check FILE, or --policy, or GPU_RIGHTSIZER_POLICY")
    loaded = load(path)
    rules = count(len(loaded.policy.rules), "rule")
    if arguments.offline:
        return safe(f"{path}: good: {rules}, not asked of a cluster") + "\n"
    cluster = Cluster(cluster_settings(arguments))
    require_classes(loaded, {item.name for item in read_priority_classes(cluster)})
    book = _book(arguments, loaded, _fleet(cluster, loaded.policy))
    head = safe(f"{path}: good: {rules}, its PriorityClasses exist at {cluster.host}")
    problems = [*class_problems(book), *namespace_problems(loaded, book.fleet.namespaces)]
    return "\n".join([head, *_concerned(book), *(f"warning: {words}" for words in problems)]) + "\n"


def _concerned(book: PolicyEvaluator) -> Iterator[str]:
    """A table of the workloads that each rule matches now."""
    rows, protected = workloads_by_rule(book)
    width = max(len(name) for name, *_ in rows)
    for name, mode, workloads, gpus in rows:
        yield f"  {name:{width}}  {mode.value:8} {count(workloads, 'workload'):>16} {count(gpus):>12}"
    if protected:
        yield f"{count(protected, 'workload')} are protected from every policy"


def _explain(arguments: ExplainOptions) -> str:
    """Walk the rules for one workload."""
    parts = arguments.workload.split("/")
    if len(parts) != len(("namespace", "kind", "name")) or not all(parts):
        raise UsageError(
            f"{arguments.workload}: write NAMESPACE/KIND/NAME, such as research/Deployment/eval-server"
        )
    loaded = policy_of(arguments)
    namespace, kind, name = parts
    fleet = _fleet(Cluster(cluster_settings(arguments)), loaded.policy, namespace)
    for workload in fleet.workloads:
        if (workload.ref.kind.lower(), workload.ref.name) == (kind.lower(), name):
            return f"policy {loaded.source}\n{explain(workload, _book(arguments, loaded, fleet))}"
    others = ", ".join(str(workload.ref) for workload in fleet.workloads[:_SHOWN])
    hint = f"; there are {others}" if others else ""
    raise UsageError(f"{arguments.workload}: no such workload holds or waits for GPUs in {namespace}{hint}")


_SHOWN = 5


def _book(arguments: StateOptions, loaded: LoadedPolicy, fleet: Fleet) -> PolicyEvaluator:
    return PolicyEvaluator(loaded.policy, fleet, at=utc_now(), own=arguments.state_namespace)


def _fleet(cluster: Cluster, policy: Policy, namespace: str | None = None) -> Fleet:
    return build_fleet(read_cluster(cluster, RECORDABLE_KINDS, namespace=namespace, queues=policy.queues))


def _rbac(arguments: RbacOptions) -> str:
    """What the policy's actions need of RBAC."""
    policy = policy_of(arguments).policy
    _note(grant_gaps(policy))
    found = grants(
        policy,
        account=arguments.service_account,
        own=arguments.state_namespace,
        is_finding=arguments.discovery,
    )
    return _rendered(found)


def _admission(arguments: AdmissionOptions) -> str:
    """Print the admission guardrails."""
    policy = policy_of(arguments).policy
    classes = arguments.protected_class
    _note(admission_gaps(policy, classes))
    found = admission_policies(
        policy, account=arguments.service_account, own=arguments.state_namespace, classes=classes
    )
    return _rendered(found)


def _note(gaps: Iterable[str]) -> None:
    """Print notes on the documents to stderr, because kubectl reads stdout."""
    for words in gaps:
        note(words)


def _rendered(documents: Sequence[Mapping[str, Any]]) -> str:
    return yaml.safe_dump_all(documents, sort_keys=False, width=1000)
