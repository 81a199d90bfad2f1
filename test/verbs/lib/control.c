/* Control by tests: found by dlsym. All take the lock. */
#include "vt.h"

#define BOARD(name) vt_##name
#define SWITCHES VT_SWITCHES
#define COUNTERS VT_COUNTERS
#define CALLS VT_CALLS
#include "board.h"

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
