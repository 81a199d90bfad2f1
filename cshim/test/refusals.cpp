// The shim's own errors: each is reported once, and the call returns the status of the report.
#include "backend_calls.h"
#include "host.h"

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

} // namespace

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
    nixl_b_params_t none_given;
    nixlBackendInitParams early_params = {"early", "GORAIL", &none_given, false, 0, nixl_thread_sync_t::NIXL_THREAD_SYNC_NONE, false};
    EnginePtr early(plugin->create_engine(&early_params));
    CHECK(early && !early->getInitErr());
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
    EnginePtr at_once(plugin->create_engine(&early_params));
    CHECK(at_once);
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
