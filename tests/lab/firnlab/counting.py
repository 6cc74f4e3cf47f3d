"""A way to a store that counts: each request that passes is noted, with what a listing showed.

It stands between a program and the store, speaks HTTP/1.1 on both sides and changes nothing, so that what it noted owes nothing to what
the program says of itself.
"""

import dataclasses
import re
import socket
import socketserver
import threading
import time
import urllib.parse

HEAD_MAX = 64 << 10


@dataclasses.dataclass
class Seen:
    """A request, and when its answer had come."""

    method: str
    path: str
    query: dict
    at: float
    # Bytes of what a listing of a log showed.
    listed: int | None = None

    @property
    def begins_listing(self):
        return self.listed is not None and "continuation-token" not in self.query and "start-after" not in self.query


class Stream:
    def __init__(self, sock):
        self.sock, self.buffer = sock, b""

    def more(self):
        received = self.sock.recv(1 << 18)
        if not received:
            raise ConnectionError("closed")
        self.buffer += received

    def until(self, mark):
        while mark not in self.buffer:
            if len(self.buffer) > HEAD_MAX:
                raise ConnectionError("no end of a head")
            self.more()
        at = self.buffer.index(mark) + len(mark)
        taken, self.buffer = self.buffer[:at], self.buffer[at:]
        return taken

    def exactly(self, length):
        while len(self.buffer) < length:
            self.more()
        taken, self.buffer = self.buffer[:length], self.buffer[length:]
        return taken

    def message(self, bodyless=lambda head: False):
        """Head, all that was sent after it, and the body that this means."""
        head = self.until(b"\r\n\r\n")
        fields = {}
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            fields[name.strip().lower()] = value.strip()
        if bodyless(head):
            return head, b"", b""
        if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
            raw, body = b"", b""
            while True:
                line = self.until(b"\r\n")
                length = int(line.split(b";")[0], 16)
                chunk = self.exactly(length + 2) if length else self.until(b"\r\n")
                raw, body = raw + line + chunk, body + (chunk[:-2] if length else b"")
                if not length:
                    return head, raw, body
        body = self.exactly(int(fields.get(b"content-length", b"0")))
        return head, body, body


class CountingProxy:
    def __init__(self, target):
        host, port = urllib.parse.urlparse(target).netloc.split(":")
        self.target, self.seen, self.lock = (host, int(port)), [], threading.Lock()
        outer = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self):
                try:
                    outer.carry(self.request)
                except OSError:
                    pass  # One of the two hung up.

        class Listener(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            request_queue_size = 128

        self.listener = Listener(("127.0.0.1", 0), Handler)
        self.address = "http://127.0.0.1:%d" % self.listener.server_address[1]
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def carry(self, near_socket):
        near_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        near = Stream(near_socket)
        while True:
            head, raw, asked = near.message()
            method, target = head.split(b" ", 2)[:2]
            if b"\r\nexpect:" in head.lower():
                raise ConnectionError("who waits to be asked on is not expected here")
            url = urllib.parse.urlparse(target.decode())
            query = {name: values[0] for name, values in urllib.parse.parse_qs(url.query, keep_blank_values=True).items()}
            request = Seen(method.decode(), url.path, query, time.time())
            with self.lock:
                self.seen.append(request)
            answer = self.answers(request, asked)
            if answer is not None:
                near_socket.sendall(answer)
                continue
            head, raw = self.forwards(head, raw)
            # One connection a request: none that the store has closed meanwhile.
            with socket.create_connection(self.target) as far_socket:
                far_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                far_socket.sendall(head + raw)
                bodyless = lambda answer: method == b"HEAD" or answer.split(b" ", 2)[1] in (b"204", b"304")
                answer, raw, body = Stream(far_socket).message(bodyless)
            request.at = time.time()
            if method == b"GET" and "list-type" in query and "/log/" in query.get("prefix", "") + "/":
                request.listed = sum(int(size) for size in re.findall(rb"<Size>(\d+)</Size>", body))
            self.answered(request, head, asked, body)
            near_socket.sendall(answer + raw)
            if b"connection: close" in answer.lower():
                return

    def answers(self, request, asked):
        """The answer to what never comes to the store; none for what does."""

    def forwards(self, head, raw):
        """What is sent on of a request; others may ask for more."""
        return head, raw

    def answered(self, request, head, asked, body):
        """Of a request with what it asked, and what was answered."""

    def requests(self):
        with self.lock:
            return list(self.seen)
