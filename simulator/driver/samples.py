"""What sample buffers can hold, and what is wrong with samples that they cannot. Pure."""

import itertools
from collections.abc import Iterator, Sequence

from simulator.driver import layout
from simulator.driver.records import ProcessSample

_WHOLE_PERCENT = 100


def problems(utilization: Sequence[tuple[int, int]], processes: Sequence[ProcessSample]) -> list[str]:
    """Why no GPU keeps these samples, (at_us, percent) and those of its processes, in words; nothing if one could."""
    return [*_of_the_gpu(utilization), *_of_processes(processes)]


def _of_the_gpu(samples: Sequence[tuple[int, int]]) -> Iterator[str]:
    if len(samples) > layout.MAX_SAMPLES:
        yield f"{len(samples)} utilization samples; a board holds {layout.MAX_SAMPLES}"
    for (before, _), (at_us, _) in itertools.pairwise(samples):
        if at_us <= before:
            yield f"the utilization sample at {at_us} us comes after that at {before} us"
    for at_us, percent in samples:
        if not 0 <= percent <= _WHOLE_PERCENT:
            yield f"the utilization at {at_us} us is {percent}, not within 0 and {_WHOLE_PERCENT}"


def _of_processes(samples: Sequence[ProcessSample]) -> Iterator[str]:
    if len(samples) > layout.MAX_PROCESS_SAMPLES:
        yield f"{len(samples)} samples of processes; a board holds {layout.MAX_PROCESS_SAMPLES}"
    for before, sample in itertools.pairwise(samples):
        if sample.at_us < before.at_us:
            yield (
                f"the sample of process {sample.pid} at {sample.at_us} us comes after that of process {before.pid} "
                f"at {before.at_us} us"
            )
    for sample in samples:
        shares = (
            sample.sm_percent,
            sample.memory_percent,
            sample.encoder_percent,
            sample.decoder_percent,
        )
        if min(shares) < 0 or max(shares) > _WHOLE_PERCENT:
            yield f"{sample}: percentages are not all within 0 and {_WHOLE_PERCENT}"
