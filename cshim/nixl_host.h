// Which NIXL loads us: the table of virtual functions that its own plugins have, held against those that we know.
#pragma once

#include "known_tables.h"

namespace gorail {

struct Host {
    const KnownTable *table = nullptr; // null: none that we know
    std::string nixl;                  // the library that loads us and its version
    std::string compared;              // with what, or why with nothing
    std::string difference;            // from the table that we know best; without a table only
};

// caller: an address in the code that calls nixl_plugin_init. What cannot be compared is taken to have the first table.
Host look_at_host(const void *caller);

} // namespace gorail
