"""A client of SMB 3 for what smbclient has no words for: PORT USER PASSWORD SHARE FILE lock|flush|SDDL.

lock: locks the first 100 bytes, says `held`, keeps the lock until its input ends.
flush: writes its file anew, has it flushed, says `flushed`, what it was answered, or `cut off`, and closes.
SDDL: gives the file this ACL, says `set` or what it was answered, then on one line the security descriptor that the file has.
"""

import sys

from impacket.smb3structs import (
    FILE_OPEN_IF, FILE_SHARE_READ, FILE_SHARE_WRITE, SMB2_FLUSH, SMB2_LOCK, SMB2_LOCK_ELEMENT,
    SMB2_LOCKFLAG_EXCLUSIVE_LOCK, SMB2_LOCKFLAG_FAIL_IMMEDIATELY, SMB2_QUERY_INFO, SMB2_SET_INFO, SMB2Flush, SMB2Lock,
    SMB2QueryInfo, SMB2QueryInfo_Response, SMB2SetInfo,
)
from impacket.nmb import NetBIOSError, NetBIOSTimeout
from impacket.smbconnection import SMBConnection

port, user, password, share, name, what = sys.argv[1:]
connection = SMBConnection("127.0.0.1", "127.0.0.1", sess_port=int(port), preferredDialect=0x0300)
connection.login(user, password)
tree = connection.connectTree(share)
file = connection.openFile(
    tree, name, desiredAccess=0x60003, shareMode=FILE_SHARE_READ | FILE_SHARE_WRITE, creationDisposition=FILE_OPEN_IF)
server = connection.getSMBServer()


def ask(command, request):
    packet = server.SMB_PACKET()
    packet["Command"], packet["TreeID"], packet["Data"] = command, tree, request
    return server.recvSMB(server.sendSMB(packet))


def word(answer, good):
    print(good if answer["Status"] == 0 else f"refused: {answer['Status']:#x}", flush=True)


if what == "lock":
    element = SMB2_LOCK_ELEMENT()
    element["Offset"], element["Length"] = 0, 100
    element["Flags"] = SMB2_LOCKFLAG_EXCLUSIVE_LOCK | SMB2_LOCKFLAG_FAIL_IMMEDIATELY
    request = SMB2Lock()
    request["FileID"], request["LockCount"], request["Locks"] = file, 1, element.getData()
    word(ask(SMB2_LOCK, request), "held")
    sys.stdin.read()
elif what == "flush":
    connection.writeFile(tree, file, b"flushed by a client")
    request = SMB2Flush()
    request["FileID"] = file
    try:
        word(ask(SMB2_FLUSH, request), "flushed")
    except NetBIOSTimeout:
        sys.exit("not answered")
    except (NetBIOSError, OSError):
        print("cut off", flush=True)
        sys.exit()
else:
    # Samba's, which make and read descriptors.
    from samba.dcerpc import security
    from samba.ndr import ndr_pack, ndr_unpack

    wanted = ndr_pack(security.descriptor.from_sddl(what, security.dom_sid("S-1-5-21-1-2-3")))
    request = SMB2SetInfo()
    # Of security, the ACL alone.
    request["InfoType"], request["AdditionalInformation"], request["FileID"] = 3, 4, file
    request["BufferLength"], request["Buffer"] = len(wanted), wanted
    word(ask(SMB2_SET_INFO, request), "set")
    request = SMB2QueryInfo()
    request["InfoType"], request["AdditionalInformation"], request["FileID"] = 3, 7, file
    request["OutputBufferLength"], request["Buffer"] = 65536, b""
    has = SMB2QueryInfo_Response(ask(SMB2_QUERY_INFO, request)["Data"])["Buffer"]
    print(ndr_unpack(security.descriptor, has).as_sddl(), flush=True)
connection.closeFile(tree, file)
