// The objects that the agent holds pointers to. The engine owns them: none leaks when an engine is destroyed, and a
// stale pointer is recognized without being dereferenced.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_set>
#include <utility>

namespace gorail {

// T is the object; Base is the class of the agent's pointer. An agent registers thousands of regions in a row, so the
// objects lie in chunks: an allocation and an entry of the table serve many.
template <class T, class Base> class LiveSet {
    static constexpr size_t chunk_size = 4096;

    // Aligned to its size: a pointer to an object leads to its chunk.
    struct alignas(chunk_size) Chunk {
        uint64_t live = 0; // one bit for each place
        Chunk *next = nullptr, *prev = nullptr; // in the list of chunks with a free place

        static constexpr size_t places = std::min<size_t>(64, (chunk_size - 64) / sizeof(T));
        static constexpr uint64_t full = ~uint64_t(0) >> (64 - places);
        alignas(T) std::byte memory[places * sizeof(T)];

        // The standard library of older distributions has no operator new with an alignment.
        static void *operator new(size_t n)
        {
            if (void *p = std::aligned_alloc(chunk_size, n))
                return p;
            throw std::bad_alloc();
        }
        static void operator delete(void *p) noexcept { std::free(p); }

        T *at(size_t i) { return std::launder(reinterpret_cast<T *>(memory + i * sizeof(T))); }
    };
    static_assert(sizeof(Chunk) == chunk_size);

  public:
    LiveSet() = default;
    LiveSet(const LiveSet &) = delete;
    void operator=(const LiveSet &) = delete;
    ~LiveSet()
    {
        for (Chunk *c : chunks_) {
            for (; c->live; c->live &= c->live - 1)
                std::destroy_at(c->at(std::countr_zero(c->live)));
            delete c;
        }
    }

    // Makes an object and returns the pointer for the agent. On bad_alloc there is none.
    template <class... Args> Base *add(Args &&...args)
    {
        std::lock_guard<std::mutex> lock(mu_);
        Chunk *c = free_ ? free_ : grow();
        const size_t i = std::countr_one(c->live);
        T *made = std::construct_at(reinterpret_cast<T *>(c->memory + i * sizeof(T)), std::forward<Args>(args)...);
        c->live |= uint64_t(1) << i;
        if (c->live == Chunk::full)
            unlink(c);
        return made;
    }

    // The object behind the pointer, valid until take; null if take would return none.
    T *find(const Base *p)
    {
        std::lock_guard<std::mutex> lock(mu_);
        const auto [c, i] = place(p);
        return c ? c->at(i) : nullptr;
    }

    // Ends the object and returns what it was; none if the pointer is not, or no longer, in the set. The pointer is not
    // dereferenced.
    std::optional<T> take(const Base *p)
    {
        std::lock_guard<std::mutex> lock(mu_);
        const auto [c, i] = place(p);
        if (!c)
            return std::nullopt;
        std::optional<T> was(std::move(*c->at(i)));
        std::destroy_at(c->at(i));
        if (c->live == Chunk::full)
            link(c);
        c->live &= ~(uint64_t(1) << i);
        if (!c->live && (c->next || c->prev)) { // one empty chunk stays
            unlink(c);
            chunks_.erase(c);
            delete c;
        }
        return was;
    }

  private:
    struct Place {
        Chunk *chunk; // null: the pointer is to no live object
        size_t i;
    };

    Place place(const Base *p) const
    {
        const auto at = reinterpret_cast<uintptr_t>(p); // Base is T's first base
        auto *c = reinterpret_cast<Chunk *>(at & ~(chunk_size - 1));
        const size_t offset = at % chunk_size - offsetof(Chunk, memory), i = offset / sizeof(T);
        if (!chunks_.contains(c) || offset % sizeof(T) != 0 || i >= Chunk::places || !(c->live >> i & 1))
            return {nullptr, 0};
        return {c, i};
    }

    Chunk *grow()
    {
        auto c = std::make_unique<Chunk>();
        chunks_.insert(c.get());
        link(c.get());
        return c.release();
    }

    void link(Chunk *c)
    {
        c->prev = nullptr;
        c->next = free_;
        if (free_)
            free_->prev = c;
        free_ = c;
    }

    void unlink(Chunk *c)
    {
        (c->prev ? c->prev->next : free_) = c->next;
        if (c->next)
            c->next->prev = c->prev;
        c->next = c->prev = nullptr;
    }

    std::mutex mu_;
    std::unordered_set<Chunk *> chunks_;
    Chunk *free_ = nullptr; // chunks with a free place
};

} // namespace gorail
