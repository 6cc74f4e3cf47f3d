# Every error that a client can provoke through libnbd, with its own checks switched off.
import errno, nbd, sys

socket = sys.argv[1]
SIZE = 64 << 20


def connect(export, structured=True, name=True):
    h = nbd.NBD()
    h.set_request_structured_replies(structured)
    h.add_meta_context(nbd.CONTEXT_BASE_ALLOCATION)
    h.set_strict_mode(0)
    h.set_export_name(export)
    h.connect_unix(socket)
    return h


def refused(expected, call, *arguments):
    try:
        call(*arguments)
    except nbd.Error as error:
        assert error.errnum == expected, f"{call.__name__}{arguments[-2:]}: {error}, expected {errno.errorcode[expected]}"
        return
    raise AssertionError(f"{call.__name__} was allowed")


for structured in (True, False):
    h = connect("blocks", structured)
    page = bytearray(4096)
    refused(errno.EINVAL, h.pread, 4096, SIZE)
    refused(errno.EINVAL, h.pread, 512, 0)
    refused(errno.EINVAL, h.pread, 4096, 1)
    refused(errno.ENOSPC, h.pwrite, page, SIZE)
    refused(errno.EINVAL, h.pwrite, page[:512], 0)
    refused(errno.EINVAL, h.pwrite, page, 0, nbd.CMD_FLAG_DF)
    refused(errno.EINVAL, h.pread, 4096, 0, nbd.CMD_FLAG_REQ_ONE)
    refused(errno.EINVAL, h.trim, 4096, SIZE)
    refused(errno.ENOSPC, h.zero, 4096, SIZE)
    refused(errno.EINVAL, h.zero, 100, 0)
    refused(errno.ENOTSUP, h.zero, 4096, 0, nbd.CMD_FLAG_FAST_ZERO | nbd.CMD_FLAG_NO_HOLE)
    refused(errno.EINVAL, h.cache, 4096, SIZE)
    refused(errno.EINVAL, h.flush, nbd.CMD_FLAG_NO_HOLE)
    h.zero(4096, 0, nbd.CMD_FLAG_FAST_ZERO)
    h.pwrite(page, 0, nbd.CMD_FLAG_FUA)
    if structured:
        refused(errno.EINVAL, h.block_status, 4096, SIZE, lambda *_: 0)
        refused(errno.EOVERFLOW, h.pread, 33 << 20, 0)
        h.block_status(SIZE, 0, lambda *_: 0)
        h.block_status(SIZE, 0, lambda *_: 0, nbd.CMD_FLAG_REQ_ONE)
        assert h.pread(65536, 0, nbd.CMD_FLAG_DF) == bytearray(65536)
    else:
        refused(errno.EINVAL, h.pread, 4096, 0, nbd.CMD_FLAG_DF)
        refused(errno.EINVAL, h.pread, 33 << 20, 0)
    # After all this the connection still works.
    h.pwrite(b"\x07" * 4096, 8192)
    assert h.pread(4096, 8192) == b"\x07" * 4096
    h.shutdown()

h = connect("sealed")
assert h.is_read_only()
for call, arguments in [(h.pwrite, (bytearray(512), 0)), (h.trim, (512, 0)), (h.zero, (512, 0))]:
    refused(errno.EPERM, call, *arguments)
h.shutdown()

h = nbd.NBD()
h.set_opt_mode(True)
h.connect_unix(socket)
h.set_export_name("nowhere")
refused(errno.ENOENT, h.opt_info)
refused(errno.ENOENT, h.opt_go)
h.set_export_name("disk")
h.opt_info()
assert h.get_size() == SIZE
names = []
h.opt_list(lambda name, description: names.append(name) or 0)
assert names == ["blocks", "disk", "sealed", "wrapped"], names
contexts = []
h.add_meta_context("base:")
h.opt_list_meta_context(lambda name: contexts.append(name) or 0)
assert contexts == ["base:allocation"], contexts
h.opt_abort()

print("all error paths as specified")
