/* For hosts whose processors have more extended state (AMX) than a User Mode Linux 6.1 kernel knows. Preload this into
 * the kernel.
 *
 * Linux accepts the extended state of a traced process only as a whole (arch/x86/kernel/fpu/regset.c, xstateregs_set):
 * otherwise it fails with EFAULT, and the kernel's first process dies. The kernel has the beginning of the standard
 * format. The tiles are at its end, and are empty until a process requests them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdarg.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/types.h>
#include <sys/uio.h>

enum { MOST_BYTES = 1 << 16 };

/* Under its own name, so that the declaration of a header need not be met. */
long traced(int request, ...) __asm__("ptrace");

long traced(int request, ...)
{
	static long (*real)(int, pid_t, void *, void *);
	static unsigned char whole[MOST_BYTES];
	static struct iovec all = { whole, 0 };
	va_list arguments;

	va_start(arguments, request);
	pid_t pid = va_arg(arguments, pid_t);
	void *address = va_arg(arguments, void *), *data = va_arg(arguments, void *);
	va_end(arguments);
	if (!real)
		real = (long (*)(int, pid_t, void *, void *))dlsym(RTLD_NEXT, "ptrace");
	if (request != PTRACE_SETREGSET || (long)address != NT_X86_XSTATE)
		return real(request, pid, address, data);

	const struct iovec *given = data;
	if (!all.iov_len) { /* how much the host has, and what the rest is when it is empty */
		all.iov_len = MOST_BYTES;
		if (real(PTRACE_GETREGSET, pid, address, &all)) {
			all.iov_len = 0;
			return -1;
		}
	}
	if (given->iov_len >= all.iov_len)
		return real(request, pid, address, data);
	memcpy(whole, given->iov_base, given->iov_len);
	struct iovec set = all;
	return real(request, pid, address, &set);
}
