"""Where the simulator keeps what it builds: the user's cache, never the checkout."""

import os
import pathlib

_APPLICATION = "gpu-rightsizer"


class CacheError(Exception):
    """There is no place for a cache."""


def cache_directory(name: str) -> pathlib.Path:
    """The folder `name` of the cache; it may not exist yet.

    https://specifications.freedesktop.org/basedir-spec/: relative paths in XDG_CACHE_HOME are ignored.
    """
    inherited = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(inherited):  # noqa: PTH117
        return pathlib.Path(inherited, _APPLICATION, name)
    try:
        return pathlib.Path.home().joinpath(".cache", _APPLICATION, name)
    except RuntimeError as error:
        raise CacheError(
            "this user has no home directory to keep it in; set XDG_CACHE_HOME to a writable directory"
        ) from error
