/* The provider between two processes, and against peers that misbehave: what the conformance tests, in one process, don't see.
 *
 *     ctest NAME      one test; status 0: passed, 77: it can't be run here
 */
#include <string.h>
#include <unistd.h>

#include "world.h"

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    { "inline", inline_copies }, { "pool", pool_copies }, { "lent_epochs", lent_epochs }, { "left_alone", left_alone }, { "near", near }, { "region_goes", region_goes }, { "endpoint_goes", endpoint_goes },
    { "killed", killed }, { "stopped", stopped }, { "ended_unseen", ended_unseen }, { "slow", slow }, { "holes", holes }, 
    { "hostile_ring", hostile_ring }, { "failed_handshake", failed_handshake }, { "closed_ring", closed_ring }, 
    { "lent", lent }, { "crowded", crowded }, { "taken_back", taken_back }, { "refused", refused }, { "helper_killed", helper_killed },
    { "helper_stopped_before", helper_stopped_before }, { "helper_stopped_behind", helper_stopped_behind }, { "help_ends", help_ends },
    { "scribbled", scribbled }, { "slow_close", slow_close }, { "other_users_offer", other_users_offer }, { "another_programs_offer", another_programs_offer },
    { "hostile_offers", hostile_offers }, { "helper_rings", helper_rings }, { "ready_ring", ready_ring }, 
    { "doorbells", doorbells }, 
    { "early_ring", early_ring },
    { "vram_again", vram_again }, { "vram_epochs", vram_epochs }, 
    { "vram_closed", vram_closed }, { "vram_peer_closes", vram_peer_closes }, { "vram_stuck", vram_stuck },
};

int main(int argc, char **argv)
{
    alarm(6 * LIMIT_S);
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        if (argc == 2 && strcmp(argv[1], tests[i].name) == 0) {
            tests[i].run();
            return 0;
        }
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        puts(tests[i].name);
    return argc == 1 ? 0 : 2;
}
