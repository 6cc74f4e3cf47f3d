"""Lines from an office to the cloud, with a latency each, that can be cut: TCP proxies, since not every kernel has netem.

What is under way when a line is cut arrives once it is mended, as TCP would send it again; new connections are taken and hear nothing.
"""

import asyncio
import threading
import time

# Bytes that are under way on one connection in one direction; at 100 ms that is 20 MB/s.
CHUNK_BYTES, CHUNKS = 64 << 10, 32


class Lines:
    """All lines of one office. `latency_s` is that of a round trip."""

    def __init__(self):
        self.latency_s = 0.0
        self.loop = asyncio.new_event_loop()
        self.whole = asyncio.Event()
        self.whole.set()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def add(self, port):
        """A line to `port` of this machine; returns the port at this end."""

        async def listen():
            server = await asyncio.start_server(lambda *ends: self._serve(port, *ends), "127.0.0.1", 0)
            return server.sockets[0].getsockname()[1]

        return asyncio.run_coroutine_threadsafe(listen(), self.loop).result(10)

    def set_latency(self, milliseconds):
        self.latency_s = milliseconds / 1000

    def cut(self):
        self.loop.call_soon_threadsafe(self.whole.clear)

    def mend(self):
        self.loop.call_soon_threadsafe(self.whole.set)

    async def _serve(self, port, near_reader, near_writer):
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            near_writer.close()
            return
        await asyncio.gather(self._carry(near_reader, far_writer), self._carry(far_reader, near_writer))
        for writer in (near_writer, far_writer):
            writer.close()

    async def _carry(self, reader, writer):
        under_way = asyncio.Queue(CHUNKS)

        async def receive():
            while True:
                try:
                    data = await reader.read(CHUNK_BYTES)
                except OSError:
                    data = b""
                await under_way.put((time.monotonic(), data))
                if not data:
                    return

        async def deliver():
            while True:
                sent, data = await under_way.get()
                await asyncio.sleep(max(0, sent + self.latency_s / 2 - time.monotonic()))
                await self.whole.wait()
                try:
                    if data:
                        writer.write(data)
                        await writer.drain()
                    elif writer.can_write_eof():
                        writer.write_eof()
                except OSError:
                    data = data and None
                if not data:
                    return

        receiving = asyncio.ensure_future(receive())
        await deliver()
        receiving.cancel()
