/* Descriptors of GPU memory that was deregistered while a copy goes on: those of the copy stay, all others are freed at once. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "../sock.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno), abort()))

static uint32_t left(const tcp_rail *rail)
{
    uint32_t n = 0;
    for (const tcp_vram *v = rail->bulk->retired; v; v = v->next)
        n++;
    return n;
}

static tcp_vram *fresh(void)
{
    tcp_vram *v = calloc(1, sizeof(*v));
    CHECK(v);
    return v;
}

void retired_run(void)
{
    int err, null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    tcp_rail *rail = tcp_rail_new(0, &err);
    CHECK(rail && null >= 0 && tcp_bulk_new(rail, null, 0) == 0);
    tcp_here here[] = {{.mem = fresh()}, {.mem = fresh()}};
    tcp_job job = {.under_way = 1};
    job.use.here = here;
    job.use.nhere = 2;
    rail->bulk->jobs = &job;
    tcp_vram_retire(rail, (tcp_vram *)(uintptr_t)here[1].mem);
    for (int i = 0; i < 1000; i++)
        tcp_vram_retire(rail, fresh());
    CHECK(left(rail) == 1);
    tcp_vram_retire(rail, (tcp_vram *)(uintptr_t)here[0].mem);
    CHECK(left(rail) == 2);
    rail->bulk->jobs = NULL;
    tcp_vram_retire(rail, fresh());
    CHECK(left(rail) == 0);
    tcp_bulk_free(rail);
    CHECK(tcp_rail_free(rail) == 0);
    close(null);
}
