/* Memory regions. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dmabuf.h"
#include "fab.h"

/* As in libfabric's headers after 1.17. */
#define MR_DMABUF (UINT64_C(1) << 40)
struct mr_dmabuf {
    int fd;
    uint64_t offset;
    size_t len;
    void *base;
};

/* Makes the region accessible to peers. */
static int publish(fab_mr *mr)
{
    fab_page_key k = {.key = mr->key, .base = mr->base, .len = mr->len, .access = mr->access, .ep = mr->ep ? mr->ep->cookie : 0};
    fab_dom *dom = mr->dom;
    int rc = fi_mr_reg(dom->real, mr->at ? mr->at : (void *)(uintptr_t)mr->base, mr->len, mr->access, 0, mr->key, 0, &mr->real, NULL);
    if (rc)
        return rc;
    if (!fab_page_key_add(dom->page, &k))
        return -FI_ENOMEM;
    mr->enabled = true;
    dom->mr_waiting -= SW(dom->kind, mr_endpoint) != 0;
    mr->fid.key = mr->key;
    return 0;
}

static bool key_used(fab_dom *dom, uint64_t key)
{
    fab_page_key k;
    if (fab_page_key_get(dom->page, key, &k))
        return true;
    for (uint32_t i = 0; dom->mr_waiting && i < dom->mr_next; i++)
        if (dom->mr[i] && !dom->mr[i]->enabled && dom->mr[i]->key == key)
            return true;
    return false;
}

/* Chooses a random key with the switch prov_key, else the caller's. */
static int choose_key(fab_dom *dom, uint64_t wanted, uint64_t *out)
{
    uint64_t most = SW(dom->kind, key_size) >= 8 ? UINT64_MAX : (UINT64_C(1) << (8 * SW(dom->kind, key_size))) - 1;
    if (!SW(dom->kind, prov_key)) {
        *out = wanted;
        if (wanted > most) {
            fab_breach(dom->kind, "key_size", "key %#llx has more than %d bytes", (unsigned long long)wanted, (int)SW(dom->kind, key_size));
            return -FI_EKEYREJECTED;
        }
        return key_used(dom, wanted) ? -FI_ENOKEY : 0;
    }
    do {
        *out = (fab_random(dom) << 32 ^ fab_random(dom)) & most;
    } while (key_used(dom, *out));
    return 0;
}

/* Puts the region into a free slot of the table dom->mr. */
static int add_to_table(fab_dom *dom, fab_mr *mr)
{
    if (!dom->mr_free) {
        uint32_t room = dom->mr_room;
        if (dom->mr_next == room) {
            fab_mr **grown = realloc(dom->mr, (room = room ? 2 * room : 256) * sizeof(*grown));
            if (!grown)
                return -FI_ENOMEM;
            dom->mr = grown;
            dom->mr_room = room;
        }
        mr->index = dom->mr_next++;
    } else {
        fab_mr *place = dom->mr_free;
        mr->index = place->index;
        dom->mr_free = place->next;
        free(place);
    }
    dom->mr[mr->index] = mr;
    return 0;
}

static int close_mr(struct fid *fid)
{
    fab_mr *mr = FAB_OF(fab_mr, fid), **kept;
    fab_dom *dom = mr->dom;
    fab_lock(dom);
    if (fab_is_closed(mr->state, dom->kind, "fi_close")) {
        fab_unlock(dom);
        return -FI_EBADF;
    }
    if (mr->users)
        fab_breach(dom->kind, "mr_in_flight", "region closed with %d operations of its owner in flight", mr->users);
    if (mr->enabled)
        fab_page_key_drop(dom->page, mr->key);
    else
        dom->mr_waiting--;
    if (mr->real)
        fi_close(&mr->real->fid);
    if (mr->ep)
        mr->ep->mrs--;
    mr->state = FAB_CLOSED;
    dom->mr[mr->index] = NULL;
    dom->mrs--;
    /* The region stays allocated for a while, so that a use after close is recorded. Its table slot becomes free now. */
    fab_mr *place = calloc(1, sizeof(*place));
    if (place) {
        place->index = mr->index;
        place->next = dom->mr_free;
        dom->mr_free = place;
    }
    kept = &dom->mr_kept[dom->mr_kept_at++ % FAB_MRS_KEPT];
    if (*kept && !(*kept)->users) {
        if ((*kept)->map) /* the mapping stays until here, because operations in flight may write after the close */
            munmap((*kept)->map, (*kept)->map_len);
        free(*kept);
    }
    *kept = mr;
    fab_unlock(dom);
    return 0;
}

static int bind_mr(struct fid *fid, struct fid *to, uint64_t flags)
{
    fab_mr *mr = FAB_OF(fab_mr, fid);
    (void)flags;
    if (to->fclass != FI_CLASS_EP || mr->ep || !SW(mr->dom->kind, mr_endpoint))
        return -FI_EINVAL;
    fab_lock(mr->dom);
    mr->ep = FAB_OF(fab_ep, to);
    mr->ep->mrs++;
    fab_unlock(mr->dom);
    return 0;
}

static int control_mr(struct fid *fid, int command, void *arg)
{
    fab_mr *mr = FAB_OF(fab_mr, fid);
    int rc;
    (void)arg;
    if (command != FI_ENABLE)
        return -FI_ENOSYS;
    if (!mr->ep || !mr->ep->enabled || mr->enabled) {
        fab_breach(mr->dom->kind, "mr_order", "fi_mr_enable of a region that is %s", mr->enabled ? "enabled" : "not bound");
        return -FI_EOPBADSTATE;
    }
    fab_lock(mr->dom);
    rc = publish(mr);
    fab_unlock(mr->dom);
    return rc;
}

static struct fi_ops fid_ops = {
    .size = sizeof(struct fi_ops),
    .close = close_mr,
    .bind = bind_mr,
    .control = control_mr,
};

static int make(fab_dom *dom, fab_mr *mr, uint64_t wanted)
{
    int rc;
    if (SW(dom->kind, mr_max) && dom->mrs >= SW(dom->kind, mr_max))
        return -FI_ENOSPC;
    rc = choose_key(dom, wanted, &mr->key);
    if (!rc)
        rc = add_to_table(dom, mr);
    if (rc)
        return rc;
    mr->salt = (uint32_t)fab_random(dom) | 1;
    mr->fid.mem_desc = (void *)(uintptr_t)((uint64_t)mr->salt << 32 | mr->index);
    mr->fid.key = FI_KEY_NOTAVAIL;
    if (!SW(dom->kind, mr_endpoint)) {
        rc = publish(mr);
    } else {
        dom->mr_waiting++;
        if (!SW(dom->kind, prov_key))
            mr->fid.key = mr->key;
    }
    if (rc)
        dom->mr[mr->index] = NULL;
    return rc;
}

/* buf describes GPU memory with the range at offset. NULL: host memory. */
static int reg(fab_dom *dom, uint64_t base, uint64_t len, uint64_t access, uint64_t wanted, const dmabuf *buf, uint64_t offset, struct fid_mr **out)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), in = offset & (page - 1);
    fab_mr *mr;
    int rc;
    if (fab_is_closed(dom->state, dom->kind, "fi_mr_reg"))
        return -FI_EBADF;
    if (!len || base + len < base)
        return -FI_EINVAL;
    if (SW(dom->kind, allocated) && !buf && fab_mapped(base, len) && !(fab_readable(base) && fab_readable(base + len - 1)))
        return -FI_EFAULT; /* GPU memory registered as host memory */
    if (SW(dom->kind, allocated) && !buf && !fab_mapped(base, len)) {
        fab_breach(dom->kind, "not_allocated", "%llu bytes at %#llx are not mapped", (unsigned long long)len, (unsigned long long)base);
        return -FI_EFAULT;
    }
    mr = calloc(1, sizeof(*mr));
    if (!mr)
        return -FI_ENOMEM;
    mr->fid.fid = (struct fid){.fclass = FI_CLASS_MR, .ops = &fid_ops};
    mr->state = FAB_OPEN;
    mr->dom = dom;
    mr->base = base;
    mr->len = len;
    mr->access = access;
    if (buf) {
        mr->map_len = (in + len + page - 1) & ~(page - 1);
        mr->map = dmabuf_map(buf, offset - in, mr->map_len);
        if (mr->map == MAP_FAILED) {
            free(mr);
            return -FI_EINVAL;
        }
        mr->at = (char *)mr->map + in;
    }
    fab_lock(dom);
    rc = make(dom, mr, wanted);
    if (!rc)
        dom->mrs++;
    fab_unlock(dom);
    if (rc) {
        if (mr->map)
            munmap(mr->map, mr->map_len);
        free(mr);
        return rc;
    }
    *out = &mr->fid;
    return 0;
}

/* Registers GPU memory by address, as a provider with CUDA support does through nvidia_peermem. */
static int reg_cuda(fab_dom *dom, const struct fi_mr_attr *attr, struct fid_mr **out)
{
    const char *path = getenv("GORAIL_FABRIC_CUDA");
    void *dl = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD) : NULL;
    int (*find)(uint64_t, uint64_t) = dl ? (int (*)(uint64_t, uint64_t))dlsym(dl, "ct_control_peermem") : NULL;
    uint64_t base = (uint64_t)(uintptr_t)attr->mr_iov[0].iov_base, len = attr->mr_iov[0].iov_len;
    dmabuf buf;
    int fd = SW(dom->kind, mr_cuda) && find ? find(base, len) : -1, rc = -FI_EFAULT;
    if (fd >= 0 && dmabuf_read(fd, &buf))
        rc = reg(dom, base, len, attr->access, attr->requested_key, &buf, base & ((uint64_t)sysconf(_SC_PAGESIZE) - 1), out);
    if (fd >= 0)
        close(fd);
    return rc;
}

static int reg_buf(struct fid *fid, const void *buf, size_t len, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags, struct fid_mr **mr,
                   void *context)
{
    (void)offset;
    (void)flags;
    (void)context;
    return reg(FAB_OF(fab_dom, fid), (uint64_t)(uintptr_t)buf, len, access, key, NULL, 0, mr);
}

static int reg_attr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr)
{
    fab_dom *dom = FAB_OF(fab_dom, fid);
    struct mr_dmabuf d;
    dmabuf buf;
    if (attr->iov_count != 1 || (attr->iface != FI_HMEM_SYSTEM && attr->iface != FI_HMEM_CUDA))
        return -FI_EINVAL;
    if (attr->iface == FI_HMEM_CUDA && !dom->hmem)
        return -FI_ENOSYS;
    if (!(flags & MR_DMABUF) && attr->iface == FI_HMEM_CUDA)
        return reg_cuda(dom, attr, mr);
    if (!(flags & MR_DMABUF))
        return reg(dom, (uint64_t)(uintptr_t)attr->mr_iov[0].iov_base, attr->mr_iov[0].iov_len, attr->access, attr->requested_key, NULL, 0, mr);
    if (SW(dom->kind, version) < 0x10014) {
        fab_breach(dom->kind, "mr_dmabuf", "FI_MR_DMABUF with a library version that does not know the flag");
        return -FI_EBADFLAGS;
    }
    if (!SW(dom->kind, mr_dmabuf))
        return -FI_ENOSYS;
    memcpy(&d, attr->mr_iov, sizeof(d));
    if (attr->iface != FI_HMEM_CUDA || !dmabuf_read(d.fd, &buf) || (uint64_t)(uintptr_t)d.base % (uint64_t)sysconf(_SC_PAGESIZE))
        return -FI_EINVAL;
    return reg(dom, (uint64_t)(uintptr_t)d.base + d.offset, d.len, attr->access, attr->requested_key, &buf, d.offset, mr);
}

struct fi_ops_mr fab_mr_ops = {.size = sizeof(struct fi_ops_mr), .reg = reg_buf, .regattr = reg_attr};
