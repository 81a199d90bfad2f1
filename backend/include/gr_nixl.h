/* NIXL's enums, by value. Below the shim only this header holds the numbers. cshim/objects.h compares them with the ABI.
 * plugin/status.go compares them with package status's codes. */
#ifndef GORAIL_NIXL_H
#define GORAIL_NIXL_H

/* nixl_status_t, by value. */
enum {
    GR_IN_PROG = 1,
    GR_SUCCESS = 0,
    GR_ERR_NOT_POSTED = -1,
    GR_ERR_INVALID_PARAM = -2,
    GR_ERR_BACKEND = -3,
    GR_ERR_NOT_FOUND = -4,
    GR_ERR_MISMATCH = -5,
    GR_ERR_NOT_ALLOWED = -6,
    GR_ERR_REPOST_ACTIVE = -7,
    GR_ERR_UNKNOWN = -8,
    GR_ERR_NOT_SUPPORTED = -9,
    GR_ERR_REMOTE_DISCONNECT = -10,
    GR_ERR_CANCELED = -11
};

/* nixl_mem_t, by value. */
enum { GR_MEM_DRAM = 0, GR_MEM_VRAM = 1 };

/* nixl_xfer_op_t, by value. */
enum { GR_READ = 0, GR_WRITE = 1 };

#endif
