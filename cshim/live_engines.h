// The engines that a NIXL calls by a table of host_table.h. Whether an argument is one of them is told without a look at its memory.
#pragma once

#include <array>
#include <atomic>
#include <new>

class GorailEngine;

namespace gorail {

// Without locks: a child of fork() may ask, too. Places are used again, and never freed.
class LiveEngines {
  public:
    using Place = std::atomic<const void *>;

    // A place for an engine that is not made yet; null if there is no memory.
    Place *claim() noexcept
    {
        for (Chunk *chunk = &first_;;) {
            for (Place &place : chunk->places)
                if (const void *free = nullptr; place.compare_exchange_strong(free, this))
                    return &place;
            Chunk *next = chunk->next;
            if (!next) {
                auto *more = new (std::nothrow) Chunk;
                if (!more)
                    return nullptr;
                if (chunk->next.compare_exchange_strong(next, more))
                    next = more;
                else
                    delete more; // another thread was first
            }
            chunk = next;
        }
    }

    void remove(const GorailEngine *engine) noexcept
    {
        if (Place *place = place_of(engine))
            *place = nullptr;
    }

    // The engine, if the pointer is one.
    const GorailEngine *find(const void *p) noexcept { return place_of(p) ? static_cast<const GorailEngine *>(p) : nullptr; }

  private:
    struct Chunk {
        std::array<Place, 63> places = {};
        std::atomic<Chunk *> next = nullptr;
    };

    Place *place_of(const void *p) noexcept
    {
        if (p && p != this)
            for (Chunk *chunk = &first_; chunk; chunk = chunk->next)
                for (Place &place : chunk->places)
                    if (place == p)
                        return &place;
        return nullptr;
    }

    Chunk first_;
};

inline constinit LiveEngines live_engines;

} // namespace gorail
