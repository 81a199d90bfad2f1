// A plugin of a miniature NIXL, by which the plugin under test knows that NIXL's table. OVERRIDES are its own bodies of further functions.
#include "nixl_engine_abi.h"

class nixlPosixEngine : public nixlBackendEngine {
  public:
    using nixlBackendEngine::nixlBackendEngine;
    bool supportsRemote() const override { return false; }
    bool supportsLocal() const override { return true; }
    bool supportsNotif() const override { return false; }
    nixl_mem_list_t getSupportedMems() const override { return {FILE_SEG, DRAM_SEG}; }
    nixl_status_t registerMem(const nixlBlobDesc &, const nixl_mem_t &, nixlBackendMD *&out) override { return out = nullptr, NIXL_SUCCESS; }
    nixl_status_t deregisterMem(nixlBackendMD *) override { return NIXL_SUCCESS; }
    nixl_status_t connect(const std::string &) override { return NIXL_SUCCESS; }
    nixl_status_t disconnect(const std::string &) override { return NIXL_SUCCESS; }
    nixl_status_t unloadMD(nixlBackendMD *) override { return NIXL_SUCCESS; }
    nixl_status_t prepXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &, nixlBackendReqH *&,
                           const nixlBackendOptionalArgs *) const override
    {
        return NIXL_ERR_BACKEND;
    }
    nixl_status_t postXfer(const nixl_xfer_op_t &, const nixl_meta_dlist_t &, const nixl_meta_dlist_t &, const std::string &, nixlBackendReqH *&,
                           const nixlBackendOptionalArgs *) const override
    {
        return NIXL_ERR_BACKEND;
    }
    nixl_status_t checkXfer(nixlBackendReqH *) const override { return NIXL_SUCCESS; }
    nixl_status_t releaseReqH(nixlBackendReqH *) const override { return NIXL_SUCCESS; }
    OVERRIDES
};

extern "C" __attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init()
{
    static nixlBackendPlugin plugin = {nixl_plugin_api_version,
                                       [](const nixlBackendInitParams *p) -> nixlBackendEngine * { return new nixlPosixEngine(p); },
                                       [](nixlBackendEngine *e) { delete e; },
                                       [] { return "POSIX"; },
                                       [] { return "0"; },
                                       [] { return nixl_b_params_t(); },
                                       [] { return nixl_mem_list_t{FILE_SEG}; }};
    return &plugin;
}
