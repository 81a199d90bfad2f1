// Transfers and notifications, one thread and many.
#include "host.h"

namespace host {

namespace {

nixlBackendOptionalArgs with_notif(const std::string &text)
{
    nixlBackendOptionalArgs args;
    args.hasNotif = true;
    args.notifMsg = text;
    return args;
}

} // namespace

void test_transfers()
{
    const nixlBackendOptionalArgs none;
    auto a = make_engine("a");
    auto b = make_engine("b");
    load(*a, "b", *b);
    Buffer mine(*a, 1 << 20, 0x11), theirs(*b, 1 << 20, 0x22);
    nixlBackendMD *md = theirs.load_in(*a, "b");
    auto local = list_of(mine, mine.md, 16), remote = list_of(theirs, md, 16);

    // WRITE with a notification, posted repeatedly.
    nixlBackendReqH *handle = nullptr;
    CHECK_RC(a->prepXfer(NIXL_WRITE, local, remote, "b", handle, &none), NIXL_SUCCESS);
    for (int i = 0; i < 20; i++) {
        CHECK_RC(run(*a, NIXL_WRITE, local, remote, "b", handle, with_notif(std::to_string(i))), NIXL_SUCCESS);
        const auto [name, text] = next_notif(*b);
        CHECK(name == "a" && text == std::to_string(i));
        CHECK(theirs.holds(0x11));
    }
    std::chrono::microseconds duration(1), margin(1);
    nixl_cost_t method;
    const nixl_status_t rc = a->estimateXferCost(NIXL_WRITE, local, remote, "b", handle, duration, margin, method, nullptr);
    CHECK(rc == NIXL_SUCCESS || rc == NIXL_ERR_NOT_SUPPORTED);
    CHECK_RC(a->releaseReqH(handle), NIXL_SUCCESS);
    CHECK(a->releaseReqH(handle) < 0); // a second time

    // READ, then a transfer to the same engine through the loopback metadata.
    std::fill(theirs.bytes.begin(), theirs.bytes.end(), 0x33);
    CHECK_RC(a->prepXfer(NIXL_READ, local, remote, "b", handle, &none), NIXL_SUCCESS);
    CHECK_RC(run(*a, NIXL_READ, local, remote, "b", handle, none), NIXL_SUCCESS);
    CHECK(mine.holds(0x33));
    CHECK_RC(a->releaseReqH(handle), NIXL_SUCCESS);

    // A READ in progress: its release may be refused once.
    CHECK_RC(a->prepXfer(NIXL_READ, local, remote, "b", handle, &none), NIXL_SUCCESS);
    const nixl_status_t posted = a->postXfer(NIXL_READ, local, remote, "b", handle, &none);
    CHECK(posted >= 0);
    const nixl_status_t first = a->releaseReqH(handle);
#ifdef HOST_LINKED
    CHECK(posted == NIXL_IN_PROG && first == NIXL_ERR_REPOST_ACTIVE);
#endif
    if (first != NIXL_SUCCESS) {
        CHECK_RC(first, NIXL_ERR_REPOST_ACTIVE);
        CHECK_RC(a->releaseReqH(handle), NIXL_SUCCESS);
    }
    CHECK(a->releaseReqH(handle) < 0); // already released

    Buffer other(*a, 1 << 20, 0x44);
    auto self = list_of(other, other.self, 16);
    CHECK_RC(a->prepXfer(NIXL_WRITE, local, self, "a", handle, &none), NIXL_SUCCESS);
    CHECK_RC(run(*a, NIXL_WRITE, local, self, "a", handle, with_notif("")), NIXL_SUCCESS);
    CHECK(other.holds(0x33));
    CHECK(next_notif(*a) == std::make_pair(std::string("a"), std::string()));
    CHECK_RC(a->releaseReqH(handle), NIXL_SUCCESS);

    // A refused preparation leaves no handle.
    auto fewer = list_of(theirs, md, 8);
    CHECK_RC(a->prepXfer(NIXL_READ, local, fewer, "b", handle, &none), NIXL_ERR_INVALID_PARAM);
    CHECK(!handle);

    // A notification without a transfer, with every byte value.
    std::string all(300, '\0');
    for (size_t i = 0; i < all.size(); i++)
        all[i] = static_cast<char>(i);
    CHECK_RC(a->genNotif("b", all), NIXL_SUCCESS);
    CHECK(next_notif(*b).second == all);
    CHECK_RC(a->unloadMD(md), NIXL_SUCCESS);
}

// Each thread registers, transfers and notifies on one pair of engines, without the agent's lock.
void test_threads()
{
    auto a = make_engine("a");
    auto b = make_engine("b");
    load(*a, "b", *b);
    constexpr int threads = 4, rounds = 50;
    std::vector<std::thread> all;
    for (int t = 0; t < threads; t++) {
        all.emplace_back([&, t] {
            for (int i = 0; i < rounds; i++) {
                const auto fill = static_cast<unsigned char>(16 * t + i);
                Buffer mine(*a, 8192, fill), theirs(*b, 8192, 0xff);
                nixlBackendMD *md = theirs.load_in(*a, "b");
                auto local = list_of(mine, mine.md, 2), remote = list_of(theirs, md, 2);
                nixlBackendReqH *handle = nullptr;
                CHECK_RC(a->prepXfer(NIXL_WRITE, local, remote, "b", handle, nullptr), NIXL_SUCCESS);
                CHECK_RC(run(*a, NIXL_WRITE, local, remote, "b", handle, with_notif("n")), NIXL_SUCCESS);
                CHECK(theirs.holds(fill));
                CHECK_RC(a->releaseReqH(handle), NIXL_SUCCESS);
                CHECK_RC(a->unloadMD(md), NIXL_SUCCESS);
            }
        });
    }
    size_t got = 0;
    while (got < size_t(threads) * rounds) {
        notif_list_t list;
        CHECK_RC(b->getNotifs(list), NIXL_SUCCESS);
        got += list.size();
        std::this_thread::yield();
    }
    for (auto &t : all)
        t.join();
    CHECK(got == size_t(threads) * rounds);
}

// The agent destroys engines without releasing requests, unloading or deregistering.
void test_live_requests()
{
    auto a = make_engine("a");
    auto b = make_engine("b");
    load(*a, "b", *b);
    Buffer mine(*a, 1 << 20, 1), theirs(*b, 1 << 20, 2);
    nixlBackendMD *md = theirs.load_in(*a, "b");
    auto local = list_of(mine, mine.md), remote = list_of(theirs, md);
    for (int i = 0; i < 8; i++) {
        nixlBackendReqH *handle = nullptr;
        CHECK_RC(a->prepXfer(NIXL_READ, local, remote, "b", handle, nullptr), NIXL_SUCCESS);
        if (i % 2)
            CHECK(a->postXfer(NIXL_READ, local, remote, "b", handle, nullptr) >= 0);
    }
    a.reset();
    mine.md = nullptr; // ended with its engine
}

} // namespace host
