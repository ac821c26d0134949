"""`gpu-rightsizer doctor`: check connectivity, permissions, metrics and policy, with remedies. Only reads."""

import functools
import sys

import yaml

from rightsizer.cli.connection import cluster_settings, prometheus_settings, signal_terms
from rightsizer.cli.flags import DoctorOptions
from rightsizer.cli.options import wants_colour
from rightsizer.cli.plan_session import policy_of, utc_now
from rightsizer.cli.reporter import show
from rightsizer.doctor.diagnosis import Status, document, text
from rightsizer.doctor.examination import FactSources, collect_facts, diagnose
from rightsizer.doctor.rights import roles
from rightsizer.guardrails.rbac import Enabled
from rightsizer.kube.cluster import Cluster
from rightsizer.prometheus.discovery import connect
from rightsizer.prometheus.query_api import Prometheus


def run(arguments: DoctorOptions) -> int:
    """Ask, judge, tell; 1 where there is a problem."""
    if arguments.roles:
        sys.stdout.write(yaml.safe_dump_all(roles(arguments.state_namespace), sort_keys=False))
        return 0
    found = list(diagnose(collect_facts(_fact_sources(arguments))))
    show(arguments, text(found, colour=wants_colour(arguments, sys.stdout)), document(found))
    return 1 if any(one.status is Status.ERROR for _, one in found) else 0


def _fact_sources(arguments: DoctorOptions) -> FactSources:
    """Whom to ask.

    Raises:
        UsageError, ConfigurationError: Invalid flags.
    """
    settings, of_cluster = prometheus_settings(arguments), cluster_settings(arguments)
    cluster = functools.cache(lambda: Cluster(of_cluster))

    def prometheus() -> Prometheus:
        return Prometheus(settings) if settings.url else connect(settings, cluster())

    terms = signal_terms(arguments, settings.labels)
    return FactSources(
        cluster=cluster,
        prometheus=prometheus,
        is_named=settings.url is not None,
        policy=lambda: policy_of(arguments),
        evicts=lambda found: Enabled(found).evicts,
        terms=terms,
        own=arguments.state_namespace,
        clock=utc_now,
    )
