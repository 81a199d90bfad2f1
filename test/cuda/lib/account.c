/* Which files are behind addresses: tests compare them with what processes map (Go package test/held). And how much of a GPU is free, with
 * the memory of all processes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ct.h"

/* Writes the inodes of the memory behind a range, and returns their number. Addresses without memory are left out. */
long ct_control_behind(uint64_t at, uint64_t size, uint64_t *inodes, long room)
{
    long n = 0;
    pthread_mutex_lock(&ct_mu);
    for (uint64_t end = at + size; at < end && n < room;) {
        ct_map *m = ct_map_at(at);
        if (m)
            inodes[n++] = m->mem->inode;
        at = m ? m->at + m->mem->size : at + CT_PAGE;
    }
    pthread_mutex_unlock(&ct_mu);
    return n;
}

/* The size of a file if it is memory of a GPU; else 0. Each file counts once. */
static uint64_t memory_of(const char *path, int gpu, uint64_t *seen, int *n, int room)
{
    char what[64] = "";
    struct stat st;
    ct_tail tail;
    ssize_t len = readlink(path, what, sizeof(what) - 1);
    if (len < 0 || strncmp(what, "/memfd:gpu ", 11) != 0)
        return 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    uint64_t size = 0;
    if (fd >= 0 && !fstat(fd, &st) && pread(fd, &tail, sizeof(tail), st.st_size - CT_PAGE) == (ssize_t)sizeof(tail) && tail.gpu == gpu) {
        int i = 0;
        while (i < *n && seen[i] != st.st_ino)
            i++;
        if (i == *n && *n < room) {
            seen[(*n)++] = st.st_ino;
            size = (uint64_t)st.st_size;
        }
    }
    if (fd >= 0)
        close(fd);
    return size;
}

/* What all processes hold of a GPU, by their descriptors: each process has one of each memory that it maps. */
static uint64_t held(int gpu)
{
    enum { ROOM = 4096 };
    static uint64_t seen[ROOM];
    int n = 0;
    uint64_t sum = 0;
    DIR *all = opendir("/proc");
    for (struct dirent *p; all && (p = readdir(all));) {
        char dir[300], path[600];
        snprintf(dir, sizeof(dir), "/proc/%s/fd", p->d_name);
        DIR *fds = p->d_name[0] >= '0' && p->d_name[0] <= '9' ? opendir(dir) : NULL;
        for (struct dirent *f; fds && (f = readdir(fds));) {
            snprintf(path, sizeof(path), "%s/%s", dir, f->d_name);
            sum += memory_of(path, gpu, seen, &n, ROOM);
        }
        if (fds)
            closedir(fds);
    }
    if (all)
        closedir(all);
    return sum;
}

cu_result cuMemGetInfo(size_t *left, size_t *all)
{
    BEGIN(-1, WITH_CTX);
    uint64_t used = held(ct_gpu(ct_current()->device));
    *all = CT_TOTAL;
    *left = used < CT_TOTAL ? CT_TOTAL - used : 0;
    END(CU_OK);
}
