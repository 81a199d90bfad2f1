// Registration, metadata, queries: in the agent's order of calls, and in wrong orders.
#include "host.h"

#include <set>

namespace host {

void test_memory()
{
    auto a = make_engine("a");
    auto b = make_engine("b");
    Buffer first(*a, 1 << 16, 1);

    // The public blob is the same each time, also after the range is registered again.
    std::string again;
    CHECK_RC(a->getPublicData(first.md, again), NIXL_SUCCESS);
    CHECK(again == first.blob);
    CHECK(a->getPublicData(first.self, again) < 0); // not from registerMem
    CHECK(again.empty());

    // For a peer without loaded connection info the call returns exactly this status and creates nothing.
    nixlBlobDesc d;
    d.addr = reinterpret_cast<uintptr_t>(first.bytes.data());
    d.len = first.bytes.size();
    d.devId = 0;
    d.metaInfo = first.blob;
    nixlBackendMD *out = first.md;
    CHECK_RC(b->loadRemoteMD(d, DRAM_SEG, "a", out), NIXL_ERR_NOT_FOUND);
    CHECK(!out);

    // Load, unload and load again, with the connection info loaded twice.
    load(*b, "a", *a);
    load(*b, "a", *a);
    nixlBackendMD *md = first.load_in(*b, "a");
    CHECK_RC(b->unloadMD(md), NIXL_SUCCESS);
    CHECK(b->unloadMD(md) < 0);
    CHECK_RC(b->disconnect("a"), NIXL_SUCCESS);
    b->disconnect("a"); // not connected: any status is fine

    // A range that is twice in the user's list: the same pointer is deregistered twice.
    nixlBackendMD *lost = first.md, *lost_self = first.self;
    first.give_back();
    CHECK(a->unloadMD(lost_self) < 0);
    CHECK(a->deregisterMem(lost) < 0);

    // An agent that ends deregisters first and unloads afterwards.
    Buffer second(*a, 4096, 1);
    CHECK_RC(a->deregisterMem(second.md), NIXL_SUCCESS);
    CHECK_RC(a->unloadMD(second.self), NIXL_SUCCESS);
    second.md = nullptr;

    nixl_reg_dlist_t ask(DRAM_SEG);
    Buffer third(*a, 4096, 1);
    d.addr = reinterpret_cast<uintptr_t>(third.bytes.data());
    d.len = 4096;
    ask.addDesc(d);
    std::vector<nixl_query_resp_t> resp(7);
    CHECK_RC(a->queryMem(ask, resp), NIXL_SUCCESS);
    CHECK(resp.size() == 1 && resp[0].has_value());

    nixlMemViewH view = nullptr;
    CHECK_RC(a->prepMemView(nixl_meta_dlist_t(DRAM_SEG), view, nullptr), NIXL_ERR_NOT_SUPPORTED);
    CHECK_RC(a->prepMemView(nixl_remote_meta_dlist_t(DRAM_SEG), view, nullptr), NIXL_ERR_NOT_SUPPORTED);
    a->releaseMemView(view);
}

// Many objects, ended in another order: each pointer is good once, and no pointer between them is.
void test_many_objects()
{
    auto a = make_engine("a");
    Buffer mine(*a, 4096, 1);
    std::vector<nixlBackendMD *> all;
    for (int round = 0; round < 3; round++) {
        while (all.size() < 1000) {
            nixlBackendMD *md = nullptr;
            CHECK_RC(a->loadLocalMD(mine.md, md), NIXL_SUCCESS);
            all.push_back(md);
        }
        CHECK(std::set<nixlBackendMD *>(all.begin(), all.end()).size() == all.size());
        std::vector<nixlBackendMD *> kept;
        for (size_t i = 0; i < all.size(); i++) {
            nixlBackendMD *md = all[i * 617 % all.size()]; // each once: 617 has no divisor of the size
            for (const intptr_t off : {1, 8, -8})
                CHECK(a->unloadMD(reinterpret_cast<nixlBackendMD *>(reinterpret_cast<intptr_t>(md) + off)) < 0);
            if (round == 1 && i % 3 == 0) {
                kept.push_back(md);
                continue;
            }
            CHECK_RC(a->unloadMD(md), NIXL_SUCCESS);
            CHECK(a->unloadMD(md) < 0);
        }
        all = kept;
    }
    nixlBackendMD *left = nullptr; // ends with the engine
    CHECK_RC(a->loadLocalMD(mine.md, left), NIXL_SUCCESS);
    for (const uintptr_t wild : {uintptr_t(0), uintptr_t(8), ~uintptr_t(0)})
        CHECK(a->unloadMD(reinterpret_cast<nixlBackendMD *>(wild)) < 0);
}

} // namespace host
