/* The behaviour of the fabrics towards a caller that breaks no rule. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "side.h"

static uint64_t key(void) { return fi_mr_key(b.mr); }

static bool sorted(const side *s, int n)
{
    for (int i = 1; i < n; i++)
        if (s->order[i] < s->order[i - 1])
            return false;
    return true;
}

/* WRITEs, READs and messages. The bytes are checked at each completion. Objects are closed in the right order. */
static void clean(void)
{
    enum { N = 40, SIZE = 4096 };
    bool messages = true;
    setup();
    for (int i = 0; i < N * SIZE; i++)
        a.mem[i] = (char)(i * 7 + i / 251);
    for (int i = 0; i < N; i++)
        CHECK(rma(true, i, (uint64_t)i * SIZE, (uint64_t)i * SIZE, SIZE, key(), FI_DELIVERY_COMPLETE) == 0);
    for (int seen = 0; seen < N;) {
        CHECK(wait_done(&a, 1));
        for (; seen < a.ndone; seen++)
            CHECK(!memcmp(a.mem + a.order[seen] * SIZE, b.mem + a.order[seen] * SIZE, SIZE));
    }
    printf("writes in order=%d\n", sorted(&a, N));
    a.ndone = 0;
    for (int i = 0; i < N; i++)
        CHECK(rma(false, i, (uint64_t)(N + i) * SIZE, (uint64_t)i * SIZE, SIZE, key(), 0) == 0);
    CHECK(wait_done(&a, N) && !memcmp(a.mem, a.mem + N * SIZE, N * SIZE));
    for (int i = 0; i < N; i++)
        CHECK(post_recv(&b, 100 + i, (uint64_t)(100 + i) * 64, 64) == 0);
    for (int i = 0; i < N; i++) {
        a.mem[i * 64] = (char)i;
        CHECK(post_send(&a, i, (uint64_t)i * 64, (size_t)(i + 1)) == 0);
    }
    CHECK(wait_done(&a, N) && (b.ndone == N || wait_done(&b, N - b.ndone)));
    for (int i = 0; i < N; i++)
        messages = messages && b.mem[(100 + i) * 64] == i;
    printf("messages in order=%d\n", messages);
    CHECK(a.errors == 0 && b.errors == 0);
    close_side(&a);
    close_side(&b);
}

/* A WRITE without FI_DELIVERY_COMPLETE completes before its data is in place. The data arrives later. */
static void early_completion(void)
{
    int early = 0;
    bool all = false;
    setup();
    for (int i = 0; i < 32; i++) {
        a.mem[i] = 1;
        CHECK(rma(true, i, (uint64_t)i, (uint64_t)i, 1, key(), FI_COMPLETION) == 0);
        CHECK(wait_done(&a, 1));
        early += b.mem[i] == 0;
        a.mem[i] = 2; /* the caller may reuse the buffer */
    }
    for (int i = 0; i < 100000 && !all; i++) {
        poll_side(&a);
        poll_side(&b);
        all = !memchr(b.mem, 0, 32);
    }
    CHECK(all && !memchr(b.mem, 2, 32));
    printf("early=%d\n", early > 0);
}

/* No data lands while the target does not poll. */
static void manual(void)
{
    setup();
    a.mem[0] = 1;
    CHECK(rma(true, 0, 0, 0, 1, key(), FI_DELIVERY_COMPLETE) == 0);
    for (int i = 0; i < 20000; i++)
        poll_side(&a);
    CHECK(a.ndone == 0 && b.mem[0] == 0);
    CHECK(wait_done(&a, 1) && b.mem[0] == 1);
    printf("landed\n");
}

static void depth(void)
{
    int n = 0, m = 0, rc, rrc;
    setup();
    while ((rc = rma(true, n, 0, 0, 64, key(), FI_DELIVERY_COMPLETE)) == 0 && n < 1000)
        n++;
    while ((rrc = post_recv(&a, 2000 + m, 0, 64)) == 0 && m < 1500)
        m++;
    CHECK(wait_done(&a, n));
    printf("sent=%d rc=%d received=%d rc=%d then=%d\n", n, rc, m, rrc, rma(true, 0, 0, 0, 64, key(), FI_DELIVERY_COMPLETE));
}

static void injected_error(void)
{
    setup();
    for (int i = 0; i < 5; i++)
        CHECK(rma(true, i, 0, 0, 64, key(), FI_DELIVERY_COMPLETE) == 0);
    CHECK(wait_done(&a, 5));
    printf("errors=%d err=%d prov=%d\n", a.errors, a.err, a.prov_err);
}

/* SENDs fail at random, and some of the failed ones arrive. Only the seed decides which; the times of polls do not. */
static void lost_sends(void)
{
    enum { N = 300 };
    setup();
    for (int i = 0; i < N; i++)
        CHECK(post_recv(&b, 1000 + i, (uint64_t)(1000 + i) * 64, 64) == 0);
    for (int i = 0; i < N; i++) {
        CHECK(post_send(&a, i, 0, 8) == 0);
        for (int k = i % 5; k; k--)
            poll_side(&a);
    }
    CHECK(wait_done(&a, N - a.ndone));
    for (int i = 0; i < 1000; i++)
        poll_side(&b);
    printf("errors=%d err=%d arrived=%d\n", a.errors, a.err, b.ndone);
}

static void old_api(void)
{
    struct fi_info *old;
    printf("rc=%d\n", getinfo(FI_VERSION(1, 17), FI_CONTEXT2, FI_EP_RDM, &old));
}

static void offers(void)
{
    struct fi_info *list = NULL, *none = NULL;
    int n = 0;
    CHECK(getinfo(FI_VERSION(2, 1), FI_CONTEXT2, FI_EP_RDM, &list) == 0);
    for (struct fi_info *p = list; p; p = p->next, n++)
        printf("%s/%s/%s ", p->fabric_attr->prov_name, p->fabric_attr->name, p->domain_attr->name);
    printf("rdm=%d msg=%d nomode=%d version=%x\n", n, getinfo(FI_VERSION(2, 1), FI_CONTEXT2, FI_EP_MSG, &none),
           getinfo(FI_VERSION(2, 1), 0, FI_EP_RDM, &none), version());
}

/* A blocked target is woken. Without work fi_trywait returns 0 and the descriptor is not readable. */
static void waiting(void)
{
    struct fid *fid;
    struct pollfd p = {.events = POLLIN};
    bool quiet = false;
    setup();
    fid = &b.cq->fid;
    CHECK(fi_control(fid, FI_GETWAIT, &p.fd) == 0);
    for (int i = 0; i < 20; i++) {
        int woken = 0, before = a.ndone;
        CHECK(rma(true, i, 0, 0, 4096, key(), FI_DELIVERY_COMPLETE) == 0);
        for (int round = 0; round < 1000000 && a.ndone == before; round++) {
            poll_side(&a);
            if (fi_trywait(b.fabric, &fid, 1) || poll(&p, 1, 0)) {
                poll_side(&b);
                woken++;
            }
        }
        CHECK(a.ndone > before && woken);
    }
    for (int i = 0; i < 1000 && !quiet; i++) {
        poll_side(&b);
        quiet = fi_trywait(b.fabric, &fid, 1) == 0 && poll(&p, 1, 0) == 0;
    }
    printf("quiet=%d\n", quiet);
}

/* The target is another process, which is killed. */
static void killed(void)
{
    int there[2], back[2];
    uint8_t addr[ADDR + 8];
    pid_t child;
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    child = fork();
    if (child == 0) {
        open_side(&b, true);
        b.mr = region(&b, b.mem, MEM, FI_REMOTE_WRITE | FI_REMOTE_READ, 2);
        memcpy(addr, b.addr, ADDR);
        uint64_t words[2] = {fi_mr_key(b.mr), remote_base()};
        fi_addr_t peer;
        if (write(there[1], addr, ADDR) != ADDR || write(there[1], words, 16) != 16 || read(back[0], addr, ADDR) != ADDR)
            _exit(1);
        (void)fi_av_insert(b.av, addr, 1, &peer, 0, NULL);
        if (write(there[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            poll_side(&b);
    }
    uint64_t words[2];
    open_side(&a, true);
    open_side(&b, true); /* only polled */
    a.mr = region(&a, a.mem, MEM, FI_WRITE | FI_READ, 1);
    CHECK(read(there[0], addr, ADDR) == ADDR && read(there[0], words, 16) == 16);
    CHECK(write(back[1], a.addr, ADDR) == ADDR && read(there[0], addr + ADDR, 1) == 1);
    CHECK(fi_av_insert(a.av, addr, 1, &a.peer, 0, NULL) == 1);
    uint64_t to = words[1] ? words[1] - remote_base() : 0;
    CHECK(rma(true, 0, 0, to, 4096, words[0], FI_DELIVERY_COMPLETE) == 0 && wait_done(&a, 1) && !a.errors);
    kill(child, SIGKILL);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(rma(true, 1, 0, to, 4096, words[0], FI_DELIVERY_COMPLETE) == 0 && wait_done(&a, 1));
    printf("err=%d prov=%d\n", a.err, a.prov_err);
}

const test_case behaviour_cases[] = {
    {"clean", clean},
    {"weak", early_completion},
    {"manual", manual},
    {"depth", depth},
    {"fail_at", injected_error},
    {"lost_sends", lost_sends},
    {"api", old_api},
    {"offers", offers},
    {"waiting", waiting},
    {"killed", killed},
    {NULL, NULL},
};
