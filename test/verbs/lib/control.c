/* Control by tests, which find these functions with dlsym. All take the lock. */
#include <string.h>

#include "vt.h"

#define BOARD(name) vt_##name
#define SWITCHES VT_SWITCHES
#define COUNTERS VT_COUNTERS
#define CALLS VT_CALLS
#include "board.h"

/* Resets the counters from `writes` on. The counters above, most of them of open objects, stay. */
void vt_control_zero(void)
{
    pthread_mutex_lock(&vt_mu);
    for (int i = CT_writes; i < CT_COUNT; i++)
        vt_count[i] = 0;
    pthread_mutex_unlock(&vt_mu);
}

/* Moves all queue pairs to ERR. */
void vt_control_break(void)
{
    pthread_mutex_lock(&vt_mu);
    for (vt_qp *qp = vt_qps; qp; qp = qp->next)
        vt_break(qp);
    pthread_mutex_unlock(&vt_mu);
}

/* Raises an event of a port, or of the device, in every context that has the device open. Returns the number of these contexts. */
int vt_control_event(int device, int type, int port)
{
    struct ibv_async_event ev = {.element.port_num = port, .event_type = (enum ibv_event_type)type};
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

/* Loads nvidia_peermem with this function; NULL unloads the module. */
void vt_control_peermem(int (*find)(uint64_t addr, uint64_t size))
{
    pthread_mutex_lock(&vt_mu);
    vt_peermem = find;
    pthread_mutex_unlock(&vt_mu);
}

/* Sets an entry of a device's GID table; zero: empty. */
int vt_control_gid(int device, int index, const void *gid)
{
    if (device < 0 || device >= VT_DEVICES || index < 0 || index >= VT_GIDS)
        return -1;
    pthread_mutex_lock(&vt_mu);
    memcpy(&vt_gids[device][index], gid, sizeof(vt_gids[device][index]));
    vt_gid_tables = 1;
    pthread_mutex_unlock(&vt_mu);
    return 0;
}
