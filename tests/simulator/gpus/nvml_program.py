"""An unmodified NVML program in a process of its own, and the tests' side of it.

Started as a script it runs each line of code that it is sent on a thread of its own, with the real pynvml as `nvml`,
so that a call which hangs holds up no other.
"""

import concurrent.futures
import ctypes
import itertools
import json
import os
import subprocess
import sys
import threading
from typing import Any

ANSWER_TIMEOUT_S = 30.0


class NvmlCallError(Exception):
    """The program's call failed; `code` is the nvmlReturn_t."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(f"{code}: {words}")
        self.code = code


class NvmlProgram:
    """A running program; `ask` evaluates code in it and gives what came out as plain values."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        self._ids = itertools.count()
        self._waiting: dict[int, concurrent.futures.Future[Any]] = {}
        self._reader = threading.Thread(target=self._read_answers)
        self._reader.start()

    def start(self, code: str) -> "concurrent.futures.Future[Any]":
        """Begins to run `code`, an expression or statements, beside whatever runs already."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        number = next(self._ids)
        self._waiting[number] = future
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([number, code]) + "\n")
        self._process.stdin.flush()
        return future

    def ask(self, code: str) -> Any:
        """What `code` gives; raises NvmlCallError where NVML does."""
        return self.start(code).result(ANSWER_TIMEOUT_S)

    def failure(self, code: str) -> int:
        """The nvmlReturn_t with which `code` fails; 0 if it does not."""
        try:
            self.ask(code)
        except NvmlCallError as failure:
            return failure.code
        return 0

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()
        self._reader.join()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()

    def _read_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            number, kind, value = json.loads(line)
            future = self._waiting.pop(number)
            match kind:
                case "value":
                    future.set_result(value)
                case "nvml":
                    future.set_exception(NvmlCallError(*value))
                case _:
                    future.set_exception(AssertionError(value))


def _plain(value: Any) -> Any:
    if isinstance(value, ctypes.Structure | ctypes.Union):
        return {field[0]: _plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, ctypes.Array | list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, ctypes.c_uint):
        return value.value
    return vars(value) if hasattr(value, "__dict__") else value


def _answer(number: int, code: str, names: dict[str, Any], lock: threading.Lock) -> None:
    import pynvml  # noqa: PLC0415 - in the program alone

    answer: list[Any]
    try:
        try:
            compiled = compile(code, "<test>", "eval")
        except SyntaxError:
            compiled = compile(code, "<test>", "exec")
        answer = [number, "value", _plain(eval(compiled, names))]
    except pynvml.NVMLError as error:
        answer = [number, "nvml", [error.value, str(error)]]
    except Exception as error:  # noqa: BLE001 - whatever it is, the test shows it
        answer = [number, "error", f"{code}: {error!r}"]
    with lock:
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def _main() -> None:
    import pynvml  # noqa: PLC0415 - in the program alone

    names = {"nvml": pynvml, "ctypes": ctypes, "threading": threading}
    lock = threading.Lock()
    for line in sys.stdin:
        threading.Thread(target=_answer, args=(*json.loads(line), names, lock), daemon=True).start()


if __name__ == "__main__":
    _main()
