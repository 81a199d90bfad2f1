/* A GPU whose copies do not end until the test says so. What holds meanwhile: no connection fails, those without memory of GPUs go on,
 * and messages keep their order. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../sock.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno), abort()))

enum { SIZE = 2 << 20, MEM = 1, HOST = 0, OPS = 4000, PEERS = 6 };

/* ---- the driver ---- */

struct gr_gpu_job {
    gr_gpu_work w;
};
static int stuck, packed;

#include "driver.h"
static int job_free(gr_gpu_job *j) { return free(j), 0; }
static int is_mapped(gr_gpu *g, int device, const gr_op *ops, uint64_t nops, uint32_t need, uint64_t *at)
{
    (void)g, (void)device, (void)ops, (void)nops, (void)need, (void)at;
    return 0;
}

static int post(gr_gpu_job *j, const gr_gpu_work *w, gr_gpu_fault *fault) { return (void)fault, j->w = *w, 0; }
static int poll_job(gr_gpu_job *j, gr_gpu_fault *fault)
{
    (void)fault;
    if (stuck)
        return 1;
    for (uint32_t i = 0; i < j->w.nops; i++) {
        void *device = (void *)(uintptr_t)j->w.ops[i].local, *host = (void *)(uintptr_t)j->w.ops[i].remote;
        memcpy(j->w.write ? host : device, j->w.write ? device : host, j->w.ops[i].len);
    }
    return 0;
}
static const gr_gpu_ops table = {
    .alloc = alloc, .free = drop, .stream = stream, .stream_close = stream_close, .job = job, .job_free = job_free, .post = post, .mapped = is_mapped, .poll = poll_job};
static gr_gpu driver = {.ops = &table};

/* ---- two rails: the second one has a GPU ---- */

static const uint8_t salt[16] = {3}, secret[32] = {4};
static tcp_rail *rails[2];
static tcp_gpu *gpu;
static uint8_t *mem[2]; /* of the second rail: host, GPU */
static uint8_t from[SIZE];
static uint32_t number[2];
static gr_ctx ctx[OPS], receive[4];
static int ended, bad, heard[4], nheard;

static void begin(void)
{
    char why[256];
    int err;
    for (int s = 0; s < 2; s++)
        CHECK((rails[s] = tcp_rail_new(0, &err)) && tcp_rail_encrypt(rails[s], "", why, sizeof(why)) == 0 && tcp_rail_pack(rails[s], TCP_PACK_ON) == 0);
    CHECK(tcp_gpu_new(&driver, 0, -1, &gpu) == 0 && tcp_gpu_fill(gpu, NULL) == 0 && tcp_rail_gpu(rails[1], gpu) == 0);
    for (int k = 0; k < 2; k++) {
        CHECK((mem[k] = calloc(1, SIZE)));
        CHECK(tcp_register(rails[1], (uintptr_t)mem[k], SIZE, 50 + (uint64_t)k, TCP_PEERS_READ | TCP_PEERS_WRITE, k ? gpu : NULL, &number[k]) == 0);
    }
    for (int i = 0; i < SIZE; i++)
        from[i] = packed && i % 2 ? 0x3f : (uint8_t)(i * 7 + 1); /* it gains */
    ended = bad = nheard = 0;
}

static void finish(void)
{
    for (int k = 0; k < 2; k++) {
        CHECK(tcp_deregister(rails[1], number[k]) == 0);
        free(mem[k]);
    }
    for (int s = 0; s < 2; s++)
        CHECK(tcp_rail_free(rails[s]) == 0);
    tcp_gpu_free(gpu);
}

static void open_pair(tcp_conn *c[2], int sealed)
{
    int fd[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
    for (int s = 0; s < 2; s++) {
        CHECK((c[s] = tcp_conn_new(rails[s])));
        tcp_conn_begin(c[s], salt);
        CHECK(!sealed || tcp_conn_encrypt(c[s], secret, s) == 0);
        if (packed)
            tcp_conn_pack(c[s], NULL);
        CHECK(tcp_conn_attach(c[s], fd[s]) == 0);
    }
}

static void turn(void)
{
    gr_comp c[32];
    for (int s = 0; s < 2; s++) {
        gr_rail_lock(&rails[s]->base);
        int n = rails[s]->base.ops->poll(&rails[s]->base, c, 32);
        gr_rail_unlock(&rails[s]->base);
        for (int i = 0; i < n; i++)
            if (c[i].ctx >= receive && c[i].ctx < receive + 4)
                heard[nheard++] = (int)(c[i].ctx - receive);
            else
                ended++, bad += c[i].err != 0;
    }
}

/* WRITEs len bytes at off in pieces of `piece` bytes, with one work request for each 8 of them. Returns the work requests. */
static int write_to(tcp_conn *conn, int kind, uint64_t off, uint64_t len, uint64_t piece, int step)
{
    gr_rail *base = &rails[0]->base;
    int n = 0;
    gr_rail_lock(base);
    while (len) {
        gr_seg seg[GR_MAX_IOV];
        uint32_t k = 0;
        for (; k < GR_MAX_IOV && len; k++) {
            uint64_t l = piece < len ? piece : len;
            seg[k] = (gr_seg){.laddr = (uintptr_t)from + off,
                              .raddr = (uint64_t)number[kind] << TCP_OFFSET_BITS | off,
                              .len = l,
                              .rkey = tcp_session_key(salt, 50 + (uint64_t)kind, number[kind])};
            off += l + (uint64_t)step;
            len -= l;
        }
        CHECK(base->ops->rma(base, conn, GR_WRITE, k, seg, &ctx[0]) == 0);
        n++;
    }
    gr_rail_unlock(base);
    return n;
}

static void send_one(tcp_conn *conn, const char *text)
{
    gr_rail_lock(&rails[0]->base);
    CHECK(rails[0]->base.ops->send(&rails[0]->base, conn, (void *)(uintptr_t)text, 8, NULL, 1, &ctx[0]) == 0);
    gr_rail_unlock(&rails[0]->base);
}

/* A message that came before its receive, and waits for a copy, is not overtaken by one that came after the receive. */
static void messages(void)
{
    static char inbox[3][8];
    tcp_conn *c[2];
    begin();
    open_pair(c, 0);
    stuck = 1;
    int want = write_to(c[0], MEM, 0, 100, 100, 0);
    send_one(c[0], "first  ");
    send_one(c[0], "second ");
    for (int i = 0; i < 20; i++)
        turn();
    gr_rail_lock(&rails[1]->base);
    for (int i = 0; i < 3; i++)
        CHECK(rails[1]->base.ops->recv(&rails[1]->base, c[1], inbox[i], 8, NULL, &receive[i]) == 0);
    gr_rail_unlock(&rails[1]->base);
    send_one(c[0], "third  ");
    for (int i = 0; i < 20; i++)
        turn();
    CHECK(nheard == 0 && ended == 0);
    stuck = 0;
    for (int i = 0; i < 20; i++)
        turn();
    CHECK(nheard == 3 && ended == want + 3 && bad == 0);
    CHECK(!strcmp(inbox[0], "first  ") && !strcmp(inbox[1], "second ") && !strcmp(inbox[2], "third  "));
    for (int s = 0; s < 2; s++)
        tcp_conn_close(c[s]);
    finish();
}

/* All bounce buffers are in use for a while. Then all that came is in place. */
static void scarce(int sealed, uint64_t piece)
{
    tcp_conn *c[PEERS][2];
    enum { EACH = SIZE / PEERS };
    int want = 0, step = piece < 1000 ? 3 : 0;
    uint64_t bytes = piece < 1000 ? piece * 8 * 250 : EACH, room = piece < 1000 ? (piece + 3) * 8 * 250 : EACH;
    CHECK(room <= EACH);
    begin();
    stuck = 1;
    for (int i = 0; i < PEERS; i++) {
        open_pair(c[i], sealed);
        want += write_to(c[i][0], i < PEERS - 1 ? MEM : HOST, (uint64_t)i * EACH, bytes, piece, step);
        for (int k = 0; k < 30; k++)
            turn();
        for (int k = 0; k <= i; k++)
            for (int s = 0; s < 2; s++) {
                if (c[k][s]->state != TCP_UP)
                    fprintf(stderr, "conn %d side %d state %d err %d (opened %d)\n", k, s, c[k][s]->state, c[k][s]->err, i);
                CHECK(c[k][s]->state == TCP_UP);
            }
    }
    CHECK(c[PEERS - 1][0]->ops == 0 && bad == 0); /* host memory */
    for (int i = 0, awake = 1; awake; i++) {      /* a thread sleeps meanwhile */
        CHECK(i < 10000);
        usleep(1000);
        turn();
        gr_rail_lock(&rails[1]->base);
        awake = rails[1]->base.ops->arm(&rails[1]->base);
        gr_rail_unlock(&rails[1]->base);
    }
    stuck = 0;
    for (int i = 0; i < 20000 && ended < want; i++)
        turn();
    CHECK(ended == want && bad == 0);
    for (int i = 0; i < PEERS; i++)
        for (uint64_t k = 0; k < room; k++) {
            const uint8_t *at = mem[i < PEERS - 1 ? MEM : HOST] + (uint64_t)i * EACH + k;
            CHECK(*at == (k % (piece + (uint64_t)step) < piece ? from[(uint64_t)i * EACH + k] : 0));
        }
    for (int i = 0; i < PEERS; i++)
        for (int s = 0; s < 2; s++)
            tcp_conn_close(c[i][s]);
    finish();
}

/* Operations that wait for their connections hold no bounce buffer that others need. */
static void connecting(void)
{
    tcp_conn *c[2], *wait[3];
    begin();
    stuck = 0;
    gr_rail *base = &rails[1]->base;
    gr_seg seg = {.laddr = (uintptr_t)mem[MEM], .len = 100 << 10, .ldesc = gpu};
    for (int i = 0; i < 3; i++) {
        CHECK((wait[i] = tcp_conn_new(rails[1])));
        tcp_conn_begin(wait[i], salt);
    }
    open_pair(c, 0);
    for (int i = 0, rc; i < 3; i++) {
        for (int k = 0; k < 10; k++) {
            gr_rail_lock(base);
            rc = base->ops->rma(base, wait[i], GR_WRITE, 1, &seg, &ctx[0]);
            gr_rail_unlock(base);
            if (rc == 0)
                break;
            CHECK(rc == -EAGAIN);
            turn();
        }
        CHECK(rc == 0);
    }
    for (int i = 0; i < 3; i++)
        tcp_conn_close(wait[i]);
    for (int s = 0; s < 2; s++)
        tcp_conn_close(c[s]);
    turn();
    finish();
}

/* Peers that READ all they may, and receive nothing, hold bounded memory, and no bounce buffer that others need. */
static void slow(void)
{
    enum { SLOW = 4, READS = 4 };
    tcp_conn *c[2], *conns[SLOW];
    int fds[SLOW];
    begin();
    stuck = 0;
    for (int i = 0; i < SLOW; i++) {
        int fd[2];
        CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
        CHECK((conns[i] = tcp_conn_new(rails[1])));
        tcp_conn_begin(conns[i], salt);
        CHECK(tcp_conn_attach(conns[i], fd[1]) == 0);
        fds[i] = fd[0];
        for (uint32_t k = 0; k < READS; k++) {
            uint8_t frame[TCP_HEADER + TCP_SEGMENT];
            tcp_header h = {.op = TCP_READ, .segments = 1, .id = k};
            tcp_segment s = {tcp_session_key(salt, 51, number[MEM]), (uint64_t)number[MEM] << TCP_OFFSET_BITS, TCP_BODY};
            tcp_put_header(frame, &h);
            tcp_put_segment(frame + TCP_HEADER, &s);
            CHECK(send(fds[i], frame, sizeof(frame), 0) == (ssize_t)sizeof(frame));
        }
    }
    for (int i = 0; i < 200; i++)
        turn();
    open_pair(c, 0);
    gr_rail *base = &rails[0]->base;
    gr_seg seg = {.laddr = (uintptr_t)from, .raddr = (uint64_t)number[MEM] << TCP_OFFSET_BITS, .len = TCP_BODY, .rkey = tcp_session_key(salt, 51, number[MEM])};
    memset(mem[MEM], 77, TCP_BODY);
    gr_rail_lock(base);
    CHECK(base->ops->rma(base, c[0], GR_READ, 1, &seg, &ctx[0]) == 0);
    gr_rail_unlock(base);
    for (int i = 0; i < 2000 && !ended; i++)
        turn();
    CHECK(ended == 1 && !bad && from[0] == 77 && from[TCP_BODY - 1] == 77);
    for (int i = 0; i < SLOW; i++) {
        uint64_t kept = 0;
        const tcp_answer *a;
        STAILQ_FOREACH(a, &conns[i]->answers, next)
        if (a->copy && a->copy->state == TCP_COPY_SPILLED)
            kept += a->copy->used ? a->copy->used : a->bytes; /* one answer a copy */
        CHECK(conns[i]->state == TCP_UP && kept <= TCP_READ_BYTES);
        tcp_conn_close(conns[i]);
        close(fds[i]);
    }
    for (int s = 0; s < 2; s++)
        tcp_conn_close(c[s]);
    finish();
}

/* A GPU never ends copies: to the GPU of a peer's WRITE, and from it of a WRITE of ours. Each close goes on after a second and names the
 * GPU. Bounce buffers and connections stay. A deregistration says so, and the rail's end leaves them to the driver. */
static void closed(int ends)
{
    tcp_conn *c[2];
    begin();
    open_pair(c, 0);
    stuck = 1;
    int want = write_to(c[0], MEM, 0, 100, 100, 0);
    for (int i = 0; i < 20; i++)
        turn();
    gr_rail *base = &rails[1]->base;
    gr_seg seg = {.laddr = (uintptr_t)mem[MEM] + 200, .ldesc = gpu, .len = 100};
    gr_rail_lock(base);
    CHECK(base->ops->rma(base, c[1], GR_WRITE, 1, &seg, &ctx[OPS - 1]) == 0);
    gr_rail_unlock(base);
    turn();
    CHECK(gpu->nposted == 2 && gpu->nended == 0);
    CHECK(tcp_conn_close(c[0]) == 0 && tcp_conn_close(c[1]) == 1);
    turn();
    CHECK(ended == want && tcp_rail_kept(rails[1]) == 1 && tcp_rail_kept(rails[0]) == 0);
    CHECK(tcp_deregister(rails[1], number[HOST]) == 0 && tcp_deregister(rails[1], number[MEM]) == EBUSY);
    uint64_t from_ns = tcp_copy_clock(), at = (uintptr_t)mem[MEM];
    for (uint32_t i = 0, n; i < 20; i++) { /* a list of regions waits for a copy no more than one region */
        CHECK(tcp_register(rails[1], at + 4 * i, 4, 7, 3, gpu, &n) == 0 && tcp_deregister(rails[1], n) == EBUSY);
        CHECK(tcp_register(rails[1], at + 1000 + 4 * i, 4, 7, 3, gpu, &n) == 0 && tcp_deregister(rails[1], n) == 0); /* no copy names it */
    }
    CHECK(tcp_copy_clock() - from_ns < UINT64_C(10000000000));
    if (ends) {
        stuck = 0;
        CHECK(tcp_rail_kept(rails[1]) == 0 && mem[MEM][99] == from[99]);
        turn();
        CHECK(ended == want);
    }
    for (int s = 0; s < 2; s++)
        CHECK(tcp_rail_free(rails[s]) == 0);
    static tcp_gpu *left; /* what is left counts as no leak */
    static uint8_t *memory[2];
    CHECK(tcp_gpu_free(gpu) == (ends ? 0 : EBUSY));
    left = ends ? left : gpu;
    for (int k = 0; k < 2; k++) {
        if (ends)
            free(mem[k]);
        else
            memory[k] = mem[k];
    }
    CHECK(ends || (left && memory[0]));
    stuck = 0;
}

void stuck_gpus(const char *what, int with_packed)
{
    packed = with_packed;
    if (!*what || !strcmp(what, "closed")) {
        closed(1);
        closed(0);
    }
    if (!*what || !strcmp(what, "messages"))
        messages();
    if (!*what || !strcmp(what, "slow"))
        slow();
    if (!*what || !strcmp(what, "connecting"))
        connecting();
    for (int sealed = 0; sealed < 2; sealed++) {
        if (!*what || !strcmp(what, "large"))
            scarce(sealed, SIZE);
        if (!*what || !strcmp(what, "small"))
            scarce(sealed, 8);
        if (!*what || !strcmp(what, "middle"))
            scarce(sealed, 4096);
    }
}
