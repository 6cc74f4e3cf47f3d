"""nbd_attach.py HOST PORT DEVICE [EXPORT]: gives an NBD export to this kernel's own client.

The negotiation is done here, then the socket is handed to the kernel, as nbd-client does; a process stays behind for as
long as the device is attached. `nbd_attach.py -d DEVICE` ends that.
"""

import fcntl
import os
import pathlib
import socket
import struct
import sys
import time

SET_SOCK, SET_BLOCK_BYTES, DO_IT, CLEAR_SOCK, SET_BLOCKS, DISCONNECT, SET_TIMEOUT_S, SET_FLAGS = (
    0xAB00 + number for number in (0, 1, 3, 4, 7, 8, 9, 10)
)
OPTION_MAGIC, REPLY_MAGIC = 0x49484156454F5054, 0x3E889045565A9
OPTION_GO, REPLY_ACK, REPLY_INFO = 7, 1, 3
BLOCK_BYTES = 4096


def receive(connection, count):
    data = b""
    while len(data) < count:
        more = connection.recv(count - len(data))
        if not more:
            sys.exit("nbd_attach: the server closed the connection")
        data += more
    return data


def negotiate(connection, export):
    """Returns the export's size and flags."""
    magic, option, _flags = struct.unpack(">8sQH", receive(connection, 18))
    if magic != b"NBDMAGIC" or option != OPTION_MAGIC:
        sys.exit("nbd_attach: no NBD server of the fixed newstyle")
    connection.sendall(struct.pack(">I", 3))
    name = export.encode()
    body = struct.pack(">I", len(name)) + name + struct.pack(">H", 0)
    connection.sendall(struct.pack(">QII", OPTION_MAGIC, OPTION_GO, len(body)) + body)
    size = flags = None
    while True:
        magic, _option, kind, length = struct.unpack(">QIII", receive(connection, 20))
        data = receive(connection, length)
        if magic != REPLY_MAGIC or kind & 1 << 31:
            sys.exit(f"nbd_attach: refused: {kind:#x} {data!r}")
        if kind == REPLY_INFO and data[:2] == b"\0\0":
            size, flags = struct.unpack(">QH", data[2:12])
        if kind == REPLY_ACK:
            return size, flags


def main():
    if sys.argv[1] == "-d":
        device = os.open(sys.argv[2], os.O_RDWR)
        fcntl.ioctl(device, DISCONNECT)
        return
    host, port, path = sys.argv[1:4]
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    size, flags = negotiate(connection, sys.argv[4] if len(sys.argv) > 4 else "")
    device = os.open(path, os.O_RDWR)
    fcntl.ioctl(device, CLEAR_SOCK)
    fcntl.ioctl(device, SET_BLOCK_BYTES, BLOCK_BYTES)
    fcntl.ioctl(device, SET_BLOCKS, size // BLOCK_BYTES)
    fcntl.ioctl(device, SET_FLAGS, flags)
    fcntl.ioctl(device, SET_TIMEOUT_S, 60)
    fcntl.ioctl(device, SET_SOCK, connection.fileno())
    if os.fork() == 0:
        os.setsid()
        for number in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
        try:
            fcntl.ioctl(device, DO_IT)
        except OSError:
            pass  # the server went away
        fcntl.ioctl(device, CLEAR_SOCK)
        os._exit(0)
    sectors = pathlib.Path("/sys/block") / pathlib.Path(path).name / "size"
    while int(sectors.read_text()) == 0:
        time.sleep(0.05)


main()
