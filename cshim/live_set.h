// The objects that the agent holds pointers to: owned by the engine, so none leaks when an engine is destroyed with
// live ones, and a pointer that was given back before is recognised instead of followed.
#pragma once

#include <memory>
#include <mutex>
#include <unordered_set>

namespace gorail {

template<class T> class LiveSet {
public:
    LiveSet() = default;
    LiveSet(const LiveSet &) = delete;
    void operator=(const LiveSet &) = delete;

    ~LiveSet() {
        for (T *p : live_)
            delete p;
    }

    // Takes ownership. May throw bad_alloc; the caller still owns the object then.
    void add(T *p) {
        std::lock_guard<std::mutex> lock(mu_);
        live_.insert(p);
    }

    // Gives ownership back; null when the pointer is not, or no longer, one of ours.
    std::unique_ptr<T> take(T *p) {
        std::lock_guard<std::mutex> lock(mu_);
        return std::unique_ptr<T>(live_.erase(p) == 1 ? p : nullptr);
    }

private:
    std::mutex mu_;
    std::unordered_set<T *> live_;
};

} // namespace gorail
