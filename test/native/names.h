/* The common code of all boards: names, countdowns, lines about breaches. */
#ifndef GORAIL_TEST_NAMES_H
#define GORAIL_TEST_NAMES_H

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* Returns the index of a name among n, or -1. */
static inline int native_find(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

/* Counts down a "the n-th from now". Returns 1 when the count ends. 0 means none. */
static inline int native_hit(long *nth) { return *nth > 0 && --*nth == 0; }

/* Writes a line, truncated to fit with its '\n', and returns its length. */
static inline size_t native_line(char *to, size_t size, const char *format, va_list args)
{
    if (size < 2)
        return 0;
    int n = vsnprintf(to, size - 1, format, args);
    size_t len = n < 0 ? 0 : (size_t)n < size - 1 ? (size_t)n : size - 2;
    memcpy(to + len, "\n", 2);
    return len + 1;
}

#endif
