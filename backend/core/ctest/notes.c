/* Records notifications: sent, required to arrive, arrived. */
#include <string.h>

#include "world.h"

enum { MAX_NOTES = 1 << 20 };

typedef struct note {
    uint64_t session;
    uint32_t len;
    uint8_t must, arrived, alone;
} note;

static note notes[MAX_NOTES];
static uint64_t nnotes = 1, last_alone, arrived;
static pthread_mutex_t note_mu = PTHREAD_MUTEX_INITIALIZER;

/* Body: the number, then a pattern that depends on the number. */
char *note_of(uint64_t session, int alone, uint32_t len, uint64_t *id)
{
    pthread_mutex_lock(&note_mu);
    *id = nnotes++;
    CHECK(*id < MAX_NOTES, "too many notifications: more than MAX_NOTES");
    notes[*id] = (note){.session = session, .len = len, .alone = (uint8_t)alone};
    pthread_mutex_unlock(&note_mu);
    char *body = malloc(len);
    CHECK(body, "out of memory");
    memset(body, (int)(*id % 251), len);
    memcpy(body, id, 8);
    return body;
}

char *note_new(uint64_t session, int alone, uint64_t *rng, uint32_t *len, uint64_t *id)
{
    static const uint32_t most[] = {8, 100, 2048, 5000, 12000};
    *len = 8 + (uint32_t)below(rng, most[below(rng, 5)]);
    return note_of(session, alone, *len, id);
}

void notes_take(gr_core *core)
{
    pthread_mutex_lock(&note_mu); /* taking and checking are one step: else two takers could swap their notifications */
    gr_notif *list = gr_notif_take(core);
    for (gr_notif *n = list; n; n = n->next) {
        uint64_t id;
        CHECK(n->name_len == 1 && n->name[0] == 'a' && n->msg_len >= 8, "sender or length");
        memcpy(&id, n->msg, 8);
        CHECK(id && id < nnotes && n->msg_len == notes[id].len, "notification %lu of %lu bytes", (unsigned long)id, (unsigned long)n->msg_len);
        for (uint64_t i = 8; i < n->msg_len; i++)
            CHECK((unsigned char)n->msg[i] == id % 251, "byte %lu of %lu", (unsigned long)i, (unsigned long)id);
        CHECK(!notes[id].arrived, "notification %lu arrived twice", (unsigned long)id);
        notes[id].arrived = 1;
        trace(id);
        arrived++;
        if (notes[id].alone) {
            CHECK(id > last_alone, "notification %lu arrived after %lu", (unsigned long)id, (unsigned long)last_alone);
            last_alone = id;
        }
    }
    pthread_mutex_unlock(&note_mu);
    gr_notif_free(core, list);
}

void note_require(uint64_t id, uint64_t session)
{
    pthread_mutex_lock(&note_mu);
    notes[id].must = notes[id].session == session;
    pthread_mutex_unlock(&note_mu);
}

void notes_unrequire(void)
{
    pthread_mutex_lock(&note_mu);
    for (uint64_t i = 1; i < nnotes; i++)
        notes[i].must = 0;
    pthread_mutex_unlock(&note_mu);
}

int notes_all(void)
{
    int all = 1;
    pthread_mutex_lock(&note_mu);
    for (uint64_t i = 1; i < nnotes && all; i++)
        all = !notes[i].must || notes[i].arrived;
    pthread_mutex_unlock(&note_mu);
    return all;
}

uint64_t notes_arrived(void) { return arrived; }
