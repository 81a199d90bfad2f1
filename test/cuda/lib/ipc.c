/* IPC handles. A handle names a descriptor of a process; /proc opens another descriptor of the same file. As with the real driver, the word
 * at byte 8 is the owner's process number as the owner sees it, and a process refuses handles with its own number. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "ct.h"

typedef struct handle {
    uint32_t magic;
    int32_t fd, word, pid; /* word: at byte 8; pid: true number, for /proc */
    int32_t owner, copy;   /* layout 1: the owner's number; layouts 2 and 3: word again */
    uint64_t inode, size;
    uint8_t rest[24];
} handle;
_Static_assert(sizeof(handle) == sizeof(cu_ipc), "cu_ipc");
enum { MAGIC = 0x49504347 };
enum { WORD, ELSEWHERE, SELECTS, VERIFIED }; /* switch "layout" */

static int32_t self(void) { return ct_switch[SW_pid] ? (int32_t)ct_switch[SW_pid] : getpid(); }

cu_result cuIpcGetMemHandle(cu_ipc *out, cu_ptr ptr)
{
    BEGIN(CALL_IpcGetMemHandle, WITH_CTX);
    ct_map *m = ct_map_at(ptr);
    if (!m || m->kind != KIND_ALLOC)
        END(CU_INVALID_VALUE);
    handle h = {.magic = MAGIC, .pid = getpid(), .fd = m->mem->fd, .inode = m->mem->inode, .size = m->size, .owner = self(), .copy = self()};
    h.word = ct_switch[SW_layout] == ELSEWHERE ? 0 : self();
    memcpy(out, &h, sizeof(h));
    END(CU_OK);
}

cu_result cuIpcOpenMemHandle(cu_ptr *ptr, cu_ipc in, unsigned flags)
{
    if (ct_switch[SW_slow_import])
        usleep((useconds_t)ct_switch[SW_slow_import]);
    BEGIN(CALL_IpcOpenMemHandle, WITH_CTX);
    handle h;
    memcpy(&h, &in, sizeof(h));
    if (h.magic != MAGIC || flags != CU_IPC_LAZY_PEER)
        END(CU_INVALID_VALUE);
    long layout = ct_switch[SW_layout];
    if ((layout == ELSEWHERE ? h.owner : h.word) == self())
        END(CU_INVALID_CONTEXT);
    if (layout == VERIFIED && h.word != h.copy)
        END(CU_INVALID_VALUE);
    int fd = ct_mem_open(h.pid, h.fd, h.inode);
    ct_mem *mem = fd < 0 ? NULL : ct_mem_of(fd);
    if (!mem || mem->inode != h.inode || ct_mem_tail(mem)->freed) {
        if (mem)
            ct_mem_drop(mem, 0);
        END(CU_NOT_PERMITTED); /* as the real driver after the owner has freed the memory */
    }
    if (ct_hidden(mem)) {
        ct_mem_drop(mem, 0);
        END(CU_INVALID_VALUE);
    }
    int device = ct_current()->device;
    if (layout == SELECTS && h.word != h.copy) { /* other memory of that size */
        uint64_t size = mem->size;
        ct_mem_drop(mem, 0);
        if (!(mem = ct_mem_new(size, device, 0)))
            END(CU_OUT_OF_MEMORY);
        h.inode = mem->inode;
    }
    ct_map *m = ct_map_of(h.inode, device);
    if (mem->device != device && !ct_switch[SW_peers]) {
        ct_mem_drop(mem, 0);
        END(CU_PEER_UNSUPPORTED);
    }
    ct_count[CT_ipc_maps]++;
    if (m) {
        ct_mem_drop(mem, 0);
        m->opens++;
        *ptr = m->at;
        END(CU_OK);
    }
    (void)flock(mem->fd, LOCK_SH | LOCK_NB);
    *ptr = ct_reserve(mem->size);
    m = ct_map_add(*ptr, mem, KIND_IPC, device);
    m->size = h.size;
    m->opens = 1;
    ct_count[CT_ipc_opens]++;
    END(CU_OK);
}

cu_result cuIpcCloseMemHandle(cu_ptr ptr)
{
    BEGIN(-1, WITH_CTX);
    ct_map *m = ct_map_at(ptr);
    if (!m || m->at != ptr || m->kind != KIND_IPC)
        END(CU_INVALID_VALUE);
    if (ct_current()->device != m->device)
        END(CU_INVALID_CONTEXT);
    ct_count[CT_ipc_maps]--;
    if (--m->opens)
        END(CU_OK);
    if (ct_uses(m->at, m->size))
        ct_breach("cuIpcCloseMemHandle: a stream has queued work that may access the memory");
    ct_unreserve(m->at, m->mem->size);
    ct_mem_drop(m->mem, 0);
    ct_map_remove(m);
    END(CU_OK);
}
