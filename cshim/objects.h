// The objects that the agent holds between calls: a region and a request. They only carry handles of the Go side.
#pragma once

#include "backend_calls.h"
#include "nixl_engine_abi.h"

#include <cstring>
#include <string_view>

namespace gorail {

// A registered range of this agent or a peer. The plan builder in Go reads `region` in place, GR_MD_REGION bytes after
// the object's start. A descriptor list thus crosses the boundary in place.
class Region : public nixlBackendMD {
  public:
    const uint64_t region;
    const bool remote; // loaded from a peer's metadata

    Region(uint64_t id, bool is_remote) : nixlBackendMD(!is_remote), region(id), remote(is_remote) {}
};

// What registerMem returns. It has the blob for peers, which the agent asks for next.
class Registered final : public Region {
    uint32_t len_;
    char blob_[GR_REGION_BLOB];

  public:
    explicit Registered(const gr_registered &made) : Region(made.region, false), len_(made.len) { std::memcpy(blob_, made.blob, len_); }

    std::string_view blob() const { return {blob_, len_}; }
};

// A transfer request. checkXfer reads the slot and never enters Go.
class Request final : public nixlBackendReqH {
  public:
    const uint64_t xfer;
    gr_xfer *const slot;

    explicit Request(const gr_prepped &made) : xfer(made.xfer), slot(static_cast<gr_xfer *>(made.slot)) {}
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
static_assert(offsetof(Region, region) == GR_MD_REGION);
#pragma GCC diagnostic pop

// gr_desc is nixlMetaDesc, field by field.
static_assert(sizeof(gr_desc) == sizeof(nixlMetaDesc));
static_assert(offsetof(gr_desc, addr) == offsetof(nixlBasicDesc, addr));
static_assert(offsetof(gr_desc, len) == offsetof(nixlBasicDesc, len));
static_assert(offsetof(gr_desc, dev) == offsetof(nixlBasicDesc, devId));
static_assert(offsetof(gr_desc, md) == sizeof(nixlBasicDesc));

static_assert(int(GR_IN_PROG) == NIXL_IN_PROG && int(GR_SUCCESS) == NIXL_SUCCESS);
static_assert(int(GR_ERR_NOT_POSTED) == NIXL_ERR_NOT_POSTED && int(GR_ERR_INVALID_PARAM) == NIXL_ERR_INVALID_PARAM);
static_assert(int(GR_ERR_BACKEND) == NIXL_ERR_BACKEND && int(GR_ERR_NOT_FOUND) == NIXL_ERR_NOT_FOUND);
static_assert(int(GR_ERR_MISMATCH) == NIXL_ERR_MISMATCH && int(GR_ERR_NOT_ALLOWED) == NIXL_ERR_NOT_ALLOWED);
static_assert(int(GR_ERR_REPOST_ACTIVE) == NIXL_ERR_REPOST_ACTIVE && int(GR_ERR_UNKNOWN) == NIXL_ERR_UNKNOWN);
static_assert(int(GR_ERR_NOT_SUPPORTED) == NIXL_ERR_NOT_SUPPORTED && int(GR_ERR_CANCELED) == NIXL_ERR_CANCELED);
static_assert(int(GR_ERR_REMOTE_DISCONNECT) == NIXL_ERR_REMOTE_DISCONNECT);
static_assert(int(GR_READ) == NIXL_READ && int(GR_WRITE) == NIXL_WRITE);
static_assert(int(GR_MEM_DRAM) == DRAM_SEG && int(GR_MEM_VRAM) == VRAM_SEG);

} // namespace gorail
