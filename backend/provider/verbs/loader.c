/* Loads libibverbs by path. The versions are those of the structures in the header we are compiled with; they have not
 * changed since rdma-core began. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "verbs.h"

static int resolve(vb_lib *lib, char *err, size_t err_len)
{
    const struct {
        void **to;
        const char *name, *version;
        int optional;
    } want[] = {
        { (void **)&lib->get_device_list, "ibv_get_device_list", "IBVERBS_1.1", 0 },
        { (void **)&lib->free_device_list, "ibv_free_device_list", "IBVERBS_1.1", 0 },
        { (void **)&lib->open_device, "ibv_open_device", "IBVERBS_1.1", 0 },
        { (void **)&lib->close_device, "ibv_close_device", "IBVERBS_1.1", 0 },
        { (void **)&lib->query_device, "ibv_query_device", "IBVERBS_1.1", 0 },
        { (void **)&lib->query_port, "ibv_query_port", "IBVERBS_1.1", 0 },
        { (void **)&lib->alloc_pd, "ibv_alloc_pd", "IBVERBS_1.1", 0 },
        { (void **)&lib->dealloc_pd, "ibv_dealloc_pd", "IBVERBS_1.1", 0 },
        { (void **)&lib->reg_mr, "ibv_reg_mr", "IBVERBS_1.1", 0 },
        { (void **)&lib->reg_mr_iova2, "ibv_reg_mr_iova2", "IBVERBS_1.8", 1 },
        { (void **)&lib->reg_dmabuf_mr, "ibv_reg_dmabuf_mr", "IBVERBS_1.12", 1 },
        { (void **)&lib->dereg_mr, "ibv_dereg_mr", "IBVERBS_1.1", 0 },
        { (void **)&lib->create_comp_channel, "ibv_create_comp_channel", "IBVERBS_1.0", 0 },
        { (void **)&lib->destroy_comp_channel, "ibv_destroy_comp_channel", "IBVERBS_1.0", 0 },
        { (void **)&lib->create_cq, "ibv_create_cq", "IBVERBS_1.1", 0 },
        { (void **)&lib->resize_cq, "ibv_resize_cq", "IBVERBS_1.1", 0 },
        { (void **)&lib->destroy_cq, "ibv_destroy_cq", "IBVERBS_1.1", 0 },
        { (void **)&lib->get_cq_event, "ibv_get_cq_event", "IBVERBS_1.1", 0 },
        { (void **)&lib->ack_cq_events, "ibv_ack_cq_events", "IBVERBS_1.1", 0 },
        { (void **)&lib->create_qp, "ibv_create_qp", "IBVERBS_1.1", 0 },
        { (void **)&lib->modify_qp, "ibv_modify_qp", "IBVERBS_1.1", 0 },
        { (void **)&lib->destroy_qp, "ibv_destroy_qp", "IBVERBS_1.1", 0 },
        { (void **)&lib->get_async_event, "ibv_get_async_event", "IBVERBS_1.1", 0 },
        { (void **)&lib->ack_async_event, "ibv_ack_async_event", "IBVERBS_1.1", 0 },
        { (void **)&lib->event_type_str, "ibv_event_type_str", "IBVERBS_1.1", 0 },
        { (void **)&lib->fork_init, "ibv_fork_init", "IBVERBS_1.1", 1 },
    };
    for (size_t i = 0; i < sizeof(want) / sizeof(want[0]); i++) {
        *want[i].to = dlvsym(lib->dl, want[i].name, want[i].version);
        if (!*want[i].to && !want[i].optional) {
            snprintf(err, err_len, "it has no %s@%s (not libibverbs, or older than rdma-core)", want[i].name, want[i].version);
            return -1;
        }
    }
    return 0;
}

vb_lib *vb_load(const char *path, char *err, size_t err_len)
{
    vb_lib *lib = calloc(1, sizeof(*lib));
    err[0] = 0;
    if (!lib) {
        snprintf(err, err_len, "out of memory");
        return NULL;
    }
    lib->dl = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!lib->dl)
        snprintf(err, err_len, "%s", dlerror());
    else if (resolve(lib, err, err_len) == 0) {
        /* Before kernel 5.13 a fork would part registered pages from the device. Newer ones need nothing, and it does nothing. */
        if (lib->fork_init)
            (void)lib->fork_init();
        return lib;
    }
    free(lib);
    return NULL;
}
