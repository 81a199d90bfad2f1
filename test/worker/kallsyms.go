package worker

// libfabric 1.17 reads all of /proc/kallsyms when it starts, only to learn of a driver for GPUs: 60 ms of CPU time in each
// of the 600 processes of the end-to-end tests. This fopen, which libfabric finds before libc's, shows it an empty file.

/*
#cgo LDFLAGS: -ldl
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

__attribute__((visibility("default"))) FILE *fopen(const char *path, const char *mode)
{
    static FILE *(*next)(const char *, const char *);
    if (!next) {
        next = (FILE * (*)(const char *, const char *)) dlsym(RTLD_NEXT, "fopen");
    }
    return next(strcmp(path, "/proc/kallsyms") == 0 ? "/dev/null" : path, mode);
}
*/
import "C"
