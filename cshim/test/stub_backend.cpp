// A stub of the Go half and the C core for sanitized tests of the shim. Transfers run between engines of this process
// and complete at the first check. The stub aborts on handles that were returned twice or never issued.
#include "backend_calls.h"
#include "host.h"

#include <atomic>
#include <csignal>
#include <cstring>
#include <map>
#include <mutex>
#include <pthread.h>
#include <set>

std::atomic<int> host::refusals[GR_REFUSED_COUNT];

struct gr_core {
    std::mutex mu;
    gr_notif *head = nullptr;
    gr_notif **tail = &head;
};

struct gr_xfer {
    int status = GR_ERR_NOT_POSTED;
    bool cached = false; // every second repeated post is taken without entering Go
};

namespace {

struct Xfer {
    int op;
    std::vector<gr_desc> local, remote;
    std::string peer;
    gr_xfer slot;
    bool kept = false; // a release was refused; this happens once for every READ in progress
};

struct Engine {
    std::string name, conn;
    gr_core core;
    std::map<uint64_t, uint64_t> regions; // id -> start address, for queries
    std::set<uint64_t> remotes;
    std::map<std::string, std::string> peers; // name -> connection blob
    std::map<uint64_t, Xfer> xfers;
};

std::mutex mu;
uint64_t next_id;
std::map<uint64_t, Engine> engines;
std::atomic<int> forked;

[[maybe_unused]] const int watch_fork = pthread_atfork(nullptr, nullptr, [] { forked = 1; });

// The shim has bound this thread with its signals blocked.
thread_local bool bound;

std::string text(const gr_bytes *b) { return std::string(static_cast<const char *>(b->ptr), b->len); }

gr_owned owned(const std::string &s)
{
    void *p = std::malloc(s.size() + 1);
    std::memcpy(p, s.data(), s.size());
    return {p, s.size()};
}

Engine *by_conn(const std::string &conn)
{
    for (auto &[id, e] : engines)
        if (e.conn == conn)
            return &e;
    return nullptr;
}

int32_t push(Engine &from, const std::string &peer, const gr_bytes &msg)
{
    auto it = from.peers.find(peer);
    if (it == from.peers.end())
        return GR_ERR_NOT_FOUND;
    Engine *to = by_conn(it->second);
    if (!to)
        return GR_ERR_REMOTE_DISCONNECT;
    auto *n = static_cast<gr_notif *>(std::calloc(1, sizeof(gr_notif) + from.name.size() + msg.len));
    char *at = reinterpret_cast<char *>(n + 1);
    n->name = at;
    n->name_len = from.name.size();
    n->msg = at + n->name_len;
    n->msg_len = msg.len;
    std::memcpy(at, from.name.data(), n->name_len);
    if (msg.len)
        std::memcpy(at + n->name_len, msg.ptr, msg.len);
    std::lock_guard<std::mutex> lock(to->core.mu);
    *to->core.tail = n;
    to->core.tail = &n->next;
    return GR_SUCCESS;
}

// Runs f on an engine under the only lock. An allocation failure in here would be the test's, not the shim's.
template <class F> int32_t on(uint64_t engine, F f)
{
    CHECK(!forked && bound);
    std::lock_guard<std::mutex> lock(mu);
    auto it = engines.find(engine);
    CHECK(it != engines.end());
    try {
        return f(it->second);
    } catch (const std::bad_alloc &) {
        return GR_ERR_BACKEND;
    }
}

// Copies the bytes and sends the notification.
int32_t start(Engine &e, Xfer &x, bool has_notif, const gr_bytes &msg)
{
    for (size_t i = 0; i < x.local.size(); i++) {
        void *l = reinterpret_cast<void *>(x.local[i].addr), *r = reinterpret_cast<void *>(x.remote[i].addr);
        x.op ? std::memcpy(r, l, x.local[i].len) : std::memcpy(l, r, x.local[i].len);
    }
    if (has_notif)
        if (const int32_t rc = push(e, x.peer, msg); rc != GR_SUCCESS)
            return rc;
    return x.slot.status = GR_IN_PROG;
}

} // namespace

extern "C" {

int gr_forked(void) { return forked; }
void gr_crossed(gr_core *core, int which) { CHECK(core && which >= 0 && which < GR_CROSS_COUNT); }

int gr_check(gr_core *, gr_xfer *slot, uint64_t)
{
    std::lock_guard<std::mutex> lock(mu);
    return slot->status == GR_IN_PROG ? slot->status = GR_SUCCESS : slot->status;
}

int gr_repost(gr_core *core, gr_xfer *slot, uint64_t handle, int has_notif, const void *msg, size_t len)
try {
    CHECK(core && slot && !forked);
    std::lock_guard<std::mutex> lock(mu);
    if (slot->status != GR_SUCCESS || !slot->cached)
        return GR_NOT_TAKEN;
    for (auto &[id, e] : engines)
        if (&e.core == core) {
            Xfer &x = e.xfers.at(handle);
            CHECK(&x.slot == slot);
            slot->cached = false;
            return start(e, x, has_notif, {msg, len});
        }
    CHECK(!"an engine of ours");
    return GR_NOT_TAKEN;
} catch (const std::bad_alloc &) {
    return GR_NOT_TAKEN;
}

gr_notif *gr_notif_take(gr_core *core)
{
    std::lock_guard<std::mutex> lock(core->mu);
    gr_notif *all = core->head;
    core->head = nullptr;
    core->tail = &core->head;
    return all;
}

void gr_notif_free(gr_core *, gr_notif *n)
{
    while (n) {
        gr_notif *next = n->next;
        std::free(n);
        n = next;
    }
}

int32_t gorail_create(gr_create_args *in, gr_created *out)
try {
    CHECK(bound);
    for (uint64_t i = 0; i < in->nparams; i++)
        if (text(&in->params[i].key) == "xfer_timeout")
            return GR_ERR_INVALID_PARAM;
    std::lock_guard<std::mutex> lock(mu);
    const std::string name = text(&in->agent);
    const std::string conn = "a stub's connection blob " + std::to_string(++next_id);
    Engine &e = engines[next_id];
    e.name = name;
    e.conn = conn;
    e.peers[name] = conn;
    out->engine = next_id;
    out->core = &e.core;
    out->conn = owned(conn);
    return GR_SUCCESS;
} catch (const std::bad_alloc &) {
    std::lock_guard<std::mutex> lock(mu);
    engines.erase(next_id);
    return GR_ERR_BACKEND;
}

int32_t gorail_destroy(uint64_t engine)
{
    CHECK(bound);
    std::lock_guard<std::mutex> lock(mu);
    auto it = engines.find(engine);
    CHECK(it != engines.end());
    gr_notif_free(nullptr, gr_notif_take(&it->second.core));
    engines.erase(it);
    return GR_SUCCESS;
}

int32_t gorail_register(uint64_t engine, gr_region_args *in, gr_registered *made)
{
    return on(engine, [&](Engine &e) {
        e.regions[++next_id] = in->addr;
        made->region = next_id;
        const std::string blob = "range " + std::to_string(in->addr);
        made->len = static_cast<uint32_t>(blob.copy(reinterpret_cast<char *>(made->blob), sizeof made->blob));
        return GR_SUCCESS;
    });
}

int32_t gorail_deregister(uint64_t engine, uint64_t region)
{
    return on(engine, [&](Engine &e) {
        CHECK(e.regions.erase(region) == 1);
        return GR_SUCCESS;
    });
}

int32_t gorail_load_conn(uint64_t engine, gr_bytes *peer, gr_bytes *blob)
{
    return on(engine, [&](Engine &e) {
        e.peers.insert_or_assign(text(peer), text(blob));
        return GR_SUCCESS;
    });
}

int32_t gorail_load_remote(uint64_t engine, gr_bytes *peer, gr_region_args *, uint64_t *region)
{
    return on(engine, [&](Engine &e) -> int32_t {
        if (!e.peers.count(text(peer)))
            return GR_ERR_NOT_FOUND;
        e.remotes.insert(++next_id);
        *region = next_id;
        return GR_SUCCESS;
    });
}

int32_t gorail_unload_remote(uint64_t engine, uint64_t region)
{
    return on(engine, [&](Engine &e) {
        CHECK(e.remotes.erase(region) == 1);
        return GR_SUCCESS;
    });
}

int32_t gorail_connect(uint64_t engine, gr_bytes *peer)
{
    return on(engine, [&](Engine &e) -> int32_t { return e.peers.count(text(peer)) ? GR_SUCCESS : GR_ERR_NOT_FOUND; });
}

int32_t gorail_disconnect(uint64_t engine, gr_bytes *peer)
{
    return on(engine, [&](Engine &e) {
        e.peers.erase(text(peer));
        return GR_SUCCESS;
    });
}

int32_t gorail_prep(uint64_t engine, gr_prep_args *in, gr_prepped *out)
{
    return on(engine, [&](Engine &e) -> int32_t {
        if (in->nlocal != in->nremote)
            return GR_ERR_INVALID_PARAM;
        for (uint64_t i = 0; i < in->nlocal; i++) {
            // The region id in the metadata object, read as Go reads it.
            uint64_t id;
            std::memcpy(&id, static_cast<const char *>(in->local[i].md) + GR_MD_REGION, sizeof(id));
            CHECK(e.regions.count(id));
        }
        Xfer x = {in->op, {in->local, in->local + in->nlocal}, {in->remote, in->remote + in->nremote}, text(&in->peer), {}};
        auto [it, fresh] = e.xfers.emplace(++next_id, std::move(x));
        out->xfer = next_id;
        out->slot = &it->second.slot;
        return GR_SUCCESS;
    });
}

int32_t gorail_post(uint64_t engine, uint64_t xfer, gr_notif_args *notif)
{
    return on(engine, [&](Engine &e) -> int32_t {
        Xfer &x = e.xfers.at(xfer);
        CHECK(x.slot.status != GR_SUCCESS || !x.slot.cached); // the shim must try gr_repost first
        x.slot.cached = true;
        return start(e, x, notif->has, notif->msg);
    });
}

int32_t gorail_release(uint64_t engine, uint64_t xfer)
{
    return on(engine, [&](Engine &e) {
        Xfer &x = e.xfers.at(xfer);
        if (x.op == NIXL_READ && x.slot.status == GR_IN_PROG && !std::exchange(x.kept, true))
            return GR_ERR_REPOST_ACTIVE;
        e.xfers.erase(xfer);
        return GR_SUCCESS;
    });
}

int32_t gorail_estimate(uint64_t engine, uint64_t, gr_estimate *)
{
    return on(engine, [](Engine &) { return GR_ERR_NOT_SUPPORTED; });
}

int32_t gorail_notify(uint64_t engine, gr_bytes *peer, gr_bytes *msg)
{
    return on(engine, [&](Engine &e) { return push(e, text(peer), *msg); });
}

int32_t gorail_query_mem(uint64_t engine, gr_region_args *in, int32_t *known)
{
    return on(engine, [&](Engine &e) {
        for (auto &[id, addr] : e.regions)
            *known |= addr == in->addr;
        return GR_SUCCESS;
    });
}

int32_t gorail_options(gr_bytes *file, gr_owned *table)
{
    CHECK(bound);
    if (file->len == 0)
        return GR_ERR_INVALID_PARAM;
    *table = owned(std::string("provider\0auto\0devices\0\0", 23));
    return GR_SUCCESS;
}

int32_t gorail_vram(int32_t *yes)
{
    CHECK(bound);
    *yes = 0;
    return GR_SUCCESS;
}

int32_t gorail_host(gr_host_args *args)
{
    if (!args->served || !bound)
        std::abort();
    return GR_SUCCESS;
}

int32_t gorail_refused(gr_bytes *call, int32_t why)
{
    CHECK(!forked && bound && call->len > 0 && why >= 0 && why < GR_REFUSED_COUNT);
    host::refusals[why]++;
    static constexpr int32_t status[] = {GR_ERR_BACKEND,   GR_ERR_BACKEND,   GR_ERR_BACKEND,       GR_ERR_BACKEND,
                                         GR_ERR_NOT_FOUND, GR_ERR_NOT_FOUND, GR_ERR_INVALID_PARAM, GR_ERR_NOT_SUPPORTED};
    static_assert(std::size(status) == GR_REFUSED_COUNT);
    return status[why];
}

int32_t gorail_version(gr_owned *version)
{
    sigset_t now;
    CHECK(!pthread_sigmask(SIG_BLOCK, nullptr, &now) && sigismember(&now, SIGURG));
    bound = true;
    *version = owned("0.0.0");
    return GR_SUCCESS;
}

} // extern "C"
