// Identifies the NIXL that loads this plugin: compares the virtual function table of its own plugins with the known
// one.
#pragma once

#include "known_tables.h"

namespace gorail {

struct Host {
    Order order;            // of its functions; empty: not one that is known
    bool sure = false;      // there was something to compare
    std::string nixl;       // the library that loads this plugin, and its version
    std::string compared;   // the file compared with, or why there is none
    std::string difference; // from the known table; only if order is empty
};

// caller: an address in the code that calls nixl_plugin_init. A NIXL that cannot be compared is assumed to have the
// known table. Its engines then refuse calls in another order than such a NIXL makes (engine.h).
Host identify_host(const void *caller);

} // namespace gorail
