"""The driver library: loads, closes and reopens it, and reads its versions and the number of GPUs.

Must not know what is read from the GPUs.
"""

import pynvml

from exporter.attribution.records import UsageTable
from exporter.errors import NoLibraryError, ReadingError, StartError
from exporter.model import Device
from exporter.nvml.codes import asking, text
from exporter.nvml.devices import OpenDevice, open_gpu
from exporter.nvml.driverstate import DriverState
from exporter.nvml.meter import Clocks, Meter
from exporter.nvml.xids import XidWatch

_HINTS = {
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "libnvidia-ml.so.1 was not found. On a GPU node, install the NVIDIA driver; in a container, run it with the "
        "NVIDIA runtime (runtimeClassName: nvidia, or docker run --gpus all)"
    ),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: (
        "the NVIDIA driver is not loaded. Load it (modprobe nvidia) and see whether nvidia-smi works on this node"
    ),
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: (
        "the loaded driver and libnvidia-ml.so.1 are of different versions: the driver was upgraded underneath. "
        "Restart this container, or reboot the node"
    ),
    pynvml.NVML_ERROR_NO_PERMISSION: (
        "access is denied. Run as a user that may open /dev/nvidiactl, or give the container its devices"
    ),
}


class Session:
    """NVML. Versions are read at each opening, because the driver may have been upgraded."""

    def __init__(self, clocks: Clocks, *, serial_numbers: bool = False) -> None:
        """The driver is not called before `open`. `serial_numbers`: whether serial numbers may be published."""
        self.driver_version = ""  # such as "570.133.20"
        self.nvml_version = ""  # such as "12.570.133.20"
        self._host = DriverState(Meter(clocks), serial_numbers=serial_numbers)
        self._watch = XidWatch(self._host.xids)

    def open(self) -> None:
        """Load and initialise the library. Raises StartError: there is no usable driver."""
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            hint = _HINTS.get(
                error.value, f"{error} (NVML error {error.value}). See whether nvidia-smi works here"
            )
            is_missing = error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
            raised = NoLibraryError if is_missing else StartError
            raise raised(f"cannot use the NVIDIA driver: {hint}") from error
        self.driver_version = text("reading the driver's version", pynvml.nvmlSystemGetDriverVersion)
        self.nvml_version = text("reading NVML's version", pynvml.nvmlSystemGetNVMLVersion)
        self._host.driver_version = self.driver_version
        self._host.cuda_version = _cuda_version()
        self._watch.start()

    def count(self) -> int:
        """The current number of GPUs."""
        count = int(asking("counting the GPUs", pynvml.nvmlDeviceGetCount))
        self._host.topology.refresh(count)
        return count

    @property
    def usage(self) -> UsageTable:
        """Usage of the devices."""
        return self._host.usage

    def gpu(self, index: int) -> OpenDevice:
        """GPU number `index`, for this cycle."""
        return open_gpu(index, self._host)

    def lost(self, record: Device) -> OpenDevice:
        """A device that cannot be read; only its XID errors are known."""
        return OpenDevice(None, record, self._host)

    def reopen(self) -> None:
        """Close and open again after the driver was unloaded or replaced. Raises StartError: it is not back yet."""
        self.close()
        self.open()

    def close(self) -> None:
        """End the use of the driver; harmless when it has already ended."""
        self._watch.stop()
        self._host.forget()
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError:
            return  # nothing to end: the driver is gone, or this is the second call


def _cuda_version() -> str:
    """The newest CUDA version that the driver supports, such as "12.8"; empty if unknown."""
    try:
        version = int(asking("reading the version of CUDA", pynvml.nvmlSystemGetCudaDriverVersion))
    except ReadingError:
        return ""
    return f"{version // 1000}.{version % 1000 // 10}"
