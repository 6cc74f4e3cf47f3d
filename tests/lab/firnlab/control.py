"""The control line: how a job in the guest asks the host to kill or restart the server, and leaves a record here.

One request a line over TCP, answered (except `note`) by one line, `ok …` or `error …`:

    kill                 SIGKILL to the server, start it again, answer when it is ready
    down                 SIGKILL only
    up                   start it again, answer when it is ready
    stop                 a clean stop and a new start
    admin ARGUMENT…      a command of the server's program beside it: `admin snapshot create monday`; its failure is an answer, no end
    recover              a disaster, and a recovery from a copy of the bucket and the phrase alone; mounts do not survive it
    note TEXT            appended to the host's log of what was acknowledged
"""

import socketserver
import threading
import time

from . import HOST_ADDRESS, LabError

PORT = 7700


class Control:
    def __init__(self, server, log_path, on_failure=lambda: None):
        """`on_failure` is called when the server cannot be brought up again: the job then waits for it in vain."""
        self.server = server
        self.on_failure = on_failure
        self.kills = 0
        self.failure = None
        self._log = open(log_path, "a", buffering=1)
        self._lock = threading.Lock()
        outer = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self):
                for line in self.rfile:
                    answer = outer.answer(line.decode(errors="replace").strip())
                    if answer:
                        self.wfile.write(f"{answer}\n".encode())

        class Listener(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self.listener = Listener((HOST_ADDRESS, PORT), Handler)
        threading.Thread(target=self.listener.serve_forever, daemon=True).start()

    def answer(self, request):
        verb, _, rest = request.partition(" ")
        if verb == "note":
            self._log.write(f"{time.monotonic():.6f} {rest}\n")
            return None
        with self._lock:
            started = time.monotonic()
            if verb == "admin":
                try:
                    said = self.server.administer(rest.split())
                except Exception as error:
                    return "error " + " / ".join(str(error).splitlines())
                self._log.write(f"{time.monotonic():.6f} admin {rest}: {said}\n")
                return f"ok {1000 * (time.monotonic() - started):.0f} ms: " + " / ".join(said.splitlines())
            try:
                if verb in ("kill", "down"):
                    self._log.write(f"{time.monotonic():.6f} kill\n")
                    if not self.server.alive():
                        raise LabError(f"the server had already ended by itself:\n{self.server.log_tail()}")
                    self.server.kill()
                    self.kills += 1
                elif verb == "stop":
                    status = self.server.stop()
                    if status != 0 and self.server.stops_cleanly:
                        raise LabError(f"a clean stop ends with status {status}:\n{self.server.log_tail()}")
                elif verb == "recover":
                    self._log.write(f"{time.monotonic():.6f} recover: {self.server.recover()}\n")
                elif verb != "up":
                    return f"error unknown request {verb}"
                if verb not in ("down", "recover"):
                    self.server.start()
            except Exception as error:  # whatever it was, the guest must not wait for an answer for ever
                self.failure = str(error) or repr(error)
                self.on_failure()
                return "error " + self.failure.splitlines()[0]
            self._log.write(f"{time.monotonic():.6f} {verb} done\n")
            return f"ok {1000 * (time.monotonic() - started):.0f} ms"

    def close(self):
        self.listener.shutdown()
        self.listener.server_close()
        self._log.close()
