"""The entry of `gpu-exporter` and `python -m exporter`; says what to install if a library is missing."""

import signal
import sys


def main() -> int:
    """Run the exporter; its exit code."""
    # Before the imports, which take a moment: a signal that arrives meanwhile waits for `process.Signals`.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    try:
        from exporter import cli  # noqa: PLC0415 - its libraries may be missing
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if library in {"", "exporter"}:
            raise
        sys.stderr.write(
            f"error: the library {library} is missing; run: pip install 'gpu-rightsizer[exporter]'\n"
        )
        return 1
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
