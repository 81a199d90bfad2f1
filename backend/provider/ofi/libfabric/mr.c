/* Memory registration. C, because the core registers its message buffers through the ops table with the rail's lock
 * held. It also lets Go register with one call, lock included. */
#include <errno.h>
#include <rdma/fi_errno.h>
#include <string.h>
#include <sys/random.h>

#include "ofi.h"

/* Registers one range; the caller holds the lock. Implements fi_mr_regattr. If regions belong to an endpoint, also
 * implements fi_mr_bind and fi_mr_enable; only then is the key valid. */
static int reg_attr(ofi_rail *rail, union ofi_mr_attr *attr, uint64_t flags, struct fid_mr **out)
{
    struct fid_mr *mr = NULL;
    int rc = fi_mr_regattr(rail->domain, &attr->v, flags, &mr);
    if (rc)
        return rc;
    if (rail->endpoint_mr) {
        rc = fi_mr_bind(mr, &rail->shared->fid, 0);
        if (!rc)
            rc = fi_mr_enable(mr);
    }
    if (!rc && fi_mr_key(mr) == FI_KEY_NOTAVAIL)
        rc = -FI_ENOKEY;
    if (rc) {
        fi_close(&mr->fid);
        return rc;
    }
    *out = mr;
    return 0;
}

static int reg(ofi_rail *rail, const ofi_range *r, uint64_t access, uint64_t key, struct fid_mr **out)
{
    struct iovec iov = {.iov_base = (void *)(uintptr_t)r->addr, .iov_len = r->len};
    ofi_mr_dmabuf buf = {.fd = r->dmabuf, .offset = r->offset, .len = r->len, .base = (void *)(uintptr_t)(r->addr - r->offset)};
    bool dmabuf = r->gpu && r->dmabuf >= 0;
    union ofi_mr_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.v.mr_iov = dmabuf ? (const void *)&buf : &iov; /* a union since 1.20 */
    attr.v.iov_count = 1;
    attr.v.access = access;
    attr.v.requested_key = key;
    attr.v.iface = r->gpu ? FI_HMEM_CUDA : FI_HMEM_SYSTEM;
    if (r->gpu)
        attr.v.device.cuda = r->device;
    return reg_attr(rail, &attr, dmabuf ? OFI_MR_DMABUF : 0, out);
}

/* Draws a random key that cannot be guessed, of the fabric's key size; 0 if the provider chooses keys. 0 and all ones
 * are skipped: libraries use them for "none". */
static int draw_key(const ofi_rail *rail, uint64_t *key)
{
    uint64_t mask = rail->key_size >= 8 ? UINT64_MAX : (UINT64_C(1) << (8 * rail->key_size)) - 1;
    *key = 0;
    while (!rail->prov_key && (*key == 0 || *key == mask)) {
        ssize_t n = getrandom(key, sizeof(*key), 0); /* a read of so few bytes is not interrupted */
        if (n != (ssize_t)sizeof(*key))
            return n < 0 ? -errno : -FI_EIO;
        *key &= mask;
    }
    return 0;
}

static int reg_drawn(ofi_rail *rail, const ofi_range *r, uint64_t access, struct fid_mr **out)
{
    enum { TRIES = 64 }; /* each drawn key may be in use */
    uint64_t key;
    int rc = -FI_ENOKEY;
    for (int tries = 0; tries < TRIES && rc == -FI_ENOKEY; tries++)
        if ((rc = draw_key(rail, &key)) == 0)
            rc = reg(rail, r, access, key, out);
    return rc;
}

int ofi_mr_open(ofi_rail *rail, const ofi_range *range, struct fid_mr **out, uint64_t *key, void **desc)
{
    const uint64_t peers = (range->peers_read ? FI_REMOTE_READ : 0) | (range->peers_write ? FI_REMOTE_WRITE : 0);
    const uint64_t access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | peers;
    int rc;
    gr_rail_lock(&rail->base);
    if (range->gpu)
        rc = reg_drawn(rail, range, access, out);
    else
        rc = reg(rail, range, access, rail->prov_key ? 0 : range->key, out);
    if (!rc) {
        *key = fi_mr_key(*out);
        *desc = fi_mr_desc(*out);
        rail->open_mrs++;
    }
    gr_rail_unlock(&rail->base);
    return ofi_errno(rc);
}

int ofi_mr_close(ofi_rail *rail, struct fid_mr *mr)
{
    int rc;
    gr_rail_lock(&rail->base);
    rc = fi_close(&mr->fid);
    if (!rc)
        rail->open_mrs--;
    gr_rail_unlock(&rail->base);
    return ofi_errno(rc);
}

/* Registers the core's message buffers, which peers never access. Does nothing unless the fabric needs descriptors. */
int ofi_own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc)
{
    ofi_rail *rail = (ofi_rail *)base;
    const ofi_range range = {.addr = (uintptr_t)buf, .len = len};
    struct fid_mr *out = NULL;

    *mr = *desc = NULL;
    if (!rail->local_desc)
        return 0;
    int rc = reg_drawn(rail, &range, FI_SEND | FI_RECV, &out);
    if (rc)
        return ofi_errno(rc);
    rail->open_mrs++;
    *mr = out;
    *desc = fi_mr_desc(out);
    return 0;
}

void ofi_own_unreg(gr_rail *base, void *mr)
{
    ofi_rail *rail = (ofi_rail *)base;
    if (mr && fi_close(&((struct fid_mr *)mr)->fid) == 0)
        rail->open_mrs--;
}
