// Compares our declaration of the ABI with NIXL's own headers, row by row. Built when meson is given
// -Dnixl_include=DIR: NIXL's source tree (its src folder) or an installed include folder. To get one without building
// NIXL:
//
//   git clone --depth 1 --branch v1.4.0 https://github.com/ai-dynamo/nixl
//   meson configure build -Dnixl_include=$PWD/nixl/src && meson test -C build layout
//
// absl is not needed: nixl_stub/ comes first in the include path and replaces the only header that uses it.
#include "layout.h"

#include <cinttypes>
#include <cstdio>

int main()
{
    const LayoutTable ours = layout_ours(), nixl = layout_nixl();
    int wrong = ours.count != nixl.count;
    for (size_t i = 0; i < ours.count && i < nixl.count; i++) {
        if (ours.rows[i].value != nixl.rows[i].value) {
            std::printf("%s: ours %" PRIu64 ", NIXL's %" PRIu64 "\n", ours.rows[i].what, ours.rows[i].value, nixl.rows[i].value);
            wrong++;
        }
    }
    std::printf("%zu rows compared, %d differ\n", ours.count, wrong);
    return wrong != 0;
}
