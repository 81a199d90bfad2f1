// Our own declarations of the used part of libnixl_capi.so, with bulk helpers. Handles are opaque, so all of them are
// void *.
#ifndef GORAIL_NIXLAPI_CAPI_H
#define GORAIL_NIXLAPI_CAPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// Returned in place of a status when the library lacks the function.
#define GN_MISSING (-1000)

typedef struct {
    bool prog_thread;
    bool listen_thread;
    int listen_port;
    int sync;
    unsigned int workers;
    uint64_t pthr_delay_us;
    uint64_t lthr_delay_us;
    bool telemetry;
} gn_config;

typedef struct {
    uint64_t addr;
    uint64_t len;
    uint64_t dev;
} gn_desc;

// X(name, parameters, arguments): one line per nixl_capi_* function used.
#define GN_CALLS(X)                                                                                                                                  \
    X(create_configured_agent, (const char *n, const gn_config *c, void **out), (n, c, out))                                                         \
    X(destroy_agent, (void *a), (a))                                                                                                                 \
    X(get_local_md, (void *a, void **d, size_t *n), (a, d, n))                                                                                       \
    X(get_local_partial_md, (void *a, void *l, void **d, size_t *n, void *o), (a, l, d, n, o))                                                       \
    X(load_remote_md, (void *a, const void *d, size_t n, char **name), (a, d, n, name))                                                              \
    X(invalidate_remote_md, (void *a, const char *name), (a, name))                                                                                  \
    X(send_local_md, (void *a, void *o), (a, o))                                                                                                     \
    X(fetch_remote_md, (void *a, const char *name, void *o), (a, name, o))                                                                           \
    X(invalidate_local_md, (void *a, void *o), (a, o))                                                                                               \
    X(check_remote_md, (void *a, const char *name, void *l), (a, name, l))                                                                           \
    X(get_available_plugins, (void *a, void **l), (a, l))                                                                                            \
    X(destroy_string_list, (void *l), (l))                                                                                                           \
    X(string_list_size, (void *l, size_t *n), (l, n))                                                                                                \
    X(string_list_get, (void *l, size_t i, const char **s), (l, i, s))                                                                               \
    X(get_plugin_params, (void *a, const char *p, void **mems, void **par), (a, p, mems, par))                                                       \
    X(get_backend_params, (void *a, void *b, void **mems, void **par), (a, b, mems, par))                                                            \
    X(destroy_mem_list, (void *l), (l))                                                                                                              \
    X(mem_list_size, (void *l, size_t *n), (l, n))                                                                                                   \
    X(mem_list_get, (void *l, size_t i, int *m), (l, i, m))                                                                                          \
    X(create_params, (void **p), (p))                                                                                                                \
    X(params_add, (void *p, const char *k, const char *v), (p, k, v))                                                                                \
    X(params_is_empty, (void *p, bool *e), (p, e))                                                                                                   \
    X(params_create_iterator, (void *p, void **it), (p, it))                                                                                         \
    X(params_iterator_next, (void *i, const char **k, const char **v, bool *m), (i, k, v, m))                                                        \
    X(params_destroy_iterator, (void *i), (i))                                                                                                       \
    X(destroy_params, (void *p), (p))                                                                                                                \
    X(create_backend, (void *a, const char *n, void *p, void **b), (a, n, p, b))                                                                     \
    X(destroy_backend, (void *b), (b))                                                                                                               \
    X(create_opt_args, (void **o), (o))                                                                                                              \
    X(destroy_opt_args, (void *o), (o))                                                                                                              \
    X(opt_args_add_backend, (void *o, void *b), (o, b))                                                                                              \
    X(opt_args_set_notif_msg, (void *o, const void *d, size_t n), (o, d, n))                                                                         \
    X(opt_args_set_has_notif, (void *o, bool h), (o, h))                                                                                             \
    X(opt_args_set_skip_desc_merge, (void *o, bool s), (o, s))                                                                                       \
    X(register_mem, (void *a, void *l, void *o), (a, l, o))                                                                                          \
    X(deregister_mem, (void *a, void *l, void *o), (a, l, o))                                                                                        \
    X(agent_make_connection, (void *a, const char *r, void *o), (a, r, o))                                                                           \
    X(prep_xfer_dlist, (void *a, const char *n, void *l, void **h, void *o), (a, n, l, h, o))                                                        \
    X(release_xfer_dlist_handle, (void *a, void *h), (a, h))                                                                                         \
    X(make_xfer_req, (void *a, int op, void *l, const int *li, size_t ln, void *r, const int *ri, size_t rn, void **q, void *o),                     \
      (a, op, l, li, ln, r, ri, rn, q, o))                                                                                                           \
    X(create_xfer_req, (void *a, int op, void *l, void *r, const char *n, void **q, void *o), (a, op, l, r, n, q, o))                                \
    X(estimate_xfer_cost, (void *a, void *q, void *o, int64_t *us, int64_t *err, int *m), (a, q, o, us, err, m))                                     \
    X(post_xfer_req, (void *a, void *q, void *o), (a, q, o))                                                                                         \
    X(get_xfer_status, (void *a, void *q), (a, q))                                                                                                   \
    X(query_xfer_backend, (void *a, void *q, void **b), (a, q, b))                                                                                   \
    X(release_xfer_req, (void *a, void *q), (a, q))                                                                                                  \
    X(destroy_xfer_req, (void *q), (q))                                                                                                              \
    X(create_xfer_dlist, (int m, void **l), (m, l))                                                                                                  \
    X(xfer_dlist_add_desc, (void *l, uintptr_t a, size_t n, uint64_t d), (l, a, n, d))                                                               \
    X(destroy_xfer_dlist, (void *l), (l))                                                                                                            \
    X(create_reg_dlist, (int m, void **l), (m, l))                                                                                                   \
    X(reg_dlist_add_desc, (void *l, uintptr_t a, size_t n, uint64_t d, const void *md, size_t mn), (l, a, n, d, md, mn))                             \
    X(destroy_reg_dlist, (void *l), (l))                                                                                                             \
    X(gen_notif, (void *a, const char *r, const void *d, size_t n, void *o), (a, r, d, n, o))                                                        \
    X(get_notifs, (void *a, void *m, void *o), (a, m, o))                                                                                            \
    X(create_notif_map, (void **m), (m))                                                                                                             \
    X(destroy_notif_map, (void *m), (m))                                                                                                             \
    X(notif_map_size, (void *m, size_t *n), (m, n))                                                                                                  \
    X(notif_map_get_agent_at, (void *m, size_t i, const char **n), (m, i, n))                                                                        \
    X(notif_map_get_notifs_size, (void *m, const char *n, size_t *s), (m, n, s))                                                                     \
    X(notif_map_get_notif, (void *m, const char *n, size_t i, const void **d, size_t *s), (m, n, i, d, s))                                           \
    X(notif_map_clear, (void *m), (m))

#define GN_DECLARE(name, params, args) int gn_##name params;
GN_CALLS(GN_DECLARE)
#undef GN_DECLARE

// gn_open loads the library and looks up every call. Returns the dlerror text or NULL.
const char *gn_open(const char *path);
// gn_preload loads one library globally. Returns the dlerror text or NULL.
const char *gn_preload(const char *path);

// Bulk: one cgo call for a whole list.
int gn_xfer_list(int mem, const gn_desc *d, size_t n, void **out);
int gn_reg_list(int mem, const gn_desc *d, size_t n, const void *meta, size_t meta_len, void **out);
// gn_notifs flattens the result of get_notifs into one malloc'ed block of {u32 sender len, u32 message len, sender,
// message}. *out is NULL if there are no notifications.
int gn_notifs(void *agent, void *map, uint8_t **out, size_t *len);
// gn_loop posts a request n times, each after the previous has completed. It writes the ns of every transfer and every
// post to lat and post unless they are NULL. The loop is in C so that the Go scheduler does not affect the times.
// Returns the last status.
int gn_loop(void *agent, void *req, size_t n, int64_t timeout_ns, int64_t *lat, int64_t *post, size_t *done);

// gn_stream keeps depth requests in flight and posts each again when it has ended, n posts in all. It sleeps nap_ns
// when none has ended.
enum { GN_MAX_DEPTH = 256 };
int gn_stream(void *agent, void *const *req, size_t depth, size_t n, int64_t timeout_ns, int64_t nap_ns, size_t *done);
// gn_same_backend compares the agent's backend behind two handles.
bool gn_same_backend(void *a, void *b);

#endif
