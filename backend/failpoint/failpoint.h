/* What Go calls, besides gr_failpoint. */
#ifndef GORAIL_FAILPOINT_GO_H
#define GORAIL_FAILPOINT_GO_H

#include <stdint.h>

#include "gr_failpoint.h"

const char *failpoint_name(int point);
void failpoint_arm(int point, uint64_t first, uint64_t last, int err);
uint64_t failpoint_passes(int point);

#endif
