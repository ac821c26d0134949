"""The scheduler extender: names pods that kube-scheduler may preempt, by plans that the core makes.

Imports the core; the core never imports it. Light to import, for --help.
"""

import argparse

from rightsizer.cli.flags import Command, add_sources
from rightsizer.cli.options import EXTENDER, POLICY, PRICES, SCHEDULE, add_common, add_options

_EXTEND = """\
Answers kube-scheduler as a scheduler extender: of the pods that a pending pod
of higher priority may preempt, it names those that hold GPUs without using
them, if a rule with mode: enforce would stop their workloads. Plans on a
schedule. Creates Events, and changes nothing itself.
"""

_EXTEND_EPILOG = """\
example:
  gpu-rightsizer extend --policy policy.yaml --every 5m \\
    --tls-cert-file tls.crt --tls-key-file tls.key --client-ca-file ca.crt
"""


def _extend(parser: argparse.ArgumentParser) -> None:
    add_options(parser, "questions", EXTENDER)
    add_options(parser, "", (*POLICY, *PRICES))
    add_options(parser, "schedule", SCHEDULE)
    add_sources(parser)
    add_common(parser, forms=())


COMMANDS: tuple[Command, ...] = (
    ("extend", "name idle pods to kube-scheduler's preemption", _EXTEND, _EXTEND_EPILOG, _extend),
)
