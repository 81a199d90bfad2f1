// The two symbols that NIXL looks up, and the table behind them.
#include "engine.h"
#include "flat.h"
#include "host_signals.h"
#include "nixl_host.h"

#include <array>
#include <dlfcn.h>
#include <map>
#include <mutex>

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

// What makes engines for a NIXL with each of the known tables; null refuses it by name.
constexpr decltype(nixlBackendPlugin::create_engine) makers[] = {create_engine};
static_assert(std::size(makers) == gorail::known_count);

nixlBackendPlugin *plugin_of(size_t table) {
    static auto plugins = [] {
        std::array<nixlBackendPlugin, gorail::known_count> all;
        for (size_t i = 0; i < all.size(); i++)
            all[i] = {nixl_plugin_api_version, makers[i], destroy_engine, [] { return "GORAIL"; }, [] { return GORAIL_VERSION; },
                      get_backend_options, get_backend_mems};
        return all;
    }();
    return makers[table] ? &plugins[table] : nullptr;
}

// The plugin for the NIXL that calls, which is looked at. Null: it has a table that we don't serve, which is logged.
nixlBackendPlugin *look(const void *caller) {
    gorail::Host host = gorail::look_at_host(caller);
    nixlBackendPlugin *plugin = nullptr;
    if (host.table) {
        plugin = plugin_of(static_cast<size_t>(host.table - gorail::known_tables.data()));
        if (!plugin)
            host.difference = std::string("they are as in ") + host.table->nixl;
    }
    std::string releases;
    for (size_t i = 0; i < gorail::known_count; i++)
        if (makers[i])
            releases += (releases.empty() ? "" : ", ") + std::string(gorail::known_tables[i].nixl);
    gr_host_args args = {gorail::borrow(host.nixl), gorail::borrow(releases), gorail::borrow(host.compared),
                         gorail::borrow(host.difference), plugin != nullptr};
    gorail_host(&args);
    return plugin;
}

// A process can have several NIXLs; each is looked at once.
nixlBackendPlugin *plugin_for(const void *caller) noexcept {
    static std::mutex mu;
    static std::map<const void *, nixlBackendPlugin *> known;
    try {
        const std::lock_guard<std::mutex> lock(mu);
        Dl_info at = {};
        dladdr(caller, &at);
        if (const auto seen = known.find(at.dli_fbase); seen != known.end())
            return seen->second;
        return known[at.dli_fbase] = look(caller);
    }
    catch (...) {
        return plugin_of(0); // out of memory: not compared
    }
}

} // namespace

extern "C" {

// Any number of times, also with engines alive: the table is constant and there is nothing to tear down. The call into Go
// waits until its runtime is up, and so knows when the host's signals can be given back.
__attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init() {
    if (gr_forked())
        return plugin_of(0); // everything in it refuses
    gorail::Owned version;
    if (gorail_version(&version) == GR_SUCCESS)
        gorail::restore_host_signals();
    return plugin_for(__builtin_return_address(0));
}

__attribute__((visibility("default"))) void nixl_plugin_fini() {}

} // extern "C"
