"""The exporter's errors. Each edge translates its library's errors into these, once.

ExporterError                 any failure that is reported to the user                exit code 1
├── UsageError                invalid flags or environment variables                  exit code 2
│   └── ConfigFileError       an invalid web configuration file or list of metrics
├── StartError                the exporter cannot start
│   └── NoLibraryError        there is no driver library in this container or on this machine
├── RequestError              a client's request is refused, with its HTTP status
├── ReadingError              one reading of one device failed, with its reason
├── PodResourcesError         the kubelet did not list the pods' devices
│   └── UnimplementedError    it does not serve the API
└── ApiServerError            the API server did not return this node's pods
    └── VersionExpiredError   the requested version has expired: list again
"""

import enum
from collections.abc import Sequence
from http import HTTPStatus


class Reason(enum.Enum):
    """Why a reading failed: a closed set, because the value is the label `reason` of a counter.

    NOT_SUPPORTED and PENDING are no failures.
    """

    NOT_SUPPORTED = "not_supported"
    PENDING = "pending"
    UNAVAILABLE = "unavailable"
    NO_PERMISSION = "no_permission"
    GONE = "gone"
    GPU_LOST = "gpu_lost"
    RESET_REQUIRED = "reset_required"
    TIMEOUT = "timeout"
    STUCK = "stuck"
    DRIVER = "driver"
    DEFECT = "defect"
    UNKNOWN = "unknown"

    @property
    def is_failure(self) -> bool:
        """Whether it counts as a failure."""
        return self not in {Reason.NOT_SUPPORTED, Reason.PENDING}


class ExporterError(Exception):
    """Any failure that is reported in one line. `exit_code` is the process's if the error ends it."""

    exit_code = 1


class UsageError(ExporterError):
    """Invalid flags or environment variables: all problems, one per line."""

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))


class ConfigFileError(UsageError):
    """An invalid web configuration file or list of metrics; the message never repeats a possible secret."""


class StartError(ExporterError):
    """The exporter cannot start; the message says what to do."""


class NoLibraryError(StartError):
    """The driver's library is missing, which needs a change of the setup."""


class RequestError(ExporterError):
    """A client's request is refused with this status and message."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class ReadingError(ExporterError):
    """A reading of a device failed; only its series is absent."""

    def __init__(self, what: str, reason: Reason, detail: str) -> None:
        super().__init__(f"{what}: {detail}")
        self.reason = reason


class PodResourcesError(ExporterError):
    """The kubelet's PodResources API returned no usable answer; `consequence` is for the log."""

    consequence = "retrying; GPU series continue, soon without pod labels"


class UnimplementedError(PodResourcesError):
    """The kubelet does not serve PodResources v1, until it is replaced."""

    consequence = "pod labels are off until the kubelet is replaced"


class IncompleteAnswerError(PodResourcesError):
    """The kubelet has just started and does not list the pods of the API server yet."""

    consequence = "keeping the last answer until it lists them"


class ApiServerError(ExporterError):
    """The API server returned no usable answer. `retry_after_s` is its Retry-After in seconds."""

    retry_after_s = 0.0


class VersionExpiredError(ApiServerError):
    """The API server has no changes since the requested version."""
