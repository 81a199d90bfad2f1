/* Operations that break a rule. Each case prints the library's answer: rc of the call, or err and prov_err of the completion. */
#include <stdio.h>
#include <string.h>

#include "cases.h"
#include "side.h"

static void print_result(int rc)
{
    if (rc == 0 && wait_done(&a, 1))
        printf("err=%d prov=%d\n", a.err, a.prov_err);
    else
        printf("rc=%d\n", rc);
}

static uint64_t key(void) { return fi_mr_key(b.mr); }

static void bad_key(void)
{
    setup();
    print_result(rma(true, 0, 0, 0, 64, key() ^ 0x55, FI_DELIVERY_COMPLETE));
    a.err = 0;
    print_result(rma(true, 1, 0, 0, 64, key(), FI_DELIVERY_COMPLETE)); /* the next operation succeeds */
}

static void closed_key(void)
{
    uint64_t k;
    setup();
    k = key();
    CHECK(fi_close(&b.mr->fid) == 0);
    b.mr = NULL;
    print_result(rma(false, 0, 0, 0, 64, k, 0));
}

static void bounds(void)
{
    setup();
    print_result(rma(true, 0, 0, MEM - 32, 64, key(), FI_DELIVERY_COMPLETE));
}

static void access_right(void)
{
    struct fid_mr *mr;
    setup();
    mr = region(&b, b.mem, 4096, FI_REMOTE_READ, 77);
    print_result(rma(true, 0, 0, 0, 64, fi_mr_key(mr), FI_DELIVERY_COMPLETE));
}

static void desc_missing(void)
{
    setup();
    print_result((int)fi_write(a.ep, a.mem, 64, NULL, a.peer, remote_base(), key(), &ctx[0]));
}

static void desc_closed(void)
{
    struct fid_mr *mr;
    void *desc;
    setup();
    mr = region(&a, a.mem, 4096, FI_WRITE, 77);
    desc = fi_mr_desc(mr);
    CHECK(fi_close(&mr->fid) == 0);
    print_result((int)fi_write(a.ep, a.mem, 64, desc, a.peer, remote_base(), key(), &ctx[0]));
}

static void desc_range(void)
{
    struct fid_mr *mr;
    setup();
    mr = region(&a, a.mem, 4096, FI_WRITE, 77);
    print_result((int)fi_write(a.ep, a.mem + 4090, 64, fi_mr_desc(mr), a.peer, remote_base(), key(), &ctx[0]));
}

static void desc_access(void)
{
    struct fid_mr *mr;
    setup();
    mr = region(&a, a.mem, 4096, FI_RECV, 77);
    print_result((int)fi_send(a.ep, a.mem, 64, fi_mr_desc(mr), a.peer, &ctx[0]));
}

static void msg_size(void)
{
    setup();
    print_result(post_send(&a, 0, 0, 100000));
}

static void rma_size(void)
{
    setup();
    print_result(rma(true, 0, 0, 0, 70000, key(), FI_DELIVERY_COMPLETE)); /* rma_max=65536 */
}

static void inject_size(void)
{
    setup();
    print_result((int)fi_inject(a.ep, a.mem, 8000, a.peer));
}

static void pieces(size_t local, size_t remote)
{
    struct iovec iov[8];
    struct fi_rma_iov to[8];
    void *desc[8];
    struct fi_msg_rma msg = {
        .msg_iov = iov, .desc = desc, .iov_count = local, .addr = a.peer, .rma_iov = to, .rma_iov_count = remote, .context = &ctx[0]};
    for (size_t i = 0; i < 8; i++) {
        iov[i] = (struct iovec){.iov_base = a.mem + i * 1000, .iov_len = 80 / local};
        to[i] = (struct fi_rma_iov){.addr = remote_base() + i * 1000, .len = 80 / remote, .key = key()};
        desc[i] = fi_mr_desc(a.mr);
    }
    print_result((int)fi_writemsg(a.ep, &msg, FI_DELIVERY_COMPLETE));
}

static void iov(void)
{
    setup();
    pieces(5, 1);
}

static void rma_iov(void)
{
    setup();
    pieces(1, 2);
}

static void lengths(void)
{
    struct iovec local = {.iov_base = a.mem, .iov_len = 64};
    struct fi_rma_iov to = {.len = 32};
    void *desc;
    struct fi_msg_rma msg = {.msg_iov = &local, .desc = &desc, .iov_count = 1, .rma_iov = &to, .rma_iov_count = 1, .context = &ctx[0]};
    setup();
    local.iov_base = a.mem;
    desc = fi_mr_desc(a.mr);
    to.key = key();
    to.addr = remote_base();
    msg.addr = a.peer;
    print_result((int)fi_writemsg(a.ep, &msg, FI_DELIVERY_COMPLETE));
}

static void immediate(void)
{
    setup();
    print_result(rma(true, 0, 0, 0, 64, key(), FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA));
    print_result((int)fi_writedata(a.ep, a.mem, 64, fi_mr_desc(a.mr), 7, a.peer, remote_base(), key(), &ctx[0]));
}

static void context_null(void)
{
    setup();
    print_result((int)fi_write(a.ep, a.mem, 64, fi_mr_desc(a.mr), a.peer, remote_base(), key(), NULL));
}

static void context_reused(void)
{
    setup();
    CHECK(post_recv(&a, 0, 0, 64) == 0);
    print_result(rma(true, 0, 0, 0, 64, key(), FI_DELIVERY_COMPLETE));
}

static void context_touched(void)
{
    setup();
    CHECK(rma(true, 0, 0, 0, 64, key(), FI_DELIVERY_COMPLETE) == 0);
    memset(&ctx[0], 0, sizeof(ctx[0]));
    print_result(0);
}

static void no_peer(void)
{
    setup();
    a.peer = 99;
    print_result(rma(true, 0, 0, 0, 64, key(), FI_DELIVERY_COMPLETE));
}

static void removed_peer(void)
{
    setup();
    CHECK(fi_av_remove(a.av, &a.peer, 1, 0) == 0);
    print_result(post_send(&a, 0, 0, 64));
}

/* Only the initiator has the other's address. */
static void unknown_peer(void)
{
    setup();
    CHECK(fi_av_remove(b.av, &b.peer, 1, 0) == 0);
    print_result(rma(true, 0, 0, 0, 64, key(), FI_DELIVERY_COMPLETE));
}

/* A message to a target that has removed the initiator's address. */
static void forgotten(void)
{
    setup();
    CHECK(post_recv(&b, 1, 0, 64) == 0);
    CHECK(fi_av_remove(b.av, &b.peer, 1, 0) == 0);
    print_result(post_send(&a, 0, 0, 64));
}

/* A message to a target that has never inserted the initiator's address. */
static void never_inserted(void)
{
    open_sides();
    CHECK(fi_av_insert(a.av, b.addr, 1, &a.peer, 0, NULL) == 1);
    CHECK(post_recv(&b, 1, 0, 64) == 0);
    print_result(post_send(&a, 0, 0, 64));
}

static void cancel(void)
{
    setup();
    CHECK(post_recv(&a, 0, 0, 64) == 0);
    printf("rc=%d\n", (int)fi_cancel(&a.ep->fid, &ctx[0]));
}

static void truncated(void)
{
    setup();
    CHECK(post_recv(&b, 1, 0, 32) == 0);
    CHECK(post_send(&a, 0, 0, 64) == 0);
    CHECK(wait_done(&b, 1));
    printf("err=%d\n", b.err);
}

static void receiver_not_ready(void)
{
    setup();
    print_result(post_send(&a, 0, 0, 64));
    a.err = 0;
    CHECK(post_recv(&b, 1, 0, 64) == 0);
    print_result(post_send(&a, 2, 0, 64));
}

/* The data of a WRITE without FI_DELIVERY_COMPLETE arrives after its region is closed. */
static void late_write(void)
{
    setup();
    CHECK(rma(true, 0, 0, 0, 64, key(), FI_COMPLETION) == 0);
    CHECK(fi_close(&b.mr->fid) == 0);
    b.mr = NULL;
    for (int i = 0; i < 1000; i++) {
        poll_side(&a);
        poll_side(&b);
    }
    printf("done=%d err=%d\n", a.ndone, a.err);
}

const test_case op_cases[] = {
    {"bad_key", bad_key},
    {"closed_key", closed_key},
    {"bounds", bounds},
    {"access", access_right},
    {"desc_missing", desc_missing},
    {"desc_closed", desc_closed},
    {"desc_range", desc_range},
    {"desc_access", desc_access},
    {"msg_size", msg_size},
    {"rma_size", rma_size},
    {"inject_size", inject_size},
    {"iov", iov},
    {"rma_iov", rma_iov},
    {"lengths", lengths},
    {"imm", immediate},
    {"context_null", context_null},
    {"context_reused", context_reused},
    {"context_touched", context_touched},
    {"no_peer", no_peer},
    {"removed_peer", removed_peer},
    {"unknown_peer", unknown_peer},
    {"forgotten", forgotten},
    {"stranger", never_inserted},
    {"cancel", cancel},
    {"truncated", truncated},
    {"rnr", receiver_not_ready},
    {"late_write", late_write},
    {NULL, NULL},
};
