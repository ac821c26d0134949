"""Translates NVML's return codes into ReadingErrors: the only place that knows their meaning.

Must not know the reading, except its name for the message.
"""

from collections.abc import Callable
from typing import TypeVar

import pynvml

from exporter.errors import ReadingError, Reason

T = TypeVar("T")
NO_VALUE = {2**32 - 1, 2**64 - 1}  # NVML_VALUE_NOT_AVAILABLE, -1 cast to 32 or 64 bits

_MEANING: dict[int, tuple[Reason, str]] = {
    pynvml.NVML_ERROR_UNINITIALIZED: (Reason.DRIVER, "the driver library is not initialised"),
    pynvml.NVML_ERROR_INVALID_ARGUMENT: (
        Reason.GONE,
        "the device has gone (it was reconfigured while being read)",
    ),
    pynvml.NVML_ERROR_NOT_SUPPORTED: (Reason.NOT_SUPPORTED, "not supported by this device"),
    pynvml.NVML_ERROR_NO_PERMISSION: (Reason.NO_PERMISSION, "the driver denies it to this user"),
    pynvml.NVML_ERROR_NOT_FOUND: (Reason.GONE, "the device has gone"),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (Reason.DRIVER, "the driver is not loaded"),
    pynvml.NVML_ERROR_TIMEOUT: (Reason.TIMEOUT, "the driver gave up after its own time limit"),
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (Reason.DRIVER, "libnvidia-ml.so.1 is not there"),
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND: (Reason.NOT_SUPPORTED, "not known to this version of the driver"),
    pynvml.NVML_ERROR_GPU_IS_LOST: (Reason.GPU_LOST, "the GPU has fallen off the bus or cannot be reached"),
    pynvml.NVML_ERROR_RESET_REQUIRED: (Reason.RESET_REQUIRED, "the GPU needs a reset before it works again"),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        Reason.DRIVER,
        "the driver was replaced while its old library is in use",
    ),
    pynvml.NVML_ERROR_NO_DATA: (Reason.UNAVAILABLE, "the driver has no value yet"),
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH: (
        Reason.NOT_SUPPORTED,
        "not known to this version of the driver",
    ),
    pynvml.NVML_ERROR_DEPRECATED: (Reason.NOT_SUPPORTED, "no longer offered by this version of the driver"),
}


def translate(what: str, error: pynvml.NVMLError) -> ReadingError:
    """NVML's `error` while reading `what`, as a ReadingError."""
    reason, detail = _MEANING.get(error.value, (Reason.UNKNOWN, f"{error} (NVML error {error.value})"))
    return ReadingError(what, reason, detail)


def asking(what: str, call: Callable[[], T]) -> T:
    """The result of `call`; `what` names the reading in the error."""
    try:
        return call()
    except pynvml.NVMLError as error:
        raise translate(what, error) from error


def text(what: str, call: Callable[[], str]) -> str:
    """A string from the driver. Bytes that are not UTF-8 are replaced: some drivers return them (gpustat issue 170)."""
    try:
        return asking(what, call)
    except UnicodeDecodeError as error:
        return bytes(error.object).decode(errors="replace")
