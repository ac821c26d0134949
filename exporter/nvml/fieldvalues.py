"""Values that NVML returns by field number, all in one call."""

import enum

import pynvml

from exporter.nvml.codes import NO_VALUE

_ALL_LINKS = 2**32 - 1
LINKS = 18
"""Number of NVLinks that DCGM has names for."""

_NVLINK5 = (
    *(
        "MALFORMED_PACKET_ERRORS",
        "BUFFER_OVERRUN_ERRORS",
        "RCV_ERRORS",
        "RCV_REMOTE_ERRORS",
        "RCV_GENERAL_ERRORS",
    ),
    *("LOCAL_LINK_INTEGRITY_ERRORS", "XMIT_DISCARDS", "LINK_RECOVERY_SUCCESSFUL_EVENTS"),
    *(
        "LINK_RECOVERY_FAILED_EVENTS",
        "LINK_RECOVERY_EVENTS",
        "SYMBOL_ERRORS",
        "SYMBOL_BER",
        "EFFECTIVE_ERRORS",
    ),
    *("EFFECTIVE_BER", *(f"FEC_HISTORY_{errors}" for errors in range(16))),
)
_C2C = ("GET_STATUS", "GET_MAX_BW", "ERROR_INTR", "ERROR_REPLAY", "ERROR_REPLAY_B2B")
OF_LINKS = {
    name: getattr(pynvml, f"NVML_FI_DEV_{name}")
    for name in (*(f"NVLINK_COUNT_{name}" for name in _NVLINK5), *(f"C2C_LINK_{name}" for name in _C2C))
}
"""Values of each NVLink on Blackwell and later, and of each link between a GPU and its Grace CPU."""


class Field(enum.IntEnum):
    """A field value; its width and meaning are in nvml.h ("Field Identifiers")."""

    ECC_SBE_VOLATILE = pynvml.NVML_FI_DEV_ECC_SBE_VOL_TOTAL
    ECC_DBE_VOLATILE = pynvml.NVML_FI_DEV_ECC_DBE_VOL_TOTAL
    ECC_SBE_AGGREGATE = pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL
    ECC_DBE_AGGREGATE = pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL
    RETIRED_SBE = pynvml.NVML_FI_DEV_RETIRED_SBE
    RETIRED_DBE = pynvml.NVML_FI_DEV_RETIRED_DBE
    RETIRED_PENDING = pynvml.NVML_FI_DEV_RETIRED_PENDING
    NVLINK_CRC_FLIT_ERRORS = pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
    NVLINK_CRC_DATA_ERRORS = pynvml.NVML_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL
    NVLINK_REPLAY_ERRORS = pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
    NVLINK_RECOVERY_ERRORS = pynvml.NVML_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL
    VIOLATION_POWER = pynvml.NVML_FI_DEV_PERF_POLICY_POWER
    VIOLATION_THERMAL = pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL
    VIOLATION_SYNC_BOOST = pynvml.NVML_FI_DEV_PERF_POLICY_SYNC_BOOST
    VIOLATION_BOARD_LIMIT = pynvml.NVML_FI_DEV_PERF_POLICY_BOARD_LIMIT
    VIOLATION_LOW_UTILIZATION = pynvml.NVML_FI_DEV_PERF_POLICY_LOW_UTILIZATION
    VIOLATION_RELIABILITY = pynvml.NVML_FI_DEV_PERF_POLICY_RELIABILITY
    BELOW_APPLICATION_CLOCKS = pynvml.NVML_FI_DEV_PERF_POLICY_TOTAL_APP_CLOCKS
    BELOW_BASE_CLOCKS = pynvml.NVML_FI_DEV_PERF_POLICY_TOTAL_BASE_CLOCKS
    SW_THERMAL_SLOWDOWN = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN
    HW_THERMAL_SLOWDOWN = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN
    HW_POWER_BRAKE = pynvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
    REMAPPED_CORRECTABLE = pynvml.NVML_FI_DEV_REMAPPED_COR
    REMAPPED_UNCORRECTABLE = pynvml.NVML_FI_DEV_REMAPPED_UNC
    REMAP_PENDING = pynvml.NVML_FI_DEV_REMAPPED_PENDING
    REMAP_FAILURE = pynvml.NVML_FI_DEV_REMAPPED_FAILURE
    NVLINK_TX_KIB = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX
    NVLINK_RX_KIB = pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX
    POWER_INSTANT_MW = pynvml.NVML_FI_DEV_POWER_INSTANT
    PCIE_TX_BYTES = pynvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES
    PCIE_RX_BYTES = pynvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES
    RECOVERY_ACTION = pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION


_OVER_LINKS = {Field.NVLINK_TX_KIB, Field.NVLINK_RX_KIB}
REQUESTS = {field: (int(field), _ALL_LINKS if field in _OVER_LINKS else 0) for field in Field}
"""The requests to nvmlDeviceGetFieldValues. NVLink's counters are for all links together."""


def link_requests() -> list[tuple[int, int]]:
    """Requests to nvmlDeviceGetFieldValues for the data that each link sent, then for the data that each received."""
    return [
        (int(field), link) for field in (Field.NVLINK_TX_KIB, Field.NVLINK_RX_KIB) for link in range(LINKS)
    ]


_MEMBERS = {
    pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


def number(field: pynvml.c_nvmlFieldValue_t) -> float:
    """The number in a field value, by its type; raises NVMLError if the driver has none."""
    if field.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(field.nvmlReturn)
    member = _MEMBERS.get(field.valueType)
    if member is None:  # a type of a later driver
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    value: float = getattr(field.value, member)
    if value in NO_VALUE or value != value:  # noqa: PLR0124 - NaN is the number that differs from itself
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_DATA)
    return value


def is_wide(field: pynvml.c_nvmlFieldValue_t) -> bool:
    """Whether a field value has 64 bits; a shorter counter of bytes overflows several times per second."""
    return field.valueType in {
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG,
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG,
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG,
    }


def bit_error_rate(value: int) -> float:
    """A bit error rate in NVML's form: NVML_NVLINK_BER_MANTISSA_* times ten to the minus NVML_NVLINK_BER_EXP_*."""
    return (value >> 8 & 0xF) / 10.0 ** (value & 0xFF)
