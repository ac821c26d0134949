"""A GPU or MIG instance in one sampling cycle, with NVML's readings. Each reading may raise ReadingError.

Values are in NVML's units; the collectors know the metrics' names and units.
Objects live for one cycle: handles are never kept, because MIG can be reconfigured in between.
"""

import ctypes
import enum
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import pynvml

from exporter.attribution.records import DeviceUsage, Observation
from exporter.errors import ReadingError, Reason
from exporter.model import Device, Instance
from exporter.nvml.codes import NO_VALUE, asking, text
from exporter.nvml.driverstate import DriverState
from exporter.nvml.fieldvalues import (
    LINKS,
    OF_LINKS,
    REQUESTS,
    Field,
    bit_error_rate,
    is_wide,
    link_requests,
    number,
)
from exporter.nvml.gpm import GpmMetric, Rates
from exporter.nvml.meter import MeterTarget
from exporter.nvml.topology import Peer
from exporter.nvml.xids import Xids

T = TypeVar("T")

_FABRIC_FAILED = 4  # DCGM's number; before it, NVML's states
_PLAUSIBLE_C = 200  # DCGM's bound: a driver reports a higher value if there is no sensor
_MOST_PERCENT, _MOST_FAN_PERCENT = 100, 200  # fans may exceed their intended speed; 255 is -1 in a byte

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
    """Lowest and highest limit in milliwatts."""

    low: int
    high: int


class Bar1(NamedTuple):
    """BAR1 memory in bytes."""

    total: int
    free: int
    used: int


class Fabric(NamedTuple):
    """A GPU's place in an NVLink fabric; `status` in DCGM's numbers."""

    cluster: str
    clique: int
    status: int
    health_mask: int
    health: int


class TemperatureThreshold(enum.IntEnum):
    """Temperatures at which the card protects itself, or above which it must not operate."""

    SHUTDOWN = pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN
    SLOWDOWN = pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
    MEMORY_MAXIMUM = pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX
    GPU_MAXIMUM = pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX


class _NoValueError(Exception):
    """The driver answered with a number that means "no value"."""


def _known(value: int) -> int:
    if value in NO_VALUE:
        raise _NoValueError("the driver has no value for it")
    return int(value)


def _percent(value: int, most: int = _MOST_PERCENT) -> int:
    if _known(value) > most:
        raise _NoValueError(f"{value} % cannot be")
    return int(value)


def _fan_percent(value: int) -> int:
    return _percent(value, _MOST_FAN_PERCENT)


def _clocks_event_reasons(handle: Any) -> int:  # noqa: ANN401 - pynvml's handles have no type
    try:
        return int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError_FunctionNotFound:  # drivers before 535
        return int(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _plausible_c(celsius: int) -> int:
    if _known(celsius) > _PLAUSIBLE_C:
        raise _NoValueError(f"{celsius} C is no temperature")
    return celsius


def reading(
    what: str, *, is_constant: bool = False
) -> Callable[[Callable[["OpenDevice"], T]], Callable[["OpenDevice"], T]]:
    """Make a method call the driver at most once per cycle, even if the result is an error.

    `is_constant`: the first result holds until the driver is reopened.
    """

    def decorate(method: Callable[["OpenDevice"], T]) -> Callable[["OpenDevice"], T]:
        @functools.wraps(method)
        def once(self: "OpenDevice") -> T:
            if what in self._constants:
                return cast("T", self._constants[what])
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
            if is_constant:
                self._constants[what] = answer
            return cast("T", answer)

        return once

    return decorate


def _asked(
    what: str, ask: Callable[..., int], *arguments: int, check: Callable[[int], int] = _known
) -> Callable[["OpenDevice"], int]:
    """A reading that is one call of NVML with the device's handle."""

    @reading(what)
    def read(self: "OpenDevice") -> int:
        return check(ask(self._handle, *arguments))

    return read


class OpenDevice:
    """A device that can be read now."""

    power_mw = _asked("power", pynvml.nvmlDeviceGetPowerUsage)
    """Power of the whole board in milliwatts: a one-second mean; on GA100 and older, the current value."""
    energy_mj = _asked("energy", pynvml.nvmlDeviceGetTotalEnergyConsumption)
    """Energy used since the driver was loaded, in millijoules."""
    sm_clock_mhz = _asked("SM clock", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_SM)
    memory_clock_mhz = _asked("memory clock", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_MEM)
    video_clock_mhz = _asked("video clock", pynvml.nvmlDeviceGetClockInfo, pynvml.NVML_CLOCK_VIDEO)
    max_sm_clock_mhz = _asked("maximum SM clock", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_SM)
    max_memory_clock_mhz = _asked(
        "maximum memory clock", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_MEM
    )
    max_video_clock_mhz = _asked(
        "maximum video clock", pynvml.nvmlDeviceGetMaxClockInfo, pynvml.NVML_CLOCK_VIDEO
    )
    clocks_event_reasons = _asked("clocks' event reasons", _clocks_event_reasons)
    """Why the clocks are reduced: a bit mask of nvmlClocksEventReason*."""
    power_limit_mw = _asked("power limit", pynvml.nvmlDeviceGetPowerManagementLimit)
    default_power_limit_mw = _asked("default power limit", pynvml.nvmlDeviceGetPowerManagementDefaultLimit)
    enforced_power_limit_mw = _asked("enforced power limit", pynvml.nvmlDeviceGetEnforcedPowerLimit)
    """The lowest of all active limits, in milliwatts."""
    fan_percent = _asked("fan speed", pynvml.nvmlDeviceGetFanSpeed, check=_fan_percent)
    """The intended speed, in percent of the maximum."""
    pcie_replays = _asked("PCIe replays", pynvml.nvmlDeviceGetPcieReplayCounter)
    """Number of packets that were sent again."""
    pcie_generation = _asked("PCIe link generation", pynvml.nvmlDeviceGetCurrPcieLinkGeneration)
    """The current generation; links slow down when idle."""
    max_pcie_generation = _asked("maximum PCIe link generation", pynvml.nvmlDeviceGetMaxPcieLinkGeneration)
    """The highest that both card and slot support."""
    pcie_lanes = _asked("PCIe link width", pynvml.nvmlDeviceGetCurrPcieLinkWidth)
    max_pcie_lanes = _asked("maximum PCIe link width", pynvml.nvmlDeviceGetMaxPcieLinkWidth)
    """The most that both card and slot support."""

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
        self._constants = host.constants.setdefault(record.uuid, {})
        self.record = record
        instance = record.instance
        # its name in messages
        self.name = f"GPU {record.index} ({record.uuid})" + (
            f" MIG {instance.profile} (instance {instance.gpu_instance_id})" if instance else ""
        )

    @reading("utilization")
    def utilization(self) -> Utilization:
        """Utilization of the compute engines and of the memory controller, in percent."""
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
        """Temperature of the GPU die in degrees Celsius."""
        try:
            celsius = pynvml.nvmlDeviceGetTemperatureV(self._handle, pynvml.NVML_TEMPERATURE_GPU)
        except (pynvml.NVMLError_FunctionNotFound, pynvml.NVMLError_ArgumentVersionMismatch):
            celsius = pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)
        return _plausible_c(celsius)

    @reading("memory temperature")
    def memory_temperature_c(self) -> int:
        """Temperature of the memory in degrees Celsius."""
        (field,) = pynvml.nvmlDeviceGetFieldValues(self._handle, [pynvml.NVML_FI_DEV_MEMORY_TEMP])
        if field.nvmlReturn != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(field.nvmlReturn)
        # uiVal whatever valueType says: driver 545 declares this field a double and fills an unsigned int.
        return _plausible_c(field.value.uiVal)

    @reading("performance state")
    def performance_state(self) -> int:
        """0 is the fastest, 15 the slowest."""
        state = int(pynvml.nvmlDeviceGetPerformanceState(self._handle))
        if state == pynvml.NVML_PSTATE_UNKNOWN:
            raise _NoValueError("the driver does not know it")
        return state

    @reading("clock events")
    def clock_events(self) -> Mapping[int, int]:
        """Number of readings in the window with each of nvmlClocksEventReason*, including this one."""
        return self._host.clock_events.record(self.key, self.clocks_event_reasons())

    @reading("bounds of the power limit")
    def power_limit_bounds_mw(self) -> PowerLimitRange:
        """The range in which the power limit can be set, in milliwatts."""
        low, high = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handle)
        return PowerLimitRange(_known(low), _known(high))

    def threshold_c(self, threshold: TemperatureThreshold) -> int:
        """A threshold in degrees Celsius."""
        what = f"reading the {threshold.name.lower().replace('_', ' ')} temperature of {self.name}"
        try:
            return _plausible_c(
                asking(what, lambda: pynvml.nvmlDeviceGetTemperatureThreshold(self._handle, threshold))
            )
        except _NoValueError as error:
            raise ReadingError(what, Reason.UNAVAILABLE, str(error)) from None

    @reading("encoder utilization")
    def encoder_percent(self) -> int:
        """Utilization of the video encoders in percent."""
        return _percent(pynvml.nvmlDeviceGetEncoderUtilization(self._handle)[0])

    @reading("decoder utilization")
    def decoder_percent(self) -> int:
        """Utilization of the video decoders in percent."""
        return _percent(pynvml.nvmlDeviceGetDecoderUtilization(self._handle)[0])

    @reading("BAR1 memory")
    def bar1(self) -> Bar1:
        """Memory of the window through which other devices access the GPU's memory, in bytes."""
        info = pynvml.nvmlDeviceGetBAR1MemoryInfo(self._handle)
        return Bar1(_known(info.bar1Total), _known(info.bar1Free), _known(info.bar1Used))

    @reading("ECC mode")
    def ecc_mode(self) -> int:
        """1 if ECC is enabled, else 0."""
        return int(pynvml.nvmlDeviceGetEccMode(self._handle)[0])

    @reading("MIG mode")
    def mig_mode(self) -> int:
        """1 if MIG is enabled, else 0."""
        return _known(pynvml.nvmlDeviceGetMigMode(self._handle)[0])

    @reading("field values")
    def _fields(self) -> dict[Field, Any]:
        """All fields, each with its own value or error."""
        values = pynvml.nvmlDeviceGetFieldValues(self._handle, list(REQUESTS.values()))
        return dict(zip(REQUESTS, values, strict=True))

    def field(self, field: Field) -> float:
        """A field's value."""
        what = f"reading {field.name.lower().replace('_', ' ')} of {self.name}"
        return _number(what, self._fields()[field])

    @reading("traffic of each NVLink")
    def _links(self) -> list[Any]:
        """Data sent by each link, then data received by each; each has its own value or error."""
        return list(pynvml.nvmlDeviceGetFieldValues(self._handle, link_requests()))

    def link_kib_per_s(self, link: int) -> float:
        """Traffic of one NVLink in both directions since the previous cycle."""
        what = f"reading traffic of NVLink {link} of {self.name}"
        sent, received = self._links()[link], self._links()[LINKS + link]
        value = _number(what, sent) + _number(what, received)
        if not (is_wide(sent) and is_wide(received)):
            raise ReadingError(what, Reason.NOT_SUPPORTED, "the counter is too narrow for a rate")
        return self._host.increases.rate(f"{self.key}/link {link}", what, value, int(sent.timestamp))

    @reading("links one by one")
    def _by_link(self) -> Mapping[str, Sequence[float]]:
        """Each value over the links that have it. If link 0 has none, no link does."""
        found: dict[str, list[float]] = {}
        for link in range(LINKS):
            values = pynvml.nvmlDeviceGetFieldValues(
                self._handle, [(field, link) for field in OF_LINKS.values()]
            )
            for name, value in zip(OF_LINKS, values, strict=True):
                if value.nvmlReturn == pynvml.NVML_SUCCESS:
                    found.setdefault(name, []).append(number(value))
            if not found:
                break
        return found

    def of_links(self, name: str) -> Sequence[float]:
        """A value of OF_LINKS by link; rates of bit errors as ratios."""
        found = self._by_link().get(name)
        if found is None:
            family = name.partition("_")[0]
            has_others = any(other.startswith(family) for other in self._by_link())
            what = name if has_others else {"NVLINK": "NVLink 5 counters", "C2C": "C2C links"}[family]
            raise ReadingError(
                f"reading {what} of {self.name}", Reason.NOT_SUPPORTED, "not supported by this device"
            )
        return [bit_error_rate(int(value)) for value in found] if name.endswith("_BER") else found

    @reading("fabric")
    def fabric(self) -> Fabric:
        """The GPU's place in the fabric of its NVSwitches, within a node or a rack (NVL72)."""
        info = pynvml.c_nvmlGpuFabricInfo_v3_t()
        pynvml.nvmlDeviceGetGpuFabricInfoV(self._handle, ctypes.byref(info))
        if info.state == pynvml.NVML_GPU_FABRIC_STATE_NOT_SUPPORTED:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        is_done = info.state == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        return Fabric(
            bytes(info.clusterUuid).hex(),
            info.cliqueId,
            _FABRIC_FAILED if is_done and info.status != pynvml.NVML_SUCCESS else info.state,
            info.healthMask,
            info.healthSummary,
        )

    def observe(self) -> Observation:
        """The device's activity since the previous call."""
        instance = self.record.instance
        return self._host.meter.observe(
            MeterTarget(
                self.key,
                self.name,
                self._handle,
                parent=self._parent,
                instance=None if instance is None else instance.gpu_instance_id,
                has_instances=instance is None and bool(self._instances()),
            )
        )

    def account(self) -> DeviceUsage:
        """The device's usage at the last sample."""
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
        """All GPM metrics since the previous cycle."""
        instance = self.record.instance
        gpu = self._handle if instance is None else self._parent

        def take(sample: Any) -> None:  # noqa: ANN401 - pynvml's
            if instance is None:
                pynvml.nvmlGpmSampleGet(gpu, sample)
            else:
                pynvml.nvmlGpmMigSampleGet(gpu, instance.gpu_instance_id, sample)

        return self._host.gpm.rates(self.key, self.name, gpu, take)

    def rate(self, metric: GpmMetric) -> float:
        """A GPM metric since the previous cycle, in percent or MiB/s."""
        return self._rates()(metric)

    def text(self, what: str, ask: Callable[[Any], str]) -> str:
        """The constant text that `ask` reads by NVML's handle."""
        if what not in self._constants:
            self._constants[what] = text(f"reading {what} of {self.name}", lambda: ask(self._handle))
        return str(self._constants[what])

    def instances(self) -> "tuple[OpenDevice, ...]":
        """The MIG instances; none if MIG is disabled or not supported."""
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
        """The device's XID errors since the exporter started."""
        instance = self.record.instance
        found = self._host.xids.of(self.record.uuid, instance.gpu_instance_id if instance else None)
        if found is None:
            raise ReadingError(f"reading XID errors of {self.name}", Reason.PENDING, "not waited for yet")
        return found

    def increase(self, *fields: Field) -> float:
        """Increase of the sum of counters per second, since the previous cycle."""
        value = sum(self.field(field) for field in fields)
        name = " and ".join(field.name.lower().replace("_", " ") for field in fields)
        what = f"reading {name} of {self.name}"
        read = [self._fields()[field] for field in fields]
        if not all(map(is_wide, read)):
            raise ReadingError(what, Reason.NOT_SUPPORTED, "the counter is too narrow for a rate")
        return self._host.increases.rate(f"{self.key}/{name}", what, value, int(read[0].timestamp))

    def traffic(self, metric: GpmMetric, field: Field) -> float:
        """Bytes per second since the previous cycle: by GPM if the card has it, else by the counter `field`."""
        try:
            return self.rate(metric) * _MIB
        except ReadingError as error:
            if error.reason is not Reason.NOT_SUPPORTED or self.record.instance is not None:
                raise
        return self.increase(field)

    @reading("vGPU licence")
    def is_licensed(self) -> int:
        """1 if the GPU is a vGPU with its licence, else 0, also if it needs none."""
        found = pynvml.nvmlDeviceGetGridLicensableFeatures_v4(self._handle)
        features = found.gridLicensableFeatures[: found.licensableFeaturesCount]
        return int(bool(found.isGridLicenseSupported) and any(feature.featureState for feature in features))

    @property
    def driver_version(self) -> str:
        """Version of the driver."""
        return self._host.driver_version

    @property
    def cuda_version(self) -> str:
        """The newest CUDA version that the driver supports; empty if unknown."""
        return self._host.cuda_version

    @property
    def shows_serial_number(self) -> bool:
        """Whether the serial number may be published."""
        return self._host.serial_numbers

    @reading("compute capability", is_constant=True)
    def compute_capability(self) -> str:
        """Compute capability, such as "9.0"."""
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(self._handle)
        return f"{major}.{minor}"

    @reading("NUMA node", is_constant=True)
    def numa_nodes(self) -> tuple[int, ...]:
        """The nearest memory nodes."""
        words = pynvml.nvmlDeviceGetMemoryAffinity(self._handle, _NUMA_WORDS, pynvml.NVML_AFFINITY_SCOPE_NODE)
        return tuple(
            64 * index + bit for index, word in enumerate(words) for bit in range(64) if word >> bit & 1
        )

    @reading("active NVLinks")
    def nvlinks(self) -> int:
        """Number of active links."""
        active = 0
        for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
            try:
                active += pynvml.nvmlDeviceGetNvLinkState(self._handle, link)
            except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_InvalidArgument):
                break  # links are numbered from 0 without gaps
        return active

    def peers(self) -> tuple[Peer, ...]:
        """The other GPUs of the node, and the connection to each."""
        found = self._host.topology.of(self.record.uuid)
        if found is None:
            what = f"reading the topology around {self.name}"
            raise ReadingError(what, Reason.PENDING, "the driver has not been asked yet")
        return found

    @reading("MIG instances")
    def _instances(self) -> "tuple[OpenDevice, ...]":
        """The MIG instances.

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
        """Profile id and first slice of GPU instance `number`; empty if the driver does not report them."""
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
    """The GPU with NVML's current number `index`."""
    what = f"opening GPU {index}"
    handle = asking(what, lambda: pynvml.nvmlDeviceGetHandleByIndex(index))
    uuid = text(what, lambda: pynvml.nvmlDeviceGetUUID(handle))
    constants = host.constants.setdefault(uuid, {})
    if index in constants:
        return OpenDevice(handle, constants[index], host)
    try:
        minor: int | None = asking(what, lambda: pynvml.nvmlDeviceGetMinorNumber(handle))
    except ReadingError as error:
        if error.reason is not Reason.NOT_SUPPORTED:
            raise
        minor = None
    record = Device(
        index=index,
        minor=minor,
        uuid=uuid,
        pci_bus_id=text(what, lambda: pynvml.nvmlDeviceGetPciInfo(handle).busId),
        model=text(what, lambda: pynvml.nvmlDeviceGetName(handle)),
    )
    constants[index] = record
    return OpenDevice(handle, record, host)
