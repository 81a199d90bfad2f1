#include "host.h"

#include <chrono>
#include <cstring>

namespace host {

namespace {

using clock = std::chrono::steady_clock;

// Calls done() until it is true, at most for a minute.
template <class F> void wait(F done)
{
    const auto deadline = clock::now() + std::chrono::seconds(60);
    while (!done()) {
        CHECK(clock::now() < deadline);
        std::this_thread::yield();
    }
}

} // namespace

EnginePtr make_engine(const std::string &agent, nixl_b_params_t params)
{
    nixlBackendInitParams p = {agent, "GORAIL", &params, false, 0, nixl_thread_sync_t::NIXL_THREAD_SYNC_NONE, false};
    EnginePtr e(plugin->create_engine(&p));
    CHECK(e);
    if (e->getInitErr())
        return nullptr;
    CHECK(e->supportsRemote() && e->supportsLocal() && e->supportsNotif());
    std::string conn = "rubbish that must go";
    CHECK_RC(e->getConnInfo(conn), NIXL_SUCCESS);
    CHECK(conn.size() >= 25 && conn.find("rubbish") == std::string::npos);
    CHECK_RC(e->connect(agent), NIXL_SUCCESS);
    CHECK(e->getSupportedMems() == plugin->get_backend_mems());
    return e;
}

void load(nixlBackendEngine &to, const std::string &name, nixlBackendEngine &from)
{
    std::string conn;
    CHECK_RC(from.getConnInfo(conn), NIXL_SUCCESS);
    CHECK_RC(to.loadRemoteConnInfo(name, conn), NIXL_SUCCESS);
}

Buffer::Buffer(nixlBackendEngine &e, size_t size, unsigned char fill) : owner(e), bytes(size, fill)
{
    CHECK_RC(e.registerMem(desc(), DRAM_SEG, md), NIXL_SUCCESS);
    CHECK(md);
    CHECK_RC(e.loadLocalMD(md, self), NIXL_SUCCESS);
    CHECK(self && self != md);
    blob = "the previous element's";
    CHECK_RC(e.getPublicData(md, blob), NIXL_SUCCESS);
}

Buffer::~Buffer() { give_back(); }

void Buffer::give_back()
{
    if (!md)
        return;
    owner.unloadMD(self);
    owner.deregisterMem(md);
    md = nullptr;
}

nixlBlobDesc Buffer::desc() const
{
    nixlBlobDesc d;
    d.addr = reinterpret_cast<uintptr_t>(bytes.data());
    d.len = bytes.size();
    d.devId = 0;
    return d;
}

nixlBackendMD *Buffer::load_in(nixlBackendEngine &peer, const std::string &owner_name) const
{
    nixlBlobDesc d = desc();
    d.metaInfo = blob;
    nixlBackendMD *out = md; // the agent passes the previous element's pointer
    CHECK_RC(peer.loadRemoteMD(d, DRAM_SEG, owner_name, out), NIXL_SUCCESS);
    CHECK(out && out != md);
    return out;
}

bool Buffer::holds(unsigned char byte) const
{
    for (unsigned char b : bytes)
        if (b != byte)
            return false;
    return true;
}

nixl_meta_dlist_t list_of(const Buffer &b, nixlBackendMD *md, size_t pieces)
{
    nixl_meta_dlist_t list(DRAM_SEG);
    const size_t step = b.bytes.size() / pieces;
    for (size_t i = 0; i < pieces; i++) {
        nixlMetaDesc d;
        d.addr = reinterpret_cast<uintptr_t>(b.bytes.data()) + i * step;
        d.len = step;
        d.devId = 0;
        d.metadataP = md;
        list.addDesc(d);
    }
    return list;
}

nixl_status_t run(nixlBackendEngine &e, nixl_xfer_op_t op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &peer,
                  nixlBackendReqH *&handle, const nixlBackendOptionalArgs &args)
{
    nixl_status_t rc = e.postXfer(op, local, remote, peer, handle, &args);
    wait([&] {
        if (rc == NIXL_IN_PROG)
            rc = e.checkXfer(handle);
        return rc != NIXL_IN_PROG;
    });
    return rc;
}

std::pair<std::string, std::string> next_notif(nixlBackendEngine &e)
{
    notif_list_t list;
    wait([&] {
        CHECK_RC(e.getNotifs(list), NIXL_SUCCESS);
        return !list.empty();
    });
    CHECK(list.size() == 1);
    return list[0];
}

} // namespace host
