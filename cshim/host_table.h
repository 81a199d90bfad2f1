// The virtual functions of engines in the order of a NIXL that has more of them than nixl_engine_abi.h, or may have more.
#pragma once

#include "engine.h"
#include "identify/known_tables.h"
#include "live_engines.h"

#include <array>
#include <mutex>

extern "C" {
const void *gorail_assumed_mems(void *first, void *second) noexcept;
#if defined(__aarch64__)
void gorail_assumed_mems_x8(); // host_table_aarch64.cpp
#elif !defined(__x86_64__)
#error "how does a function return an object here? See gorail_assumed_mems"
#endif
}

namespace gorail {

// A table for engines: in front of its functions are the offset to the top and the type information, as the C++ ABI has it. The known
// functions are copied from an engine's own table. The added ones read no argument but the engine, and answer in a register. What follows
// them refuses. A table that is assumed has the known order, and tells calls of getSupportedMems from those of a function that was put there.
class HostTable {
  public:
    bool free() const noexcept { return order_.empty(); }
    bool is(const Order &order) const noexcept { return order_ == order; }
    void take(const Order &order) { order_ = order; }

    // Until its end the engine is called by this table alone: GorailEngine is final, so none of its own calls goes by a table.
    void give(GorailEngine *engine, LiveEngines::Place &place) noexcept
    {
        using Table [[gnu::may_alias]] = const void **;
        Table &table = *reinterpret_cast<Table *>(engine); // the object's pointer to its table
        std::call_once(filled_, [&] {
            words_[0] = table[-2];
            words_[1] = table[-1];
            for (size_t i = order_.size(); i < most_functions; i++)
                words_[2 + i] = reinterpret_cast<const void *>(beyond);
            for (size_t i = 0; i < order_.size(); i++)
                words_[2 + i] = order_[i] < known_functions ? table[order_[i]] : answer(additions[order_[i] - known_functions].answer);
            if (order_.size() == known_functions) // a NIXL that is known to have this order needs no table
                words_[2 + mems] = assumed_mems();
        });
        table = &words_[2];
        place = engine;
    }

  private:
    static constexpr size_t mems = 5; // the place of getSupportedMems

    static bool no(const GorailEngine *engine) noexcept { return engine->asked(), false; }
    static nixl_status_t not_supported(const void *) noexcept { return NIXL_ERR_NOT_SUPPORTED; }

    // The engine comes behind the place of an object that is returned (x86-64), or first. The object is unknown, so nothing is written.
    static const void *beyond(const void *first, const void *second) noexcept
    {
        constexpr const char *call = "a function beyond the known ones";
        if (const auto *engine = live_engines.find(first))
            return reinterpret_cast<const void *>(static_cast<intptr_t>(engine->refuse_other(call)));
        if (const auto *engine = live_engines.find(second))
            engine->refuse_other(call);
        else
            refuse(call, GR_REFUSED_ORDER);
        return first;
    }

    static const void *answer(Answer a) noexcept
    {
        return a == Answer::no ? reinterpret_cast<const void *>(no) : reinterpret_cast<const void *>(not_supported);
    }
    static const void *assumed_mems() noexcept
    {
#if defined(__aarch64__)
        return reinterpret_cast<const void *>(gorail_assumed_mems_x8);
#else
        return reinterpret_cast<const void *>(gorail_assumed_mems);
#endif
    }

    Order order_;
    std::once_flag filled_;
    std::array<const void *, 2 + most_functions> words_ = {};
};

} // namespace gorail
