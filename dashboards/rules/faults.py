"""Errors, as increases between two evaluations, so that windows leave no gap; clock throttling. Pure."""

from dashboards.promql import DEVICE, by, described, either, largest
from dashboards.rules.fleet import NODE
from dashboards.rules.records import Group, Rule

_CODE = "DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"


def _counted(*metrics: str) -> str:
    """Only devices with errors, which are few."""
    return either(
        *(f"clamp_min({largest(f'{name} > 0')} - {largest(f'{name} offset 1m')}, 0)" for name in metrics)
    )


def _xids() -> str:
    """XID errors; with dcgm-exporter alone, one for each change of the last code."""
    kinds = (*DEVICE, "xid")
    total, before = (
        by("sum", DEVICE, by("max", kinds, f"DCGM_EXP_XID_ERRORS_TOTAL{shift}"))
        for shift in ("", " offset 1m")
    )
    changed = (f"(({largest(f'{name} > 0')} != {largest(f'{name} offset 1m')}) > bool 0)" for name in _CODE)
    return either(f"clamp_min({total} - ({before} or {total} * 0), 0)", *changed)


def _of_nodes(expression: str) -> str:
    """Sum by node, 0 without errors."""
    return f"{by('sum', NODE, described(expression))} or gpu:node:gpus * 0"


_ERRORS = {
    "xid": _xids(),
    "remapped row": _counted(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"
    ),
    "uncorrected memory error": _counted("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
    "PCIe replay": _counted("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL"),
}
_VIOLATIONS = {
    "power": ("DCGM_FI_DEV_POWER_VIOLATION", "DCGM_FI_DEV_GPU_POWER_THROTTLE_SECONDS_TOTAL"),
    "thermal": ("DCGM_FI_DEV_THERMAL_VIOLATION", "DCGM_FI_DEV_GPU_THERMAL_THROTTLE_SECONDS_TOTAL"),
}


def _throttled(reason: str) -> str:
    """Share of five minutes with clocks reduced for this reason."""
    nanoseconds, seconds = _VIOLATIONS[reason]
    return either(
        largest(f'rate(gpu_throttle_seconds_total{{reason="{reason}"}}[5m])'),
        largest(f"rate({nanoseconds}[5m])", " / 1e9"),
        largest(f"rate({seconds}[5m])"),
    )


FAULTS = Group(
    "faults",
    "1m",
    (
        *(
            Rule("gpu:node:errors:increase1m", _of_nodes(expression), {"error": error})
            for error, expression in _ERRORS.items()
        ),
        *(
            Rule(
                "gpu:node:throttled:ratio",
                by("avg", NODE, described(_throttled(reason))),
                {"reason": reason},
            )
            for reason in _VIOLATIONS
        ),
    ),
)
