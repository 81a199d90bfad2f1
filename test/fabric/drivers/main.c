/* Usage: driver LIBRARY, with lines "case config breaches output" on stdin. Each case runs in its own process and does one thing right or
 * wrong with the library. The library records breaches in the file breaches. The case prints its observations to the file output. Its
 * wait status goes to stdout, one line each. The real libfabric is initialized once before the first fork, because that takes 0.3 s. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "side.h"

enum { LIMIT_S = 20, STATUS_USAGE = 2 };

static void warm_up(void)
{
    int (*ask)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **);
    struct fi_info *list = NULL;
    void *dl = dlopen("libfabric.so.1", RTLD_NOW);
    *(void **)&ask = dl ? dlsym(dl, "fi_getinfo") : NULL;
    if (ask)
        (void)ask(FI_VERSION(1, 17), NULL, NULL, FI_PROV_ATTR_ONLY, NULL, &list);
}

static void run(const char *library, const char *name)
{
    const test_case *const tables[] = {op_cases, lifetime_cases, behaviour_cases};
    load(library);
    for (int t = 0; t < 3; t++) {
        for (const test_case *c = tables[t]; c->name; c++) {
            if (strcmp(c->name, name))
                continue;
            c->run();
            exit(0);
        }
    }
    fprintf(stderr, "no case %s\n", name);
    exit(STATUS_USAGE);
}

int main(int argc, char **argv)
{
    char name[64], config[512], breaches[512], output[512];
    if (argc != 2)
        return STATUS_USAGE;
    warm_up();
    while (scanf("%63s %511s %511s %511s", name, config, breaches, output) == 4) {
        int status = 0;
        pid_t child = fork();
        if (child == 0) {
            alarm(LIMIT_S);
            close(STDIN_FILENO); /* exit would change the parent's file offset */
            setenv("GORAIL_FABRIC", config, 1);
            setenv("GORAIL_FABRIC_BREACHES", breaches, 1);
            if (!freopen(output, "w", stdout))
                exit(STATUS_USAGE);
            run(argv[1], name);
        }
        if (child < 0 || waitpid(child, &status, 0) != child)
            return STATUS_USAGE;
        printf("%d\n", status);
        fflush(stdout);
    }
    return 0;
}
