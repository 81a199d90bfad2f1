// Conversions between C++ strings and the plain data of the boundary.
#pragma once

#include "backend_calls.h"
#include "nixl_types_abi.h"

#include <cstdlib>

namespace gorail {

inline gr_bytes borrow(const std::string &s) noexcept { return {s.data(), s.size()}; }

inline gr_region_args region_args(const nixlBlobDesc &d, nixl_mem_t mem) noexcept
{
    return {d.addr, d.len, d.devId, static_cast<int32_t>(mem), borrow(d.metaInfo)};
}

inline gr_desc *flat(const nixl_meta_dlist_t &list) noexcept { return const_cast<gr_desc *>(reinterpret_cast<const gr_desc *>(list.data())); }

// Memory that Go allocated and the shim frees.
struct Owned : gr_owned {
    Owned() : gr_owned{nullptr, 0} {}
    Owned(const Owned &) = delete;
    void operator=(const Owned &) = delete;
    ~Owned() { std::free(ptr); }

    std::string str() const { return ptr ? std::string(static_cast<const char *>(ptr), len) : std::string(); }
};

} // namespace gorail
