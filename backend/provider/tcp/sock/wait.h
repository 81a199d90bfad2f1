/* What waits: connections for a poll or a copy, received bytes for a bounce buffer. wait.c */
#ifndef GORAIL_TCP_WAIT_H
#define GORAIL_TCP_WAIT_H

#include <stddef.h>
#include <stdint.h>

struct tcp_conn;

/* Received bytes, allocated while there are any: those of frames, and those of records behind them. */
typedef struct tcp_rest {
    uint8_t *mem;
    size_t len, at;
} tcp_rest;

void tcp_conn_ready(struct tcp_conn *conn); /* may have bytes to receive, though no event comes: the next poll looks */
void tcp_conn_wait(struct tcp_conn *conn);  /* the same, for a poll after a copy has ended */
void tcp_conn_not_ready(struct tcp_conn *conn);

int tcp_keep(tcp_rest *r, const uint8_t *at, size_t n); /* n bytes, which may be the last ones of r already. 0, or ENOMEM */
int tcp_keeps(const struct tcp_conn *conn); /* bytes wait */
int tcp_resume(struct tcp_conn *conn); /* takes them in. An errno: the connection ends */

#endif
