// NIXL's plugin ABI in our own declarations, part 2: the classes that a plugin derives from and fills in.
#pragma once

#include "nixl_types_abi.h"

#include <cstring>
#include <mutex>

inline constexpr int nixl_plugin_api_version = 1;

class nixlBackendInitParams {
  public:
    std::string localAgent;
    std::string type;
    nixl_b_params_t *customParams;
    bool enableProgTh;
    uint64_t pthrDelay; // microseconds
    nixl_thread_sync_t syncMode;
    bool enableTelemetry_;
};

class nixlBackendReqH {
  public:
    nixlBackendReqH() = default;
    virtual ~nixlBackendReqH() = default;
};

class nixlBackendMD {
  protected:
    bool isPrivateMD;

  public:
    explicit nixlBackendMD(bool is_private) : isPrivateMD(is_private) {}
    virtual ~nixlBackendMD() = default;

    friend struct nixlLayout;
};

// The agent reads the data members through its own inline functions. Their offsets are thus ABI, like the order of the
// virtual functions. The element type of the telemetry queue differs between releases. Only the empty vector lives
// here, and this plugin never adds to it. Behind initErr NIXL has members that only its own engines read (localAgent,
// enableTelemetry_). Here are bytes that a NIXL with more members in front of initErr reads as its initErr: such a
// NIXL gives the engine back, and calls nothing.
class nixlBackendEngine {
    using str = std::string;
    using usec = std::chrono::microseconds;
    using opt_args = nixlBackendOptionalArgs;

    std::string backendType;
    nixl_b_params_t customParams;
    std::vector<void *> telemetryEvents_;
    std::mutex telemetryEventsMutex_;

  protected:
    bool initErr = false;

  private:
    unsigned char elsewhere_[255];

  public:
    explicit nixlBackendEngine(const nixlBackendInitParams *p)
        : backendType(p->type), customParams(p->customParams ? *p->customParams : nixl_b_params_t())
    {
        std::memset(elsewhere_, true, sizeof elsewhere_);
    }
    nixlBackendEngine(const nixlBackendEngine &) = delete;
    void operator=(const nixlBackendEngine &) = delete;

    bool getInitErr() const noexcept { return initErr; }
    const nixl_b_params_t &getCustomParams() const noexcept { return customParams; }

    // The virtual table, in order.
    virtual ~nixlBackendEngine() = default;
    virtual bool supportsRemote() const = 0;
    virtual bool supportsLocal() const = 0;
    virtual bool supportsNotif() const = 0;
    virtual nixl_mem_list_t getSupportedMems() const = 0;
    virtual nixl_status_t registerMem(const nixlBlobDesc &, const nixl_mem_t &, nixlBackendMD *&out) = 0;
    virtual nixl_status_t deregisterMem(nixlBackendMD *) = 0;
    virtual nixl_status_t connect(const str &peer) = 0;
    virtual nixl_status_t disconnect(const str &peer) = 0;
    virtual nixl_status_t unloadMD(nixlBackendMD *) = 0;
    virtual nixl_status_t prepXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const str &peer,
                                   nixlBackendReqH *&handle, const opt_args *) const = 0;
    virtual nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const str &peer,
                                   nixlBackendReqH *&handle, const opt_args *) const = 0;
    virtual nixl_status_t checkXfer(nixlBackendReqH *) const = 0;
    virtual nixl_status_t releaseReqH(nixlBackendReqH *) const = 0;
    virtual nixl_status_t prepMemView(const nixl_remote_meta_dlist_t &, nixlMemViewH &, const opt_args *) const = 0;
    virtual nixl_status_t prepMemView(const nixl_meta_dlist_t &, nixlMemViewH &, const opt_args *) const = 0;
    virtual void releaseMemView(nixlMemViewH) const = 0;
    virtual nixl_status_t getPublicData(const nixlBackendMD *, str &blob) const = 0;
    virtual nixl_status_t getConnInfo(str &blob) const = 0;
    virtual nixl_status_t loadRemoteConnInfo(const str &peer, const str &blob) = 0;
    virtual nixl_status_t loadRemoteMD(const nixlBlobDesc &, const nixl_mem_t &, const str &peer, nixlBackendMD *&out) = 0;
    virtual nixl_status_t loadLocalMD(nixlBackendMD *in, nixlBackendMD *&out) = 0;
    virtual nixl_status_t getNotifs(notif_list_t &) = 0;
    virtual nixl_status_t genNotif(const str &peer, const str &msg) const = 0;
    virtual nixl_status_t queryMem(const nixl_reg_dlist_t &, std::vector<nixl_query_resp_t> &) const = 0;
    virtual nixl_status_t estimateXferCost(const nixl_xfer_op_t &, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const str &peer,
                                           nixlBackendReqH *const &handle, usec &duration, usec &margin, nixl_cost_t &method,
                                           const nixlAgentOptionalArgs *) const = 0;

    friend struct nixlLayout;
};

// The result of nixl_plugin_init. The agent keeps the pointer.
class nixlBackendPlugin {
  public:
    int api_version;
    nixlBackendEngine *(*create_engine)(const nixlBackendInitParams *);
    void (*destroy_engine)(nixlBackendEngine *);
    const char *(*get_plugin_name)();
    const char *(*get_plugin_version)();
    nixl_b_params_t (*get_backend_options)();
    nixl_mem_list_t (*get_backend_mems)();
};
