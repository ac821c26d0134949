"""What a healthy card answers to NVML queries about limits, links, modes and counters, from public data sheets."""

from collections.abc import Mapping, Sequence

from simulator.gpus.cards import GIB, MIB, Architecture, Card

Answers = Mapping[tuple[str, int], Sequence[int]]

FIELDS = "nvmlDeviceGetFieldValues"
_SHUTDOWN, _SLOWDOWN, _MEM_MAX, _GPU_MAX = range(4)
_ECC_FIELDS = (3, 4, 5, 6)
_RETIRED_FIELDS = (29, 30, 31)
_NVLINK_ERROR_FIELDS = (38, 45, 52, 59)
_NVLINK_COUNT_FIELDS = (138, 139)
_PCIE_COUNT_FIELDS = (197, 198)
_VIOLATION_FIELDS = (74, 75, 76, 77, 78, 79, 80, 81)
_SLOWDOWN_FIELDS = (269, 270, 271)
_VIDEO = 3  # NVML_CLOCK_VIDEO
_REMAPPED_FIELDS = (142, 143, 144, 145)
_PCIE_GENERATION = {
    Architecture.TURING: 3,
    Architecture.AMPERE: 4,
    Architecture.ADA: 4,
    Architecture.HOPPER: 5,
}
_MAX_VIDEO_MHZ = {
    Architecture.TURING: 1470,
    Architecture.AMPERE: 1290,
    Architecture.ADA: 1965,
    Architecture.HOPPER: 1545,
}
"""As nvidia-smi has shown them of T4, A100, L40S and H100."""
_LINKS = {Architecture.AMPERE: 12, Architecture.HOPPER: 18}
_LANES = 16
_ENGINE_PERIOD_US = 1_000_000


def healthy(card: Card) -> Answers:
    """Of a card that has never had a fault. Fans are the server's: these cards have none."""
    generation = _PCIE_GENERATION[Architecture(card.architecture)]
    bar1_bytes = 256 * MIB if card.architecture == Architecture.TURING else _power_of_two(card.memory_bytes)
    answers: dict[tuple[str, int], Sequence[int]] = {
        ("nvmlDeviceGetPcieReplayCounter", 0): (0,),
        ("nvmlDeviceGetCurrPcieLinkGeneration", 0): (generation,),
        ("nvmlDeviceGetMaxPcieLinkGeneration", 0): (generation,),
        ("nvmlDeviceGetCurrPcieLinkWidth", 0): (_LANES,),
        ("nvmlDeviceGetMaxPcieLinkWidth", 0): (_LANES,),
        ("nvmlDeviceGetEncoderUtilization", 0): (0, _ENGINE_PERIOD_US),
        ("nvmlDeviceGetDecoderUtilization", 0): (0, _ENGINE_PERIOD_US),
        ("nvmlDeviceGetEccMode", 0): (1, 1),
        ("nvmlDeviceGetGridLicensableFeatures_v4", 0): (0, 0),
        ("nvmlDeviceGetBAR1MemoryInfo", 0): (bar1_bytes, MIB),
        ("nvmlDeviceGetTemperatureThreshold", _SHUTDOWN): (95,),
        ("nvmlDeviceGetTemperatureThreshold", _SLOWDOWN): (90,),
        ("nvmlDeviceGetTemperatureThreshold", _GPU_MAX): (85,),
    }
    answers["nvmlDeviceGetMaxClockInfo", _VIDEO] = (_MAX_VIDEO_MHZ[Architecture(card.architecture)],)
    if card.memory_temperature:
        answers["nvmlDeviceGetTemperatureThreshold", _MEM_MAX] = (95,)
    fields = [*_ECC_FIELDS, *_VIOLATION_FIELDS, *_SLOWDOWN_FIELDS]
    fields += _RETIRED_FIELDS if card.architecture == Architecture.TURING else _REMAPPED_FIELDS
    fields += _PCIE_COUNT_FIELDS
    links = _LINKS.get(Architecture(card.architecture), 0) if card.memory_temperature else 0  # the SXM cards
    if links:
        fields += [*_NVLINK_ERROR_FIELDS, *_NVLINK_COUNT_FIELDS]
        answers.update({("nvmlDeviceGetNvLinkState", link): (1,) for link in range(links)})
    answers.update({(FIELDS, field): (0,) for field in fields})
    return answers


def _power_of_two(size: int) -> int:
    bar = GIB
    while bar < size:
        bar *= 2
    return bar
