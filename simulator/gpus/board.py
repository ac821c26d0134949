"""Writes what the GPUs of one simulated node show to every program on that node.

Readers see whole values only. After the writer ends, they see its last values. A board has one writer.
"""

import dataclasses
import pathlib
import struct
import threading
from collections.abc import Sequence
from typing import Self

from simulator.gpus import answers, encoding, layout, library, mig
from simulator.gpus.boardfile import BoardFile
from simulator.gpus.cards import CARDS, Card
from simulator.gpus.records import BusyCounter, Gpu, Instance, Process, ProcessKind, ProcessSample, Reading
from simulator.spec import NodeSpec

__all__ = ["Board", "Process", "ProcessKind", "ProcessSample", "Reading"]

_Fault = tuple[str, int]  # a function and a GPU, or layout.ANY_GPU


class Board:
    """The GPUs of a node, in a file; a new board replaces the file, as when a driver is loaded again."""

    def __init__(self, path: pathlib.Path, node: NodeSpec) -> None:
        """Shows all GPUs of `node` idle."""
        if len(node.gpus) > layout.MAX_GPUS:
            raise ValueError(f"node {node.name}: {len(node.gpus)} GPUs; a board holds {layout.MAX_GPUS}")
        self._node = node
        self._lock = threading.Lock()
        self._faults: dict[_Fault, layout.DriverFault] = {}
        self._events: list[layout.GpuEvent] = []
        cards = [self._card(index) for index in range(len(node.gpus))]
        self._gpus = [
            Gpu(card, Reading.idle(card), self._instances(index, card, node.gpus[index].mig), generation=1)
            for index, card in enumerate(cards)
        ]
        identities = [
            encoding.identity(card, node.gpu_uuid(index), index) for index, card in enumerate(cards)
        ]
        self._file = BoardFile(path, encoding.header(node), identities)
        self._answers = [dict(answers.healthy(card)) for card in cards]
        for index, gpu in enumerate(self._gpus):
            self._file.publish_state(index, encoding.state(gpu))
            self._file.publish_answers(index, encoding.answer_list(self._answers[index]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set_gpu(self, index: int, reading: Reading) -> None:
        """Shows what GPU `index` measures now."""
        with self._lock:
            gpu = self._gpu(index)
            problems = reading.problems(gpu.card)
            if problems:
                raise ValueError(f"{self._words(index)}: {'; '.join(problems)}")
            self._show(index, dataclasses.replace(gpu, reading=reading))

    def set_instance(
        self, index: int, instance: int, *, memory_used_bytes: int, activity_percent: int = 0
    ) -> None:
        """Sets memory and utilization of a MIG instance (0-based); only cards with GPM report the utilization."""
        with self._lock:
            gpu = self._gpu(index)
            self._check_instance(index, instance)
            before = gpu.instances[instance]
            if not 0 <= memory_used_bytes <= before.profile.memory_bytes:
                raise ValueError(
                    f"{self._words(index)}, MIG instance {instance} ({before.profile.name}): memory_used_bytes is "
                    f"{memory_used_bytes}, not within 0 and {before.profile.memory_bytes}"
                )
            if not 0 <= activity_percent <= 100:  # noqa: PLR2004 - percent
                raise ValueError(
                    f"{self._words(index)}, MIG instance {instance}: activity_percent is {activity_percent}, "
                    "not within 0 and 100"
                )
            after = dataclasses.replace(
                before, memory_used_bytes=memory_used_bytes, activity_percent=activity_percent
            )
            self._show(index, gpu.with_instance(instance, after))

    def set_answer(self, index: int, function: str, *values: int, selector: int = 0) -> None:
        """Sets what an NVML function returns for GPU `index`; without values, it is not supported.

        Args:
            index: NVML index.
            function: An exported symbol.
            values: In the order of the function's output parameters.
            selector: The argument that selects among several, such as a threshold or a field's id.
        """
        if not hasattr(library.load(), function):
            raise ValueError(f"the simulated driver has no function {function!r}")
        if len(values) > layout.MAX_VALUES:
            raise ValueError(f"{function}: {len(values)} values; an answer holds {layout.MAX_VALUES}")
        with self._lock:
            self._gpu(index)
            changed = {key: old for key, old in self._answers[index].items() if key != (function, selector)}
            if values:
                changed[function, selector] = values
            if len(changed) > layout.MAX_ANSWERS:
                raise ValueError(f"{self._words(index)}: a board holds {layout.MAX_ANSWERS} answers")
            self._file.publish_answers(index, encoding.answer_list(changed))
            self._answers[index] = changed

    def set_gpm(self, index: int, metric: int, value: float, *, instance: int | None = None) -> None:
        """Lets GPM report `value` for a metric (nvmlGpmMetricId_t) of GPU `index`, or of one of its MIG instances."""
        selector = metric | (0 if instance is None else instance + 1) << 16
        bits = int.from_bytes(struct.pack("<d", value), "little")
        self.set_answer(index, "nvmlGpmMetricsGet", bits, selector=selector)

    def raise_xid(self, index: int, xid: int, *, instance: int | None = None) -> None:
        """Lets the driver report an XID error on GPU `index`, or on one of its MIG instances."""
        with self._lock:
            gpu = self._gpu(index)
            where = encoding.NO_INSTANCE
            if instance is not None:
                self._check_instance(index, instance)
                where = gpu.instances[instance].gpu_instance_id
            self._events.append(layout.GpuEvent(gpu=index, xid=xid, gpu_instance_id=where))
            self._file.publish_events(encoding.event_log(self._events))

    def set_processes(self, index: int, processes: Sequence[Process]) -> None:
        """Shows which processes hold GPU `index`, in place of those shown before."""
        with self._lock:
            self._gpu(index)
            if len(processes) > layout.MAX_PROCESSES:
                raise ValueError(
                    f"{self._words(index)}: {len(processes)} processes; a board holds {layout.MAX_PROCESSES}"
                )
            for process in processes:
                if process.instance is not None:
                    self._check_instance(index, process.instance)
            self._file.publish_processes(index, encoding.process_list(processes))

    def set_samples(
        self, index: int, utilization: Sequence[tuple[int, int]], processes: Sequence[ProcessSample] = ()
    ) -> None:
        """Replaces the samples that GPU `index` keeps; before the first call NVML reports them as not supported.

        All are oldest first; `utilization` has Unix time in microseconds and percent.
        """
        with self._lock:
            self._gpu(index)
            wrong = encoding.sample_problems(utilization, processes)
            if wrong:
                raise ValueError(f"{self._words(index)}: {wrong[0]}")
            self._file.publish_samples(
                index, encoding.utilization_buffer(utilization), encoding.process_buffer(processes)
            )

    def set_busy(self, index: int, *, busy_us: int, at_us: int, instance: int | None = None) -> None:
        """Sets how long GPU `index`, or a MIG instance (0-based), was busy until `at_us` (Unix microseconds).

        After that, GPM computes its activity from two such counts instead of the mean of two readings.
        """
        with self._lock:
            gpu = self._gpu(index)
            if busy_us < 0 or at_us <= 0:
                raise ValueError(f"{self._words(index)}: no GPU has worked {busy_us} us at {at_us} us")
            counter = BusyCounter(busy_us, at_us)
            if instance is None:
                self._show(index, dataclasses.replace(gpu, busy=counter))
                return
            self._check_instance(index, instance)
            after = dataclasses.replace(gpu.instances[instance], busy=counter)
            self._show(index, gpu.with_instance(instance, after))

    def set_mig(self, index: int, profiles: tuple[str, ...]) -> None:
        """Changes the MIG layout of GPU `index` (none without profiles); ends its processes and voids old handles."""
        with self._lock:
            gpu = self._gpu(index)
            instances = self._instances(index, gpu.card, profiles)
            self._file.publish_processes(index, encoding.process_list(()))
            self._show(index, dataclasses.replace(gpu, instances=instances, generation=gpu.generation + 1))

    def fault(
        self, function: str, *, gpu: int | None = None, code: int | None = None, hang: bool = False
    ) -> None:
        """Makes an NVML function fail from now on; replaces an earlier fault of the same function and GPU.

        Args:
            function: An exported symbol, or "*" for every call about a GPU.
            gpu: NVML index; every GPU if None.
            code: The nvmlReturn_t.
            hang: Blocks the calling thread until the fault is cleared.
        """
        if function != "*" and not (function.startswith("nvml") and hasattr(library.load(), function)):
            raise ValueError(f"the simulated driver has no function {function!r}")
        if code is None and not hang:
            raise ValueError(f"a fault of {function} needs a code to return, or hang=True")
        with self._lock:
            if gpu is not None:
                self._gpu(gpu)
            target = layout.ANY_GPU if gpu is None else gpu
            fault = layout.DriverFault(function=function.encode(), gpu=target, code=code or 0, hang=int(hang))
            faults = {**self._faults, (function, target): fault}
            if len(faults) > layout.MAX_FAULTS:
                raise ValueError(f"node {self._node.name}: a board holds {layout.MAX_FAULTS} faults at once")
            self._show_faults(faults)

    def clear_faults(self) -> None:
        """Ends all faults; calls that hang go on."""
        with self._lock:
            self._show_faults({})

    def close(self) -> None:
        """Ends all faults, so that no program stays held, and lets go; programs keep seeing the last values."""
        with self._lock:
            if not self._file.closed:
                self._show_faults({})
                self._file.close()

    def _card(self, index: int) -> Card:
        card = CARDS.get(self._node.gpus[index].card)
        if card is None:
            raise ValueError(
                f"{self._words(index)}: unknown card {self._node.gpus[index].card!r}; known: {', '.join(CARDS)}"
            )
        return card

    def _instances(self, index: int, card: Card, profiles: Sequence[str]) -> tuple[Instance, ...]:
        try:
            placed = mig.place(card, profiles)
        except ValueError as error:
            raise ValueError(f"{self._words(index)}: {error}") from error
        return tuple(
            Instance(self._node.mig_uuid(index, instance), *where) for instance, where in enumerate(placed)
        )

    def _gpu(self, index: int) -> Gpu:
        if not 0 <= index < len(self._gpus):
            raise ValueError(f"node {self._node.name} has no GPU {index}; it has {len(self._gpus)}")
        return self._gpus[index]

    def _check_instance(self, index: int, instance: int) -> None:
        count = len(self._gpus[index].instances)
        if not 0 <= instance < count:
            raise ValueError(f"{self._words(index)} has no MIG instance {instance}; it has {count}")

    def _show(self, index: int, gpu: Gpu) -> None:
        self._file.publish_state(index, encoding.state(gpu))
        self._gpus[index] = gpu

    def _show_faults(self, faults: dict[_Fault, layout.DriverFault]) -> None:
        self._file.publish_faults(encoding.fault_list(faults.values()))
        self._faults = faults

    def _words(self, index: int) -> str:
        return f"node {self._node.name}, GPU {index}"
