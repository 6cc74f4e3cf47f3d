"""An NFS client of one file: mounts, creates it, writes it through (RFC 1813, RFC 5531). What loads an edge as a client does, and knows nothing of Firn."""

import socket
import struct

MOUNT, NFS = 100_005, 100_003
FILE_SYNC, UNCHECKED = 2, 0
TIMEOUT_S = 120


def opaque(data):
    return struct.pack(">I", len(data)) + data + bytes(-len(data) % 4)


class Client:
    """On 127.0.0.1, where both programs answer on one port."""

    def __init__(self, port, export):
        self.socket = socket.create_connection(("127.0.0.1", port), TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.calls = 0
        answer = self._call(MOUNT, 1, opaque(export.encode()))
        (length,) = struct.unpack_from(">I", answer, 4)
        self.root = answer[8 : 8 + length]

    def _call(self, program, procedure, arguments):
        self.calls += 1
        credential = struct.pack(">I", 0) + opaque(b"firn-load") + struct.pack(">III", 0, 0, 0)
        message = struct.pack(">IIIIII", self.calls, 0, 2, program, 3, procedure) + struct.pack(">I", 1) + opaque(credential) + struct.pack(">II", 0, 0) + arguments
        self.socket.sendall(struct.pack(">I", 0x8000_0000 | len(message)) + message)
        answer, last = b"", False
        while not last:
            (mark,) = struct.unpack(">I", self._exactly(4))
            last = bool(mark & 0x8000_0000)
            answer += self._exactly(mark & 0x7FFF_FFFF)
        xid, kind, accepted, _, verifier = struct.unpack_from(">IIIII", answer)
        assert (xid, kind, accepted) == (self.calls, 1, 0), "no answer to this call"
        at = 20 + verifier + -verifier % 4
        status, result = struct.unpack_from(">II", answer, at)
        assert status == 0, f"the call was not understood: {status}"
        if result != 0:
            raise OSError(f"program {program}, procedure {procedure}: error {result}")
        return answer[at + 4 :]

    def _exactly(self, length):
        received = b""
        while len(received) < length:
            part = self.socket.recv(length - len(received))
            if not part:
                raise ConnectionError("the server closed the connection")
            received += part
        return received

    def create(self, name):
        """Its handle."""
        mode = struct.pack(">II", 1, 0o644) + struct.pack(">IIIII", 0, 0, 0, 0, 0)
        answer = self._call(NFS, 8, opaque(self.root) + opaque(name.encode()) + struct.pack(">I", UNCHECKED) + mode)
        present, length = struct.unpack_from(">II", answer, 4)
        assert present == 1, "no handle"
        return answer[12 : 12 + length]

    def write(self, handle, offset, data):
        """Durable on the edge (level 1) when it returns."""
        self._call(NFS, 7, opaque(handle) + struct.pack(">QII", offset, len(data), FILE_SYNC) + opaque(data))
