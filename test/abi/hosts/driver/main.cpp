// Loads NIXLs into one process, and lets each use the plugin, twice: driver PLUGIN LIBRARY...
#include <cstdio>
#include <dlfcn.h>
#include <unistd.h>
#include <vector>

int main(int argc, char **argv)
{
    alarm(60); // never hang
    std::vector<const char *(*)(const char *)> all;
    for (int i = 2; i < argc; i++) {
        void *so = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
        if (!so)
            return std::fprintf(stderr, "%s\n", dlerror()), 1;
        all.push_back(reinterpret_cast<const char *(*)(const char *)>(dlsym(so, "run")));
    }
    for (int round = 0; round < 2; round++)
        for (auto run : all)
            std::printf("%s\n", run(argv[1]));
    return 0;
}
