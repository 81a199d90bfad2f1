/* Scenarios of the first thread's decisions. */
#include <stdio.h>
#include <stdlib.h>

#include "control.h"

enum { US = 1000, MS = 1000 * US };

void seldom_polls(void);

static void check(int right, const char *what, uint64_t at)
{
    if (!right) {
        fprintf(stderr, "%s, after %lu us\n", what, (unsigned long)(at / US));
        exit(1);
    }
}

/* A thread works on without a sleep while the application polls about three times a millisecond: it does not back off. Once the
 * application polls steadily, it does. */
void seldom_polls(void)
{
    back_off b;
    uint64_t now = MS, polls = 5;
    back_off_watch(&b, polls, now);
    for (int i = 0; i < 10000; i++, now += 10 * US) { /* 100 ms, in turns of 10 us */
        polls += i % 35 == 0;
        check(!back_off_ms(&b, polls, now), "the thread sleeps, though the application polls each 350 us", now);
    }
    int slept = 0, longest = 0;
    for (int i = 0; i < 100; i++) { /* turns of 100 us, or of a sleep */
        polls += 10;
        int ms = back_off_ms(&b, polls, now);
        now += ms ? (uint64_t)ms * MS : 100 * US;
        polls += (uint64_t)ms * 100;
        slept += ms;
        longest = ms > longest ? ms : longest;
    }
    check(slept >= 90 && longest > 1, "the thread sleeps too little, though the application polls steadily", now);
    (void)back_off_ms(&b, polls, now); /* takes in the polls of the last sleep */
    check(!back_off_ms(&b, polls + 1, now), "the thread sleeps, though the application polls no more", now);
}
