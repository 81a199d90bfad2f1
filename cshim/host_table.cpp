// A call at the place of getSupportedMems by a table that is assumed. A NIXL with a supportsX of its own there may call that before getConnInfo.
#include "host_table.h"

using namespace gorail;

// getSupportedMems returns an object, supportsX a bool. A caller of the first gives the object's place. On x86-64 that place comes in front of
// the engine, so the registers tell which function is meant. On aarch64 the engine is first in both cases (host_table_aarch64.cpp).
const void *gorail_assumed_mems(void *first, void *second) noexcept
{
    constexpr const char *call = "a function without a list, such as supportsNotifCallback, at the place of getSupportedMems";
    const GorailEngine *const engine = live_engines.find(first);
#if defined(__aarch64__)
    void *const list = second;
    const GorailEngine *const asked = engine && engine->known_calls() ? engine : nullptr;
#else
    void *const list = first;
    const GorailEngine *const asked = engine ? nullptr : live_engines.find(second);
#endif
    if (asked)
        return ::new (list) nixl_mem_list_t(asked->getSupportedMems());
    if (engine)
        engine->refuse_other(call);
    else
        refuse(call, GR_REFUSED_ORDER);
    return nullptr; // as a bool: no
}
