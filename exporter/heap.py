"""How much freed memory the C library keeps: glibc by default more than twice of what is in use here.

Other C libraries (musl) keep little and have neither of these functions: nothing is done there. Must not know what the
memory is used for. https://sourceware.org/glibc/manual/latest/html_node/Malloc-Tunable-Parameters.html, mallopt(3)
"""

import ctypes

_ARENA_MAX = -8  # M_ARENA_MAX (malloc.h)


def share() -> None:
    """Have one heap for all threads; to be called before there is a second one.

    glibc makes new ones up to eight per core, each of which grows to the most that was ever needed in it at once. They
    save threads from waiting for each other, which Python's do anyway.
    """
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "mallopt"):
        c_library.mallopt(_ARENA_MAX, 1)


def trim() -> None:
    """Give back to the kernel whatever is free, such as what only the start has needed."""
    c_library = ctypes.CDLL(None)
    if hasattr(c_library, "malloc_trim"):
        c_library.malloc_trim(ctypes.c_size_t(0))
