/* Who is at the other end of a connected socket: see ipc/creds.go. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "local.h"

/* Users without a number in this user namespace all look like one. Whether this number could stand for them. */
static int ambiguous(uid_t uid)
{
    unsigned overflow = 65534, inner, outer, n = 0;
    FILE *f = fopen("/proc/sys/kernel/overflowuid", "re");
    if (f) {
        if (fscanf(f, "%u", &overflow) != 1)
            overflow = 65534;
        fclose(f);
    }
    if (uid != overflow)
        return 0;
    f = fopen("/proc/self/uid_map", "re");
    if (f) {
        if (fscanf(f, "%u %u %u", &inner, &outer, &n) != 3)
            n = 0;
        fclose(f);
    }
    return n != UINT32_MAX; /* all users have numbers here: this one is nobody else */
}

int lc_check_user(int sock, pid_t *pid)
{
    struct ucred who = { 0 };
    socklen_t len = sizeof(who);
    if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0)
        return -errno;
    if (who.uid != geteuid())
        return -EACCES;
    if (ambiguous(who.uid))
        return -EOVERFLOW;
    if (who.pid <= 0) /* it lives in a pid namespace that has no number for it here */
        return -ENOTSUP;
    *pid = who.pid;
    return 0;
}
