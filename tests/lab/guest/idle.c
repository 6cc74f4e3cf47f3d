/*
 * Lets an idle User-Mode Linux 6.1 notice at once what arrives while it falls asleep.
 *
 * UML's interrupts are signals. Before it sleeps it asks whether its timer has run out and blocks only that timer's signal until it
 * does; a packet's SIGIO in these microseconds is marked as pending and then slept upon, until the timer wakes the kernel: up to
 * 10 ms. A server that answers just as its client goes idle is hit again and again (7 of 100 calls), one that is slower is not.
 * Preloaded into the guest's kernel, this makes the first sleep short. The kernel then looks at what is pending, as it does after
 * every sleep; only if nothing was, and so it comes back at once, it sleeps for as long as it likes.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
	FIRST_SLEEP_NS = 200 * 1000,
	/* From the end of the short sleep to the next: more means that there was something to do. */
	AT_ONCE_NS = 50 * 1000,
	KERNEL_SIGSET_BYTES = 8,
};

/* The kernel's own process. Its helpers wait for their signals with the same call and take its return for one. */
static pid_t kernel;

__attribute__((constructor)) static void remember_kernel(void)
{
	kernel = getpid();
}

static long long now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

int sigsuspend(const sigset_t *mask)
{
	static long long first_sleep_ended;
	struct timespec first = { 0, FIRST_SLEEP_NS };
	long result;

	if (getpid() != kernel || now_ns() - first_sleep_ended < AT_ONCE_NS)
		return syscall(SYS_rt_sigsuspend, mask, KERNEL_SIGSET_BYTES);
	result = syscall(SYS_ppoll, NULL, 0, &first, mask, KERNEL_SIGSET_BYTES);
	if (result == 0)
		first_sleep_ended = now_ns();
	/* As after a signal, whether there was one or not: whoever sleeps looks again. */
	errno = EINTR;
	return -1;
}
