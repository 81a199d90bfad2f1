/* NVLink between hosts: an IMEX domain. Its members are processes that have the same folder in GORAIL_TEST_IMEX; memory with fabric handles has
 * names there. The daemon is down while the folder has a file "down". GORAIL_TEST_IMEX_NODE names the machine. GORAIL_TEST_IMEX_CHANNELS is the
 * folder of channels; a process without one may not use handles. The answers are those of NVIDIA's documents, and of users' threads. */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ct.h"

typedef struct imex_handle {
    uint32_t magic, gpu;
    uint64_t domain, inode;
    char node[16], rest[24];
} imex_handle;
_Static_assert(sizeof(imex_handle) == 64, "CUmemFabricHandle");
enum { IMEX = 0x58454d49 };

const char *ct_imex(void) { return getenv("GORAIL_TEST_IMEX"); }
const char *ct_node(void)
{
    const char *node = getenv("GORAIL_TEST_IMEX_NODE");
    return node ? node : "";
}

static uint64_t domain(void)
{
    struct stat st;
    return stat(ct_imex(), &st) ? 0 : st.st_ino;
}

static int down(void)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/down", ct_imex());
    return access(path, F_OK) == 0;
}

static int channel(void)
{
    const char *dir = getenv("GORAIL_TEST_IMEX_CHANNELS");
    DIR *d = dir ? opendir(dir) : NULL;
    int found = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        found |= strncmp(e->d_name, "channel", 7) == 0 && faccessat(dirfd(d), e->d_name, R_OK | W_OK, AT_EACCESS) == 0;
    if (d)
        closedir(d);
    return found;
}

int ct_imex_check(void)
{
    if (ct_switch[SW_fabric_result])
        return (int)ct_switch[SW_fabric_result];
    return !channel() ? CU_NOT_PERMITTED : down() ? CU_NOT_SUPPORTED : CU_OK;
}

static void name_of(char *path, size_t len, uint64_t inode) { snprintf(path, len, "%s/gpu-%lx", ct_imex(), inode); }

int ct_imex_publish(ct_mem *m)
{
    char from[64], to[512];
    snprintf(from, sizeof(from), "/proc/self/fd/%d", m->fd);
    name_of(to, sizeof(to), m->inode);
    m->named = linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW) == 0;
    return m->named ? 0 : -1;
}

/* The last mapping of the process that made it is gone: nobody can import the memory any more. Those who have keep it. */
void ct_imex_hide(const ct_mem *m)
{
    char path[512];
    name_of(path, sizeof(path), m->inode);
    (void)unlink(path);
}

int ct_imex_export(const ct_mem *m, void *out)
{
    int r = ct_imex_check();
    imex_handle h = {.magic = IMEX, .gpu = (uint32_t)m->gpu, .domain = domain(), .inode = m->inode};
    snprintf(h.node, sizeof(h.node), "%s", ct_node());
    memcpy(out, &h, sizeof(h));
    return r;
}

int ct_imex_import(const void *from, ct_mem **out)
{
    imex_handle h;
    char path[512];
    int r = ct_imex_check();
    memcpy(&h, from, sizeof(h));
    if (r)
        return r;
    if (h.magic != IMEX)
        return CU_INVALID_VALUE;
    if (h.domain != domain() || (ct_switch[SW_fabric_local] && strncmp(h.node, ct_node(), sizeof(h.node) - 1) == 0))
        return CU_INVALID_DEVICE;
    name_of(path, sizeof(path), h.inode);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    *out = fd < 0 ? NULL : ct_mem_of(fd);
    return *out ? CU_OK : CU_INVALID_VALUE;
}
