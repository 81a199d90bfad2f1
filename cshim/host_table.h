// The virtual functions of engines in the order of a NIXL that has more of them than nixl_engine_abi.h, or may have more.
#pragma once

#include "engine.h"
#include "identify/known_tables.h"

#include <array>
#include <mutex>

namespace gorail {

// A table for engines: in front of its functions are the offset to the top and the type information, as the C++ ABI has it. The known
// functions are copied from an engine's own table. The added ones read no argument, and answer in a register. What follows them refuses.
class HostTable {
  public:
    bool free() const noexcept { return order_.empty(); }
    bool is(const Order &order) const noexcept { return order_ == order; }
    void take(const Order &order) { order_ = order; }

    // Until its end the engine is called by this table alone: GorailEngine is final, so none of its own calls goes by a table.
    void give(GorailEngine *engine) noexcept
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
        });
        table = &words_[2];
    }

  private:
    static bool no(const void *) noexcept { return false; }
    static nixl_status_t not_supported(const void *) noexcept { return NIXL_ERR_NOT_SUPPORTED; }
    static int32_t beyond(const void *engine) noexcept { return static_cast<const GorailEngine *>(engine)->beyond(); }
    static const void *answer(Answer a) noexcept
    {
        return a == Answer::no ? reinterpret_cast<const void *>(no) : reinterpret_cast<const void *>(not_supported);
    }

    Order order_;
    std::once_flag filled_;
    std::array<const void *, 2 + most_functions> words_ = {};
};

} // namespace gorail
