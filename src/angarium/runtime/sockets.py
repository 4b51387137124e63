"""Opens listening sockets and explains why one can't be opened; tells loopback addresses."""

from __future__ import annotations

import errno
import ipaddress
import socket

from angarium.runtime.errors import SettingInvalid

BACKLOG = 1024  # connections that wait in the kernel while the loop is busy


def listen(host: str, port: int, setting: str, *, host_setting: str | None = None) -> socket.socket:
    """A listening socket. Raises SettingInvalid if the address can't be used."""

    host_setting = host_setting or setting
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        problem = f"the address {host!r} can't be resolved"
        raise SettingInvalid(host_setting, problem, "use an address of this machine") from error
    family, kind, protocol, _, address = found[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise _refused(error, host, port, setting, host_setting) from error
    return listener


def _refused(
    error: OSError, host: str, port: int, setting: str, host_setting: str
) -> SettingInvalid:
    if error.errno == errno.EADDRINUSE:
        fix = "stop what listens there, or set another port (0 takes any free one)"
        return SettingInvalid(setting, f"port {port} on {host} is taken", fix)
    if error.errno == errno.EACCES:
        fix = "set a port above 1023 (0 takes any free one)"
        return SettingInvalid(setting, f"port {port} on {host} needs privileges", fix)
    problem = f"can't listen on {host} port {port} ({error.strerror})"
    return SettingInvalid(host_setting, problem, "use an address of this machine")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
