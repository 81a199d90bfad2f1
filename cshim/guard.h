// No exception leaves the shim: the agent catches none. Only the engine's own files include this header.
#pragma once

#include "engine.h"
#include "host_signals.h"
#include "refuse.h"

#include <utility>

namespace gorail {

// Undoes a step if a later step throws.
template <class F> class Undo {
  public:
    explicit Undo(F f) : f_(std::move(f)) {}
    Undo(const Undo &) = delete;
    void operator=(const Undo &) = delete;
    ~Undo()
    {
        if (armed_)
            f_();
    }
    void dismiss() noexcept { armed_ = false; }

  private:
    F f_;
    bool armed_ = true;
};

} // namespace gorail

// Runs a call and converts its result, or any exception (bad_alloc included), to a status.
template <class F> nixl_status_t GorailEngine::guard(F &&call, const char *name) const noexcept
{
    try {
        return static_cast<nixl_status_t>(call());
    } catch (...) {
        return gorail::refuse(name, GR_REFUSED_MEMORY);
    }
}

// guard for a call that enters Go: refused in a forked child, counted otherwise.
template <class F> nixl_status_t GorailEngine::enter_go(int which, F &&call, const char *name) const noexcept
{
    if (!usable())
        return gorail::refuse(name, why_unusable());
    gorail::bind_thread();
    gr_crossed(state_->core, which);
    return guard(std::forward<F>(call), name);
}
