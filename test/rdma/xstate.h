/*
 * Part of the guests' kernel (tools/rdma-kernel.sh puts it in): sets the floating-point registers of a guest's process. The host takes
 * no state but a whole one, and UML of 6.12 keeps 2696 bytes of it. Where the host has AMX the whole is longer, and no guest would come
 * as far as its first process. What lies beyond stays in its initial state: no process in a guest can ask for it.
 */
#include <string.h>

static long set_xstate(int pid, const struct iovec *kept)
{
	static unsigned long whole[8192];
	static size_t size;
	struct iovec iov = { whole, size };

	if (!size) {
		iov.iov_len = sizeof(whole);
		if (ptrace(PTRACE_GETREGSET, pid, NT_X86_XSTATE, &iov) < 0)
			return -1;
		size = iov.iov_len;
		memset(whole, 0, sizeof(whole));
	}
	memcpy(whole, kept->iov_base, kept->iov_len);
	whole[512 / sizeof(long)] &= 0x3ff; /* the components that lie in what is kept: x87 to PKRU */
	return ptrace(PTRACE_SETREGSET, pid, NT_X86_XSTATE, &iov);
}
