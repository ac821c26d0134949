"""The entry of `gpu-rightsizer` and `python -m rightsizer`; says what to install if a library is missing."""

import importlib
import sys


def main() -> int:
    """Run the command line; its exit code."""
    try:
        code: int = importlib.import_module("rightsizer.cli").main()
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not library or library.startswith("rightsizer"):
            raise
        sys.stderr.write(
            f"error: the library {library} is missing; run: pip install gpu-rightsizer, or in a checkout: "
            "pip install .\n"
        )
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main())
