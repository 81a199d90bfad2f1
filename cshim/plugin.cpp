// The two symbols that NIXL looks up, and the table behind them.
#include "flat.h"
#include "host_signals.h"
#include "host_table.h"
#include "identify/nixl_host.h"
#include "refuse.h"

#include <array>
#include <dlfcn.h>
#include <map>
#include <mutex>
#include <utility>

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

// The engine may have another NIXL's table, in which the destructor may be elsewhere. So no call goes by it.
void destroy_engine(nixlBackendEngine *engine)
{
    if (!engine)
        return;
    auto *own = static_cast<GorailEngine *>(engine);
    own->GorailEngine::~GorailEngine();
    ::operator delete(own);
}

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

// A process may have some NIXLs that have more functions, and each has its own order.
constexpr size_t most_tables = 4;
std::array<gorail::HostTable, most_tables> tables;

template <size_t i> nixlBackendEngine *create_with(const nixlBackendInitParams *params)
{
    auto *place = gorail::live_engines.claim();
    if (!place) {
        gorail::refuse("createBackend", GR_REFUSED_MEMORY);
        return nullptr;
    }
    nixlBackendEngine *engine = create_engine(params);
    if (engine)
        tables[i].give(static_cast<GorailEngine *>(engine), *place);
    else
        *place = nullptr;
    return engine;
}

constexpr nixlBackendPlugin plugin_with(decltype(nixlBackendPlugin::create_engine) create)
{
    return {nixl_plugin_api_version, create, destroy_engine, [] { return "GORAIL"; }, version, get_backend_options, get_backend_mems};
}

nixlBackendPlugin known_plugin = plugin_with(create_engine);

template <size_t... i> std::array<nixlBackendPlugin, sizeof...(i)> plugins_with(std::index_sequence<i...>)
{
    return {plugin_with(create_with<i>)...};
}

// The plugin for an order of functions. If it is not sure, the engines have a table that refuses what follows, and looks at who calls
// getSupportedMems. Null: every table is taken.
nixlBackendPlugin *plugin_of(const gorail::Order &order, bool sure)
{
    static auto plugins = plugins_with(std::make_index_sequence<most_tables>());
    if (sure && order.size() == gorail::known_functions)
        return &known_plugin;
    for (size_t i = 0; i < most_tables; i++) {
        if (tables[i].free())
            tables[i].take(order);
        if (tables[i].is(order))
            return &plugins[i];
    }
    return nullptr;
}

// The plugin for the calling NIXL, after a look at that NIXL. Null: its table is not supported, which is logged.
nixlBackendPlugin *identify(const void *caller)
{
    gorail::Host host = gorail::identify_host(caller);
    nixlBackendPlugin *plugin = nullptr;
    if (!host.order.empty()) {
        plugin = plugin_of(host.order, host.sure);
        if (!plugin)
            host.difference = "this process has " + std::to_string(most_tables) + " NIXLs with other tables already";
    }
    const std::string releases = gorail::known_releases, added = gorail::added_names(host.order);
    gr_host_args args = {gorail::borrow(host.nixl),       gorail::borrow(releases), gorail::borrow(host.compared),
                         gorail::borrow(host.difference), gorail::borrow(added),    plugin != nullptr};
    gorail_host(&args);
    return plugin;
}

// A process may have several NIXLs. Each is examined once. After a dlclose another one may be at the same address.
nixlBackendPlugin *plugin_for(const void *caller) noexcept
{
    static std::mutex mu;
    static std::map<std::pair<const void *, std::string>, nixlBackendPlugin *> known;
    try {
        const std::lock_guard<std::mutex> lock(mu);
        Dl_info at = {};
        dladdr(caller, &at);
        const std::pair<const void *, std::string> key = {at.dli_fbase, at.dli_fname ? at.dli_fname : ""};
        if (const auto seen = known.find(key); seen != known.end())
            return seen->second;
        return known[key] = identify(caller);
    } catch (...) {
        return &known_plugin; // out of memory: not compared
    }
}

} // namespace

extern "C" {

// May be called any number of times, also with live engines: the table is constant, and there is nothing to tear down.
// bind_thread calls Go, which waits until Go's runtime is up.
__attribute__((visibility("default"))) nixlBackendPlugin *nixl_plugin_init()
{
    if (!gorail::go_runs())
        return &known_plugin; // every function in it refuses
    gorail::bind_thread();
    return plugin_for(__builtin_return_address(0));
}

__attribute__((visibility("default"))) void nixl_plugin_fini() {}

} // extern "C"
