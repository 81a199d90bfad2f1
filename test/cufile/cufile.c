/* A libcufile for tests. It reads and writes files with pread and pwrite. It has only the calls that the NIXL wheel's GDS plugins need
 * to load and to move bytes on a machine without a GPU. The declarations of NVIDIA's interface are written anew here. */
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <unistd.h>

typedef struct {
    int cufile;
    int driver;
} result;

typedef struct {
    int kind; /* 1: a file descriptor */
    union {
        int fd;
        void *handle;
    } of;
    const void *operations;
} descriptor;

static const result good = {0, 0};

result cuFileDriverOpen(void) { return good; }

result cuFileDriverClose_v2(void) { return good; }

/* A handle is the descriptor's number plus one, so that no handle is NULL. */
result cuFileHandleRegister(void **handle, const descriptor *of)
{
    if (of->kind != 1)
        return (result){5011, 0};
    *handle = (void *)(intptr_t)(of->of.fd + 1);
    return good;
}

void cuFileHandleDeregister(void *handle) { (void)handle; }

result cuFileBufRegister(const void *at, size_t size, int flags)
{
    (void)at, (void)size, (void)flags;
    return good;
}

result cuFileBufDeregister(const void *at)
{
    (void)at;
    return good;
}

static int fd_of(void *handle) { return (int)(intptr_t)handle - 1; }

ssize_t cuFileRead(void *handle, void *base, size_t size, off_t in_file, off_t in_memory)
{
    return pread(fd_of(handle), (char *)base + in_memory, size, in_file);
}

ssize_t cuFileWrite(void *handle, const void *base, size_t size, off_t in_file, off_t in_memory)
{
    return pwrite(fd_of(handle), (const char *)base + in_memory, size, in_file);
}
