#include "backend/backend_plugin.h"

#include "layout_rows.inc"

LayoutTable layout_nixl()
{
    static_assert(NIXL_PLUGIN_API_VERSION == 1);
    return {rows, sizeof(rows) / sizeof(rows[0])};
}
