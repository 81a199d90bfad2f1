/* Fixtures of the offload tests: initiators that offer pieces, and targets that take an offer by hand. */
#ifndef GORAIL_SHM_OFFLOADS_H
#define GORAIL_SHM_OFFLOADS_H

#include "world.h"

/* Posts a copy of the same range on both sides. */
void begin(pair *p, int op, uint64_t at, uint64_t len, gr_ctx *c);
/* Takes the posted job from the queue; half of it is offered. */
cma_job *take_half(cma_rail *rail);
/* Waits until the target takes offers. */
void wait_assists(pair *p);
/* The number of offers that the target has taken. */
int copied_by_peer(const pair *p);
void forget_offers(pair *p);
/* Posts copies until the target has taken an offer, which is under way then. */
void until_taken(pair *p);

/* Takes an offer and returns its number. */
uint32_t await_offer(pair *p);
/* A target that claims to assist and takes no offers by itself. */
void claims_to_assist(pair *p);
/* An `other` of split: for each command it takes an offer and ends it as the command says. */
void answering(pair *p);

#endif
