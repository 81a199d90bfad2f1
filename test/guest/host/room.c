#define _GNU_SOURCE
#include "host.h"

#include <errno.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Takes a user that has no other process. It still reads the files of root: only what lifts limits is given up. */
static void be_alone(void)
{
    const uid_t user = 1900000000u + (uid_t)getpid();
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct caps[2] = {{0, 0, 0}, {0, 0, 0}};
    caps[0].permitted = caps[0].effective = 1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH;
    if (prctl(PR_SET_KEEPCAPS, 1) || setresuid(user, user, user) || syscall(SYS_capset, &head, caps))
        fail("another user: %s", strerror(errno));
}

/* Lets a system call fail, as filters of containers do: its number, and from bit 16 on the error, EPERM for 0. It cannot be undone. */
static void refuse(unsigned long what)
{
    const unsigned call = what & 0xffff, error = what >> 16 ? (unsigned)(what >> 16) : EPERM;
    struct sock_filter list[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    const struct sock_fprog filter = {sizeof list / sizeof list[0], list};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter))
        fail("seccomp: %s", strerror(errno));
}

void limit(const char *what, unsigned long most)
{
    if (strcmp(what, "refused") == 0) {
        refuse(most);
        return;
    }
    if (strcmp(what, "proc") == 0) { /* the process has no /proc */
        if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) || umount2("/proc", MNT_DETACH))
            fail("no /proc: %s", strerror(errno));
        return;
    }
    const int threads = strcmp(what, "threads") == 0, files = strcmp(what, "files") == 0; /* files: the largest, in bytes */
    const rlim_t bytes = threads || files ? most : most << 20;
    const struct rlimit to = {bytes, bytes};
    if (threads)
        be_alone();
    if (setrlimit(threads ? RLIMIT_NPROC : files ? RLIMIT_FSIZE : RLIMIT_AS, &to))
        fail("setrlimit: %s", strerror(errno));
}
