/* The provider between two processes, and against peers that misbehave: what the conformance tests, in one process, don't see.
 *
 *     ctest NAME      one test; status 0: passed, 77: it can't be run here
 *     ctest old_NAME  the same as on Linux before 6.5, without SO_PEERPIDFD
 */
#include <string.h>
#include <unistd.h>

#include "world.h"

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    { "inline", inline_copies }, { "pool", pool_copies }, { "lent_lanes", lent_lanes }, { "left_alone", left_alone }, { "near", near }, { "region_goes", region_goes }, { "endpoint_goes", endpoint_goes },
    { "killed", killed }, { "killed_unseen", killed_unseen }, { "stopped", stopped }, { "slow", slow }, { "holes", holes }, { "other_user", other_user },
    { "hostile_ring", hostile_ring }, { "unsealed", unsealed }, { "closed_ring", closed_ring }, { "huge", huge }, { "bad_greeting", bad_greeting },
    { "no_descriptors", no_descriptors }, { "descriptors_again", descriptors_again },
    { "lent", lent }, { "crowded", crowded }, { "taken_back", taken_back }, { "refused", refused }, { "helper_killed", helper_killed },
    { "helper_stopped_before", helper_stopped_before }, { "helper_stopped_behind", helper_stopped_behind }, { "help_ends", help_ends },
    { "scribbled", scribbled }, { "slow_close", slow_close }, { "other_users_offer", other_users_offer }, { "who_is_helped", who_is_helped }, { "another_programs_offer", another_programs_offer },
    { "hostile_offers", hostile_offers }, { "helper_rings", helper_rings }, { "strangers", strangers }, { "ready_ring", ready_ring }, { "many_descriptors", many_descriptors },
    { "forged_credentials", forged_credentials }, { "another_users_root", another_users_root }, { "sibling_pids", sibling_pids },
    { "number_reused", number_reused }, { "number_reused_late", number_reused_late }, { "stray_datagrams", stray_datagrams },
    { "pestered", pestered }, { "silent_callers", silent_callers }, { "connects_again", connects_again }, { "never_accepted", never_accepted },
    { "oldest_goes", oldest_goes }, { "second_caller", second_caller }, { "early_ring", early_ring },
    { "vram_again", vram_again }, { "vram_lanes", vram_lanes }, { "vram_not_ours", vram_not_ours }, { "vram_silent", vram_silent },
    { "vram_short_answer", vram_short_answer }, { "vram_idle_callers", vram_idle_callers }, { "vram_callers", vram_callers }, { "vram_no_descriptors", vram_no_descriptors },
    { "vram_closed", vram_closed }, { "vram_peer_closes", vram_peer_closes }, { "vram_stuck", vram_stuck },
};

/* Those for which it matters how a peer's process is found. */
static const char *const by_number[] = { "pool", "endpoint_goes", "killed", "killed_unseen", "other_user", "who_is_helped",
                                         "no_descriptors", "forged_credentials", "another_users_root", "sibling_pids", "number_reused", "number_reused_late" };

int main(int argc, char **argv)
{
    alarm(6 * LIMIT_S);
    if (argc == 2 && strncmp(argv[1], "old_", 4) == 0) {
        lc_no_peerpidfd = 1;
        argv[1] += 4;
    }
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        if (argc == 2 && strcmp(argv[1], tests[i].name) == 0) {
            tests[i].run();
            return 0;
        }
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        puts(tests[i].name);
    for (size_t i = 0; i < sizeof(by_number) / sizeof(by_number[0]); i++)
        printf("old_%s\n", by_number[i]);
    return argc == 1 ? 0 : 2;
}
