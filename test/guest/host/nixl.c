// Two NIXL agents in this process, and transfers between them whose bytes are compared.
#include "host.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "capi.h"

enum { SIZE = 1 << 20, IN_PROGRESS = 1 };

struct end {
    void *agent, *backend, *only;
    char *mem;
};

struct pair {
    struct end a, b;
    void *requests[2]; // WRITE, READ
    unsigned long done;
};

static void must(int rc, const char *what)
{
    if (rc < 0)
        fail("%s: NIXL status %d", what, rc);
}

static void begin(struct end *e, const char *name, const char *backend)
{
    const gn_config config = {.prog_thread = true};
    void *params, *list;
    must(gn_create_configured_agent(name, &config, &e->agent), "create_configured_agent");
    must(gn_create_params(&params), "create_params");
    must(gn_create_backend(e->agent, backend, params, &e->backend), "create_backend");
    must(gn_create_opt_args(&e->only), "create_opt_args");
    must(gn_opt_args_add_backend(e->only, e->backend), "opt_args_add_backend");
    e->mem = malloc(SIZE);
    memset(e->mem, 1, SIZE);
    const gn_desc whole = {(uint64_t)(uintptr_t)e->mem, SIZE, 0};
    must(gn_reg_list(0, &whole, 1, NULL, 0, &list), "reg_list");
    must(gn_register_mem(e->agent, list, e->only), "register_mem");
    gn_destroy_reg_dlist(list);
    gn_destroy_params(params);
}

int another(const char *backend)
{
    const gn_config config = {.prog_thread = true};
    void *agent, *params, *made;
    must(gn_create_configured_agent("carol", &config, &agent), "create_configured_agent");
    must(gn_create_params(&params), "create_params");
    const int rc = gn_create_backend(agent, backend, params, &made);
    gn_destroy_params(params);
    gn_destroy_agent(agent);
    return rc;
}

static void know(struct end *of, struct end *at)
{
    void *text;
    size_t len;
    char *name;
    must(gn_get_local_md(of->agent, &text, &len), "get_local_md");
    must(gn_load_remote_md(at->agent, text, len, &name), "load_remote_md");
}

struct pair *pair_new(const char *library, const char *backend)
{
    const char *wrong = gn_open(library);
    if (wrong)
        fail("%s", wrong);
    struct pair *p = calloc(1, sizeof *p);
    begin(&p->a, "alice", backend);
    begin(&p->b, "bob", backend);
    know(&p->a, &p->b);
    know(&p->b, &p->a);
    for (int op = 0; op < 2; op++) { // 0 READ, 1 WRITE
        const gn_desc here = {(uint64_t)(uintptr_t)p->a.mem, SIZE / 2, 0}, there = {(uint64_t)(uintptr_t)p->b.mem, SIZE / 2, 0};
        void *local, *remote;
        must(gn_xfer_list(0, &here, 1, &local), "xfer_list");
        must(gn_xfer_list(0, &there, 1, &remote), "xfer_list");
        must(gn_create_xfer_req(p->a.agent, op, local, remote, "bob", &p->requests[op], p->a.only), "create_xfer_req");
        gn_destroy_xfer_dlist(local);
        gn_destroy_xfer_dlist(remote);
    }
    pair_turn(p);
    return p;
}

static void finish(struct pair *p, int op)
{
    const time_t end = time(NULL) + 60;
    int rc = gn_post_xfer_req(p->a.agent, p->requests[op], p->a.only);
    while (rc == IN_PROGRESS && time(NULL) < end)
        rc = gn_get_xfer_status(p->a.agent, p->requests[op]);
    if (rc)
        fail("%s: NIXL status %d", op ? "WRITE" : "READ", rc);
}

void pair_turn(struct pair *p)
{
    const int byte = (int)(++p->done & 0x7f);
    memset(p->a.mem, byte, SIZE / 2);
    finish(p, 1);
    if (memcmp(p->a.mem, p->b.mem, SIZE / 2))
        fail("bytes differ after a WRITE");
    memset(p->b.mem, byte ^ 0x55, SIZE / 2);
    finish(p, 0);
    if (memcmp(p->a.mem, p->b.mem, SIZE / 2))
        fail("bytes differ after a READ");
}

void pair_end(struct pair *p)
{
    for (int op = 0; op < 2; op++)
        must(gn_release_xfer_req(p->a.agent, p->requests[op]), "release_xfer_req");
    gn_destroy_agent(p->a.agent);
    gn_destroy_agent(p->b.agent);
}
