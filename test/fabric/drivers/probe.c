/* Exits with status 0 and no output if the library under test finds the real libfabric. */
#include <dlfcn.h>
#include <rdma/fabric.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    struct fi_info *info = NULL;
    void *dl = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (!dl) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "no path");
        return 2;
    }
    *(void **)&getinfo = dlsym(dl, "fi_getinfo");
    return !getinfo || getinfo(FI_VERSION(2, 1), NULL, NULL, 0, NULL, &info) != 0 || !info;
}
