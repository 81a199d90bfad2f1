// The engine that the agent calls. Every method makes one call of the flat boundary.
#pragma once

#include "live_set.h"
#include "objects.h"
#include "refuse.h"

#include <atomic>
#include <memory>

namespace gorail {

// Memory types of getSupportedMems and get_backend_mems: host memory, and GPU memory if a driver is present.
nixl_mem_list_t mem_list(bool vram) noexcept;

} // namespace gorail

// Rules for every method: it may be called from any thread at any time; it throws nothing; it always assigns its
// outputs. In a child of fork() it returns NIXL_ERR_BACKEND and touches nothing, because locks and Go's threads do not
// survive fork().
//
// An agent asks for getConnInfo before it calls anything that takes memory, peers or transfers. Until then the engine
// refuses such calls without a look at their arguments, since they come by another table than this one.
//
// The class is in the global namespace like NIXL's own engines. test/abi compares the mangled signatures, and a
// namespace would number their parts differently.
class GorailEngine final : public nixlBackendEngine {
  public:
    // Does not throw from GORAIL's own code: a failure sets initErr, and every method is then safe to call.
    explicit GorailEngine(const nixlBackendInitParams *p);
    ~GorailEngine() override;

    bool supportsRemote() const override { return true; }
    bool supportsLocal() const override { return true; }
    bool supportsNotif() const override { return true; }
    nixl_mem_list_t getSupportedMems() const override;

    nixl_status_t registerMem(const nixlBlobDesc &mem, const nixl_mem_t &type, nixlBackendMD *&out) override;
    nixl_status_t deregisterMem(nixlBackendMD *md) override;
    nixl_status_t loadLocalMD(nixlBackendMD *in, nixlBackendMD *&out) override;
    nixl_status_t loadRemoteMD(const nixlBlobDesc &mem, const nixl_mem_t &type, const std::string &peer, nixlBackendMD *&out) override;
    nixl_status_t unloadMD(nixlBackendMD *md) override;
    nixl_status_t getPublicData(const nixlBackendMD *md, std::string &blob) const override;
    nixl_status_t queryMem(const nixl_reg_dlist_t &mems, std::vector<nixl_query_resp_t> &resp) const override;

    nixl_status_t getConnInfo(std::string &blob) const override;
    nixl_status_t loadRemoteConnInfo(const std::string &peer, const std::string &blob) override;
    nixl_status_t connect(const std::string &peer) override;
    nixl_status_t disconnect(const std::string &peer) override;

    nixl_status_t prepXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &peer,
                           nixlBackendReqH *&handle, const nixlBackendOptionalArgs *args) const override;
    nixl_status_t postXfer(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &peer,
                           nixlBackendReqH *&handle, const nixlBackendOptionalArgs *args) const override;
    nixl_status_t checkXfer(nixlBackendReqH *handle) const override;
    nixl_status_t releaseReqH(nixlBackendReqH *handle) const override;
    nixl_status_t estimateXferCost(const nixl_xfer_op_t &op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &peer,
                                   nixlBackendReqH *const &handle, std::chrono::microseconds &duration, std::chrono::microseconds &margin,
                                   nixl_cost_t &method, const nixlAgentOptionalArgs *args) const override;

    nixl_status_t getNotifs(notif_list_t &list) override;
    nixl_status_t genNotif(const std::string &peer, const std::string &msg) const override;

    nixl_status_t prepMemView(const nixl_remote_meta_dlist_t &, nixlMemViewH &, const nixlBackendOptionalArgs *) const override;
    nixl_status_t prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &, const nixlBackendOptionalArgs *) const override;
    void releaseMemView(nixlMemViewH) const override {}

    // What the tables of host_table.h ask. A call of a function that is not known is refused: the result is an error, and false where NIXL reads
    // a bool and does not wait for getConnInfo.
    int32_t refuse_other(const char *call) const noexcept
    {
        const int32_t rc = gorail::refuse(call, GR_REFUSED_ORDER);
        const bool first = waits();
        if (state_)
            state_->refused = true;
        return first ? rc : -256;
    }
    // NIXL may end an engine after such a call.
    void asked() const noexcept
    {
        if (state_)
            state_->asked = true;
    }
    // Whether getConnInfo has come by its known place.
    bool known_calls() const noexcept { return state_ && state_->engine != 0; }

  private:
    // Separate from the object, so that the destructor can leave the state untouched in a forked child.
    struct State {
        uint64_t created = 0; // Go's handle; 0 if creation failed
        uint64_t engine = 0;  // the same, from the first getConnInfo on
        bool refused = false; // a call out of order
        bool asked = false;   // a call of an added function
        gr_core *core = nullptr;
        bool vram = false; // GPU memory can be registered
        std::string conn;
        std::atomic_flag has_memory = ATOMIC_FLAG_INIT;
        gorail::LiveSet<gorail::Registered, nixlBackendMD> registered; // from registerMem
        gorail::LiveSet<gorail::Region, nixlBackendMD> loaded;         // from loadLocalMD and loadRemoteMD
        gorail::LiveSet<gorail::Request, nixlBackendReqH> requests;
    };

    // Whether the engine waits for its first getConnInfo.
    bool waits() const noexcept { return state_ && state_->created && !state_->engine && !gr_forked(); }
    int why_unusable() const noexcept
    {
        if (!waits())
            return GR_REFUSED_ENGINE;
        state_->refused = true;
        return GR_REFUSED_ORDER;
    }
    bool usable() const noexcept { return state_ && state_->engine != 0 && !gr_forked(); }
    nixl_status_t create(const nixlBackendInitParams *p);
    // name is the method that calls.
    template <class F> nixl_status_t guard(F &&call, const char *name = __builtin_FUNCTION()) const noexcept;
    template <class F> nixl_status_t enter_go(int which, F &&call, const char *name = __builtin_FUNCTION()) const noexcept;

    std::unique_ptr<State> state_;
};
