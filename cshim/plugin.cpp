// The two symbols that NIXL looks up, and the table behind them.
#include "engine.h"
#include "flat.h"
#include "host_signals.h"

#include <dlfcn.h>

#ifndef GORAIL_VERSION
#error "GORAIL_VERSION comes from the file VERSION through the build"
#endif

namespace {

nixlBackendEngine *create_engine(const nixlBackendInitParams *params) {
    try {
        return new GorailEngine(params);
    }
    catch (...) {
        return nullptr; // out of memory; the agent reports NIXL_ERR_BACKEND
    }
}

void destroy_engine(nixlBackendEngine *engine) {
    delete engine;
}

// The file that we were loaded from, as the loader was given it: its name is what the agent calls us. A process that opens the
// plugin under several names (links to one file) has it loaded once, and gets the first.
std::string own_file() {
    Dl_info at = {};
    return dladdr(reinterpret_cast<void *>(destroy_engine), &at) && at.dli_fname ? at.dli_fname : "";
}

// Names and defaults as Go's option table has them: "name\0default\0name\0default\0...". NIXL does not say for which name it asks.
nixl_b_params_t get_backend_options() {
    try {
        nixl_b_params_t options;
        gorail::Owned table;
        const std::string file = own_file();
        gr_bytes from = gorail::borrow(file);
        if (gr_forked() || gorail_options(&from, &table) != GR_SUCCESS)
            return options;
        const std::string text = table.str();
        for (size_t at = 0; at < text.size();) {
            const std::string name = text.c_str() + at;
            at += name.size() + 1;
            const std::string value = at < text.size() ? text.c_str() + at : "";
            at += value.size() + 1;
            options.emplace(name, value);
        }
        return options;
    }
    catch (...) {
        return {};
    }
}

nixl_mem_list_t get_backend_mems() {
    int32_t vram = 0;
    return gorail::mem_list(!gr_forked() && gorail_vram(&vram) == GR_SUCCESS && vram != 0);
}

} // namespace

extern "C" {

// Any number of times, also with engines alive: the table is constant and there is nothing to tear down. The call into Go
// waits until its runtime is up, and so knows when the host's signals can be given back.
__attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init() {
    static nixlBackendPlugin plugin = {nixl_plugin_api_version,
                                       create_engine,
                                       destroy_engine,
                                       [] { return "GORAIL"; },
                                       [] { return GORAIL_VERSION; },
                                       get_backend_options,
                                       get_backend_mems};
    gorail::Owned version;
    if (!gr_forked() && gorail_version(&version) == GR_SUCCESS)
        gorail::restore_host_signals();
    return &plugin;
}

__attribute__((visibility("default"))) void nixl_plugin_fini() {}

} // extern "C"
