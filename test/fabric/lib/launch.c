/* Posts operations to the real provider, in random order, and takes their completions. */
#include "fab.h"

enum { GO, WAIT };

static const uint64_t liveness_ns = 100000000;

/* Whether the peer is gone. The real provider does not report that. The process is checked at most every 100 ms. */
static bool peer_gone(fab_dom *dom, fab_op *op)
{
    uint64_t now = fab_now();
    (void)dom;
    if (!op->since)
        op->since = now;
    if (!op->peer->page || !atomic_load(&op->peer->page->ep[op->peer->idx].cookie))
        return true;
    if (now - op->since < liveness_ns || now - op->peer->checked < liveness_ns)
        return false;
    op->peer->checked = now;
    return !fab_peer_alive(op->peer);
}

/* Checks keys, bounds and access like the target's device, before the operation is posted. */
static bool keys_good(fab_dom *dom, fab_op *op)
{
    const uint64_t need = op->kind == FAB_READ ? FI_REMOTE_READ : FI_REMOTE_WRITE;
    for (size_t i = 0; i < op->nrma; i++) {
        struct fi_rma_iov *r = &op->rma[i];
        const char *rule = NULL;
        uint64_t offset;
        fab_page_key k;
        if (!fab_page_key_get(op->peer->page, r->key, &k) || (k.ep && k.ep != op->peer->cookie)) {
            rule = op->silent ? "late_write" : "bad_key";
        } else {
            offset = SW(dom->kind, virt_addr) ? r->addr - k.base : r->addr;
            if (offset > k.len || r->len > k.len - offset)
                rule = "bounds";
            else if ((k.access & need) != need)
                rule = "access";
        }
        if (rule) {
            fab_breach(dom->kind, rule, "%s of %zu bytes at %#llx with key %#llx", op->kind == FAB_READ ? "read" : "write", r->len,
                       (unsigned long long)r->addr, (unsigned long long)r->key);
            return false;
        }
    }
    return true;
}

static ssize_t post_rma(fab_dom *dom, fab_op *op)
{
    struct fi_rma_iov rma[FAB_IOV];
    struct iovec copy = {.iov_base = op->copy, .iov_len = op->len};
    struct fi_msg_rma msg = {
        .msg_iov = op->copy ? &copy : op->iov,
        .iov_count = op->copy ? 1 : op->niov,
        .addr = op->peer->real,
        .rma_iov = rma,
        .rma_iov_count = op->nrma,
        .context = op,
    };
    for (size_t i = 0; i < op->nrma; i++) {
        fab_page_key k;
        rma[i] = op->rma[i];
        if (SW(dom->kind, virt_addr) && fab_page_key_get(op->peer->page, rma[i].key, &k))
            rma[i].addr -= k.base;
    }
    if (op->kind == FAB_READ)
        return fi_readmsg(op->ep->real, &msg, FI_COMPLETION);
    return fi_writemsg(op->ep->real, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE);
}

/* Takes a receive of the target before the SEND, because a message without a receive would block the real connection. */
static ssize_t post_send(fab_op *op)
{
    struct iovec iov[FAB_IOV + 1] = {{.iov_base = &op->header, .iov_len = sizeof(op->header)}};
    struct fi_msg msg = {.msg_iov = iov, .iov_count = 1, .addr = op->peer->real, .context = op};
    ssize_t rc;
    int took = fab_page_take(op->peer->page, op->peer->idx, op->ep->cookie);
    if (!took)
        return -FI_ENORX;
    op->header = (fab_header){.source = op->ep->cookie, .len = (uint32_t)op->len, .directed = took == 1};
    if (op->copy)
        iov[msg.iov_count++] = (struct iovec){.iov_base = op->copy, .iov_len = op->len};
    else
        for (size_t i = 0; i < op->niov; i++)
            if (op->iov[i].iov_len)
                iov[msg.iov_count++] = op->iov[i];
    rc = fi_sendmsg(op->ep->real, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    if (rc)
        fab_page_post(op->peer->page, op->peer->idx, took == 1 ? op->ep->cookie : 0, 1);
    return rc;
}

/* Whether the device still moves earlier operations: it has a rate (switch mbps). */
static bool moves_earlier(const fab_dom *dom, const fab_op *op)
{
    return SW(dom->kind, mbps) && op->kind != FAB_SEND && dom->idle_ns > fab_now();
}

/* Takes the device's time for an operation. After a late poll a device catches up: the wire sets its rate. */
static void take_time(fab_dom *dom, const fab_op *op)
{
    enum { LATE_NS = 100000000 };
    uint64_t least = fab_now() - LATE_NS;
    if (!SW(dom->kind, mbps) || op->kind == FAB_SEND)
        return;
    dom->idle_ns = (dom->idle_ns > least ? dom->idle_ns : least) + op->len * 8000 / (uint64_t)SW(dom->kind, mbps);
}

static int launch(fab_dom *dom, fab_op *op)
{
    fab_page *page = op->peer->page;
    ssize_t rc;
    if (op->fail && !op->lands) {
        fab_op_done(dom, op, op->fail, (int)SW(dom->kind, fail_prov), 0);
        return GO;
    }
    if (!page || peer_gone(dom, op)) {
        fab_op_fail(dom, op, FAB_GONE);
        return GO;
    }
    if (SW(dom->kind, unknown_peer) && !fab_page_inserted(page, op->ep->cookie)) {
        if (op->kind != FAB_SEND || !fab_page_ever_inserted(page, op->ep->cookie)) /* a SEND may be in flight when the target leaves */
            fab_breach(dom->kind, "unknown_peer", "the target has not inserted the initiator's address");
        fab_op_fail(dom, op, FAB_UNKNOWN);
        return GO;
    }
    if (op->kind != FAB_SEND && !keys_good(dom, op)) {
        fab_op_fail(dom, op, FAB_BAD_KEY);
        return GO;
    }
    if (moves_earlier(dom, op))
        return WAIT;
    rc = op->kind == FAB_SEND ? post_send(op) : post_rma(dom, op);
    if (rc == -FI_ENORX) {
        if (SW(dom->kind, rnr_ms) && fab_now() - op->since > (uint64_t)SW(dom->kind, rnr_ms) * 1000000) {
            fab_breach(dom->kind, "rnr", "a message found no receive for %d ms", (int)SW(dom->kind, rnr_ms));
            fab_op_fail(dom, op, FAB_RNR);
            return GO;
        }
        return WAIT;
    }
    if (rc == -FI_EAGAIN) {
        op->peer->full = true;
        return WAIT;
    }
    if (rc) {
        fab_op_fail(dom, op, FAB_GONE);
    } else {
        take_time(dom, op);
        fab_op_unhold(dom, op);
    }
    return GO;
}

/* Launches operations that were held long enough. After a post, if more than `shuffle` operations are held, launches one more. */
void fab_pump(fab_dom *dom, bool polled)
{
    bool spill = !polled && dom->nheld > (uint32_t)SW(dom->kind, shuffle);
    uint64_t at = spill ? fab_random(dom) % dom->nheld : 0, i = 0;
    for (fab_op *op = dom->held; op; op = op->held_next)
        op->peer->full = op->peer->send_held = false;
    for (fab_op *op = dom->held, *next; op; op = next, i++) {
        fab_peer *peer = op->peer;
        bool send = op->kind == FAB_SEND, go = op->age >= op->due || (spill && i >= at && !op->waiting);
        next = op->held_next;
        op->age += polled;
        if (peer->full || (send && peer->send_held && SW(dom->kind, order_sas)))
            go = false;
        if (go && (polled || !op->waiting)) {
            spill = spill && op->age >= op->due;
            peer->users++;
            if (launch(dom, op) == WAIT) {
                op->waiting = true;
                peer->send_held = peer->send_held || send;
            }
            peer->users--;
            fab_peer_put(dom, peer);
        } else {
            peer->send_held = peer->send_held || send;
        }
    }
}

/* A failure of the real connection also fails operations that broke no rule. RMA operations are retried, because a second execution
 * is harmless. */
void fab_real_done(fab_dom *dom, fab_op *op, int err)
{
    enum { TRIES = 5 };
    if (!op->ep) {
        fab_op_free(dom, op);
    } else if (!err) {
        fab_op_done(dom, op, op->fail, op->fail ? (int)SW(dom->kind, fail_prov) : 0, op->len);
    } else if (op->kind != FAB_SEND && op->tries++ < TRIES && fab_peer_alive(op->peer)) {
        op->due = 0;
        op->since = 0;
        fab_op_hold(dom, op);
    } else {
        fab_op_fail(dom, op, FAB_GONE);
    }
}

bool fab_must_poll(const fab_dom *dom, bool *waiting)
{
    for (const fab_op *op = dom->held; op; op = op->held_next) {
        if (!op->waiting)
            return true;
        *waiting = true;
    }
    return false;
}
