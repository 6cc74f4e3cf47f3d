"""The guest's end of the control line (see firnlab/control.py). `python3 control.py REQUEST…` sends one request."""

import os
import socket
import sys

PORT = 7700


class Control:
    def __init__(self):
        self.file = socket.create_connection((os.environ["HOST"], PORT)).makefile("rw")

    def ask(self, request):
        self.file.write(request + "\n")
        self.file.flush()
        answer = self.file.readline().strip()
        if not answer.startswith("ok"):
            raise RuntimeError(f"the host answers {request!r} with {answer!r}")
        return answer

    def tell(self, notes):
        """Lines for the host's log; not answered."""
        if notes:
            self.file.write("".join(f"note {note}\n" for note in notes))
            self.file.flush()


if __name__ == "__main__":
    print(Control().ask(" ".join(sys.argv[1:])))
