// A miniature NIXL as a library, with the table of functions of the header that it is compiled with. ASK are its calls of further functions,
// EARLY those before getConnInfo.
#include "check.h"
#include "nixl_engine_abi.h"

#include <dlfcn.h>

namespace {

const std::string name = "ann";

// A function's result in memory that has no zero. A function that was refused leaves it so.
template <class T, class F> bool untouched(F call)
{
    alignas(T) unsigned char place[sizeof(T)];
    std::memset(place, 0x5a, sizeof place);
    __asm__ volatile("" : : "r"(place) : "memory"); // the compiler takes what a function returns for written
    ::new (place) T(call());
    unsigned char as_before[sizeof place];
    std::memset(as_before, 0x5a, sizeof place);
    return !std::memcmp(place, as_before, sizeof place);
}

// The calls of createBackend after the engine is there, in NIXL's order. Returns what failed.
std::string begin(nixlBackendEngine *e, std::string &conn)
{
    if (e->getInitErr())
        return "getInitErr";
    if (e->supportsRemote()) {
        if (!e->supportsNotif())
            return "supportsNotif";
        EARLY
        if (const auto rc = e->getConnInfo(conn); rc != NIXL_SUCCESS)
            return "getConnInfo " + std::to_string(rc);
    }
    if (e->supportsLocal())
        if (const auto rc = e->connect(name); rc != NIXL_SUCCESS)
            return "connect " + std::to_string(rc);
    return e->getSupportedMems() == nixl_mem_list_t{DRAM_SEG} ? "" : "getSupportedMems";
}

struct Memory {
    std::vector<char> bytes;
    nixlBackendMD *md = nullptr, *self = nullptr;

    Memory(nixlBackendEngine *e, char fill) : bytes(65536, fill)
    {
        nixlBlobDesc d;
        d.addr = reinterpret_cast<uintptr_t>(bytes.data());
        d.len = bytes.size();
        d.devId = 0;
        std::string blob;
        CHECK(e->registerMem(d, DRAM_SEG, md) == NIXL_SUCCESS && md);
        CHECK(e->loadLocalMD(md, self) == NIXL_SUCCESS && self);
        CHECK(e->getPublicData(md, blob) == NIXL_SUCCESS);
    }
    nixl_meta_dlist_t list(nixlBackendMD *of) const
    {
        nixl_meta_dlist_t all(DRAM_SEG);
        nixlMetaDesc d;
        d.addr = reinterpret_cast<uintptr_t>(bytes.data());
        d.len = bytes.size();
        d.devId = 0;
        d.metadataP = of;
        all.addDesc(d);
        return all;
    }
    void end(nixlBackendEngine *e) const
    {
        CHECK(e->unloadMD(self) == NIXL_SUCCESS);
        CHECK(e->deregisterMem(md) == NIXL_SUCCESS);
    }
};

// Each function at work: a WRITE from the agent to itself, with a notification.
void use(nixlBackendEngine *e, const std::string &conn)
{
    CHECK(conn.size() >= 25 && e->loadRemoteConnInfo(name, conn) == NIXL_SUCCESS);
    Memory from(e, 'x'), to(e, '-');
    const auto local = from.list(from.md), remote = to.list(to.self);
    nixlBackendReqH *handle = nullptr;
    nixlBackendOptionalArgs args;
    args.hasNotif = true;
    args.notifMsg = "done";
    CHECK(e->prepXfer(NIXL_WRITE, local, remote, name, handle, &args) == NIXL_SUCCESS && handle);
    nixl_status_t rc = e->postXfer(NIXL_WRITE, local, remote, name, handle, &args);
    while (rc == NIXL_IN_PROG)
        rc = e->checkXfer(handle);
    CHECK(rc == NIXL_SUCCESS && to.bytes == from.bytes);
    std::chrono::microseconds duration, margin;
    nixl_cost_t method;
    rc = e->estimateXferCost(NIXL_WRITE, local, remote, name, handle, duration, margin, method, nullptr);
    CHECK(rc == NIXL_SUCCESS || rc == NIXL_ERR_NOT_SUPPORTED);
    ASK CHECK(e->releaseReqH(handle) == NIXL_SUCCESS);
    CHECK(e->genNotif(name, "alone") == NIXL_SUCCESS);
    notif_list_t all;
    while (all.size() < 2)
        CHECK(e->getNotifs(all) >= 0);
    for (const auto &[sender, text] : all)
        CHECK(sender == name && (text == "done" || text == "alone"));
    nixl_reg_dlist_t none(DRAM_SEG);
    std::vector<nixl_query_resp_t> answers;
    CHECK(e->queryMem(none, answers) == NIXL_SUCCESS && answers.empty());
    nixlMemViewH view = nullptr;
    CHECK(e->prepMemView(local, view, nullptr) == NIXL_ERR_NOT_SUPPORTED);
    CHECK(e->prepMemView(nixl_remote_meta_dlist_t(DRAM_SEG), view, nullptr) == NIXL_ERR_NOT_SUPPORTED);
    e->releaseMemView(view);
    from.end(e);
    to.end(e);
    CHECK(e->disconnect(name) == NIXL_SUCCESS);
}

} // namespace

extern "C" __attribute__((visibility("default"))) const char *run(const char *plugin)
{
    static std::string said;
    void *so = dlopen(plugin, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!so)
        return said = dlerror(), said.c_str();
    const auto init = reinterpret_cast<nixlBackendPlugin *(*)()>(dlsym(so, "nixl_plugin_init"));
    CHECK(init);
    nixlBackendPlugin *p = init();
    if (!p)
        return "no plugin";
    nixl_b_params_t params;
    nixlBackendInitParams with = {};
    with.localAgent = name;
    with.type = "GORAIL";
    with.customParams = &params;
    nixlBackendEngine *e = p->create_engine(&with);
    CHECK(e);
    std::string conn;
    said = begin(e, conn);
    if (said.empty()) {
        use(e, conn);
        said = "served";
    }
    p->destroy_engine(e);
    return said.c_str();
}
