/* A libfabric program for the tests: two sides in one process. Each side is a domain with one endpoint and one region. */
#ifndef SIDE_H
#define SIDE_H

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <stdbool.h>
#include <stdint.h>

enum { MEM = 1 << 20, DONE = 4096, ADDR = 32 };

typedef struct side {
    struct fid_fabric *fabric;
    struct fid_domain *domain;
    struct fid_av *av;
    struct fid_cq *cq;
    struct fid_ep *ep;
    struct fid_mr *mr;
    char *mem;
    fi_addr_t peer;
    uint8_t addr[ADDR];
    int ndone, errors; /* completions so far, with and without an error */
    int err, prov_err; /* of the last error */
    int order[DONE];   /* index of the context of each completion */
    size_t len[DONE];
} side;

extern side a, b;
extern struct fi_info *info;
extern int threading; /* requested enum fi_threading */
extern struct fi_context2 ctx[DONE]; /* ctx[i] is the context of operation i */

void load(const char *path);
int getinfo(uint32_t version, uint64_t mode, int type, struct fi_info **out);
uint32_t version(void);

/* Opens a side without a region; region() registers one. */
void open_side(side *s, bool enable);
struct fid_mr *region(side *s, void *mem, size_t len, uint64_t access, uint64_t key);
void connect_sides(void);
void open_sides(void); /* both sides with regions, without each other's address */
void setup(void);      /* both sides with regions and addresses */
void close_side(side *s);

/* One RMA operation of a on b's region, with context ctx[n]. local and remote are offsets; remote_base() is added to remote. */
int rma(bool write, int n, uint64_t local, uint64_t remote, size_t len, uint64_t key, uint64_t flags);
int post_send(side *s, int n, uint64_t local, size_t len);
int post_recv(side *s, int n, uint64_t local, size_t len);
void poll_side(side *s);
/* Polls both sides until s has n more completions. false: not within 5 s. */
bool wait_done(side *s, int n);
uint64_t remote_base(void);
void check(bool ok, const char *what);
#define CHECK(x) check(x, #x)

#endif
