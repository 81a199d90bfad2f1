// The two symbols that NIXL looks up, and the table behind them.
#include "engine.h"
#include "flat.h"
#include "host_signals.h"
#include "identify/nixl_host.h"
#include "refuse.h"

#include <array>
#include <dlfcn.h>
#include <map>
#include <mutex>

#ifndef GORAIL_VERSION
#error "GORAIL_VERSION comes from the file VERSION through the build"
#endif

namespace {

// gorail doctor finds the version in the file by the words before it, without loading the plugin.
constexpr char version_mark[] = "GORAIL-plugin-version=" GORAIL_VERSION;
const char *version() { return version_mark + sizeof("GORAIL-plugin-version=") - 1; }

nixlBackendEngine *create_engine(const nixlBackendInitParams *params)
{
    try {
        return new GorailEngine(params);
    } catch (...) {
        gorail::refuse("createBackend", GR_REFUSED_MEMORY); // the agent reports NIXL_ERR_BACKEND
        return nullptr;
    }
}

void destroy_engine(nixlBackendEngine *engine) { delete engine; }

// The file that this plugin was loaded from, as the loader got it. The agent uses its name for this plugin. A process
// that opens the plugin under several names (links to one file) loads the file once, and gets the first name.
std::string own_file()
{
    Dl_info at = {};
    return dladdr(reinterpret_cast<void *>(destroy_engine), &at) && at.dli_fname ? at.dli_fname : "";
}

// Names and defaults of Go's option table: "name\0default\0name\0default\0...". NIXL does not pass the plugin name that
// it asks about.
nixl_b_params_t get_backend_options()
{
    try {
        nixl_b_params_t options;
        gorail::Owned table;
        const std::string file = own_file();
        gr_bytes from = gorail::borrow(file);
        if (!gorail::go_runs())
            return options;
        gorail::bind_thread();
        if (gorail_options(&from, &table) != GR_SUCCESS)
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
    } catch (...) {
        gorail::refuse("get_backend_options", GR_REFUSED_MEMORY);
        return {};
    }
}

nixl_mem_list_t get_backend_mems()
{
    if (!gorail::go_runs())
        return gorail::mem_list(false);
    gorail::bind_thread();
    const gorail::SignalsBlocked hold; // the driver starts threads
    int32_t vram = 0;
    return gorail::mem_list(gorail_vram(&vram) == GR_SUCCESS && vram != 0);
}

// The function that creates engines, per known table; null: the table is known but not supported.
constexpr decltype(nixlBackendPlugin::create_engine) factories[] = {create_engine};
static_assert(std::size(factories) == gorail::known_count);

nixlBackendPlugin *plugin_of(size_t table)
{
    static auto plugins = [] {
        std::array<nixlBackendPlugin, gorail::known_count> all;
        for (size_t i = 0; i < all.size(); i++)
            all[i] = {nixl_plugin_api_version, factories[i], destroy_engine, [] { return "GORAIL"; }, version, get_backend_options, get_backend_mems};
        return all;
    }();
    return factories[table] ? &plugins[table] : nullptr;
}

// The plugin for the calling NIXL, after a look at that NIXL. Null: its table is not supported, which is logged.
nixlBackendPlugin *identify(const void *caller)
{
    gorail::Host host = gorail::identify_host(caller);
    nixlBackendPlugin *plugin = nullptr;
    if (host.table) {
        plugin = plugin_of(static_cast<size_t>(host.table - gorail::known_tables.data()));
        if (!plugin)
            host.difference = std::string("the functions are as in ") + host.table->nixl;
    }
    std::string releases;
    for (size_t i = 0; i < gorail::known_count; i++)
        if (factories[i])
            releases += (releases.empty() ? "" : ", ") + std::string(gorail::known_tables[i].nixl);
    gr_host_args args = {gorail::borrow(host.nixl), gorail::borrow(releases), gorail::borrow(host.compared), gorail::borrow(host.difference),
                         plugin != nullptr};
    gorail_host(&args);
    return plugin;
}

// A process may have several NIXLs. Each is examined once.
nixlBackendPlugin *plugin_for(const void *caller) noexcept
{
    static std::mutex mu;
    static std::map<const void *, nixlBackendPlugin *> known;
    try {
        const std::lock_guard<std::mutex> lock(mu);
        Dl_info at = {};
        dladdr(caller, &at);
        if (const auto seen = known.find(at.dli_fbase); seen != known.end())
            return seen->second;
        return known[at.dli_fbase] = identify(caller);
    } catch (...) {
        return plugin_of(0); // out of memory: not compared
    }
}

} // namespace

extern "C" {

// May be called any number of times, also with live engines: the table is constant, and there is nothing to tear down.
// bind_thread calls Go, which waits until Go's runtime is up.
__attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init()
{
    if (!gorail::go_runs())
        return plugin_of(0); // every function in it refuses
    gorail::bind_thread();
    return plugin_for(__builtin_return_address(0));
}

__attribute__((visibility("default"))) void nixl_plugin_fini() {}

} // extern "C"
