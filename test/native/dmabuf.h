/* A dmabuf of the imitated libcuda: a file that describes a piece of memory. The importers (test/verbs, test/fabric)
 * map that memory. The memory then stays, even if its owner frees it. */
#ifndef GORAIL_TEST_DMABUF_H
#define GORAIL_TEST_DMABUF_H

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DMABUF_PIECES = 512, DMABUF_MAGIC = 0x44424647 };

typedef struct dmabuf_piece { /* of memory with a descriptor in this process */
    int32_t fd;
    uint32_t pad;
    uint64_t inode, offset, len;
} dmabuf_piece;

typedef struct dmabuf {
    uint64_t magic, size;
    uint32_t pieces, by_pcie;
    dmabuf_piece piece[DMABUF_PIECES];
} dmabuf;

/* Returns 1 if fd is a dmabuf, 0 for another file or a bad descriptor. */
static inline int dmabuf_read(int fd, dmabuf *out) { return pread(fd, out, sizeof(*out), 0) == (ssize_t)sizeof(*out) && out->magic == DMABUF_MAGIC; }

/* Maps len bytes at offset; both are multiples of the page size. Returns MAP_FAILED if they are out of bounds or the
 * memory is gone. */
static inline void *dmabuf_map(const dmabuf *d, uint64_t offset, uint64_t len)
{
    uint64_t at = 0;
    if (offset > d->size || len > d->size - offset)
        return MAP_FAILED;
    char *all = mmap(NULL, len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (uint32_t i = 0; all != MAP_FAILED && i < d->pieces; at += d->piece[i++].len) {
        const dmabuf_piece *p = &d->piece[i];
        uint64_t from = offset > at ? offset : at, to = offset + len < at + p->len ? offset + len : at + p->len;
        struct stat st;
        if (from >= to)
            continue;
        if (fstat(p->fd, &st) || st.st_ino != p->inode ||
            mmap(all + (from - offset), to - from, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, p->fd, (off_t)(p->offset + from - at)) ==
                MAP_FAILED) {
            munmap(all, len);
            all = MAP_FAILED;
        }
    }
    return all;
}

#endif
