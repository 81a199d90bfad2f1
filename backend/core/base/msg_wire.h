/* A message on a link: a header and up to FRAG bytes of payload. */
#ifndef GORAIL_MSG_WIRE_H
#define GORAIL_MSG_WIRE_H

#include <stdint.h>

enum { HDR = 40, KIND_NOTIF = 1, KIND_CREDIT = 2, KIND_SKIP = 3, KIND_PROBE = 4, MAGIC = 0x5247, VERSION = 4 };

/* Same layout as wire.Header (header.go compares the two). Little endian on every machine that we run on. */
typedef struct header {
    uint16_t magic;
    uint8_t version;
    uint8_t kind;
    uint16_t subs; /* sub-transfers of the transfer */
    uint16_t sub;  /* the sub-transfer whose data precede this message */
    uint64_t seq;
    uint32_t total;
    uint32_t offset;
    uint32_t count;
    uint32_t sum;
    uint64_t to;
} header;

_Static_assert(sizeof(header) == HDR, "message header is 40 bytes on the wire");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the header goes out as it lies in memory");

#endif
