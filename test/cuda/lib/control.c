/* Control by tests: found by dlsym. All take the lock. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ct.h"

#define VALUE(name, value, what) value,
#define SWITCH(name, value, what) #name,
#define COUNTER(name, what) #name,
#define CALL(name) #name,

pthread_mutex_t ct_mu = PTHREAD_MUTEX_INITIALIZER;
long ct_switch[SW_COUNT] = { CT_SWITCHES(VALUE) };
long ct_count[CT_COUNT];
int ct_dead;

static const char *const switches[SW_COUNT] = { CT_SWITCHES(SWITCH) };
static const char *const counters[CT_COUNT] = { CT_COUNTERS(COUNTER) };
static const char *const calls[CALL_COUNT] = { CT_CALLS(CALL) };
static struct { long nth, times; int err; } faults[CALL_COUNT];
static char breaches[4096];

static int find(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

int ct_fails(int call)
{
    if (!faults[call].nth || --faults[call].nth)
        return 0;
    if (--faults[call].times > 0)
        faults[call].nth = 1;
    return faults[call].err;
}

void ct_breach(const char *what, ...)
{
    size_t used = strlen(breaches);
    va_list ap;
    va_start(ap, what);
    vsnprintf(breaches + used, sizeof(breaches) - used, what, ap);
    va_end(ap);
    used = strlen(breaches);
    snprintf(breaches + used, sizeof(breaches) - used, "\n");
}

int ct_control_set(const char *name, long value)
{
    int i = find(switches, SW_COUNT, name);
    if (i < 0)
        return -1;
    pthread_mutex_lock(&ct_mu);
    ct_switch[i] = value;
    pthread_mutex_unlock(&ct_mu);
    return 0;
}

/* The n-th call from now, and `times` - 1 after it, fail with err; nth 0: none. */
int ct_control_fail(const char *name, long nth, long times, int err)
{
    int i = find(calls, CALL_COUNT, name);
    if (i < 0)
        return -1;
    pthread_mutex_lock(&ct_mu);
    faults[i].nth = nth;
    faults[i].times = times;
    faults[i].err = err;
    pthread_mutex_unlock(&ct_mu);
    return 0;
}

long ct_control_count(const char *name)
{
    int i = find(counters, CT_COUNT, name);
    if (i < 0)
        return -1;
    pthread_mutex_lock(&ct_mu);
    long n = ct_count[i];
    pthread_mutex_unlock(&ct_mu);
    return n;
}

/* What is open, "name number" each. */
void ct_control_open(char *to, size_t len)
{
    pthread_mutex_lock(&ct_mu);
    *to = 0;
    for (int i = 0; i < CT_launches; i++)
        if (ct_count[i])
            snprintf(to + strlen(to), len - strlen(to), "%s %ld\n", counters[i], ct_count[i]);
    pthread_mutex_unlock(&ct_mu);
}

/* What was done that a real driver would not have borne, a line each. */
void ct_control_breaches(char *to, size_t len)
{
    pthread_mutex_lock(&ct_mu);
    snprintf(to, len, "%s", breaches);
    pthread_mutex_unlock(&ct_mu);
}

/* CUDA ends for this process with that result. */
void ct_control_kill(int result)
{
    pthread_mutex_lock(&ct_mu);
    ct_dead = result;
    pthread_mutex_unlock(&ct_mu);
}
