/* Operations on their way into the real provider, in an order made by chance, and back. */
#include "fab.h"

enum { GO, WAIT };

static const uint64_t look_ns = 100000000;

/* The real provider gives no answer about a peer that is gone. */
static bool lost(fab_dom *dom, fab_op *op)
{
    uint64_t now = fab_now();
    (void)dom;
    if (!op->since)
        op->since = now;
    if (!op->peer->page || !atomic_load(&op->peer->page->ep[op->peer->idx].cookie))
        return true;
    if (now - op->since < look_ns || now - op->peer->checked < look_ns)
        return false;
    op->peer->checked = now;
    return !fab_peer_alive(op->peer);
}

/* What the target's device checks, before anything goes there. */
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
            fab_breach(dom->kind, rule, "%s of %zu bytes at %#llx with key %#llx", op->kind == FAB_READ ? "read" : "write",
                       r->len, (unsigned long long)r->addr, (unsigned long long)r->key);
            return false;
        }
    }
    return true;
}

static ssize_t post_rma(fab_dom *dom, fab_op *op)
{
    struct fi_rma_iov rma[FAB_IOV];
    struct iovec copy = { .iov_base = op->copy, .iov_len = op->len };
    struct fi_msg_rma msg = {
        .msg_iov = op->copy ? &copy : op->iov, .iov_count = op->copy ? 1 : op->niov, .addr = op->peer->real,
        .rma_iov = rma, .rma_iov_count = op->nrma, .context = op,
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

/* A receive at the target is taken first: a message without one would stop all else on the real connection. */
static ssize_t post_send(fab_op *op)
{
    struct iovec iov[FAB_IOV + 1] = { { .iov_base = &op->header, .iov_len = sizeof(op->header) } };
    struct fi_msg msg = { .msg_iov = iov, .iov_count = 1, .addr = op->peer->real, .context = op };
    ssize_t rc;
    int took = fab_page_take(op->peer->page, op->peer->idx, op->ep->cookie);
    if (!took)
        return -FI_ENORX;
    op->header = (fab_header){ .source = op->ep->cookie, .len = (uint32_t)op->len, .directed = took == 1 };
    if (op->copy)
        iov[msg.iov_count++] = (struct iovec){ .iov_base = op->copy, .iov_len = op->len };
    else
        for (size_t i = 0; i < op->niov; i++)
            if (op->iov[i].iov_len)
                iov[msg.iov_count++] = op->iov[i];
    rc = fi_sendmsg(op->ep->real, &msg, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    if (rc)
        fab_page_post(op->peer->page, op->peer->idx, took == 1 ? op->ep->cookie : 0, 1);
    return rc;
}

static int launch(fab_dom *dom, fab_op *op)
{
    fab_page *page = op->peer->page;
    ssize_t rc;
    if (op->fail && !op->lands) {
        fab_op_done(dom, op, op->fail, (int)SW(dom->kind, fail_prov), 0);
        return GO;
    }
    if (!page || lost(dom, op)) {
        fab_op_fail(dom, op, FAB_GONE);
        return GO;
    }
    if (SW(dom->kind, unknown_peer) && !fab_page_knows(page, op->ep->cookie)) {
        if (op->kind != FAB_SEND || !fab_page_knew(page, op->ep->cookie)) /* a peer may leave while a message is on its way */
            fab_breach(dom->kind, "unknown_peer", "the target has not inserted our address");
        fab_op_fail(dom, op, FAB_UNKNOWN);
        return GO;
    }
    if (op->kind != FAB_SEND && !keys_good(dom, op)) {
        fab_op_fail(dom, op, FAB_BAD_KEY);
        return GO;
    }
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
        op->peer->stuck = true;
        return WAIT;
    }
    if (rc)
        fab_op_fail(dom, op, FAB_GONE);
    else
        fab_op_unhold(dom, op);
    return GO;
}

/* Gives on what has been held long enough; when too much is held, one more. */
void fab_pump(fab_dom *dom, bool polled)
{
    bool spill = !polled && dom->nheld > (uint32_t)SW(dom->kind, shuffle);
    uint64_t at = spill ? fab_random(dom) % dom->nheld : 0, i = 0;
    for (fab_op *op = dom->held; op; op = op->held_next)
        op->peer->stuck = op->peer->sent = false;
    for (fab_op *op = dom->held, *next; op; op = next, i++) {
        fab_peer *peer = op->peer;
        bool send = op->kind == FAB_SEND, go = op->age >= op->due || (spill && i >= at && !op->waiting);
        next = op->held_next;
        op->age += polled;
        if (peer->stuck || (send && peer->sent && SW(dom->kind, order_sas)))
            go = false;
        if (go && (polled || !op->waiting)) {
            spill = spill && op->age >= op->due;
            peer->users++;
            if (launch(dom, op) == WAIT) {
                op->waiting = true;
                peer->sent = peer->sent || send;
            }
            peer->users--;
            fab_peer_put(dom, peer);
        } else {
            peer->sent = peer->sent || send;
        }
    }
}

/* A failure of the real connection takes the innocent with it: they go again, for RMA may be done twice. */
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
