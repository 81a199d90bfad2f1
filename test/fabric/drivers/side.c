/* See side.h. */
#include "side.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

side a, b;
struct fi_info *info;
int threading;
struct fi_context2 ctx[DONE];

static int (*lib_getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
static int (*lib_fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *);
static struct fi_info *(*lib_dupinfo)(const struct fi_info *);
static void (*lib_freeinfo)(struct fi_info *);
static uint32_t (*lib_version)(void);

void check(bool ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "failed: %s (error %d, %d)\n", what, a.err, a.prov_err);
        exit(3);
    }
}

void load(const char *path)
{
    void *dl = dlopen(path, RTLD_NOW);
    if (!dl) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    *(void **)&lib_getinfo = dlsym(dl, "fi_getinfo");
    *(void **)&lib_fabric = dlsym(dl, "fi_fabric");
    *(void **)&lib_dupinfo = dlsym(dl, "fi_dupinfo");
    *(void **)&lib_freeinfo = dlsym(dl, "fi_freeinfo");
    *(void **)&lib_version = dlsym(dl, "fi_version");
    CHECK(lib_getinfo && lib_fabric && lib_dupinfo && lib_freeinfo && lib_version);
}

uint32_t version(void) { return lib_version(); }

int getinfo(uint32_t api, uint64_t mode, int type, struct fi_info **out)
{
    struct fi_info *hints = lib_dupinfo(NULL);
    int rc;
    hints->caps = FI_RMA | FI_MSG;
    hints->mode = mode;
    hints->ep_attr->type = type;
    hints->domain_attr->threading = (enum fi_threading)threading;
    hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    rc = lib_getinfo(api, NULL, NULL, 0, hints, out);
    lib_freeinfo(hints);
    return rc;
}

void open_side(side *s, bool enable)
{
    struct fi_av_attr av = {.type = FI_AV_UNSPEC};
    struct fi_cq_attr cq = {.size = 1024, .format = FI_CQ_FORMAT_MSG, .wait_obj = FI_WAIT_FD};
    size_t len = ADDR;
    if (!info)
        CHECK(getinfo(FI_VERSION(2, 1), FI_CONTEXT | FI_CONTEXT2, FI_EP_RDM, &info) == 0);
    s->mem = mmap(NULL, MEM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(s->mem != MAP_FAILED);
    CHECK(lib_fabric(info->fabric_attr, &s->fabric, NULL) == 0);
    CHECK(fi_domain(s->fabric, info, &s->domain, NULL) == 0);
    CHECK(fi_av_open(s->domain, &av, &s->av, NULL) == 0);
    if (fi_cq_open(s->domain, &cq, &s->cq, NULL)) {
        cq.wait_obj = FI_WAIT_NONE;
        CHECK(fi_cq_open(s->domain, &cq, &s->cq, NULL) == 0);
    }
    CHECK(fi_endpoint(s->domain, info, &s->ep, NULL) == 0);
    CHECK(fi_ep_bind(s->ep, &s->av->fid, 0) == 0);
    CHECK(fi_ep_bind(s->ep, &s->cq->fid, FI_SEND | FI_RECV) == 0);
    s->peer = FI_ADDR_NOTAVAIL;
    if (enable) {
        CHECK(fi_enable(s->ep) == 0);
        CHECK(fi_getname(&s->ep->fid, s->addr, &len) == 0 && len == ADDR);
    }
}

struct fid_mr *region(side *s, void *mem, size_t len, uint64_t access, uint64_t key)
{
    struct fid_mr *mr = NULL;
    CHECK(fi_mr_reg(s->domain, mem, len, access, 0, key, 0, &mr, NULL) == 0);
    if (info->domain_attr->mr_mode & FI_MR_ENDPOINT) {
        CHECK(fi_mr_bind(mr, &s->ep->fid, 0) == 0);
        CHECK(fi_mr_enable(mr) == 0);
    }
    return mr;
}

void connect_sides(void)
{
    CHECK(fi_av_insert(a.av, b.addr, 1, &a.peer, 0, NULL) == 1);
    CHECK(fi_av_insert(b.av, a.addr, 1, &b.peer, 0, NULL) == 1);
}

void open_sides(void)
{
    const uint64_t all = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
    open_side(&a, true);
    open_side(&b, true);
    a.mr = region(&a, a.mem, MEM, all, 1);
    b.mr = region(&b, b.mem, MEM, all, 2);
}

void setup(void)
{
    open_sides();
    connect_sides();
}

void close_side(side *s)
{
    if (s->mr)
        CHECK(fi_close(&s->mr->fid) == 0);
    CHECK(fi_close(&s->ep->fid) == 0);
    CHECK(fi_close(&s->cq->fid) == 0);
    CHECK(fi_close(&s->av->fid) == 0);
    CHECK(fi_close(&s->domain->fid) == 0);
    CHECK(fi_close(&s->fabric->fid) == 0);
}

uint64_t remote_base(void) { return info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uint64_t)(uintptr_t)b.mem : 0; }

int rma(bool write, int n, uint64_t local, uint64_t remote, size_t len, uint64_t key, uint64_t flags)
{
    struct iovec iov = {.iov_base = a.mem + local, .iov_len = len};
    struct fi_rma_iov to = {.addr = remote_base() + remote, .len = len, .key = key};
    void *desc = a.mr ? fi_mr_desc(a.mr) : NULL;
    struct fi_msg_rma msg = {.msg_iov = &iov, .desc = &desc, .iov_count = 1, .addr = a.peer, .rma_iov = &to, .rma_iov_count = 1, .context = &ctx[n]};
    return (int)(write ? fi_writemsg(a.ep, &msg, flags) : fi_readmsg(a.ep, &msg, flags));
}

int post_send(side *s, int n, uint64_t local, size_t len) { return (int)fi_send(s->ep, s->mem + local, len, fi_mr_desc(s->mr), s->peer, &ctx[n]); }

int post_recv(side *s, int n, uint64_t local, size_t len)
{
    return (int)fi_recv(s->ep, s->mem + local, len, fi_mr_desc(s->mr), FI_ADDR_UNSPEC, &ctx[n]);
}

static void record(side *s, void *context, size_t len)
{
    int at = s->ndone++ % DONE;
    s->order[at] = (int)((struct fi_context2 *)context - ctx);
    s->len[at] = len;
}

void poll_side(side *s)
{
    struct fi_cq_msg_entry e[16];
    ssize_t n = fi_cq_read(s->cq, e, 16);
    if (n == -FI_EAVAIL) {
        struct fi_cq_err_entry err = {0};
        CHECK(fi_cq_readerr(s->cq, &err, 0) == 1);
        s->err = err.err;
        s->prov_err = err.prov_errno;
        s->errors++;
        record(s, err.op_context, 0);
    }
    for (ssize_t i = 0; i < n; i++)
        record(s, e[i].op_context, e[i].len);
}

bool wait_done(side *s, int n)
{
    struct timespec start, now;
    int want = s->ndone + n;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        poll_side(&a);
        poll_side(&b);
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while (s->ndone < want && now.tv_sec - start.tv_sec < 5);
    return s->ndone >= want;
}
