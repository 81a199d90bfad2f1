// The shim's own errors: each is reported once, and the call returns the status of the report.
#include "backend_calls.h"
#include "host.h"

#include <cstring>

namespace host {

namespace {

// Makes a call that the shim refuses.
template <class F> void refused(int why, int status, F call)
{
    int before[GR_REFUSED_COUNT];
    for (int i = 0; i < GR_REFUSED_COUNT; i++)
        before[i] = refusals[i];
    CHECK_RC(call(), status);
    for (int i = 0; i < GR_REFUSED_COUNT; i++)
        CHECK(refusals[i] == before[i] + (i == why));
}

// A function of an engine by its place in the table, whatever it is there.
template <class F> F *place(const EnginePtr &e, size_t i) { return (*reinterpret_cast<F *const *const *>(e.get()))[i]; }
constexpr size_t mems = 5, beyond = 27;

EnginePtr engine_before_conn_info()
{
    nixl_b_params_t none;
    nixlBackendInitParams params = {"early", "GORAIL", &none, false, 0, nixl_thread_sync_t::NIXL_THREAD_SYNC_NONE, false};
    EnginePtr e(plugin->create_engine(&params));
    CHECK(e && !e->getInitErr());
    return e;
}

// An object that is returned in memory, by a function that is refused: its memory stays as it was.
struct Large {
    unsigned char bytes[1024];
};
void refused_large(const EnginePtr &e, size_t i)
{
    alignas(Large) unsigned char memory[sizeof(Large)], before[sizeof(Large)];
    std::memset(memory, 0x5a, sizeof memory);
    std::memset(before, 0x5a, sizeof before);
    __asm__ volatile("" : : "r"(memory) : "memory"); // the compiler takes what a function returns for written
    refused(GR_REFUSED_ORDER, 0, [&] { return ::new (memory) Large(place<Large(const void *)>(e, i)(e.get())), 0; });
    CHECK(!std::memcmp(memory, before, sizeof before));
}

} // namespace

// A NIXL that was taken for a known one has a function of its own at the place of getSupportedMems, or behind the known ones.
void test_other_tables()
{
    unsigned char none[1024];
    std::memset(none, 0x5a, sizeof none);
    for (const bool asked : {false, true}) {
        auto e = engine_before_conn_info();
        std::string conn;
        if (asked)
            CHECK_RC(e->getConnInfo(conn), NIXL_SUCCESS);
#ifdef __x86_64__ // the registers tell which function is meant
        CHECK(e->getSupportedMems() == plugin->get_backend_mems());
        refused(GR_REFUSED_ORDER, false, [&] { return place<bool(const void *)>(e, mems)(e.get()); });
        CHECK(e->getSupportedMems() == plugin->get_backend_mems());
#else
        if (asked)
            CHECK(e->getSupportedMems() == plugin->get_backend_mems());
        else {
            refused(GR_REFUSED_ORDER, false, [&] { return place<bool(const void *)>(e, mems)(e.get()); });
            refused_large(e, mems);
        }
#endif
        refused(GR_REFUSED_ORDER, asked ? -256 : NIXL_ERR_BACKEND, [&] { return place<int(const void *)>(e, beyond)(e.get()); });
        refused_large(e, beyond);
        for (const size_t i : {mems, beyond}) // neither register has an engine
            refused(GR_REFUSED_ORDER, 0, [&] { return place<void *(void *, void *)>(e, i)(none, none), 0; });
        for (const unsigned char byte : none)
            CHECK(byte == 0x5a);
    }

    // More engines than a chunk of live_engines.h has, and places that are used again.
    std::vector<EnginePtr> all;
    for (int i = 0; i < 200; i++) {
        all.push_back(engine_before_conn_info());
        if (i % 3 == 0)
            all.erase(all.begin() + i / 4);
    }
    for (auto &e : all)
        refused(GR_REFUSED_ORDER, false, [&] { return place<bool(const void *)>(e, mems)(e.get()); });
    const auto ended = place<bool(const void *)>(all[0], mems);
    nixlBackendEngine *gone = all[0].get();
    all.erase(all.begin());
    refused(GR_REFUSED_ORDER, false, [&] { return ended(gone); });
}

void test_refusals()
{
    CHECK(refusals[GR_REFUSED_MEMORY] > 10); // of test_out_of_memory
    auto e = make_engine("e");
    std::string conn, text;
    CHECK_RC(e->getConnInfo(conn), NIXL_SUCCESS);
    CHECK_RC(e->loadRemoteConnInfo("e", conn), NIXL_SUCCESS);
    Buffer mine(*e, 4096, 1);
    auto list = list_of(mine, mine.md);
    nixlBackendReqH *handle = nullptr, *none = nullptr;
    nixlBackendOptionalArgs args;
    CHECK_RC(e->prepXfer(NIXL_WRITE, list, list, "e", handle, &args), NIXL_SUCCESS);
    CHECK_RC(e->releaseReqH(handle), NIXL_SUCCESS);
    refused(GR_REFUSED_REQUEST, NIXL_ERR_NOT_FOUND, [&] { return e->releaseReqH(handle); });
    refused(GR_REFUSED_NULL, NIXL_ERR_INVALID_PARAM, [&] { return e->postXfer(NIXL_WRITE, list, list, "e", none, &args); });
    refused(GR_REFUSED_NULL, NIXL_ERR_INVALID_PARAM, [&] { return e->checkXfer(none); });
    std::chrono::microseconds duration, margin;
    nixl_cost_t method;
    refused(GR_REFUSED_NULL, NIXL_ERR_INVALID_PARAM,
            [&] { return e->estimateXferCost(NIXL_WRITE, list, list, "e", none, duration, margin, method, nullptr); });
    nixlMemViewH view = nullptr;
    refused(GR_REFUSED_VIEW, NIXL_ERR_NOT_SUPPORTED, [&] { return e->prepMemView(list, view, &args); });
    auto *md = mine.md, *self = mine.self;
    mine.give_back();
    refused(GR_REFUSED_REGION, NIXL_ERR_NOT_FOUND, [&] { return e->deregisterMem(md); });
    refused(GR_REFUSED_REGION, NIXL_ERR_NOT_FOUND, [&] { return e->unloadMD(self); });

    // A NIXL with another table: its first call is not getConnInfo. The arguments are of another function.
    auto early = engine_before_conn_info();
    text = "untouched";
    md = mine.md;
    refused(GR_REFUSED_ORDER, NIXL_ERR_BACKEND, [&] { return early->loadRemoteConnInfo(text, text); });
    refused(GR_REFUSED_ORDER, NIXL_ERR_BACKEND, [&] { return early->registerMem({}, DRAM_SEG, md); });
    refused(GR_REFUSED_ORDER, NIXL_ERR_BACKEND, [&] { return early->loadLocalMD(nullptr, md); });
    refused(GR_REFUSED_ORDER, NIXL_ERR_BACKEND, [&] { return early->loadRemoteMD({}, DRAM_SEG, text, md); });
    refused(GR_REFUSED_ORDER, NIXL_ERR_BACKEND, [&] { return early->getPublicData(nullptr, text); });
    refused(GR_REFUSED_ORDER, NIXL_ERR_BACKEND, [&] { return early->genNotif(text, text); });
    refused(GR_REFUSED_ORDER, NIXL_ERR_BACKEND, [&] { return early->checkXfer(nullptr); });
    refused(GR_REFUSED_ORDER, NIXL_ERR_BACKEND, [&] { return early->postXfer(NIXL_WRITE, list, list, "e", none, &args); });
    CHECK(text == "untouched" && md == mine.md);
    early.reset(); // is no news
    auto at_once = engine_before_conn_info();
    refused(GR_REFUSED_LAYOUT, 0, [&] { return at_once.reset(), 0; });

    nixl_b_params_t bad = {{"xfer_timeout", "yesterday"}};
    nixlBackendInitParams p = {"bad", "GORAIL", &bad, false, 0, nixl_thread_sync_t::NIXL_THREAD_SYNC_NONE, false};
    EnginePtr broken(plugin->create_engine(&p));
    notif_list_t notifs;
    CHECK(broken && broken->getInitErr());
    refused(GR_REFUSED_ENGINE, NIXL_ERR_BACKEND, [&] { return broken->getConnInfo(text); });
    refused(GR_REFUSED_ENGINE, NIXL_ERR_BACKEND, [&] { return broken->connect("e"); });
    refused(GR_REFUSED_ENGINE, NIXL_ERR_BACKEND, [&] { return broken->getNotifs(notifs); });
}

} // namespace host
