"""A client of SMB that keeps files open: requests as JSON lines on standard input, answers on standard output. Samba's own library, encrypted."""

import base64
import json
import sys

from samba import NTSTATUSError
from samba.credentials import DONT_USE_KERBEROS, Credentials
from samba.samba3 import libsmb_samba_internal as libsmb
from samba.samba3 import param

READ_WRITE, SHARE_ALL = 0x0012019F, 7
OPEN, OVERWRITE_IF = 1, 5
OWNER_GROUP_DACL = 7
# UNEXPECTED_IO_ERROR, as the library calls a short read, and END_OF_FILE.
SHORT = (0xC00000E9, 0xC0000011)


class Session:
    def __init__(self, configuration, user, password):
        context = param.get_context()
        context.load(configuration)
        credentials = Credentials()
        credentials.guess(context)
        credentials.set_kerberos_state(DONT_USE_KERBEROS)
        credentials.set_username(user)
        credentials.set_password(password)
        self.smb = libsmb.Conn("127.0.0.1", "files", context, credentials)

    def open(self, name, share=SHARE_ALL, disposition=OPEN):
        return self.smb.create(name, DesiredAccess=READ_WRITE, ShareAccess=share, CreateDisposition=disposition)

    def read(self, handle):
        # The library gives what was asked for or nothing, and has no call for the length.
        data, length = b"", 65536
        while length:
            try:
                data += self.smb.read(handle, len(data), length)
            except NTSTATUSError as error:
                if error.args[0] not in SHORT:
                    raise
                length //= 2
        return base64.b64encode(data).decode()

    def write(self, handle, data, offset):
        self.smb.write(handle, base64.b64decode(data), offset)

    def close(self, handle):
        self.smb.close(handle)

    def put(self, name, data):
        handle = self.open(name, disposition=OVERWRITE_IF)
        self.smb.write(handle, base64.b64decode(data), 0)
        self.smb.close(handle)

    def get(self, name):
        handle = self.open(name)
        try:
            return self.read(handle)
        finally:
            self.smb.close(handle)

    def rename(self, old, new):
        self.smb.rename(old, new)

    def remove(self, name):
        self.smb.unlink(name)

    def names(self):
        return [entry["name"] for entry in self.smb.list("") if entry["name"] not in (".", "..")]

    def acl(self, name):
        return self.smb.get_acl(name, OWNER_GROUP_DACL).as_sddl()


session = Session(*sys.argv[1:])
print(json.dumps({"ok": None}), flush=True)
for line in sys.stdin:
    call, *arguments = json.loads(line)
    try:
        answer = {"ok": getattr(session, call)(*arguments)}
    except Exception as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
