// The objects that the agent holds pointers to. The engine owns them: none leaks when an engine is destroyed, and a
// stale pointer is recognized without being dereferenced.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

namespace gorail {

// T is the object; Base is the class of the agent's pointer.
template <class T, class Base> class LiveSet {
  public:
    LiveSet() = default;
    LiveSet(const LiveSet &) = delete;
    void operator=(const LiveSet &) = delete;

    // Takes ownership and returns the pointer for the agent. On bad_alloc the caller keeps ownership.
    Base *add(std::unique_ptr<T> &p)
    {
        std::lock_guard<std::mutex> lock(mu_);
        Base *key = p.get();
        live_.try_emplace(key).first->second = std::move(p);
        return key;
    }

    // The object behind the pointer, valid until take; null if take would return null.
    T *find(const Base *p)
    {
        std::lock_guard<std::mutex> lock(mu_);
        const auto at = live_.find(p);
        return at == live_.end() ? nullptr : at->second.get();
    }

    // Returns ownership, or null if the pointer is not, or no longer, in the set. The pointer is not dereferenced.
    std::unique_ptr<T> take(const Base *p)
    {
        std::lock_guard<std::mutex> lock(mu_);
        auto node = live_.extract(p);
        return node ? std::move(node.mapped()) : nullptr;
    }

  private:
    std::mutex mu_;
    std::unordered_map<const Base *, std::unique_ptr<T>> live_;
};

} // namespace gorail
