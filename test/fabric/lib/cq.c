/* Completion queues. Completions of the real queue come out in random order. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fab.h"

union padded_err {
    struct fi_cq_err_entry v;
    unsigned char room[256];
};

static void take(fab_dom *dom, fab_op *op, int err, size_t len)
{
    if (op->kind != FAB_BOUNCE)
        fab_real_done(dom, op, err);
    else if (!err && op->ep)
        fab_arrived(dom, op, len);
    else
        fab_op_free(dom, op);
}

/* Progress: handles the real queue's completions, then launches held operations. */
void fab_progress(fab_dom *dom)
{
    enum { ROUNDS = 4, BATCH = 32 };
    struct fi_cq_msg_entry entry[BATCH];
    dom->more = false;
    if (!dom->eps)
        return;
    for (int round = 0; round < ROUNDS; round++) {
        ssize_t n = fi_cq_read(dom->real_cq, entry, BATCH);
        if (n == -FI_EAVAIL) {
            union padded_err e;
            memset(&e, 0, sizeof(e));
            if (fi_cq_readerr(dom->real_cq, &e.v, 0) == 1 && e.v.op_context)
                take(dom, e.v.op_context, e.v.err ? e.v.err : FI_EIO, 0);
            dom->more = true;
            continue;
        }
        for (ssize_t i = 0; i < n; i++)
            if (entry[i].op_context)
                take(dom, entry[i].op_context, 0, entry[i].len);
        dom->more = n == BATCH;
        if (n < BATCH)
            break;
    }
    fab_pump(dom, true);
}

static bool grow(fab_entry **list, size_t n, size_t *room)
{
    fab_entry *grown;
    if (n < *room)
        return true;
    grown = realloc(*list, (*room ? 2 * *room : 64) * sizeof(**list));
    if (!grown)
        return false;
    *list = grown;
    *room = *room ? 2 * *room : 64;
    return true;
}

void fab_cq_add(fab_cq *cq, const fab_entry *entry)
{
    if (!cq || cq->state != FAB_OPEN)
        return;
    if (entry->err ? grow(&cq->error, cq->nerrors, &cq->errors_room) : grow(&cq->entry, cq->n, &cq->room)) {
        if (entry->err)
            cq->error[cq->nerrors++] = *entry;
        else
            cq->entry[cq->n++] = *entry;
    }
    if (cq->n + cq->nerrors > cq->size && !cq->overrun) {
        cq->overrun = true;
        fab_breach(cq->dom->kind, "cq_overrun", "more than %zu unread completions", cq->size);
    }
    fab_wake(cq->dom);
}

/* The oldest entry, if it was held longer than the switch hold allows. Else a random entry, or with probability 1/4 none (SIZE_MAX). */
static size_t pick(fab_cq *cq)
{
    fab_dom *dom = cq->dom;
    size_t oldest = 0;
    if (!SW(dom->kind, shuffle))
        return 0;
    for (size_t i = 1; i < cq->n; i++)
        if (cq->entry[i].age > cq->entry[oldest].age)
            oldest = i;
    if (cq->entry[oldest].age > SW(dom->kind, hold))
        return oldest;
    return fab_random(dom) % 4 ? fab_random(dom) % cq->n : SIZE_MAX;
}

static size_t entry_size(enum fi_cq_format format)
{
    switch (format) {
    case FI_CQ_FORMAT_CONTEXT: return sizeof(struct fi_cq_entry);
    case FI_CQ_FORMAT_DATA: return sizeof(struct fi_cq_data_entry);
    default: return sizeof(struct fi_cq_msg_entry);
    }
}

static ssize_t read_cq(struct fid_cq *fid, void *buf, size_t count)
{
    fab_cq *cq = FAB_OF(fab_cq, fid);
    size_t size = entry_size(cq->format), n = 0;
    ssize_t rc;
    if (fab_is_closed(cq->state, cq->dom->kind, "fi_cq_read"))
        return -FI_EBADF;
    fab_lock(cq->dom);
    fab_progress(cq->dom);
    for (size_t i = 0; i < cq->n; i++)
        cq->entry[i].age++;
    while (!cq->nerrors && n < count && cq->n) {
        size_t i = pick(cq);
        struct fi_cq_data_entry out = {0};
        if (i == SIZE_MAX)
            break;
        out.op_context = cq->entry[i].ctx;
        out.flags = cq->entry[i].flags;
        out.len = cq->entry[i].len;
        memcpy((char *)buf + n * size, &out, size);
        n++;
        memmove(&cq->entry[i], &cq->entry[i + 1], (--cq->n - i) * sizeof(fab_entry));
    }
    rc = cq->nerrors ? -FI_EAVAIL : n ? (ssize_t)n : -FI_EAGAIN;
    fab_unlock(cq->dom);
    return rc;
}

/* Fills the fields of libfabric 1.17's entry; the entry of a newer caller is longer. */
static ssize_t readerr(struct fid_cq *fid, struct fi_cq_err_entry *out, uint64_t flags)
{
    fab_cq *cq = FAB_OF(fab_cq, fid);
    ssize_t rc = -FI_EAGAIN;
    (void)flags;
    if (fab_is_closed(cq->state, cq->dom->kind, "fi_cq_readerr"))
        return -FI_EBADF;
    fab_lock(cq->dom);
    if (cq->nerrors) {
        out->op_context = cq->error[0].ctx;
        out->flags = cq->error[0].flags;
        out->len = out->olen = 0;
        out->err = cq->error[0].err;
        out->prov_errno = cq->error[0].prov_err;
        out->err_data_size = 0;
        memmove(&cq->error[0], &cq->error[1], --cq->nerrors * sizeof(fab_entry));
        rc = 1;
    }
    fab_unlock(cq->dom);
    return rc;
}

static int signal_cq(struct fid_cq *fid)
{
    fab_cq *cq = FAB_OF(fab_cq, fid);
    fab_lock(cq->dom);
    fab_wake(cq->dom);
    fab_unlock(cq->dom);
    return 0;
}

static const char *describe(struct fid_cq *fid, int prov_errno, const void *data, char *buf, size_t len)
{
    static char text[64];
    (void)fid;
    (void)data;
    snprintf(text, sizeof(text), "imitated error %d", prov_errno);
    if (buf && len)
        snprintf(buf, len, "%s", text);
    return text;
}

static int close_cq(struct fid *fid)
{
    fab_cq *cq = FAB_OF(fab_cq, fid);
    fab_dom *dom = cq->dom;
    if (fab_is_closed(cq->state, dom->kind, "fi_close"))
        return -FI_EBADF;
    fab_lock(dom);
    if (cq->users) {
        int rc = fab_busy(dom->kind, "completion queue", "its endpoint");
        fab_unlock(dom);
        return rc;
    }
    for (fab_cq **at = &dom->cq_list; *at; at = &(*at)->next) {
        if (*at == cq) {
            *at = cq->next;
            break;
        }
    }
    fab_wait_close(cq);
    free(cq->entry);
    free(cq->error);
    cq->state = FAB_CLOSED;
    dom->cqs--;
    fab_unlock(dom);
    return 0;
}

static struct fi_ops fid_ops = {.size = sizeof(struct fi_ops), .close = close_cq, .control = fab_cq_control};
static struct fi_ops_cq cq_ops = {
    .size = sizeof(struct fi_ops_cq),
    .read = read_cq,
    .readerr = readerr,
    .signal = signal_cq,
    .strerror = describe,
};

int fab_cq_open(struct fid_domain *fid, struct fi_cq_attr *attr, struct fid_cq **out, void *context)
{
    fab_dom *dom = FAB_OF(fab_dom, fid);
    bool waits = attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC;
    fab_cq *cq;
    int rc = 0;
    if (fab_is_closed(dom->state, dom->kind, "fi_cq_open"))
        return -FI_EBADF;
    if (attr->size > (uint64_t)SW(dom->kind, cq_max))
        return -FI_EINVAL;
    if (waits && (attr->wait_obj != FI_WAIT_FD || !SW(dom->kind, wait_fd)))
        return -FI_ENOSYS;
    cq = calloc(1, sizeof(*cq));
    if (!cq)
        return -FI_ENOMEM;
    cq->fid.fid = (struct fid){.fclass = FI_CLASS_CQ, .context = context, .ops = &fid_ops};
    cq->fid.ops = &cq_ops;
    cq->state = FAB_OPEN;
    cq->dom = dom;
    cq->format = attr->format;
    cq->size = attr->size ? attr->size : 1024;
    cq->fd = cq->event = cq->timer = -1;
    fab_lock(dom);
    if (waits)
        rc = fab_wait_open(cq);
    if (!rc) {
        cq->next = dom->cq_list;
        dom->cq_list = cq;
        dom->cqs++;
        *out = &cq->fid;
    }
    fab_unlock(dom);
    if (rc)
        free(cq);
    return rc;
}
