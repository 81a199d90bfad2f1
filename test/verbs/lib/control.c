/* Control by tests: found by dlsym. All take the lock. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "vt.h"

#define VALUE(name, value, what) value,
#define SWITCH(name, value, what) #name,
#define COUNTER(name, what) #name,
#define CALL(name) #name,

pthread_mutex_t vt_mu = PTHREAD_MUTEX_INITIALIZER;
long vt_switch[SW_COUNT] = { VT_SWITCHES(VALUE) };
long vt_count[CT_COUNT];

static const char *const switches[SW_COUNT] = { VT_SWITCHES(SWITCH) };
static const char *const counters[CT_COUNT] = { VT_COUNTERS(COUNTER) };
static const char *const calls[CALL_COUNT] = { VT_CALLS(CALL) };
static struct { long nth, times; int err; } faults[CALL_COUNT];
static char breaches[4096];

static int find(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return -1;
}

int vt_fails(int call)
{
    if (!faults[call].nth || --faults[call].nth)
        return 0;
    if (--faults[call].times > 0)
        faults[call].nth = 1;
    return faults[call].err;
}

int vt_hit(long *nth)
{
    return *nth > 0 && --*nth == 0;
}

void vt_breach(const char *what, ...)
{
    size_t used = strlen(breaches);
    va_list ap;
    va_start(ap, what);
    vsnprintf(breaches + used, sizeof(breaches) - used, what, ap);
    va_end(ap);
    used = strlen(breaches);
    snprintf(breaches + used, sizeof(breaches) - used, "\n");
}

/* -1: no such name. */
int vt_control_set(const char *name, long value)
{
    int i = find(switches, SW_COUNT, name);
    if (i < 0)
        return -1;
    pthread_mutex_lock(&vt_mu);
    vt_switch[i] = value;
    pthread_mutex_unlock(&vt_mu);
    return 0;
}

/* The n-th call from now, and `times` - 1 after it, fail with err; nth 0: none. */
int vt_control_fail(const char *name, long nth, long times, int err)
{
    int i = find(calls, CALL_COUNT, name);
    if (i < 0)
        return -1;
    pthread_mutex_lock(&vt_mu);
    faults[i].nth = nth;
    faults[i].times = times;
    faults[i].err = err;
    pthread_mutex_unlock(&vt_mu);
    return 0;
}

long vt_control_count(const char *name)
{
    int i = find(counters, CT_COUNT, name);
    if (i < 0)
        return -1;
    pthread_mutex_lock(&vt_mu);
    long n = vt_count[i];
    pthread_mutex_unlock(&vt_mu);
    return n;
}

/* Counts of requests start anew; those of open objects stay. */
void vt_control_zero(void)
{
    pthread_mutex_lock(&vt_mu);
    for (int i = CT_writes; i < CT_COUNT; i++)
        vt_count[i] = 0;
    pthread_mutex_unlock(&vt_mu);
}

/* All queue pairs go to ERR. */
void vt_control_break(void)
{
    pthread_mutex_lock(&vt_mu);
    for (vt_qp *qp = vt_qps; qp; qp = qp->next)
        vt_break(qp);
    pthread_mutex_unlock(&vt_mu);
}

/* What was done that a real library or device would not have borne, a line each. */
void vt_control_breaches(char *to, size_t len)
{
    pthread_mutex_lock(&vt_mu);
    snprintf(to, len, "%s", breaches);
    pthread_mutex_unlock(&vt_mu);
}

/* Raises an event of a port, or of the device, at everyone who has it open. How many that are. */
int vt_control_event(int device, int type, int port)
{
    struct ibv_async_event ev = { .element.port_num = port, .event_type = (enum ibv_event_type)type };
    int n = 0;
    pthread_mutex_lock(&vt_mu);
    for (vt_ctx *c = vt_contexts; c; c = c->next)
        if (c->device == device) {
            vt_raise(&c->events, NULL, &ev);
            n++;
        }
    pthread_mutex_unlock(&vt_mu);
    return n;
}

/* nvidia_peermem is loaded, and knows memory of these GPUs; NULL: it isn't. */
void vt_control_peermem(int (*find)(uint64_t addr, uint64_t size))
{
    pthread_mutex_lock(&vt_mu);
    vt_peermem = find;
    pthread_mutex_unlock(&vt_mu);
}
