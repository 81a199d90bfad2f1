// The objects that the agent holds pointers to: owned by the engine, so none leaks when an engine is destroyed with
// live ones, and a pointer that was given back before is recognised instead of followed.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_map>

namespace gorail {

// T is the object, Base the class by whose pointer the agent knows it.
template<class T, class Base> class LiveSet {
public:
    LiveSet() = default;
    LiveSet(const LiveSet &) = delete;
    void operator=(const LiveSet &) = delete;

    // Takes ownership and gives the pointer for the agent. When it throws bad_alloc, nothing was taken.
    Base *add(std::unique_ptr<T> &p) {
        std::lock_guard<std::mutex> lock(mu_);
        Base *key = p.get();
        live_.try_emplace(key).first->second = std::move(p);
        return key;
    }

    // The object that the pointer stands for, as long as nobody takes it; null as take gives it.
    T *find(const Base *p) {
        std::lock_guard<std::mutex> lock(mu_);
        const auto at = live_.find(p);
        return at == live_.end() ? nullptr : at->second.get();
    }

    // Gives ownership back; null when the pointer is not, or no longer, one of ours. It is not followed.
    std::unique_ptr<T> take(const Base *p) {
        std::lock_guard<std::mutex> lock(mu_);
        auto node = live_.extract(p);
        return node ? std::move(node.mapped()) : nullptr;
    }

private:
    std::mutex mu_;
    std::unordered_map<const Base *, std::unique_ptr<T>> live_;
};

} // namespace gorail
