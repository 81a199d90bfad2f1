/* Memory registration. */
#include <errno.h>
#include <rdma/fi_errno.h>
#include <string.h>
#include <sys/random.h>

#include "abi.h"
#include "ofi.h"

/* Registers one range; the caller holds the lock. Implements fi_mr_regattr, and fi_mr_bind and fi_mr_enable where regions
 * belong to an endpoint (the key is valid only after that). */
static int reg_attr(ofi_rail *rail, union ofi_mr_attr *attr, uint64_t flags, struct fid_mr **out)
{
    struct fid_mr *mr = NULL;
    int rc = fi_mr_regattr(rail->domain, &attr->v, flags, &mr);
    if (rc)
        return rc;
    if (rail->caps.endpoint_mr) {
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

static int reg(ofi_rail *rail, void *addr, size_t len, uint64_t access, uint64_t key, struct fid_mr **out)
{
    struct iovec iov = { .iov_base = addr, .iov_len = len };
    union ofi_mr_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.v.mr_iov = &iov;
    attr.v.iov_count = 1;
    attr.v.access = access;
    attr.v.requested_key = key;
    attr.v.iface = FI_HMEM_SYSTEM;
    return reg_attr(rail, &attr, 0, out);
}

/* A key that nobody can guess, of as many bits as the fabric takes; 0 where the provider chooses. Libraries say "none" by 0 and by all ones. */
static int draw_key(const ofi_rail *rail, uint64_t *key)
{
    uint64_t mask = rail->caps.key_size >= 8 ? UINT64_MAX : (UINT64_C(1) << (8 * rail->caps.key_size)) - 1;
    *key = 0;
    while (!rail->caps.prov_key && (*key == 0 || *key == mask)) {
        ssize_t n = getrandom(key, sizeof(*key), 0); /* so few bytes are not interrupted */
        if (n != (ssize_t)sizeof(*key))
            return n < 0 ? -errno : -FI_EIO;
        *key &= mask;
    }
    return 0;
}

enum { KEY_TRIES = 64 }; /* keys that are drawn for one registration: each may be another's */

static const uint64_t ACCESS = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

int ofi_mr_open(ofi_rail *rail, uint64_t addr, uint64_t len, uint64_t key, struct fid_mr **out, uint64_t *out_key,
                void **desc)
{
    int rc;
    gr_rail_lock(&rail->base);
    rc = reg(rail, (void *)(uintptr_t)addr, len, ACCESS, rail->caps.prov_key ? 0 : key, out);
    if (!rc) {
        *out_key = fi_mr_key(*out);
        *desc = fi_mr_desc(*out);
        rail->open_mrs++;
    }
    gr_rail_unlock(&rail->base);
    return ofi_errno(rc);
}

static int reg_gpu(ofi_rail *rail, uint64_t addr, uint64_t len, int device, int fd, uint64_t offset, uint64_t key, struct fid_mr **out)
{
    struct iovec iov = { .iov_base = (void *)(uintptr_t)addr, .iov_len = len };
    ofi_mr_dmabuf buf = { .fd = fd, .offset = offset, .len = len, .base = (void *)(uintptr_t)(addr - offset) };
    union ofi_mr_attr attr;
    memset(&attr, 0, sizeof(attr));
    attr.v.mr_iov = fd < 0 ? &iov : (const void *)&buf; /* a union since 1.20 */
    attr.v.iov_count = 1;
    attr.v.access = ACCESS;
    attr.v.requested_key = key;
    attr.v.iface = FI_HMEM_CUDA;
    attr.v.device.cuda = device;
    return reg_attr(rail, &attr, fd < 0 ? 0 : OFI_MR_DMABUF, out);
}

int ofi_mr_open_gpu(ofi_rail *rail, uint64_t addr, uint64_t len, int device, int fd, uint64_t offset, struct fid_mr **out, uint64_t *out_key,
                    void **desc)
{
    uint64_t key;
    int rc = -FI_ENOKEY;
    gr_rail_lock(&rail->base);
    for (int tries = 0; tries < KEY_TRIES && rc == -FI_ENOKEY; tries++)
        if ((rc = draw_key(rail, &key)) == 0)
            rc = reg_gpu(rail, addr, len, device, fd, offset, key, out);
    if (!rc) {
        *out_key = fi_mr_key(*out);
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

/* The core's message buffers, never reached by peers. Only where the fabric wants descriptors is there anything to do. */
int ofi_own_reg(gr_rail *base, void *buf, size_t len, void **mr, void **desc)
{
    ofi_rail *rail = (ofi_rail *)base;
    struct fid_mr *out = NULL;
    uint64_t key;
    int rc = -FI_ENOKEY;

    *mr = *desc = NULL;
    if (!rail->caps.local_desc)
        return 0;
    for (int tries = 0; tries < KEY_TRIES && rc == -FI_ENOKEY; tries++)
        if ((rc = draw_key(rail, &key)) == 0)
            rc = reg(rail, buf, len, FI_SEND | FI_RECV, key, &out);
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
