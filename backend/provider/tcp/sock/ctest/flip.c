/* Another rail's thread changes in the middle of a plan whether WRITEs are packed: at each question in turn. A packed frame stays alone in its
 * plan, or it would be lost where the socket does not take it. The rest of the plan stays the application's memory. */
#ifdef FLIP_MAIN
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../plan.h"

#define CHECK(x) ((x) ? (void)0 : (fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno), abort()))

enum { SIZE = 256 << 10, QUESTIONS = 8 };
static int questions, flips_at, first;

/* pace.c */
int tcp_pace_packs(const tcp_conn *conn, int read) { return (void)conn, (void)read, first ^ (questions++ >= flips_at); }
void tcp_pace_moved(tcp_conn *conn, int read, int packing, uint32_t text) { (void)conn, (void)read, (void)packing, (void)text; }
void tcp_pace_begins(tcp_conn *conn, const tcp_op *op) { (void)conn, (void)op; }
void tcp_pace_ends(tcp_conn *conn, const tcp_op *op) { (void)conn, (void)op; }
void tcp_pace_leave(tcp_conn *conn) { (void)conn; }

static void check(tcp_conn *conn)
{
    static plan p;
    int packed = 0, clear = 0;
    questions = 0;
    CHECK(tcp_plan(conn, &p) == 0);
    for (int i = 0; i < p.nframes; i++) {
        CHECK(i == 0 || !p.frame[i].packed);
        packed += p.frame[i].packed != NULL;
        clear += p.frame[i].kind == TCP_WRITE && !p.frame[i].packed;
        tcp_packed_give(conn->rail, p.frame[i].packed);
    }
    CHECK(p.nframes > 0 && packed + clear <= 2 && (!clear || p.theirs));
    CHECK(conn->rail->pack->taken == 0);
}

int main(void)
{
    static gr_ctx ctx[4];
    static const uint8_t salt[16];
    int err, fd[2];
    uint8_t *mem = calloc(1, SIZE);
    tcp_rail *rail = tcp_rail_new(0, &err);
    CHECK(mem && rail && tcp_rail_pack(rail, TCP_PACK_AUTO) == 0);
    tcp_conn *conn = tcp_conn_new(rail);
    CHECK(conn && socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fd) == 0);
    tcp_conn_pack(conn, NULL);
    tcp_conn_begin(conn, salt);
    CHECK(tcp_conn_attach(conn, fd[0]) == 0);
    gr_rail_lock(&rail->base);
    const gr_rail_ops *ops = rail->base.ops;
    gr_seg small = {.laddr = (uintptr_t)mem, .len = 4096}, large = {.laddr = (uintptr_t)mem, .len = SIZE};
    CHECK(ops->rma(&rail->base, conn, GR_WRITE, 1, &small, &ctx[0]) == 0);
    CHECK(ops->send(&rail->base, conn, mem, 64, NULL, 1, &ctx[1]) == 0);
    CHECK(ops->rma(&rail->base, conn, GR_WRITE, 1, &large, &ctx[2]) == 0);
    CHECK(ops->rma(&rail->base, conn, GR_WRITE, 1, &large, &ctx[3]) == 0);
    for (first = 0; first < 2; first++)
        for (flips_at = 0; flips_at <= QUESTIONS; flips_at++)
            check(conn);
    gr_rail_unlock(&rail->base);
    tcp_conn_close(conn);
    gr_comp done[8];
    gr_rail_lock(&rail->base);
    while (ops->poll(&rail->base, done, 8) > 0)
        ;
    gr_rail_unlock(&rail->base);
    CHECK(tcp_rail_free(rail) == 0);
    close(fd[1]);
    free(mem);
    return 0;
}
#endif
