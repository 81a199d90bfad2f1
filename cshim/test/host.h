// A miniature NIXL agent: loads the plugin as the real agent does and calls every method of its engines.
#pragma once

#include "check.h"
#include "nixl_engine_abi.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>

#define CHECK_RC(call, want)                                                                                                                         \
    do {                                                                                                                                             \
        const int got_ = (call);                                                                                                                     \
        if (got_ != (want)) {                                                                                                                        \
            std::fprintf(stderr, "%s:%d: %s is %d\n", __FILE__, __LINE__, #call, got_);                                                              \
            std::abort();                                                                                                                            \
        }                                                                                                                                            \
    } while (0)

namespace host {

using nixl_init_fn = nixlBackendPlugin *(*)();
using nixl_fini_fn = void (*)();

// The plugin under test, set by main.
extern nixlBackendPlugin *plugin;
extern nixl_init_fn init;
extern nixl_fini_fn fini;

struct Deleter {
    void operator()(nixlBackendEngine *e) const { plugin->destroy_engine(e); }
};
using EnginePtr = std::unique_ptr<nixlBackendEngine, Deleter>;

// Creates an engine as createBackend does; null if the engine reports a failure.
EnginePtr make_engine(const std::string &agent, nixl_b_params_t params = {});

// Gives `to` the connection blob of `from`, whose agent has this name.
void load(nixlBackendEngine &to, const std::string &name, nixlBackendEngine &from);

// A registered buffer and its three metadata objects, as the agent holds them.
class Buffer {
  public:
    Buffer(nixlBackendEngine &owner, size_t size, unsigned char fill);
    ~Buffer();

    nixlBackendMD *load_in(nixlBackendEngine &peer, const std::string &owner_name) const;
    void give_back(); // as the agent's deregisterMem; otherwise the destructor does it
    bool holds(unsigned char byte) const;

    nixlBackendEngine &owner;
    std::vector<unsigned char> bytes;
    nixlBackendMD *md = nullptr;
    nixlBackendMD *self = nullptr;
    std::string blob;

  private:
    nixlBlobDesc desc() const;
};

nixl_meta_dlist_t list_of(const Buffer &b, nixlBackendMD *md, size_t pieces = 1);

// Posts and polls until the transfer ends.
nixl_status_t run(nixlBackendEngine &e, nixl_xfer_op_t op, const nixl_meta_dlist_t &local, const nixl_meta_dlist_t &remote, const std::string &peer,
                  nixlBackendReqH *&handle, const nixlBackendOptionalArgs &args);

// Polls until a notification arrives.
std::pair<std::string, std::string> next_notif(nixlBackendEngine &e);

// The cases.
void test_fork_before_engines();
void test_life();
void test_several_engines();
void test_thread_ends();
void test_memory();
void test_many_objects();
void test_transfers();
void test_threads();
void test_live_requests();
void test_fork();
#ifdef HOST_LINKED
void test_out_of_memory();
void test_refusals();
void test_other_tables();

// How often the shim has refused a call, by GR_REFUSED_*.
extern std::atomic<int> refusals[];
#endif

} // namespace host
