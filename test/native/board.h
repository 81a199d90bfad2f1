/* The control board of an imitated library: tests change switches, read counters and inject faults by name, through dlsym. All imitated
 * libraries include this source. Before the include they define:
 *
 *     BOARD(name)                the library's own symbol name: ct_##name
 *     SWITCHES, COUNTERS, CALLS  the library's lists
 *     POLLS(call)                whether callers poll this call: "*" excludes such calls. Optional
 *
 * They also define a lock, BOARD(mu), which everything here takes or requires. Package board is the Go side.
 */
#include <pthread.h>

#include "names.h"

#ifndef POLLS
#define POLLS(call) 0
#endif
#define VALUE(name, value, what) value,
#define SWITCH(name, value, what) #name,
#define COUNTER(name, what) #name,
#define CALL(name) #name,

pthread_mutex_t BOARD(mu) = PTHREAD_MUTEX_INITIALIZER;
long BOARD(switch)[SW_COUNT] = {SWITCHES(VALUE)};
long BOARD(count)[CT_COUNT];

static const char *const switches[SW_COUNT] = {SWITCHES(SWITCH)};
static const char *const counters[CT_COUNT] = {COUNTERS(COUNTER)};
static const char *const calls[CALL_COUNT] = {CALLS(CALL)};
static struct fault {
    long nth, times;
    int err;
} faults[CALL_COUNT], any;
static long called; /* calls that can be made to fail */
static char breaches[4096];

static int due(struct fault *f)
{
    if (!native_hit(&f->nth))
        return 0;
    if (--f->times > 0)
        f->nth = 1;
    return f->err;
}

int BOARD(fails)(int call)
{
    int err = due(&faults[call]), other = 0;
    if (!POLLS(call)) {
        called++;
        other = due(&any);
    }
    return err ? err : other;
}

void BOARD(breach)(const char *what, ...)
{
    size_t used = strlen(breaches);
    va_list ap;
    va_start(ap, what);
    native_line(breaches + used, sizeof(breaches) - used, what, ap);
    va_end(ap);
}

/* Returns -1 if there is no such name. */
int BOARD(control_set)(const char *name, long value)
{
    int i = native_find(switches, SW_COUNT, name);
    if (i < 0)
        return -1;
    pthread_mutex_lock(&BOARD(mu));
    BOARD(switch)[i] = value;
    pthread_mutex_unlock(&BOARD(mu));
    return 0;
}

/* The n-th call from now with that name, or any call for "*", and the `times` - 1 calls after it, fail with err. nth 0:
 * none. */
int BOARD(control_fail)(const char *name, long nth, long times, int err)
{
    int i = native_find(calls, CALL_COUNT, name);
    if (i < 0 && strcmp(name, "*") != 0)
        return -1;
    pthread_mutex_lock(&BOARD(mu));
    *(i < 0 ? &any : &faults[i]) = (struct fault){nth, times, err};
    pthread_mutex_unlock(&BOARD(mu));
    return 0;
}

/* A counter, or for "*" the number of calls that could have failed. */
long BOARD(control_count)(const char *name)
{
    int i = native_find(counters, CT_COUNT, name);
    if (i < 0 && strcmp(name, "*") != 0)
        return -1;
    pthread_mutex_lock(&BOARD(mu));
    long n = i < 0 ? called : BOARD(count)[i];
    pthread_mutex_unlock(&BOARD(mu));
    return n;
}

/* Operations that a real library or device would not have accepted, one per line. */
void BOARD(control_breaches)(char *to, size_t len)
{
    pthread_mutex_lock(&BOARD(mu));
    snprintf(to, len, "%s", breaches);
    pthread_mutex_unlock(&BOARD(mu));
}
