/* Records of breaches and of endpoints; locks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fab.h"
#include "names.h"

/* Writes each line with one write, because processes and threads share the file. */
static void append(const char *variable, const char *line, size_t len)
{
    const char *path = getenv(variable);
    int fd;
    if (!path || !*path)
        return;
    fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, line, len) != (ssize_t)len)
        perror(path);
    if (fd >= 0)
        close(fd);
}

void fab_breach(int kind, const char *rule, const char *format, ...)
{
    char line[512];
    va_list args;
    size_t n = (size_t)snprintf(line, sizeof(line), "%s %s: ", rule, fab_fabric_name(kind));
    va_start(args, format);
    n += native_line(line + n, sizeof(line) - n, format, args);
    va_end(args);
    fprintf(stderr, "fabric breach: %s", line);
    append("GORAIL_FABRIC_BREACHES", line, n);
    if (SW(kind, abort))
        abort();
}

void fab_opened(const fab_ep *ep)
{
    const fab_dom *dom = ep->dom;
    char line[256];
    int n = snprintf(line, sizeof(line), "%s%d tclass=%#x key=%u:%u tx=%zu rx=%zu cq=%zu threading=%s\n", fab_fabric_name(dom->kind), dom->rail,
                     ep->tclass, dom->service, dom->vni, ep->tx, ep->rx, ep->tx_cq->size, dom->one_thread ? "domain" : "safe");
    append("GORAIL_FABRIC_OPENED", line, (size_t)n);
}

void fab_lock(fab_dom *dom)
{
    if (pthread_mutex_trylock(&dom->mu) == 0)
        return;
    pthread_mutex_lock(&dom->mu);
    if (dom->one_thread && !dom->threads_reported) {
        dom->threads_reported = true;
        fab_breach(dom->kind, "threads", "concurrent calls on a domain with FI_THREAD_DOMAIN");
    }
}

void fab_unlock(fab_dom *dom) { pthread_mutex_unlock(&dom->mu); }

bool fab_is_closed(uint32_t state, int kind, const char *call)
{
    if (state == FAB_OPEN)
        return false;
    fab_breach(kind, strcmp(call, "fi_close") ? "use_after_close" : "double_close", "%s", call);
    return true;
}

int fab_busy(int kind, const char *what, const char *why)
{
    if (!SW(kind, close_order))
        return 0;
    fab_breach(kind, "close_busy", "%s closed before %s", what, why);
    return -FI_EBUSY;
}
