/* Packed bodies of frames: option compression. ../doc.go has their form, pack.h that of a block. */
#ifndef GORAIL_TCP_PACKED_H
#define GORAIL_TCP_PACKED_H

#include <pthread.h>
#include <sys/queue.h>

#include "frame.h"
#include "pack.h"

enum { TCP_PACK_OFF, TCP_PACK_AUTO, TCP_PACK_ON };

enum {
    /* Of an operation with compression=on, and of several that share a packed WRITE: one end packs while the other one unpacks what
     * came before. MB/s with 1 MiB and with this: 25 Gbit/s, 16 processors, WRITE 3,200 to 3,700, and 4,350; 10 Gbit/s, 2 processors,
     * WRITE 540 to 890, and 910 to 1,050, READ 590 to 720, and 490 to 570. */
    TCP_PACK_BODY = 256 << 10,
    TCP_PACK_LEAST = 64 << 10, /* bytes of a body that is worth it */
    TCP_PACK_TAIL = 1,         /* a byte behind each block: it is taken from the stream once the block is in place */
    TCP_PACK_BLOCKS = TCP_BODY / PACK_BLOCK,
    TCP_PACKED_ROOM = TCP_PACK_BLOCKS * (PACK_ROOM + TCP_PACK_TAIL),
    TCP_PACK_KEPT = 4,  /* buffers of each kind that a rail keeps */
    TCP_PACK_MOST = 64, /* packed bodies of a rail that are not sent yet: others go in clear */
};

/* A packed body that is to be sent. */
typedef struct tcp_packed {
    SLIST_ENTRY(tcp_packed) next;
    uint32_t text; /* bytes that it stands for */
    uint8_t mem[TCP_PACKED_ROOM];
} tcp_packed;

/* A packed body that comes in: the block that is received, and its text until that is in place. */
typedef struct tcp_unpacking {
    SLIST_ENTRY(tcp_unpacking) next;
    uint32_t have, need; /* bytes of the block; need is 0 until its head is there */
    uint32_t at, len;    /* of the text; len is 0 until the block is complete */
    uint8_t block[PACK_ROOM], text[PACK_BLOCK];
} tcp_unpacking;

/* Memory of a rail that all its connections use in turn. */
typedef struct tcp_pack_rail {
    uint8_t mode; /* TCP_PACK_* */
    uint8_t gainless; /* for tests: bodies that do not gain are packed, too */
    uint32_t least;   /* bytes of a body: TCP_PACK_LEAST */
    uint32_t npacked, nunpacking; /* in the lists */
    uint32_t taken;               /* packed bodies that are not in the list */
    SLIST_HEAD(, tcp_packed) packed;
    SLIST_HEAD(, tcp_unpacking) unpacking;
    pack_scratch scratch;
    uint8_t text[PACK_BLOCK];
} tcp_pack_rail;

/* How fast WRITEs or READs are in clear and packed, pace.c. */
typedef struct tcp_pace {
    uint8_t packing;   /* frames of this window are packed */
    uint8_t step;      /* of a trial: the number of this window, from 1 on. 0: there is none */
    uint8_t lost;      /* times in a row that packing was no faster */
    uint8_t open;      /* a frame of this window has ended */
    uint8_t settles;   /* the way has changed, and the window has not begun */
    uint32_t left;     /* packed windows until the next trial */
    uint32_t busy;     /* connections with operations under way */
    uint64_t since;    /* they have them since then, ns of the monotonic clock; 0: none has */
    uint64_t ns, text; /* of the window, until since */
    uint64_t next;     /* packing has lost, and is not tried before */
    struct tcp_pace_sum {
        uint64_t ns, text;
    } sum[2];          /* of a trial, in clear and packed */
} tcp_pace;

/* Connections of one session between two addresses, which the shards' progress threads have: they share a wire, and go the same way. */
typedef struct tcp_paces {
    pthread_mutex_t mu; /* taken under rails' locks; none is taken under it */
    tcp_pace way[2];    /* of WRITEs and READs */
} tcp_paces;

#endif
