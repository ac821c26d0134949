"""Devices: the same series for different metric names and labels of exporters. Pure."""

from dashboards.promql import (
    DESCRIPTION,
    DEVICE,
    MIB,
    any_of,
    by,
    described,
    either,
    largest,
    of_node,
    smooth,
)
from dashboards.rules.records import Group, Rule

_MEMORY = ("DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_USED_BYTES")
_ENGINE = ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_UTIL_RATIO")
SEEN = any_of((*_MEMORY, *_ENGINE, "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_GPU_UTIL_RATIO"))
"""A device exists if it has any of these; MIG instances and some configurations lack some."""

_INFO = f"topk by ({', '.join(DEVICE)}) (1, " + (
    by(
        "group",
        (*DEVICE, *DESCRIPTION),
        of_node(
            by(
                "group",
                (*DEVICE, "gpu", "GPU_I_PROFILE", "modelName", "Hostname", "hostname", "node"),
                f'{{{SEEN}, UUID!=""}}',
            )
        ),
    )
    + ")"
)

_SLICES = {'modelName!~".*A30.*"': (7, (1, 2, 3, 4, 7)), 'modelName=~".*A30.*"': (4, (1, 2, 4))}
"""Number of slices of a card, and the sizes of its instances: for the A30, and for all other cards with MIG."""


def _sizes() -> str:
    whole = '(gpu:device:info{GPU_I_ID=""} unless on (cluster, UUID) gpu:device:info{GPU_I_ID!=""})'
    parts = (
        f'gpu:device:info{{GPU_I_PROFILE=~"(.+[.])?{size}g[.].+", {cards}}} * {size} / {slices}'
        for cards, (slices, sizes) in _SLICES.items()
        for size in sizes
    )
    return either(whole, *parts)


def _memory_total() -> str:
    mib = {name: largest(f"DCGM_FI_DEV_FB_{name}") for name in ("USED", "FREE", "RESERVED")}
    size = {name: largest(f"DCGM_FI_DEV_FB_{name}_BYTES") for name in mib}
    return either(
        largest("DCGM_FI_DEV_FB_TOTAL", f" * {MIB}"),
        largest("DCGM_FI_DEV_FB_CAPACITY_BYTES"),
        f"({' + '.join(mib.values())}) * {MIB}",
        f"({mib['USED']} + {mib['FREE']}) * {MIB}",
        f"({' + '.join(size.values())})",
        f"({size['USED']} + {size['FREE']})",
    )


def _memory_used() -> str:
    """Memory neither free nor reserved: correct even if FB_USED is per pod (--shared-gpus attributed)."""
    rest = "({total} - {free} - {reserved})"
    return either(
        rest.format(
            total=largest("DCGM_FI_DEV_FB_TOTAL"),
            free=largest("DCGM_FI_DEV_FB_FREE"),
            reserved=largest("DCGM_FI_DEV_FB_RESERVED"),
        )
        + f" * {MIB}",
        rest.format(
            total=largest("DCGM_FI_DEV_FB_CAPACITY_BYTES"),
            free=largest("DCGM_FI_DEV_FB_FREE_BYTES"),
            reserved=largest("DCGM_FI_DEV_FB_RESERVED_BYTES"),
        ),
        largest("DCGM_FI_DEV_FB_USED", f" * {MIB}"),
        largest("DCGM_FI_DEV_FB_USED_BYTES"),
    )


_UTILIZATION = "clamp(" + (
    either(
        largest("rate(gpu_busy_seconds_total[5m])"),
        largest(smooth("DCGM_FI_DEV_GPU_UTIL"), " / 100"),
        largest(smooth("DCGM_FI_DEV_GPU_UTIL_RATIO")),
        *(largest(smooth(metric)) for metric in _ENGINE),
    )
    + ", 0, 1)"
)


def _gauge(*alternatives: tuple[str, str]) -> str:
    return described(either(*(largest(metric, scale) for metric, scale in alternatives)))


DEVICES = Group(
    "devices",
    "1m",
    (
        Rule("gpu:device:info", _INFO),
        Rule("gpu:device:gpus", _sizes()),
        Rule("gpu:device:utilization:ratio", described(_UTILIZATION)),
        Rule("gpu:device:memory_total:bytes", described(_memory_total())),
        Rule("gpu:device:memory_used:bytes", described(f"clamp_min({_memory_used()}, 0)")),
        Rule(
            "gpu:device:temperature:celsius",
            _gauge(("DCGM_FI_DEV_GPU_TEMP", ""), ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", "")),
        ),
        Rule(
            "gpu:device:power:watts",
            _gauge(("DCGM_FI_DEV_POWER_USAGE", ""), ("DCGM_FI_DEV_BOARD_POWER_WATTS", "")),
        ),
        Rule(
            "gpu:device:sm_clock:hertz",
            _gauge(("DCGM_FI_DEV_SM_CLOCK", " * 1e6"), ("DCGM_FI_DEV_SM_CLOCK_HERTZ", "")),
        ),
    ),
)
