"""systemd's socket activation and notifications: sd_listen_fds(3) and sd_notify(3). Must not read the environment."""

import logging
import os
import socket
from collections.abc import Mapping

from exporter.errors import StartError

_LOG = logging.getLogger(__name__)
_FIRST = 3  # SD_LISTEN_FDS_START
_TIMEOUT_S = 1.0


def inherited(environment: Mapping[str, str]) -> socket.socket | None:
    """The listening socket that systemd passed to this process, if any."""
    if environment.get("LISTEN_PID") != str(os.getpid()):
        return None  # meant for a parent process
    count = environment.get("LISTEN_FDS", "")
    if count != "1":
        raise StartError(
            f"systemd passed {count or 'no'} sockets; set one ListenStream= in gpu-exporter.socket"
        )
    try:
        found = socket.socket(fileno=_FIRST)
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise StartError(
            "systemd passed a file that is not a socket; see ListenStream= in gpu-exporter.socket"
        ) from error
    if (
        not listens
        or found.type != socket.SOCK_STREAM
        or found.family not in {socket.AF_INET, socket.AF_INET6}
    ):
        raise StartError(
            "systemd passed a socket that is not a listening TCP socket; set ListenStream=9400 and Accept=no in "
            "gpu-exporter.socket"
        )
    found.set_inheritable(False)
    return found


def notify(environment: Mapping[str, str], state: str) -> None:
    """Notify systemd, if it asks for it; a failure is only logged."""
    address = environment.get("NOTIFY_SOCKET", "")
    if not address:
        return
    name = f"\0{address[1:]}" if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.settimeout(_TIMEOUT_S)
            sender.connect(name)
            sender.sendall(state.encode())
    except OSError as error:
        _LOG.warning("notifying systemd of %s: %s", state, error.strerror or error)
