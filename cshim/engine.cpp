// GorailEngine: creation and end, memory and peers. Transfers and notifications are in engine_xfer.cpp.
#include "engine.h"

#include "flat.h"
#include "guard.h"
#include "host_signals.h"
#include "live_engines.h"
#include "nixl_layout.h"
#include "room.h"

#include <cstring>
#include <optional>

using namespace gorail;

nixl_mem_list_t gorail::mem_list(bool vram) noexcept
{
    try {
        return vram ? nixl_mem_list_t{DRAM_SEG, VRAM_SEG} : nixl_mem_list_t{DRAM_SEG};
    } catch (...) {
        return {};
    }
}

GorailEngine::GorailEngine(const nixlBackendInitParams *p) : nixlBackendEngine(p)
{
    const auto rc = guard([&] { return create(p); }, "createBackend");
    initErr = rc != NIXL_SUCCESS;
}

nixl_status_t GorailEngine::create(const nixlBackendInitParams *p)
{
    if (!go_runs())
        return refuse_without_go("createBackend");
    bind_thread();
    auto state = std::make_unique<State>();

    std::vector<gr_param> params;
    for (const auto &[key, value] : getCustomParams())
        params.push_back({borrow(key), borrow(value)});

    gr_create_args args = {};
    args.agent = borrow(p->localAgent);
    args.type = borrow(p->type);
    args.params = params.data();
    args.nparams = params.size();
    const char *const lack = room_for_engine();
    args.lack = {lack, lack ? std::strlen(lack) : 0};

    Owned conn;
    gr_created made = {};
    int32_t rc;
    {
        const SignalsBlocked hold; // libraries of fabrics start threads here
        rc = gorail_create(&args, &made);
    }
    conn.ptr = made.conn.ptr;
    conn.len = made.conn.len;
    if (rc != GR_SUCCESS)
        return static_cast<nixl_status_t>(rc);

    // From here on the destructor closes the engine, also after an exception.
    state->created = made.engine;
    state->core = static_cast<gr_core *>(made.core);
    state->vram = made.vram != 0;
    state_ = std::move(state);
    state_->conn = conn.str();
    return NIXL_SUCCESS;
}

GorailEngine::~GorailEngine()
{
    live_engines.remove(this);
    if (gr_forked()) {
        state_.release(); // the state belongs to the parent: nothing in it can be used or freed here
        return;
    }
    if (state_ && state_->created) {
        bind_thread();
        if (waits() && !state_->refused && !state_->asked)
            refuse("createBackend", GR_REFUSED_LAYOUT);
        gorail_destroy(state_->created);
    }
}

nixl_mem_list_t GorailEngine::getSupportedMems() const { return mem_list(state_ && state_->vram); }

nixl_status_t GorailEngine::registerMem(const nixlBlobDesc &mem, const nixl_mem_t &type, nixlBackendMD *&out)
{
    if (waits())
        return refuse("registerMem", why_unusable());
    out = nullptr;
    return enter_go(GR_CROSS_OTHER, [&] {
        gr_region_args args = region_args(mem, type);
        gr_registered made;
        std::optional<SignalsBlocked> hold; // with the first memory libraries start what watches it
        if (!state_->has_memory.test_and_set())
            hold.emplace();
        const int32_t rc = gorail_register(state_->engine, &args, &made);
        hold.reset();
        if (rc != GR_SUCCESS)
            return rc;
        Undo undo([&] { gorail_deregister(state_->engine, made.region); });
        out = state_->registered.add(made);
        undo.dismiss();
        return rc;
    });
}

nixl_status_t GorailEngine::deregisterMem(nixlBackendMD *md)
{
    return enter_go(GR_CROSS_OTHER, [&]() -> int32_t {
        auto region = state_->registered.take(md);
        if (!region)
            return refuse("deregisterMem", GR_REFUSED_REGION);
        return gorail_deregister(state_->engine, region->region);
    });
}

// The loopback target is a separate object. An agent that ends deregisters first and unloads afterwards. A shared
// object would then be unloaded through a dangling pointer.
nixl_status_t GorailEngine::loadLocalMD(nixlBackendMD *in, nixlBackendMD *&out)
{
    if (waits())
        return refuse("loadLocalMD", why_unusable());
    out = nullptr;
    return guard([&]() -> int32_t {
        if (!usable())
            return refuse("loadLocalMD", why_unusable());
        out = state_->loaded.add(static_cast<const Region *>(in)->region, false);
        return GR_SUCCESS;
    });
}

nixl_status_t GorailEngine::loadRemoteMD(const nixlBlobDesc &mem, const nixl_mem_t &type, const std::string &peer, nixlBackendMD *&out)
{
    if (waits())
        return refuse("loadRemoteMD", why_unusable());
    out = nullptr;
    return enter_go(GR_CROSS_OTHER, [&] {
        gr_region_args args = region_args(mem, type);
        gr_bytes name = borrow(peer);
        uint64_t region = 0;
        const int32_t rc = gorail_load_remote(state_->engine, &name, &args, &region);
        if (rc != GR_SUCCESS)
            return rc;
        Undo undo([&] { gorail_unload_remote(state_->engine, region); });
        out = state_->loaded.add(region, true);
        undo.dismiss();
        return rc;
    });
}

nixl_status_t GorailEngine::unloadMD(nixlBackendMD *md)
{
    return guard([&]() -> int32_t {
        if (!usable())
            return refuse("unloadMD", why_unusable());
        auto region = state_->loaded.take(md);
        if (!region)
            return refuse("unloadMD", GR_REFUSED_REGION);
        if (!region->remote)
            return GR_SUCCESS;
        return enter_go(GR_CROSS_OTHER, [&] { return gorail_unload_remote(state_->engine, region->region); }, "unloadMD");
    });
}

nixl_status_t GorailEngine::getPublicData(const nixlBackendMD *md, std::string &blob) const
{
    if (waits())
        return refuse("getPublicData", why_unusable());
    blob.clear();
    return guard([&]() -> int32_t {
        if (!usable())
            return refuse("getPublicData", why_unusable());
        const auto *region = state_->registered.find(md);
        if (!region)
            return refuse("getPublicData", GR_REFUSED_REGION);
        blob = region->blob();
        return GR_SUCCESS;
    });
}

nixl_status_t GorailEngine::queryMem(const nixl_reg_dlist_t &mems, std::vector<nixl_query_resp_t> &resp) const
{
    if (waits())
        return refuse("queryMem", why_unusable());
    resp.clear();
    return enter_go(GR_CROSS_OTHER, [&]() -> int32_t {
        for (const auto &mem : mems) {
            gr_region_args args = region_args(mem, mems.getType());
            int32_t known = 0;
            const int32_t rc = gorail_query_mem(state_->engine, &args, &known);
            if (rc != GR_SUCCESS)
                return rc;
            resp.push_back(known ? nixl_query_resp_t(nixl_b_params_t()) : std::nullopt);
        }
        return GR_SUCCESS;
    });
}

// The blob is immutable and made with the engine, so the agent's cached copy stays valid.
nixl_status_t GorailEngine::getConnInfo(std::string &blob) const
{
    blob.clear();
    if (waits())
        state_->engine = state_->created;
    return guard([&]() -> int32_t {
        if (!usable())
            return refuse("getConnInfo", why_unusable());
        blob = state_->conn;
        return GR_SUCCESS;
    });
}

nixl_status_t GorailEngine::loadRemoteConnInfo(const std::string &peer, const std::string &blob)
{
    return enter_go(GR_CROSS_OTHER, [&] {
        gr_bytes name = borrow(peer);
        gr_bytes info = borrow(blob);
        const SignalsBlocked hold;
        return gorail_load_conn(state_->engine, &name, &info);
    });
}

nixl_status_t GorailEngine::connect(const std::string &peer)
{
    return enter_go(GR_CROSS_OTHER, [&] {
        gr_bytes name = borrow(peer);
        const SignalsBlocked hold;
        return gorail_connect(state_->engine, &name);
    });
}

nixl_status_t GorailEngine::disconnect(const std::string &peer)
{
    return enter_go(GR_CROSS_OTHER, [&] {
        gr_bytes name = borrow(peer);
        return gorail_disconnect(state_->engine, &name);
    });
}
