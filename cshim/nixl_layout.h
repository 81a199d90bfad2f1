// Every size and offset of NIXL's ABI that the shim relies on, asserted at compile time.
#pragma once

#include "nixl_engine_abi.h"

// The compilers in use define offsetof for these classes (single inheritance, no virtual bases).
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"

// A friend of the classes, so that it can access private members.
struct nixlLayout {
    using E = nixlBackendEngine;
    using L = nixl_meta_dlist_t;
    using I = nixlBackendInitParams;

    static_assert(sizeof(void *) == 8 && sizeof(size_t) == 8, "64-bit only");
    static_assert(sizeof(std::string) == 32 && sizeof(std::vector<int>) == 24, "libstdc++ with the C++11 ABI");
    static_assert(sizeof(nixl_b_params_t) == 56);

    static_assert(sizeof(nixl_status_t) == 4 && sizeof(nixl_mem_t) == 4 && sizeof(nixl_xfer_op_t) == 4);
    static_assert(sizeof(nixl_cost_t) == 4 && sizeof(nixl_thread_sync_t) == 4);

    static_assert(sizeof(nixlBasicDesc) == 24 && offsetof(nixlBasicDesc, addr) == 0);
    static_assert(offsetof(nixlBasicDesc, len) == 8 && offsetof(nixlBasicDesc, devId) == 16);
    static_assert(sizeof(nixlBlobDesc) == 56 && offsetof(nixlBlobDesc, metaInfo) == 24);
    static_assert(sizeof(nixlMetaDesc) == 32 && offsetof(nixlMetaDesc, metadataP) == 24);
    static_assert(sizeof(nixlRemoteMetaDesc) == 64 && offsetof(nixlRemoteMetaDesc, remoteAgent) == 32);
    static_assert(sizeof(L) == 40 && offsetof(L, type) == 8 && offsetof(L, descs) == 16);

    static_assert(sizeof(nixlBackendOptionalArgs) == 72);
    static_assert(offsetof(nixlBackendOptionalArgs, notifMsg) == 0);
    static_assert(offsetof(nixlBackendOptionalArgs, hasNotif) == 32);
    static_assert(offsetof(nixlBackendOptionalArgs, customParam) == 40);

    static_assert(sizeof(I) == 96 && offsetof(I, localAgent) == 0 && offsetof(I, type) == 32);
    static_assert(offsetof(I, customParams) == 64 && offsetof(I, enableProgTh) == 72);
    static_assert(offsetof(I, pthrDelay) == 80 && offsetof(I, syncMode) == 88);
    static_assert(offsetof(I, enableTelemetry_) == 92);

    static_assert(sizeof(nixlBackendReqH) == 8);
    static_assert(sizeof(nixlBackendMD) == 16 && offsetof(nixlBackendMD, isPrivateMD) == 8);

    // std::mutex is 40 bytes on x86-64 and 48 on aarch64.
    static constexpr size_t behind_mutex = 120 + sizeof(std::mutex);
    static_assert(offsetof(E, backendType) == 8 && offsetof(E, customParams) == 40);
    static_assert(offsetof(E, telemetryEvents_) == 96 && offsetof(E, telemetryEventsMutex_) == 120);
    static_assert(offsetof(E, initErr) == behind_mutex && offsetof(E, elsewhere_) == behind_mutex + 1);

    static_assert(sizeof(nixlBackendPlugin) == 56 && offsetof(nixlBackendPlugin, create_engine) == 8);
    static_assert(offsetof(nixlBackendPlugin, get_backend_mems) == 48);
};

#pragma GCC diagnostic pop
