#define _GNU_SOURCE
#include "callers.h"

#include <execinfo.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

// library is a loaded object.
typedef struct {
    uintptr_t begin, end; // of its code and data
    char name[GR_NAME];   // without folders; "": this program
    _Atomic uint64_t allocs;
} library;

static library libraries[GR_LIBRARIES];
static int loaded;
static atomic_bool tracing;
static __thread bool inside; // the walk of the stack may allocate itself

static int add(struct dl_phdr_info *info, size_t size, void *arg)
{
    (void)size, (void)arg;
    if (loaded == GR_LIBRARIES)
        return 1;
    library *l = &libraries[loaded++];
    *l = (library){.begin = UINTPTR_MAX};
    const char *slash = strrchr(info->dlpi_name, '/');
    snprintf(l->name, sizeof l->name, "%s", slash ? slash + 1 : info->dlpi_name);
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type != PT_LOAD)
            continue;
        uintptr_t begin = info->dlpi_addr + h->p_vaddr;
        if (begin < l->begin)
            l->begin = begin;
        if (begin + h->p_memsz > l->end)
            l->end = begin + h->p_memsz;
    }
    return 0;
}

// helps tells libraries that allocate for their callers: C's and C++'s, and this program, whose malloc it is.
static bool helps(const char *name)
{
    static const char *const list[] = {"libc.so", "libc-", "libstdc++", "libc++", "libgcc_s", "ld-linux", "linux-vdso"};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++)
        if (strncmp(name, list[i], strlen(list[i])) == 0)
            return true;
    return !*name;
}

static library *find(uintptr_t at)
{
    for (int i = 0; i < loaded; i++)
        if (at >= libraries[i].begin && at < libraries[i].end)
            return &libraries[i];
    return NULL;
}

void gr_callers_start(void)
{
    void *frames[1];
    backtrace(frames, 1); // loads what it needs
    loaded = 0;
    dl_iterate_phdr(add, NULL);
    atomic_store(&tracing, true);
}

int gr_callers_stop(void)
{
    atomic_store(&tracing, false);
    return loaded;
}

uint64_t gr_callers_of(int i, char name[GR_NAME])
{
    memcpy(name, libraries[i].name, GR_NAME);
    return atomic_load(&libraries[i].allocs);
}

void gr_callers_note(void)
{
    if (!atomic_load_explicit(&tracing, memory_order_relaxed) || inside)
        return;
    inside = true;
    void *frames[12];
    int n = backtrace(frames, sizeof frames / sizeof *frames);
    library *own = NULL;
    for (int i = 0; i < n; i++) {
        library *l = find((uintptr_t)frames[i]);
        if (!l)
            continue;
        own = l;
        if (!helps(l->name))
            break;
    }
    if (own)
        atomic_fetch_add(&own->allocs, 1);
    inside = false;
}
