// Identifies the NIXL that loads this plugin: compares the virtual function table of its own plugins with the known
// tables.
#pragma once

#include "known_tables.h"

namespace gorail {

struct Host {
    const KnownTable *table = nullptr; // null: none of the known tables
    std::string nixl;                  // the library that loads this plugin, and its version
    std::string compared;              // the file compared with, or why there is none
    std::string difference;            // from the known table; only if table is null
};

// caller: an address in the code that calls nixl_plugin_init. A NIXL that cannot be compared is assumed to have the
// first table.
Host identify_host(const void *caller);

} // namespace gorail
