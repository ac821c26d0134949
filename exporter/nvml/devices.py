"""A GPU or MIG instance in one sampling cycle, with NVML's readings. Each reading may raise ReadingError.

Values are in NVML's units; the collectors know the metrics' names and units.
Objects live for one cycle: handles are never kept, because MIG can be reconfigured in between.
"""

import enum
import functools
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

import pynvml

from exporter.attribution.records import DeviceUsage, Observation
from exporter.errors import ReadingError, Reason
from exporter.model import Device, Instance
from exporter.nvml.codes import asking, text
from exporter.nvml.driverstate import DriverState
from exporter.nvml.fieldvalues import LINKS, Field, is_wide, link_requests, number
from exporter.nvml.gpm import GpmMetric, Rates
from exporter.nvml.meter import MeterTarget
from exporter.nvml.topology import Peer
from exporter.nvml.xids import Xids

T = TypeVar("T")

_PLAUSIBLE_C = 200  # DCGM's bound: what reads higher is a driver's way of saying that there is no sensor
_MOST_PERCENT = 200  # fans may turn faster than they should; 255 is -1 in a byte
_NO_VALUE = {2**32 - 1, 2**64 - 1}  # NVML_VALUE_NOT_AVAILABLE, -1 cast to 32 or 64 bits
_MIB = 1024 * 1024
_NUMA_WORDS = 4  # 256 nodes
_MIG_NAME = re.compile(r"MIG (?:\d+c\.)?(\S+)$")  # "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"


class Utilization(NamedTuple):
    """Share of the driver's last sampling period in which something ran, in percent."""

    gpu: int
    memory: int


class Memory(NamedTuple):
    """Framebuffer memory in bytes; `reserved` is None on drivers before 510, whose `used` includes it."""

    total: int
    free: int
    used: int
    reserved: int | None


class PowerLimitRange(NamedTuple):
    """Lowest and highest."""

    low: int
    high: int


class Bar1(NamedTuple):
    """BAR1 memory in bytes."""

    total: int
    free: int
    used: int


class TemperatureThreshold(enum.IntEnum):
    """Temperatures at which the card protects itself, or beyond which it is not meant to work."""

    SHUTDOWN = pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
    SLOWDOWN = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    MEMORY_MAXIMUM = pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX
    GPU_MAXIMUM = pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX


class _NoValueError(Exception):
    """The driver answered, with a number that means that it has none."""


def _known(value: int) -> int:
    if value in _NO_VALUE:
        raise _NoValueError("the driver has no value for it")
    return int(value)


def _percent(value: int) -> int:
    if _known(value) > _MOST_PERCENT:
        raise _NoValueError(f"{value} % cannot be")
    return int(value)


def _plausible_c(celsius: int) -> int:
    if _known(celsius) > _PLAUSIBLE_C:
        raise _NoValueError(f"{celsius} C is no temperature")
    return celsius


def reading(what: str) -> Callable[[Callable[["OpenDevice"], T]], Callable[["OpenDevice"], T]]:
    """Make a method ask the driver at most once per cycle, also when the answer is an error."""

    def decorate(method: Callable[["OpenDevice"], T]) -> Callable[["OpenDevice"], T]:
        @functools.wraps(method)
        def once(self: "OpenDevice") -> T:
            if what not in self._answers:
                attempt = f"reading {what} of {self.name}"
                try:
                    self._answers[what] = asking(attempt, lambda: method(self))
                except ReadingError as error:
                    self._answers[what] = error
                except _NoValueError as error:
                    self._answers[what] = ReadingError(attempt, Reason.UNAVAILABLE, str(error))
            answer = self._answers[what]
            if isinstance(answer, ReadingError):
                raise answer.with_traceback(None)
            return cast("T", answer)

        return once

    return decorate


class OpenDevice:
    """A device that can be read now."""

    def __init__(
        self,
        handle: Any,  # noqa: ANN401 - pynvml's handles have no type
        record: Device,
        host: DriverState,
        *,
        parent: Any = None,  # noqa: ANN401
    ) -> None:
        self._handle = handle
        self._parent = parent
        self._host = host
        self._answers: dict[str, object] = {}
        self.record = record  # what it is
        instance = record.instance
        # what it is called in messages
        self.name = f"GPU {record.index} ({record.uuid})" + (
            f" MIG {instance.profile} (instance {instance.gpu_instance_id})" if instance else ""
        )

    @reading("utilization")
    def utilization(self) -> Utilization:
        """Of the compute engines and of the memory controller, in percent."""
        rates = pynvml.nvmlDeviceGetUtilizationRates(self._handle)
        return Utilization(_percent(rates.gpu), _percent(rates.memory))

    @reading("memory")
    def memory(self) -> Memory:
        """Framebuffer memory in bytes."""
        try:
            info = pynvml.nvmlDeviceGetMemoryInfo(self._handle, version=pynvml.nvmlMemory_v2)
        except pynvml.NVMLError_FunctionNotFound:  # drivers before 510
            info = pynvml.nvmlDeviceGetMemoryInfo(self._handle)
            return Memory(_known(info.total), _known(info.free), _known(info.used), None)
        return Memory(*map(_known, (info.total, info.free, info.used, info.reserved)))

    @reading("temperature")
    def temperature_c(self) -> int:
        """Of the GPU die, in degrees Celsius."""
        try:
            celsius = pynvml.nvmlDeviceGetTemperatureV(self._handle, pynvml.NVML_TEMPERATURE_GPU)
        except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
            celsius = pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)
        return _plausible_c(celsius)

    @reading("memory temperature")
    def memory_temperature_c(self) -> int:
        """Of the memory, in degrees Celsius."""
        (field,) = pynvml.nvmlDeviceGetFieldValues(self._handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
        if field.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(field.nvmlReturn)
        # uiVal whatever valueType says: driver 545 declares this field a double and fills an unsigned int.
        return _plausible_c(field.value.uiVal)

    @reading("power")
    def power_mw(self) -> int:
        """Draw of the whole board in milliwatts: a one-second mean, on GA100 and older the instant."""
        return _known(pynvml.nvmlDeviceGetPowerUsage(self._handle))

    @reading("energy")
    def energy_mj(self) -> int:
        """Energy used since the driver was loaded, in millijoules."""
        return _known(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    @reading("SM clock")
    def sm_clock_mhz(self) -> int:
        """Of the streaming multiprocessors, in megahertz."""
        return _known(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_SM))

    @reading("memory clock")
    def memory_clock_mhz(self) -> int:
        """Of the memory, in megahertz."""
        return _known(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_MEM))

    @reading("maximum SM clock")
    def max_sm_clock_mhz(self) -> int:
        """The highest that the SMs can be clocked, in megahertz."""
        return _known(pynvml.nvmlDeviceGetMaxClockInfo(self._handle, pynvml.NVML_CLOCK_SM))

    @reading("maximum memory clock")
    def max_memory_clock_mhz(self) -> int:
        """The highest that the memory can be clocked, in megahertz."""
        return _known(pynvml.nvmlDeviceGetMaxClockInfo(self._handle, pynvml.NVML_CLOCK_MEM))

    @reading("video clock")
    def video_clock_mhz(self) -> int:
        """Of the video engines, in megahertz."""
        return _known(pynvml.nvmlDeviceGetClockInfo(self._handle, pynvml.NVML_CLOCK_VIDEO))

    @reading("maximum video clock")
    def max_video_clock_mhz(self) -> int:
        """The highest that the video engines can be clocked, in megahertz."""
        return _known(pynvml.nvmlDeviceGetMaxClockInfo(self._handle, pynvml.NVML_CLOCK_VIDEO))

    @reading("performance state")
    def performance_state(self) -> int:
        """0 is the fastest, 15 the slowest."""
        state = int(pynvml.nvmlDeviceGetPerformanceState(self._handle))
        if state == pynvml.NVML_PSTATE_UNKNOWN:
            raise _NoValueError("the driver does not know it")
        return state

    @reading("clocks' event reasons")
    def clocks_event_reasons(self) -> int:
        """Why the clocks are lower than they could be: a bit mask of nvmlClocksEventReason*."""
        return _known(pynvml.nvmlDeviceGetCurrentClocksEventReasons(self._handle))

    @reading("clock events")
    def clock_events(self) -> Mapping[int, int]:
        """How many readings within the window had each of nvmlClocksEventReason*; this one among them."""
        return self._host.clock_events.record(self.key, self.clocks_event_reasons())

    @reading("power limit")
    def power_limit_mw(self) -> int:
        """As it was set, in milliwatts."""
        return _known(pynvml.nvmlDeviceGetPowerManagementLimit(self._handle))

    @reading("default power limit")
    def default_power_limit_mw(self) -> int:
        """As it is after the driver was loaded, in milliwatts."""
        return _known(pynvml.nvmlDeviceGetPowerManagementDefaultLimit(self._handle))

    @reading("enforced power limit")
    def enforced_power_limit_mw(self) -> int:
        """The lowest of all limits that are in force, in milliwatts."""
        return _known(pynvml.nvmlDeviceGetEnforcedPowerLimit(self._handle))

    @reading("bounds of the power limit")
    def power_limit_bounds_mw(self) -> PowerLimitRange:
        """Between which the power limit can be set, in milliwatts."""
        low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
        return PowerLimitRange(_known(low), _known(high))

    def threshold_c(self, threshold: TemperatureThreshold) -> int:
        """A temperature at which something happens, in degrees Celsius."""
        what = f"reading the {threshold.name.lower().replace('_', ' ')} temperature of {self.name}"
        try:
            return _plausible_c(
                asking(what, lambda: pynvml.nvmlDeviceGetTemperatureThreshold(self._handle, threshold))
            )
        except _NoValueError as error:
            raise ReadingError(what, Reason.UNAVAILABLE, str(error)) from None

    @reading("fan speed")
    def fan_percent(self) -> int:
        """As it is meant to be, in percent of the highest."""
        return _percent(pynvml.nvmlDeviceGetFanSpeed(self._handle))

    @reading("encoder utilization")
    def encoder_percent(self) -> int:
        """Of the video encoders, in percent."""
        return _percent(pynvml.nvmlDeviceGetEncoderUtilization(self._handle)[0])

    @reading("decoder utilization")
    def decoder_percent(self) -> int:
        """Of the video decoders, in percent."""
        return _percent(pynvml.nvmlDeviceGetDecoderUtilization(self._handle)[0])

    @reading("BAR1 memory")
    def bar1(self) -> Bar1:
        """The window through which others reach the memory, in bytes."""
        info = pynvml.nvmlDeviceGetBAR1MemoryInfo(self._handle)
        return Bar1(_known(info.bar1Total), _known(info.bar1Free), _known(info.bar1Used))

    @reading("ECC mode")
    def ecc_mode(self) -> int:
        """1 where errors are corrected, 0 where that is switched off."""
        return int(pynvml.nvmlDeviceGetEccMode(self._handle)[0])

    @reading("MIG mode")
    def mig_mode(self) -> int:
        """1 where it can be cut into MIG instances now, 0 where that is switched off."""
        return _known(pynvml.nvmlDeviceGetMigMode(self._handle)[0])

    @reading("PCIe replays")
    def pcie_replays(self) -> int:
        """How often a packet had to be sent again."""
        return _known(pynvml.nvmlDeviceGetPcieReplayCounter(self._handle))

    @reading("PCIe link generation")
    def pcie_generation(self) -> int:
        """As it runs now; links slow down when idle."""
        return _known(pynvml.nvmlDeviceGetCurrPcieLinkGeneration(self._handle))

    @reading("maximum PCIe link generation")
    def max_pcie_generation(self) -> int:
        """That card and slot can run together."""
        return _known(pynvml.nvmlDeviceGetMaxPcieLinkGeneration(self._handle))

    @reading("PCIe link width")
    def pcie_lanes(self) -> int:
        """As it runs now."""
        return _known(pynvml.nvmlDeviceGetCurrPcieLinkWidth(self._handle))

    @reading("maximum PCIe link width")
    def max_pcie_lanes(self) -> int:
        """That card and slot can run together."""
        return _known(pynvml.nvmlDeviceGetMaxPcieLinkWidth(self._handle))

    @reading("field values")
    def _fields(self) -> dict[Field, Any]:
        """Every field, with a value or an error of its own."""
        values = pynvml.nvmlDeviceGetFieldValues(self._handle, [field.request for field in Field])
        return dict(zip(Field, values, strict=True))

    def field(self, field: Field) -> float:
        """A field's value."""
        what = f"reading {field.name.lower().replace('_', ' ')} of {self.name}"
        return _number(what, self._fields()[field])

    @reading("traffic of each NVLink")
    def _links(self) -> list[Any]:
        """Data sent by each link, then data received by each; each has its own value or error."""
        return list(pynvml.nvmlDeviceGetFieldValues(self._handle, link_requests()))

    def link_kib_per_s(self, link: int) -> float:
        """How fast data goes over one NVLink, both ways, since the cycle before."""
        what = f"reading traffic of NVLink {link} of {self.name}"
        sent, received = self._links()[link], self._links()[LINKS + link]
        value = _number(what, sent) + _number(what, received)
        if not (is_wide(sent) and is_wide(received)):
            raise ReadingError(what, Reason.NOT_SUPPORTED, "the counter is too narrow for a rate")
        return self._host.increases.rate(f"{self.key}/link {link}", what, value, int(sent.timestamp))

    def observe(self) -> Observation:
        """Its activity since the previous call."""
        instance = self.record.instance
        return self._host.meter.observe(
            MeterTarget(
                self.key,
                self.name,
                self._handle,
                parent=self._parent,
                instance=None if instance is None else instance.gpu_instance_id,
                is_cut=instance is None and bool(self._instances()),
            )
        )

    def account(self) -> DeviceUsage:
        """Its usage as of the last sample."""
        entry = self._host.usage.devices.get(self.key)
        if entry is None:
            raise ReadingError(f"reading the usage of {self.name}", Reason.PENDING, "not sampled yet")
        return entry

    @property
    def key(self) -> str:
        """Identifies the device; a recreated MIG instance has another key."""
        instance = self.record.instance
        return "/".join((self.record.uuid, *(instance.uuids if instance else ())))

    @reading("performance counters")
    def _rates(self) -> Rates:
        """Every GPM metric since the cycle before, with a value or an error of its own."""
        instance = self.record.instance
        gpu = self._handle if instance is None else self._parent

        def take(sample: Any) -> None:  # noqa: ANN401 - pynvml's
            if instance is None:
                pynvml.nvmlGpmSampleGet(gpu, sample)
            else:
                pynvml.nvmlGpmMigSampleGet(gpu, instance.gpu_instance_id, sample)

        return self._host.gpm.rates(self.key, self.name, gpu, take)

    def rate(self, metric: GpmMetric) -> float:
        """A GPM metric since the cycle before, in percent or MiB/s."""
        value = self._rates()[metric]
        if isinstance(value, ReadingError):
            raise value
        return value

    def text(self, what: str, ask: Callable[[Any], str]) -> str:
        """The text that `ask` reads by NVML's handle."""
        return text(f"reading {what} of {self.name}", lambda: ask(self._handle))

    def instances(self) -> "tuple[OpenDevice, ...]":
        """Its MIG instances; none where MIG is off or unknown to the card."""
        found = self._instances()
        keys = {device.key for device in (self, *found)}
        self._host.gpm.retain(self.record.uuid, keys)
        self._host.meter.retain(self.record.uuid, keys)
        parts = [device.record.instance for device in found]
        self._host.xids.retain(
            self.record.uuid, {part.gpu_instance_id: part.uuids for part in parts if part is not None}
        )
        return found

    def xids(self) -> Xids:
        """The XID errors that it has had since the exporter started."""
        instance = self.record.instance
        found = self._host.xids.of(self.record.uuid, instance.gpu_instance_id if instance else None)
        if found is None:
            raise ReadingError(f"reading XID errors of {self.name}", Reason.PENDING, "not waited for yet")
        return found

    def increase(self, *fields: Field) -> float:
        """How fast counters grow together, per second, since the cycle before."""
        value = sum(self.field(field) for field in fields)
        name = " and ".join(field.name.lower().replace("_", " ") for field in fields)
        what = f"reading {name} of {self.name}"
        read = [self._fields()[field] for field in fields]
        if not all(map(is_wide, read)):
            raise ReadingError(what, Reason.NOT_SUPPORTED, "the counter is too narrow for a rate")
        return self._host.increases.rate(f"{self.key}/{name}", what, value, int(read[0].timestamp))

    def traffic(self, metric: GpmMetric, field: Field) -> float:
        """Bytes per second since the cycle before: by GPM where the card has it, else by the counter `field`."""
        try:
            return self.rate(metric) * _MIB
        except ReadingError as error:
            if error.reason is not Reason.NOT_SUPPORTED or self.record.instance is not None:
                raise
        return self.increase(field)

    @reading("vGPU licence")
    def is_licensed(self) -> int:
        """1 where the GPU is a vGPU that has its licence, else 0: also where none is needed."""
        found = pynvml.nvmlDeviceGetGridLicensableFeatures_v4(self._handle)
        features = found.gridLicensableFeatures[: found.licensableFeaturesCount]
        return int(bool(found.isGridLicenseSupported) and any(feature.featureState for feature in features))

    @property
    def driver_version(self) -> str:
        """Of the driver that runs it."""
        return self._host.driver_version

    @property
    def cuda_version(self) -> str:
        """The newest CUDA that the driver can run; empty where it does not say."""
        return self._host.cuda_version

    @property
    def shows_serial_number(self) -> bool:
        """Whether its serial number may be published."""
        return self._host.serial_numbers

    @reading("VBIOS version")
    def vbios_version(self) -> str:
        """Of the card's firmware."""
        return text(
            f"reading the VBIOS version of {self.name}",
            lambda: pynvml.nvmlDeviceGetVbiosVersion(self._handle),
        )

    @reading("serial number")
    def serial_number(self) -> str:
        """The serial number on the board."""
        return text(
            f"reading the serial number of {self.name}", lambda: pynvml.nvmlDeviceGetSerial(self._handle)
        )

    @reading("compute capability")
    def compute_capability(self) -> str:
        """Such as "9.0"."""
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(self._handle)
        return f"{major}.{minor}"

    @reading("NUMA node")
    def numa_nodes(self) -> tuple[int, ...]:
        """The nodes of memory that are nearest."""
        words = pynvml.nvmlDeviceGetMemoryAffinity(self._handle, _NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
        return tuple(
            64 * index + bit for index, word in enumerate(words) for bit in range(64) if word >> bit & 1
        )

    @reading("active NVLinks")
    def nvlinks(self) -> int:
        """How many of its links are up."""
        active = 0
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                active += pynvml.nvmlDeviceGetNvLinkState(self._handle, link)
            except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
                break  # links are numbered from 0 without gaps
        return active

    def peers(self) -> tuple[Peer, ...]:
        """The other GPUs of the node, and what lies between."""
        found = self._host.topology.of(self.record.uuid)
        if found is None:
            what = f"reading the topology around {self.name}"
            raise ReadingError(what, Reason.PENDING, "the driver has not been asked yet")
        return found

    @reading("MIG instances")
    def _instances(self) -> "tuple[OpenDevice, ...]":
        """Its MIG instances.

        Compute instances that share a GPU instance are one device, as they are in DCGM: memory belongs to the GPU
        instance, and two series would have the same DCGM labels.
        """
        try:
            mode, _pending = pynvml.nvmlDeviceGetMigMode(self._handle)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_FunctionNotFound):
            return ()
        if mode != pynvml.NVML_DEVICE_MIG_ENABLE:
            return ()
        handles = list(self._mig_handles())
        by_instance: dict[int, list[Any]] = {}
        for handle in handles:
            by_instance.setdefault(pynvml.nvmlDeviceGetGpuInstanceId(handle), []).append(handle)
        return tuple(self._instance(number, members) for number, members in sorted(by_instance.items()))

    def _mig_handles(self) -> "list[Any]":
        handles = []
        for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(self._handle)):
            try:
                handles.append(pynvml.nvmlDeviceGetMigDeviceHandleByIndex(self._handle, slot))
            except pynvml.NVMLError_NotFound:  # free slots lie between used ones
                continue
        return handles

    def _instance(self, number: int, handles: "list[Any]") -> "OpenDevice":
        what = f"reading MIG instance {number} of {self.name}"
        match = _MIG_NAME.search(text(what, lambda: pynvml.nvmlDeviceGetName(handles[0])))
        instance = Instance(
            profile=match[1] if match else "",
            gpu_instance_id=number,
            uuids=tuple(
                text(what, functools.partial(pynvml.nvmlDeviceGetUUID, handle)) for handle in handles
            ),
            **self._place(what, number),
        )
        whole = self.record
        record = Device(whole.index, whole.minor, whole.uuid, whole.pci_bus_id, whole.model, instance)
        return OpenDevice(handles[0], record, self._host, parent=self._handle)

    def _place(self, what: str, number: int) -> dict[str, int]:
        """Of GPU instance `number`, the profile's id and the first slice; nothing where the driver does not say."""
        try:
            handle = asking(what, lambda: pynvml.nvmlDeviceGetGpuInstanceById(self._handle, number))
            info = asking(what, lambda: pynvml.nvmlGpuInstanceGetInfo(handle))
        except ReadingError:
            return {}
        return {"profile_id": int(info.profileId), "start": int(info.placement.start)}


def _number(what: str, field: Any) -> float:  # noqa: ANN401 - a C structure
    """A field's value; an unknown field is not supported."""
    if field.nvmlReturn == pynvml.NVML_ERROR_INVALID_ARGUMENT:
        raise ReadingError(what, Reason.NOT_SUPPORTED, "not known to this version of the driver")
    return asking(what, lambda: number(field))


def open_gpu(index: int, host: DriverState) -> OpenDevice:
    """The GPU that is NVML's number `index` now."""
    what = f"opening GPU {index}"
    handle = asking(what, lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
    try:
        minor: int | None = asking(what, lambda: pynvml.nvmlDeviceGetMinorNumber(handle))
    except ReadingError as error:
        if error.reason is not Reason.NOT_SUPPORTED:
            raise
        minor = None
    record = Device(
        index=index,
        minor=minor,
        uuid=text(what, lambda: pynvml.nvmlDeviceGetUUID(handle)),
        pci_bus_id=text(what, lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId),
        model=text(what, lambda: pynvml.nvmlDeviceGetName(handle)),
    )
    return OpenDevice(handle, record, host)
