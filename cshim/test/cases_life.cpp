// Loading, creating and destroying engines, fork.
#include "host.h"

#include <csignal>
#include <cstring>
#include <functional>
#include <sys/wait.h>
#include <unistd.h>

namespace host {

void test_life()
{
    for (int i = 0; i < 5; i++) {
        plugin = init();
        CHECK(plugin && plugin->api_version == nixl_plugin_api_version);
        CHECK(!std::strcmp(plugin->get_plugin_name(), "GORAIL"));
        CHECK(std::strlen(plugin->get_plugin_version()) >= 5);
        CHECK(plugin->get_backend_options().count("provider") == 1);
        CHECK(plugin->get_backend_mems() == nixl_mem_list_t{DRAM_SEG});
        fini();
        fini();
    }
    CHECK(init() == plugin);

    // Options of another backend are accepted under its name.
    nixl_b_params_t foreign = {{"num_workers", "4"}, {"engine_config", ""}, {"split_batch_size", "1024"}, {"made_up", "1"}};
    nixlBackendInitParams as = {"solo", "UCX", &foreign, false, 0, nixl_thread_sync_t::NIXL_THREAD_SYNC_NONE, false};
    EnginePtr e(plugin->create_engine(&as));
    CHECK(e && !e->getInitErr() && e->getCustomParams().at("num_workers") == "4");
    fini(); // with a live engine: it must keep working
    std::string conn;
    CHECK_RC(e->getConnInfo(conn), NIXL_SUCCESS);
    CHECK_RC(e->connect("solo"), NIXL_SUCCESS);
    e.reset();

    // A failed creation leaves an object whose methods and destructor are safe to call.
    CHECK(!make_engine("bad", {{"xfer_timeout", "yesterday"}}));
    nixl_b_params_t bad = {{"xfer_timeout", "yesterday"}};
    nixlBackendInitParams p = {"bad", "GORAIL", &bad, false, 0, nixl_thread_sync_t::NIXL_THREAD_SYNC_NONE, false};
    EnginePtr broken(plugin->create_engine(&p));
    CHECK(broken && broken->getInitErr());
    notif_list_t notifs;
    std::string blob;
    CHECK_RC(broken->getConnInfo(blob), NIXL_ERR_BACKEND);
    CHECK_RC(broken->connect("bad"), NIXL_ERR_BACKEND);
    CHECK_RC(broken->getNotifs(notifs), NIXL_ERR_BACKEND);
}

void test_several_engines()
{
    // The same agent names repeatedly, and several engines at a time.
    for (int round = 0; round < 3; round++) {
        std::vector<EnginePtr> engines;
        for (int i = 0; i < 4; i++)
            engines.push_back(make_engine("agent" + std::to_string(i)));
        for (auto &e : engines)
            CHECK(e);
        engines.erase(engines.begin() + round);
        for (auto &e : engines)
            CHECK_RC(e->genNotif("nobody", "x"), NIXL_ERR_NOT_FOUND);
    }
}

// A thread's first call, whichever it is, leaves its signal mask as it was. A signal that the thread has blocked since then does not come at
// its end. The stub of the Go half aborts on a call of a thread that is not bound.
void test_thread_ends()
{
    static std::atomic<bool> came;
    struct sigaction before = {}, mark = {};
    mark.sa_handler = [](int) { came = true; };
    CHECK(sigaction(SIGUSR1, &mark, &before) == 0);
    EnginePtr e, peer = make_engine("peer");
    std::vector<unsigned char> bytes(4096, 7);
    nixlBlobDesc d;
    d.addr = reinterpret_cast<uintptr_t>(bytes.data());
    d.len = bytes.size();
    d.devId = 0;
    nixlBackendMD *md = nullptr, *self = nullptr, *remote = nullptr;
    nixlBackendReqH *handle = nullptr, *none = nullptr;
    nixlBackendOptionalArgs args;
    nixl_reg_dlist_t asked(DRAM_SEG);
    asked.addDesc(d);
    std::vector<nixl_query_resp_t> known;
    std::string conn;
    CHECK_RC(peer->getConnInfo(conn), NIXL_SUCCESS);
    Buffer theirs(*peer, bytes.size(), 2);
    const auto to = [&] { return list_of(theirs, remote); };
    const auto from = [&] {
        nixl_meta_dlist_t list(DRAM_SEG);
        nixlMetaDesc at = *to().begin();
        at.addr = d.addr;
        at.metadataP = md;
        list.addDesc(at);
        return list;
    };
    std::chrono::microseconds duration, margin;
    nixl_cost_t method;
    notif_list_t notifs;
    nixlMemViewH view = nullptr;
    const std::function<void()> calls[] = {
        [] { CHECK(init() == plugin); },
        [] { CHECK(!plugin->get_backend_options().empty()); },
        [] { CHECK(!plugin->get_backend_mems().empty()); },
        [&] { e = make_engine("solo"); },
        [&] { CHECK_RC(e->connect("solo"), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->loadRemoteConnInfo("peer", conn), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->registerMem(d, DRAM_SEG, md), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->loadLocalMD(md, self), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->queryMem(asked, known), NIXL_SUCCESS); },
        [&] { remote = theirs.load_in(*e, "peer"); },
        [&] { CHECK_RC(e->prepXfer(NIXL_WRITE, from(), to(), "peer", handle, &args), NIXL_SUCCESS); },
        [&] { CHECK(e->estimateXferCost(NIXL_WRITE, from(), to(), "peer", handle, duration, margin, method, nullptr) <= 0); },
        [&] { CHECK(e->postXfer(NIXL_WRITE, from(), to(), "peer", handle, &args) >= 0); },
        [&] {
            while (e->checkXfer(handle) == NIXL_IN_PROG)
                std::this_thread::yield();
        },
        [&] { CHECK_RC(e->releaseReqH(handle), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->genNotif("peer", "x"), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->getNotifs(notifs), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->unloadMD(remote), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->unloadMD(self), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->deregisterMem(md), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->disconnect("peer"), NIXL_SUCCESS); },
        [&] { CHECK_RC(e->prepMemView(to(), view, &args), NIXL_ERR_NOT_SUPPORTED); },
        [&] { CHECK_RC(e->checkXfer(none), NIXL_ERR_INVALID_PARAM); },
        [&] { e.reset(); },
    };
    for (auto &call : calls)
        std::thread([&] {
            sigset_t own, now;
            sigemptyset(&own);
            sigaddset(&own, SIGCHLD);
            sigaddset(&own, SIGSEGV);
            CHECK(pthread_sigmask(SIG_SETMASK, &own, nullptr) == 0);
            call();
            CHECK(pthread_sigmask(SIG_SETMASK, nullptr, &now) == 0);
            for (int sig = 1; sig < NSIG; sig++)
                CHECK(sigismember(&own, sig) == sigismember(&now, sig));
            sigaddset(&own, SIGUSR1);
            CHECK(pthread_sigmask(SIG_SETMASK, &own, nullptr) == 0);
            CHECK(pthread_kill(pthread_self(), SIGUSR1) == 0);
        }).join();
    CHECK(!came);
    CHECK(theirs.holds(7));
    CHECK(sigaction(SIGUSR1, &before, nullptr) == 0);
}

// Loading the plugin started Go's runtime. A child thus has none of its threads, even before the first engine.
void test_fork_before_engines()
{
    plugin = init();
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        CHECK(plugin->get_backend_options().empty());
        CHECK(!make_engine("child"));
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void test_fork()
{
    auto e = make_engine("parent");
    auto peer = make_engine("peer");
    load(*e, "peer", *peer);
    Buffer mine(*e, 4096, 1), theirs(*peer, 4096, 2);
    nixlBackendMD *remote_md = theirs.load_in(*e, "peer");
    auto local = list_of(mine, mine.md), remote = list_of(theirs, remote_md);
    nixlBackendReqH *handle = nullptr;
    nixlBackendOptionalArgs none;
    CHECK_RC(e->prepXfer(NIXL_WRITE, local, remote, "peer", handle, &none), NIXL_SUCCESS);

    int log[2];
    CHECK(pipe(log) == 0);
    const pid_t child = fork();
    if (child == 0) {
        alarm(20);
        CHECK(dup2(log[1], STDERR_FILENO) == STDERR_FILENO);
        std::string text;
        notif_list_t list;
        nixlBackendReqH *other = nullptr;
        nixlBackendMD *md = nullptr;
        nixlBlobDesc d;
        std::vector<nixl_query_resp_t> resp;
        CHECK_RC(e->getConnInfo(text), NIXL_ERR_BACKEND);
        CHECK_RC(e->registerMem(d, DRAM_SEG, md), NIXL_ERR_BACKEND);
        CHECK_RC(e->deregisterMem(mine.md), NIXL_ERR_BACKEND);
        CHECK_RC(e->unloadMD(mine.self), NIXL_ERR_BACKEND);
        CHECK_RC(e->loadLocalMD(mine.md, md), NIXL_ERR_BACKEND);
        CHECK_RC(e->getPublicData(mine.md, text), NIXL_ERR_BACKEND);
        CHECK_RC(e->loadRemoteConnInfo("peer", text), NIXL_ERR_BACKEND);
        CHECK_RC(e->connect("peer"), NIXL_ERR_BACKEND);
        CHECK_RC(e->disconnect("peer"), NIXL_ERR_BACKEND);
        CHECK_RC(e->prepXfer(NIXL_READ, local, remote, "peer", other, &none), NIXL_ERR_BACKEND);
        CHECK_RC(e->postXfer(NIXL_WRITE, local, remote, "peer", handle, &none), NIXL_ERR_BACKEND);
        CHECK_RC(e->checkXfer(handle), NIXL_ERR_BACKEND);
        CHECK_RC(e->releaseReqH(handle), NIXL_ERR_BACKEND);
        CHECK_RC(e->getNotifs(list), NIXL_ERR_BACKEND);
        CHECK_RC(e->genNotif("peer", "x"), NIXL_ERR_BACKEND);
        CHECK_RC(e->queryMem(nixl_reg_dlist_t(DRAM_SEG), resp), NIXL_ERR_BACKEND);
        CHECK(!make_engine("child"));
        CHECK(plugin->get_backend_options().empty());
        e.reset();
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);

    // The child's calls have left one line.
    close(log[1]);
    std::string line(4096, 0);
    const ssize_t n = read(log[0], line.data(), line.size());
    close(log[0]);
    CHECK(n > 0);
    line.resize(static_cast<size_t>(n));
    CHECK(line.find('\n') == line.size() - 1 && line.find("level=ERROR") == 0);
    CHECK(line.find("pid=" + std::to_string(child) + " call=getConnInfo status=NIXL_ERR_BACKEND code=GR-1007\n") != line.npos);

    // The parent keeps working.
    CHECK_RC(run(*e, NIXL_WRITE, local, remote, "peer", handle, none), NIXL_SUCCESS);
    CHECK(theirs.holds(1));
    CHECK_RC(e->releaseReqH(handle), NIXL_SUCCESS);
    CHECK_RC(e->unloadMD(remote_md), NIXL_SUCCESS);
}

} // namespace host
