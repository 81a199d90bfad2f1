/* Tests of the provider between two processes, and with misbehaving peers. The conformance tests run in one process
 * and do not cover these cases.
 *
 *     ctest NAME      runs one test; exit status 0: passed, 77: it cannot run here */
#include <string.h>
#include <unistd.h>

#include "world.h"

static const struct {
    const char *name;
    void (*run)(void);
} tests[] = {
    {"inline", inline_copies},
    {"pool", pool_copies},
    {"poller_epochs", poller_epochs},
    {"no_wakeups", no_wakeups},
    {"near", near},
    {"region_closed", region_closed},
    {"endpoint_closed", endpoint_closed},
    {"killed", killed},
    {"stopped", stopped},
    {"ended_unseen", ended_unseen},
    {"slow", slow},
    {"holes", holes},
    {"hostile_ring", hostile_ring},
    {"failed_handshake", failed_handshake},
    {"failed_with_messages", failed_with_messages},
    {"closed_ring", closed_ring},
    {"offloads", offloads},
    {"few_cpus", few_cpus},
    {"withdrawn", withdrawn},
    {"refused", refused},
    {"assist_killed", assist_killed},
    {"assist_stopped_before", assist_stopped_before},
    {"assist_stopped_in_call", assist_stopped_in_call},
    {"assist_ends", assist_ends},
    {"overwritten_offers", overwritten_offers},
    {"slow_close", slow_close},
    {"other_users_offer", other_users_offer},
    {"another_programs_offer", another_programs_offer},
    {"another_program", another_program},
    {"hostile_offers", hostile_offers},
    {"assist_rings", assist_rings},
    {"ready_ring", ready_ring},
    {"doorbells", doorbells},
    {"early_ring", early_ring},
    {"dozes", dozes},
    {"moves", moves},
    {"ring_copies", ring_copies},
    {"ring_small", ring_small},
    {"ring_holes", ring_holes},
    {"ring_region_closed", ring_region_closed},
    {"ring_endpoint_closed", ring_endpoint_closed},
    {"ring_writer_killed", ring_writer_killed},
    {"ring_writer_stopped", ring_writer_stopped},
    {"ring_target_stopped", ring_target_stopped},
    {"ring_target_killed", ring_target_killed},
    {"ring_unseen", ring_unseen},
    {"ring_asleep", ring_asleep},
    {"ring_taken_back", ring_taken_back},
    {"ring_threads", ring_threads},
    {"hostile_chunks", hostile_chunks},
    {"hostile_answers", hostile_answers},
    {"guard_replaced", guard_replaced},
    {"ring_given_up", ring_given_up},
    {"ring_beside_pool", ring_beside_pool},
    {"mapped_copies", mapped_copies},
    {"mapped_pool", mapped_pool},
    {"mapped_region_closed", mapped_region_closed},
    {"mapped_endpoint_closed", mapped_endpoint_closed},
    {"mapped_killed", mapped_killed},
    {"mapped_stopped", mapped_stopped},
    {"mapped_truncated", mapped_truncated},
    {"mapped_forgotten", mapped_forgotten},
    {"mapped_readonly", mapped_readonly},
    {"mapped_threads", mapped_threads},
    {"mapped_again", mapped_again},
    {"mapped_answered_late", mapped_answered_late},
    {"mapped_most", mapped_most},
    {"mapped_replaced", mapped_replaced},
    {"vram_again", vram_again},
    {"vram_epochs", vram_epochs},
    {"vram_closed", vram_closed},
    {"vram_peer_closes", vram_peer_closes},
    {"vram_stuck", vram_stuck},
    {"vram_sources", vram_sources},
    {"asked_write", asked_write},
    {"asked_read", asked_read},
    {"asked_here", asked_here},
    {"asked_given_up", asked_given_up},
    {"hostile_questions", hostile_questions},
    {"asked_turns", asked_turns},
    {"vram_kept", vram_kept},
    {"vram_left", vram_left},
};

int main(int argc, char **argv)
{
    alarm(6 * LIMIT_S);
    if (argc == 2 && strcmp(argv[1], "program") == 0)
        return the_program();
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        if (argc == 2 && strcmp(argv[1], tests[i].name) == 0) {
            tests[i].run();
            return 0;
        }
    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++)
        puts(tests[i].name);
    return argc == 1 ? 0 : 2;
}
