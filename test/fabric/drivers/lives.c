/* Objects used in the wrong order, or after their close. */
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

#include "cases.h"
#include "side.h"

static void not_enabled(void)
{
    open_side(&a, false);
    printf("rc=%d\n", (int)fi_recv(a.ep, a.mem, 64, NULL, FI_ADDR_UNSPEC, &ctx[0]));
}

/* FI_MR_ENDPOINT with prov_key=1: a region cannot be enabled before the bind, and has no key before the enable. */
static void mr_order(void)
{
    struct fid_mr *mr;
    open_side(&a, true);
    CHECK(fi_mr_reg(a.domain, a.mem, 4096, FI_REMOTE_WRITE, 0, 5, 0, &mr, NULL) == 0);
    printf("rc=%d ", fi_mr_enable(mr));
    printf("nokey=%d ", fi_mr_key(mr) == FI_KEY_NOTAVAIL);
    CHECK(fi_mr_bind(mr, &a.ep->fid, 0) == 0);
    printf("rc=%d ", fi_mr_enable(mr));
    printf("nokey=%d\n", fi_mr_key(mr) == FI_KEY_NOTAVAIL);
}

/* A region that is registered and not enabled cannot be accessed. */
static void mr_unenabled(void)
{
    struct fid_mr *mr;
    setup();
    CHECK(fi_mr_reg(b.domain, b.mem, 4096, FI_REMOTE_WRITE, 0, 5, 0, &mr, NULL) == 0);
    CHECK(fi_mr_bind(mr, &b.ep->fid, 0) == 0);
    CHECK(rma(true, 0, 0, 0, 64, 5, FI_DELIVERY_COMPLETE) == 0 && wait_done(&a, 1));
    printf("err=%d prov=%d\n", a.err, a.prov_err);
}

static int reg(uint64_t key, void *mem)
{
    struct fid_mr *mr;
    return fi_mr_reg(a.domain, mem, 4096, FI_REMOTE_WRITE, 0, key, 0, &mr, NULL);
}

static void key_size(void)
{
    open_side(&a, true);
    printf("rc=%d\n", reg(UINT64_C(1) << 32, a.mem));
}

static void key_twice(void)
{
    int rc;
    open_side(&a, true);
    rc = reg(7, a.mem);
    printf("rc=%d rc=%d\n", rc, reg(7, a.mem));
}

static void not_allocated(void)
{
    open_side(&a, true);
    CHECK(munmap(a.mem, MEM) == 0);
    printf("rc=%d\n", reg(7, a.mem));
}

static void close_ep_first(void)
{
    setup();
    printf("rc=%d\n", fi_close(&a.ep->fid));
    close_side(&a); /* the right order succeeds */
}

static void close_cq_first(void)
{
    setup();
    printf("rc=%d\n", fi_close(&a.cq->fid));
}

static void close_av_first(void)
{
    setup();
    printf("rc=%d\n", fi_close(&a.av->fid));
}

static void close_domain_first(void)
{
    setup();
    printf("rc=%d\n", fi_close(&a.domain->fid));
}

static void close_fabric_first(void)
{
    setup();
    printf("rc=%d\n", fi_close(&a.fabric->fid));
}

static void double_close(void)
{
    struct fid_mr *mr;
    setup();
    mr = a.mr;
    close_side(&a);
    printf("%d %d %d %d %d %d\n", fi_close(&mr->fid), fi_close(&a.ep->fid), fi_close(&a.cq->fid), fi_close(&a.av->fid), fi_close(&a.domain->fid),
           fi_close(&a.fabric->fid));
}

static void use_after_close(void)
{
    fi_addr_t peer;
    setup();
    close_side(&a);
    a.mr = NULL;
    printf("%d %d %d\n", rma(true, 0, 0, 0, 64, 2, 0), fi_av_insert(a.av, b.addr, 1, &peer, 0, NULL), reg(9, a.mem));
}

static void mr_in_flight(void)
{
    setup();
    CHECK(post_recv(&a, 0, 0, 64) == 0);
    printf("rc=%d\n", fi_close(&a.mr->fid));
}

static void av_in_flight(void)
{
    setup();
    CHECK(rma(true, 0, 0, 0, 64, fi_mr_key(b.mr), FI_DELIVERY_COMPLETE) == 0); /* shuffle and hold delay the operation */
    printf("rc=%d\n", fi_av_remove(a.av, &a.peer, 1, 0));
    CHECK(wait_done(&a, 1));
}

static void cq_overrun(void)
{
    struct fi_cq_attr attr = {.size = 4, .format = FI_CQ_FORMAT_MSG};
    open_side(&b, true);
    open_side(&a, false);
    CHECK(fi_close(&a.ep->fid) == 0 && fi_close(&a.cq->fid) == 0);
    CHECK(fi_cq_open(a.domain, &attr, &a.cq, NULL) == 0);
    CHECK(fi_endpoint(a.domain, info, &a.ep, NULL) == 0);
    CHECK(fi_ep_bind(a.ep, &a.av->fid, 0) == 0 && fi_ep_bind(a.ep, &a.cq->fid, FI_SEND | FI_RECV) == 0);
    CHECK(fi_enable(a.ep) == 0);
    size_t len = ADDR;
    CHECK(fi_getname(&a.ep->fid, a.addr, &len) == 0);
    a.mr = region(&a, a.mem, MEM, FI_WRITE | FI_REMOTE_WRITE, 1);
    b.mr = region(&b, b.mem, MEM, FI_WRITE | FI_REMOTE_WRITE, 2);
    connect_sides();
    for (int i = 0; i < 6; i++) /* without FI_DELIVERY_COMPLETE each WRITE completes at once */
        CHECK(rma(true, i, 0, 0, 64, fi_mr_key(b.mr), FI_COMPLETION) == 0);
    printf("posted\n");
}

/* The same address inserted twice and removed once. */
static void av_twice(void)
{
    fi_addr_t again;
    setup();
    CHECK(fi_av_insert(a.av, b.addr, 1, &again, 0, NULL) == 1);
    printf("same=%d rc=%d ", again == a.peer, fi_av_remove(a.av, &again, 1, 0));
    printf("rc=%d\n", rma(true, 0, 0, 0, 64, fi_mr_key(b.mr), FI_DELIVERY_COMPLETE));
}

static void bad_address(void)
{
    uint8_t bad[ADDR] = {0};
    fi_addr_t got;
    int rc;
    open_side(&a, true);
    rc = fi_av_insert(a.av, bad, 1, &got, 0, NULL);
    bad[0] = 0xfe;
    printf("zeros=%d junk=%d\n", rc, fi_av_insert(a.av, bad, 1, &got, 0, NULL));
}

static void *poll_a(void *unused)
{
    struct fi_cq_msg_entry entry;
    (void)unused;
    for (int i = 0; i < 200000; i++)
        (void)fi_cq_read(a.cq, &entry, 1);
    return NULL;
}

/* Two threads poll one queue. */
static void poll_twice(void)
{
    pthread_t other;
    open_side(&a, true);
    CHECK(pthread_create(&other, NULL, poll_a, NULL) == 0);
    poll_a(NULL);
    CHECK(pthread_join(other, NULL) == 0);
}

static void threads(void)
{
    threading = FI_THREAD_DOMAIN;
    poll_twice();
}

const test_case lifetime_cases[] = {
    {"not_enabled", not_enabled},
    {"mr_order", mr_order},
    {"mr_unenabled", mr_unenabled},
    {"key_size", key_size},
    {"key_twice", key_twice},
    {"not_allocated", not_allocated},
    {"close_ep_first", close_ep_first},
    {"close_cq_first", close_cq_first},
    {"close_av_first", close_av_first},
    {"close_domain_first", close_domain_first},
    {"close_fabric_first", close_fabric_first},
    {"double_close", double_close},
    {"use_after_close", use_after_close},
    {"mr_in_flight", mr_in_flight},
    {"av_in_flight", av_in_flight},
    {"cq_overrun", cq_overrun},
    {"av_twice", av_twice},
    {"bad_address", bad_address},
    {"threads", threads},
    {"threads_safe", poll_twice},
    {NULL, NULL},
};
