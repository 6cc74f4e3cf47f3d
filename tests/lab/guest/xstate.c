/*
 * Lets User-Mode Linux 6.1 run on processors whose floating-point state is larger than it has room for.
 *
 * UML saves and loads its processes' state by ptrace with a buffer of about 2.7 KiB. On a host with AMX the state takes
 * 11 KiB; the host then truncates what is read, and refuses (EFAULT) to load less than all of it, whereupon the guest
 * panics in put_fp_registers. Preloaded into the guest's kernel, this reads and loads the whole state and shows UML the
 * front of it, where everything up to AVX-512 lies. What is behind it stays as the host has it: a guest that does not
 * know of AMX cannot use it.
 */
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* Twice what the largest state of today's processors takes. */
#define STATE_BYTES 24576

static long raw(int request, pid_t pid, void *address, void *data)
{
	return syscall(SYS_ptrace, (long)request, (long)pid, address, data);
}

/* UML's kernel stacks are too small to hold this. It has one thread that traces; see regset for its signals. */
static char state[STATE_BYTES];

static long transfer(int request, pid_t pid, void *address, struct iovec *asked)
{
	struct iovec whole = { state, sizeof(state) };
	long result = raw(PTRACE_GETREGSET, pid, address, &whole);

	if (result != 0)
		return result;
	if (request == PTRACE_GETREGSET) {
		if (asked->iov_len > whole.iov_len)
			asked->iov_len = whole.iov_len;
		memcpy(asked->iov_base, state, asked->iov_len);
		return 0;
	}
	memcpy(state, asked->iov_base, asked->iov_len < whole.iov_len ? asked->iov_len : whole.iov_len);
	return raw(PTRACE_SETREGSET, pid, address, &whole);
}

static long regset(int request, pid_t pid, void *address, struct iovec *asked)
{
	/* A signal is an interrupt to UML: its handler may switch to a task that comes by here as well. */
	const unsigned long all = ~0UL;
	unsigned long before;
	long result;
	int error;

	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, sizeof(before));
	result = transfer(request, pid, address, asked);
	error = errno;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, sizeof(before));
	errno = error;
	return result;
}

long ptrace(enum __ptrace_request request, ...)
{
	va_list arguments;
	pid_t pid;
	void *address, *data;
	long peeked, result;

	va_start(arguments, request);
	pid = va_arg(arguments, pid_t);
	address = va_arg(arguments, void *);
	data = va_arg(arguments, void *);
	va_end(arguments);
	switch (request) {
	case PTRACE_GETREGSET:
	case PTRACE_SETREGSET:
		if ((long)address == NT_X86_XSTATE)
			return regset(request, pid, address, data);
		break;
	case PTRACE_PEEKTEXT:
	case PTRACE_PEEKDATA:
	case PTRACE_PEEKUSER:
		/* The kernel stores what it read; the C library's function returns it. */
		result = raw(request, pid, address, &peeked);
		if (result < 0)
			return result;
		errno = 0;
		return peeked;
	default:
		break;
	}
	return raw(request, pid, address, data);
}
