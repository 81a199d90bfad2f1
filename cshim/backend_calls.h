// The functions that the Go half exports. test/boundary_check.cpp compares these prototypes with cgo's header, so both
// stay equal.
#pragma once

#include "../backend/core/gr_core.h"
#include "../plugin/gorail.h"

extern "C" {
int32_t gorail_create(gr_create_args *, gr_created *);
int32_t gorail_destroy(uint64_t engine);
int32_t gorail_register(uint64_t engine, gr_region_args *, gr_registered *);
int32_t gorail_deregister(uint64_t engine, uint64_t region);
int32_t gorail_load_conn(uint64_t engine, gr_bytes *peer, gr_bytes *blob);
int32_t gorail_load_remote(uint64_t engine, gr_bytes *peer, gr_region_args *, uint64_t *region);
int32_t gorail_unload_remote(uint64_t engine, uint64_t region);
int32_t gorail_connect(uint64_t engine, gr_bytes *peer);
int32_t gorail_disconnect(uint64_t engine, gr_bytes *peer);
int32_t gorail_prep(uint64_t engine, gr_prep_args *, gr_prepped *);
int32_t gorail_post(uint64_t engine, uint64_t xfer, gr_notif_args *);
int32_t gorail_release(uint64_t engine, uint64_t xfer);
int32_t gorail_estimate(uint64_t engine, uint64_t xfer, gr_estimate *);
int32_t gorail_notify(uint64_t engine, gr_bytes *peer, gr_bytes *msg);
int32_t gorail_query_mem(uint64_t engine, gr_region_args *, int32_t *known);
int32_t gorail_options(gr_bytes *file, gr_owned *table);
int32_t gorail_vram(int32_t *yes);
int32_t gorail_version(gr_owned *version);
int32_t gorail_refused(gr_bytes *call, int32_t why);
int32_t gorail_host(gr_host_args *);
}
