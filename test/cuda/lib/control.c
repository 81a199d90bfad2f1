/* Control by tests, which find these functions with dlsym. All take the lock. */
#include <stdlib.h>

#include "ct.h"

#define BOARD(name) ct_##name
#define SWITCHES CT_SWITCHES
#define COUNTERS CT_COUNTERS
#define CALLS CT_CALLS
#define POLLS(call) ((call) == CALL_EventQuery || (call) == CALL_StreamQuery)
#include "board.h"

int ct_dead;

/* Writes one line "NAME NUMBER" for each kind of object that is open. */
void ct_control_open(char *to, size_t len)
{
    pthread_mutex_lock(&ct_mu);
    *to = 0;
    for (int i = 0; i < CT_launches; i++)
        if (ct_count[i])
            snprintf(to + strlen(to), len - strlen(to), "%s %ld\n", counters[i], ct_count[i]);
    pthread_mutex_unlock(&ct_mu);
}

/* Sets the sticky error. */
void ct_control_kill(int result)
{
    pthread_mutex_lock(&ct_mu);
    ct_dead = result;
    pthread_mutex_unlock(&ct_mu);
}

/* Sets the switches of the environment, for processes that no test controls. */
__attribute__((constructor)) static void from_environment(void)
{
    const char *list = getenv("GORAIL_TEST_GPU_SWITCHES");
    for (char *all = list ? strdup(list) : NULL, *save = NULL, *one = all ? strtok_r(all, ",", &save) : NULL; one; one = strtok_r(NULL, ",", &save)) {
        char *value = strchr(one, '=');
        if (!value)
            abort();
        *value++ = 0;
        int i = 0;
        while (i < SW_COUNT && strcmp(switches[i], one))
            i++;
        if (i == SW_COUNT)
            abort();
        ct_switch[i] = atol(value);
    }
}
