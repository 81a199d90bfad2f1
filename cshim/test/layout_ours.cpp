#include "nixl_engine_abi.h"

#include "layout_rows.inc"

LayoutTable layout_ours()
{
    static_assert(nixl_plugin_api_version == 1);
    return {rows, sizeof(rows) / sizeof(rows[0])};
}
