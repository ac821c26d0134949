"""The scheduler extender: names pods that kube-scheduler may preempt, by plans that the core makes.

Imports the core; the core never imports it. Light to import, for --help.
"""

from rightsizer.cli.flags import Command
from rightsizer.cli.options import ExtenderOptions, OutputOptions, ScheduleOptions, SessionOptions


class ExtendOptions(ExtenderOptions, ScheduleOptions, SessionOptions, OutputOptions):
    """Name idle pods to kube-scheduler's preemption.

    Answers kube-scheduler as a scheduler extender: of the pods that a pending pod
    of higher priority may preempt, it names those that hold GPUs without using
    them, if a rule with mode: enforce would stop their workloads. Plans on a
    schedule. Creates Events, and changes nothing itself.
    """

    epilog = """
        example:
          gpu-rightsizer extend --policy policy.yaml --every 5m \\
            --tls-cert-file tls.crt --tls-key-file tls.key --client-ca-file ca.crt
        """


COMMANDS: tuple[Command, ...] = (Command("extend", ExtendOptions),)
