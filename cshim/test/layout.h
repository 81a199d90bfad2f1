// One table of NIXL's plugin ABI, filled in twice: layout_ours.cpp with our declarations, layout_nixl.cpp with NIXL's.
#pragma once

#include <cstddef>
#include <cstdint>

struct LayoutRow {
    const char *what;
    uint64_t value;
};

struct LayoutTable {
    const LayoutRow *rows;
    size_t count;
};

LayoutTable layout_ours();
LayoutTable layout_nixl();
