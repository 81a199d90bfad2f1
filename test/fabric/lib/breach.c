/* Breaches of rules, recorded. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fab.h"

/* One line in one write: processes and threads share the file. */
void fab_breach(int kind, const char *rule, const char *format, ...)
{
    const char *path = getenv("GORAIL_FABRIC_BREACHES");
    char line[512];
    va_list args;
    int n = snprintf(line, sizeof(line), "%s %s: ", rule, fab_fabric_name(kind));
    va_start(args, format);
    n += vsnprintf(line + n, sizeof(line) - (size_t)n, format, args);
    va_end(args);
    if (n > (int)sizeof(line) - 2)
        n = (int)sizeof(line) - 2;
    line[n] = '\n';
    line[n + 1] = 0;
    fprintf(stderr, "fabric breach: %s", line);
    if (path && *path) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
        if (fd < 0 || write(fd, line, (size_t)n + 1) != n + 1)
            perror(path);
        if (fd >= 0)
            close(fd);
    }
    if (SW(kind, abort))
        abort();
}

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
