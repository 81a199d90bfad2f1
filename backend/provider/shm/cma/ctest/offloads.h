/* What the tests of offloads share: initiators that offer, and targets that take an offer by hand. */
#ifndef GORAIL_LOCAL_LOANS_H
#define GORAIL_LOCAL_LOANS_H

#include "world.h"

/* Posts the same range here and there. */
void begin(pair *p, int op, uint64_t at, uint64_t len, gr_ctx *c);
/* Takes what was posted from the queue; half of it is offered. */
cma_job *take_half(cma_rail *rail);
/* Until the target takes offers. */
void wait_helps(pair *p);
/* How many copies the target has made for us, or is making. */
int copied_by_peer(const pair *p);
void forget_offers(pair *p);
/* Offers until the target has taken something, which is under way then. */
void until_taken(pair *p);

/* Takes an offer: its number. */
uint32_t await_offer(pair *p);
/* A target that polls, says that it assists and does not. */
void claims_to_help(pair *p);
/* An `other` that takes an offer as often as it is told to, and says what it is told. */
void answering(pair *p);

#endif
