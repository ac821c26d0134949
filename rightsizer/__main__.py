"""The entry of `gpu-rightsizer` and `python -m rightsizer`: commands of all packages; names a library that is missing.

Only this module knows the packages above the core.
"""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rightsizer.cli.options import Parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; its exit code."""
    try:
        from rightsizer import cli  # noqa: PLC0415 - its libraries may be missing

        return cli.main(parser(), argv)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        if not library or library.startswith("rightsizer"):
            raise
        sys.stderr.write(
            f"error: the library {library} is missing; run: pip install gpu-rightsizer, or in a checkout: "
            "pip install .\n"
        )
        return 1


def parser() -> "Parser":
    """All commands and flags."""
    import rightsizer_extender as extender  # noqa: PLC0415 - as above
    from rightsizer import cli  # noqa: PLC0415 - as above
    from rightsizer_history import cli as history  # noqa: PLC0415 - as above

    others = {history.__name__: history.COMMANDS, extender.__name__: extender.COMMANDS}
    return cli.parser(history.KeptLedger(), others)


if __name__ == "__main__":
    sys.exit(main())
