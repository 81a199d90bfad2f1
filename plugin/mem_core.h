#include "../backend/fastpath/gr_core.h"

gr_core *mem_core_new(void);
void mem_core_free(gr_core *c);
void mem_core_push(gr_core *c, const char *name, uint64_t nlen, const char *msg, uint64_t mlen);
