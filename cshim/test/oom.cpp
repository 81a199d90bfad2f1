// Every allocation of every call fails once. The call must then return NIXL_ERR_BACKEND, leak nothing (checked by the
// leak checker and the stub), and succeed when repeated.
#include "host.h"

#include <new>

namespace {

thread_local long fail_at = -1; // allocations until one fails; negative: never

void *allocate(size_t n)
{
    if (fail_at >= 0 && fail_at-- == 0)
        throw std::bad_alloc();
    if (void *p = std::malloc(n))
        return p;
    throw std::bad_alloc();
}

} // namespace

void *operator new(size_t n) { return allocate(n); }
void *operator new[](size_t n) { return allocate(n); }
void operator delete(void *p) noexcept { std::free(p); }
void operator delete[](void *p) noexcept { std::free(p); }
void operator delete(void *p, size_t) noexcept { std::free(p); }
void operator delete[](void *p, size_t) noexcept { std::free(p); }

namespace host {

namespace {

// Runs the call with its first allocation failing, then its second, and so on until the call succeeds.
template <class F> void survive(F call)
{
    for (long n = 0; n < 200; n++) {
        fail_at = n;
        const int rc = call();
        fail_at = -1;
        if (rc == NIXL_SUCCESS)
            return;
        CHECK(rc == NIXL_ERR_BACKEND);
    }
    CHECK(!"never succeeded");
}

} // namespace

void test_out_of_memory()
{
    nixl_b_params_t params = {{"some", "thing that is too long for a small string"}};
    nixlBackendInitParams p = {"an agent with a long enough name to be allocated", "GORAIL", &params, false, 0,
                               nixl_thread_sync_t::NIXL_THREAD_SYNC_NONE,          false};
    EnginePtr a;
    survive([&] {
        a.reset(plugin->create_engine(&p));
        return a && !a->getInitErr() ? NIXL_SUCCESS : NIXL_ERR_BACKEND;
    });
    auto b = make_engine("b");
    std::string conn;
    survive([&] { return a->getConnInfo(conn); });
    CHECK_RC(b->getConnInfo(conn), NIXL_SUCCESS);
    survive([&] { return a->loadRemoteConnInfo("b", conn); });

    Buffer mine(*a, 4096, 1), theirs(*b, 4096, 2);
    nixlBlobDesc d;
    d.addr = reinterpret_cast<uintptr_t>(theirs.bytes.data());
    d.len = 4096;
    d.devId = 0;
    nixlBackendMD *md = nullptr, *self = nullptr, *remote = nullptr;
    survive([&] { return a->registerMem(d, DRAM_SEG, md); });
    survive([&] { return a->loadLocalMD(md, self); });
    survive([&] { return a->getPublicData(md, d.metaInfo); });
    survive([&] { return a->loadRemoteMD(d, DRAM_SEG, "b", remote); });

    auto here = list_of(mine, mine.md), there = list_of(theirs, remote);
    nixlBackendReqH *handle = nullptr;
    nixlBackendOptionalArgs args;
    args.hasNotif = true;
    args.notifMsg = "a text that does not fit into a small string object";
    survive([&] { return a->prepXfer(NIXL_WRITE, here, there, "b", handle, &args); });
    CHECK_RC(run(*a, NIXL_WRITE, here, there, "b", handle, args), NIXL_SUCCESS);
    CHECK(theirs.holds(1));

    notif_list_t list;
    survive([&] {
        CHECK_RC(a->genNotif("b", args.notifMsg), NIXL_SUCCESS); // a failed take consumes the notifications that it took
        return b->getNotifs(list);
    });
    nixl_reg_dlist_t ask(DRAM_SEG);
    ask.addDesc(d);
    std::vector<nixl_query_resp_t> resp;
    survive([&] { return a->queryMem(ask, resp); });

    CHECK_RC(a->releaseReqH(handle), NIXL_SUCCESS);
    CHECK_RC(a->unloadMD(remote), NIXL_SUCCESS);
    CHECK_RC(a->unloadMD(self), NIXL_SUCCESS);
    CHECK_RC(a->deregisterMem(md), NIXL_SUCCESS);
}

} // namespace host
