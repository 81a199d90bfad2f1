/* A target executes another program, which has memory at the same addresses. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/mman.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "world.h"

enum { PIPE = 100, LEN = 64 << 10, FOREIGN = 7, LOOK_NS = 4000000 };
static void *const place = (void *)0x200000000000;
static int child_holds; /* a child of the target holds its descriptors */

static uint8_t *map_place(void)
{
    uint8_t *at = mmap(place, MEM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    CHECK(at == place);
    return at;
}

static char talk(int fd, char say)
{
    char c = 0;
    CHECK((!say || write(fd, &say, 1) == 1) && read(fd, &c, 1) == 1);
    return c;
}

/* Exits with 0 if nobody has written to its memory after 'm'. */
int the_program(void)
{
    uint8_t *at = map_place();
    memset(at, FOREIGN, MEM);
    CHECK(talk(PIPE, 'x') == 'm');
    memset(at, FOREIGN, MEM);
    CHECK(talk(PIPE, 'y') == 'q');
    for (int i = 0; i < MEM; i++)
        if (at[i] != FOREIGN)
            return 3;
    return 0;
}

static void becomes_the_program(pair *p)
{
    memset(map_place(), 0, MEM);
    (void)open_region(&p->me, (uint64_t)(uintptr_t)place, MEM, NULL);
    pipe_put(p, 'r');
    poll_until(p, 'e');
    if (child_holds && fork() == 0) {
        CHECK(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
        for (;;)
            pause();
    }
    CHECK(dup2(p->pipe, PIPE) == PIPE);
    execl("/proc/self/exe", "ctest", "program", NULL);
    CHECK(0);
}

/* Writes until the target is gone. No copy that begins a look after the program has begun succeeds. */
static void write_until_gone(pair *p, const region_info *to)
{
    uint64_t began = 0, now;
    char c = 0;
    for (int err = 0; err != ECONNRESET;) {
        if (!began && recv(p->pipe, &c, 1, MSG_DONTWAIT) == 1) {
            CHECK(c == 'x');
            began = cma_now();
        }
        now = cma_now();
        err = rma(&p->me, GR_WRITE, to, 0, 0, LEN);
        CHECK(err == 0 || err == ECONNRESET || (!began && err == EFAULT)); /* EFAULT: the program has not mapped it yet */
        CHECK(err || !began || now - began <= LOOK_NS);
        p->me.err = 0;
    }
    if (!began)
        CHECK(pipe_get(p) == 'x');
}

static void executes(void)
{
    pair p = split(0, becomes_the_program);
    region_info to = {.mem = (uint64_t)(uintptr_t)place, .key = p.peer.key + 1};
    CHECK(pipe_get(&p) == 'r');
    memset(p.me.mem, 1, MEM);
    CHECK(rma(&p.me, GR_WRITE, &to, 0, 0, LEN) == 0);
    pipe_put(&p, 'e');
    write_until_gone(&p, &to);
    pipe_put(&p, 'm');
    CHECK(pipe_get(&p) == 'y');
    for (int i = 0; i < 100; i++) {
        CHECK(rma(&p.me, GR_WRITE, &to, 0, 0, i % 2 ? LEN : 64) == ECONNRESET);
        CHECK(rma(&p.me, GR_READ, &to, 0, 0, i % 2 ? LEN : 64) == ECONNRESET && p.me.mem[0] == 1 && p.me.mem[63] == 1);
    }
    pipe_put(&p, 'q');
    finish(&p);
}

/* Our copies end: by its socket, by its memory although a child holds its socket, and through the ring. */
void another_program(void)
{
    executes();
    child_holds = 1;
    executes();
    child_holds = 0;
    rings = 1;
    executes();
}
