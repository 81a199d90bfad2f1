/* Parses GORAIL_FABRIC: "name=value,...". */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "names.h"
#include "switches.h"

static fab_config config;

#define FAB_NAME(name, efa, direct, cxi, what) #name,
#define FAB_VALUE_EFA(name, efa, direct, cxi, what) efa,
#define FAB_VALUE_DIRECT(name, efa, direct, cxi, what) direct,
#define FAB_VALUE_CXI(name, efa, direct, cxi, what) cxi,

static const char *const names[SW_COUNT] = {FAB_SWITCHES(FAB_NAME)};
static const int64_t defaults[FAB_KINDS][SW_COUNT] = {
    [FAB_EFA] = {FAB_SWITCHES(FAB_VALUE_EFA)},
    [FAB_DIRECT] = {FAB_SWITCHES(FAB_VALUE_DIRECT)},
    [FAB_CXI] = {FAB_SWITCHES(FAB_VALUE_CXI)},
};

static int set_kinds(char *value)
{
    static const char *const kinds[FAB_KINDS] = {"efa", "efa-direct", "cxi"};
    char *save = NULL;
    config.nkinds = 0;
    for (char *word = strtok_r(value, ":", &save); word; word = strtok_r(NULL, ":", &save)) {
        int k = native_find(kinds, FAB_KINDS, word);
        if (k < 0 || config.nkinds == FAB_KINDS)
            return -1;
        config.kinds[config.nkinds++] = k;
    }
    return config.nkinds ? 0 : -1;
}

static int set_interfaces(char *value)
{
    char *save = NULL;
    config.non = 0;
    for (char *word = strtok_r(value, ":", &save); word && config.non < 8; word = strtok_r(NULL, ":", &save))
        snprintf(config.on[config.non++], sizeof(config.on[0]), "%s", word);
    return config.non ? 0 : -1;
}

static int set_number(const char *name, const char *value)
{
    char *end = NULL;
    int64_t v = strtoll(value, &end, 0);
    if (end == value || *end)
        return -1;
    int s = native_find(names, SW_COUNT, name);
    for (int k = 0; s >= 0 && k < FAB_KINDS; k++)
        config.value[k][s] = v;
    return s < 0 ? -1 : 0;
}

static void parse(char *text)
{
    char *save = NULL;
    for (char *word = strtok_r(text, ",", &save); word; word = strtok_r(NULL, ",", &save)) {
        char *value = strchr(word, '=');
        int rc = -1;
        if (value) {
            *value++ = 0;
            if (!strcmp(word, "kind"))
                rc = set_kinds(value);
            else if (!strcmp(word, "on"))
                rc = set_interfaces(value);
            else if (!strcmp(word, "real"))
                rc = snprintf(config.real, sizeof(config.real), "%s", value) > 0 ? 0 : -1;
            else
                rc = set_number(word, value);
        }
        if (rc)
            snprintf(config.error, sizeof(config.error), "GORAIL_FABRIC: unknown switch or bad value: %.200s", word);
    }
}

static void load(void)
{
    const char *env = getenv("GORAIL_FABRIC");
    memcpy(config.value, defaults, sizeof(defaults));
    config.nkinds = 1;
    config.kinds[0] = FAB_CXI;
    config.non = 1;
    strcpy(config.on[0], "lo");
    strcpy(config.real, "libfabric.so.1");
    if (env) {
        char *text = strdup(env);
        if (text)
            parse(text);
        free(text);
    }
}

const fab_config *fab_config_get(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    return &config;
}
