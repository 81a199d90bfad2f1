// Runs the cases against a plugin file (host libplugin_GORAIL.so), or against the linked shim with a stub of the Go
// half (HOST_LINKED), for the sanitizers.
#include "host.h"

#include <dlfcn.h>
#include <unistd.h>

namespace host {
nixlBackendPlugin *plugin;
nixl_init_fn init;
nixl_fini_fn fini;
} // namespace host

#ifdef HOST_LINKED
extern "C" nixlBackendPlugin *nixl_plugin_init();
extern "C" void nixl_plugin_fini();

static void find(int, char **)
{
    host::init = nixl_plugin_init;
    host::fini = nixl_plugin_fini;
}
#else
static void find(int argc, char **argv)
{
    CHECK(argc == 2);
    // NIXL's flags, without RTLD_NODELETE: the file itself must set that flag.
    void *so = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!so)
        std::fprintf(stderr, "%s\n", dlerror());
    CHECK(so);
    host::init = reinterpret_cast<host::nixl_init_fn>(dlsym(so, "nixl_plugin_init"));
    host::fini = reinterpret_cast<host::nixl_fini_fn>(dlsym(so, "nixl_plugin_fini"));
    CHECK(host::init && host::fini);
    CHECK(dlclose(so) == 0);
}
#endif

#define RUN(name)                                                                                                                                    \
    do {                                                                                                                                             \
        std::fprintf(stderr, "-- %s\n", #name);                                                                                                      \
        host::test_##name();                                                                                                                         \
    } while (0)

int main(int argc, char **argv)
{
    alarm(170); // never hang
    find(argc, argv);
    RUN(fork_before_engines);
    RUN(life);
    RUN(several_engines);
    RUN(thread_ends);
    RUN(memory);
    RUN(many_objects);
    RUN(transfers);
    RUN(threads);
    RUN(live_requests);
    RUN(fork);
#ifdef HOST_LINKED
    RUN(out_of_memory);
    RUN(refusals);
    RUN(other_tables);
#endif
    return 0;
}
