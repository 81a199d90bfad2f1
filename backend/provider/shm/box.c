/* Memory shared with other processes: sealed, so that whoever maps it can't be made to fault. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "local.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010 /* Linux 5.1 */
#endif

enum { SIZE_SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

void *lc_share(size_t size, int readonly, int *fd)
{
    void *mem = MAP_FAILED;
    *fd = memfd_create("gorail", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return NULL;
    /* What peers write to has its pages now: later there may be none, and no error but a signal. */
    if ((readonly ? ftruncate(*fd, (off_t)size) : -(errno = posix_fallocate(*fd, 0, (off_t)size))) == 0)
        mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
    if (mem != MAP_FAILED && fcntl(*fd, F_ADD_SEALS, SIZE_SEALS | (readonly ? F_SEAL_FUTURE_WRITE : 0)) == 0)
        return mem;
    int err = errno;
    if (mem != MAP_FAILED)
        munmap(mem, size);
    close(*fd);
    *fd = -1;
    errno = err;
    return NULL;
}

/* Of huge pages a peer can take some away again for all the seals (FALLOC_FL_PUNCH_HOLE), and when the host has no more of them, who
 * touches the hole gets SIGBUS. Small ones come back. */
void *lc_map(int fd, size_t size, int readonly)
{
    struct stat st;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SIZE_SEALS) != SIZE_SEALS || fstat(fd, &st) != 0 || (size_t)st.st_size != size || fstatfs(fd, &fs) != 0 ||
        fs.f_type != TMPFS_MAGIC) {
        errno = EPROTO;
        return NULL;
    }
    void *mem = mmap(NULL, size, readonly ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return mem == MAP_FAILED ? NULL : mem;
}
