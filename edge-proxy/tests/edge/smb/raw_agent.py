"""A client of SMB 3.0 that says what no well-behaved one says: PORT USER PASSWORD SHARE; requests as JSON lines on standard input, answers on standard
output. Encrypted. A name is text, or a list of UTF-16 units, which need not be text."""

import json
import socket
import struct
import sys

from Cryptodome.Cipher import AES
from impacket.smb3structs import (
    SMB2_CHANGE_NOTIFY, SMB2_CLOSE, SMB2_CREATE, SMB2_IL_IMPERSONATION, SMB2_LOCK, SMB2_LOCK_ELEMENT, SMB2_LOCKFLAG_EXCLUSIVE_LOCK,
    SMB2_LOCKFLAG_FAIL_IMMEDIATELY, SMB2_LOCKFLAG_UNLOCK, SMB2_QUERY_DIRECTORY, SMB2_READ, SMB2_SET_INFO, SMB2_TRANSFORM_HEADER,
    SMB2_WRITE, SMB2ChangeNotify, SMB2Close, SMB2Create, SMB2Create_Response, SMB2Lock, SMB2Packet, SMB2QueryDirectory, SMB2Read,
    SMB2Read_Response, SMB2SetInfo, SMB2Write,
)
from impacket.smbconnection import SMBConnection

READ_WRITE, SHARE_ALL = 0x0012019F, 7
OPEN, OPEN_IF = 1, 3
DIRECTORY = 1
FULL_EA, RENAME = 15, 10
PENDING = 0x103
# As Linux numbers it: the socket is closed without a word to the other end.
TCP_REPAIR = 19


class Refused(Exception):
    def __init__(self, status):
        super().__init__(f"{status:#010x}")


def units(name):
    return struct.pack(f"<{len(name)}H", *name) if isinstance(name, list) else name.encode("utf-16le")


class Session:
    def __init__(self, port, user, password, share):
        self.connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=int(port), preferredDialect=0x0300, timeout=600)
        self.connection.login(user, password)
        self.tree = self.connection.connectTree(share)
        self.server = self.connection.getSMBServer()
        self.files = {}

    def receive(self):
        data = self.server._NetBIOSSession.recv_packet(600).get_trailer()
        header = SMB2_TRANSFORM_HEADER(data)
        cipher = AES.new(self.server._Session["DecryptionKey"], AES.MODE_CCM, header["Nonce"][:11])
        cipher.update(header.getData()[20:])
        return SMB2Packet(cipher.decrypt(data[len(SMB2_TRANSFORM_HEADER()):]))

    def ask(self, command, request, payload=0, good=(0,)):
        packet = self.server.SMB_PACKET()
        packet["Command"], packet["TreeID"], packet["Data"] = command, self.tree, request
        charge = 1 + max(payload - 1, 0) // 65536
        packet["CreditCharge"] = charge
        number = self.server.sendSMB(packet)
        self.server._Connection["SequenceWindow"] += charge - 1
        while True:
            answer = self.receive()
            # What comes late of a watch is nobody's.
            if answer["MessageID"] == number and (answer["Status"] != PENDING or PENDING in good):
                break
        if answer["Status"] not in good:
            raise Refused(answer["Status"])
        return answer

    def open(self, name, access=READ_WRITE, share=SHARE_ALL, disposition=OPEN, options=0):
        request, name = SMB2Create(), units(name)
        request["SecurityFlags"], request["RequestedOplockLevel"] = 0, 0
        request["ImpersonationLevel"], request["FileAttributes"] = SMB2_IL_IMPERSONATION, 0x80
        request["DesiredAccess"], request["ShareAccess"] = access, share
        request["CreateDisposition"], request["CreateOptions"] = disposition, options
        request["NameLength"], request["Buffer"] = len(name), name or b"\0"
        request["CreateContextsOffset"], request["CreateContextsLength"] = 0, 0
        number = len(self.files)
        self.files[number] = SMB2Create_Response(self.ask(SMB2_CREATE, request)["Data"])["FileID"]
        return number

    def opens(self, name, count):
        """Opens a file again and again; how often, and what the next was answered if not all."""
        for done in range(count):
            try:
                self.open(name)
            except Refused as refused:
                return [done, str(refused)]
        return [count, None]

    def close(self, handle):
        request = SMB2Close()
        request["FileID"] = self.files[handle]
        self.ask(SMB2_CLOSE, request)

    def make(self, name, directory=False):
        self.close(self.open(name, disposition=OPEN_IF, options=DIRECTORY if directory else 0))

    def read(self, handle, length):
        request = SMB2Read()
        request["Padding"], request["FileID"], request["Length"], request["Offset"] = 0x50, self.files[handle], length, 0
        return SMB2Read_Response(self.ask(SMB2_READ, request)["Data"])["Buffer"].decode()

    def write(self, handle, data, offset=0):
        request = SMB2Write()
        request["FileID"], request["Offset"] = self.files[handle], offset
        request["Length"], request["Buffer"] = len(data), data.encode()
        self.ask(SMB2_WRITE, request)

    def _lock(self, handle, first, count, length, flags):
        elements = b""
        for number in range(count):
            element = SMB2_LOCK_ELEMENT()
            element["Offset"], element["Length"], element["Flags"] = first + 2 * number * length, length, flags
            elements += element.getData()
        request = SMB2Lock()
        request["FileID"], request["LockCount"], request["Locks"] = self.files[handle], count, elements
        self.ask(SMB2_LOCK, request)

    def lock(self, handle, first=0, count=1, length=1):
        """So many ranges, each as far from the next as it is long; at once or not at all."""
        self._lock(handle, first, count, length, SMB2_LOCKFLAG_EXCLUSIVE_LOCK | SMB2_LOCKFLAG_FAIL_IMMEDIATELY)

    def unlock(self, handle, first=0, count=1, length=1):
        self._lock(handle, first, count, length, SMB2_LOCKFLAG_UNLOCK)

    def watch(self, name, count):
        """Watches a directory through so many opens of it: how many were taken, and what the next was answered if not all."""
        for done in range(count):
            try:
                handle = self.open(name, access=0x00100081, options=DIRECTORY)
                request = SMB2ChangeNotify()
                request["OutputBufferLength"], request["FileID"], request["CompletionFilter"] = 1024, self.files[handle], 0x17
                self.ask(SMB2_CHANGE_NOTIFY, request, good=(PENDING,))
            except Refused as refused:
                return [done, str(refused)]
        return [count, None]

    def _set(self, handle, kind, value):
        request = SMB2SetInfo()
        request["InfoType"], request["FileInfoClass"], request["FileID"] = 1, kind, self.files[handle]
        request["BufferLength"], request["Buffer"] = len(value), value
        self.ask(SMB2_SET_INFO, request, payload=len(value))

    def attribute(self, handle, name, length):
        """Gives it an extended attribute of so many bytes."""
        name = name.encode()
        self._set(handle, FULL_EA, struct.pack("<IBBH", 0, 0, len(name), length) + name + b"\0" + b"x" * length)

    def rename(self, handle, name):
        name = units(name)
        self._set(handle, RENAME, struct.pack("<B7xQI", 0, 0, len(name)) + name)

    def list(self, pattern):
        handle = self.open("", access=0x00100081, options=DIRECTORY)
        try:
            request, pattern = SMB2QueryDirectory(), units(pattern)
            request["FileInformationClass"], request["FileID"] = 0x0C, self.files[handle]
            request["FileNameLength"], request["OutputBufferLength"], request["Buffer"] = len(pattern), 65536, pattern
            self.ask(SMB2_QUERY_DIRECTORY, request)
        finally:
            self.close(handle)

    def vanish(self):
        """As if the machine had lost its power: the server hears nothing of it."""
        connected = self.server._NetBIOSSession.get_socket()
        connected.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
        connected.close()


session = Session(*sys.argv[1:])
print(json.dumps({"ok": None}), flush=True)
for line in sys.stdin:
    call, *arguments = json.loads(line)
    try:
        answer = {"ok": getattr(session, call)(*arguments)}
    except Refused as refused:
        answer = {"error": str(refused)}
    print(json.dumps(answer), flush=True)
