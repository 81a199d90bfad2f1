#define _GNU_SOURCE
#include "turns.h"

#include <errno.h>
#include <string.h>
#include <sys/uio.h>

int gn_turns(void *agent, void *const *req, size_t n, int64_t time_ns, int64_t limit_ns, gn_hist *post, gn_hist *turn)
{
    int64_t begin = gn_now_ns(), start = begin;
    do {
        for (size_t i = 0; i < n; i++) {
            int64_t t0 = gn_now_ns();
            int s = gn_post_xfer_req(agent, req[i], NULL);
            if (s < 0)
                return s;
            gn_hist_add(post, gn_now_ns() - t0);
        }
        for (size_t i = 0; i < n; i++) {
            int s = 1;
            for (unsigned polls = 1; (s = gn_get_xfer_status(agent, req[i])) == 1; polls++)
                if (polls % 256 == 0 && gn_now_ns() - begin > limit_ns)
                    return 1;
            if (s < 0)
                return s;
        }
        int64_t end = gn_now_ns();
        gn_hist_add(turn, end - start);
        start = end;
    } while (start - begin < time_ns);
    return 0;
}

uint64_t gn_copy(const gn_desc *to, const gn_desc *from, size_t n, int64_t end_ns)
{
    uint64_t times = 0;
    do {
        for (size_t i = 0; i < n; i++)
            memcpy((void *)(uintptr_t)to[i].addr, (const void *)(uintptr_t)from[i].addr, to[i].len); /* both are the caller's own */
        times++;
    } while (gn_now_ns() < end_ns);
    return times;
}

int gn_vm_read(pid_t pid, const gn_desc *to, const gn_desc *from, size_t n, uint64_t turns, gn_hist *took)
{
    while (turns--)
        for (size_t i = 0; i < n; i++) {
            struct iovec here = {(void *)(uintptr_t)to[i].addr, to[i].len}, there = {(void *)(uintptr_t)from[i].addr, from[i].len};
            int64_t t0 = gn_now_ns();
            ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
            if (got != (ssize_t)to[i].len)
                return got < 0 ? errno : EIO;
            gn_hist_add(took, gn_now_ns() - t0);
        }
    return 0;
}
