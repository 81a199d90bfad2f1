# These targets only call scripts: the work is in tools/ and meson.build.
.DEFAULT_GOAL := help
SHELL := bash
.PHONY: help quickstart check test test-all lint test-wheels test-python test-vllm test-frameworks test-hosts wheels dist test-dist test-fabrics test-trixie test-aarch64 test-systems test-rdma test-gpu soak history history-gpu broken fuzz bench bench-rails bench-failover bench-failover-rdma bench-pods studies build setup install clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: ## build the plugin, then two Python agents move 64 MiB both ways
	@tools/quickstart.sh

check: ## a part of the tests, before each commit: 80 s
	@tools/check.sh

test: ## most tests, long ones in a short form, before a merge: 6 minutes
	@tools/test.sh

test-all: ## the tests that make test shortens or leaves out: 51 minutes and more (LIMIT=40: only stages that fit)
	@tools/test-all.sh

lint: ## golangci-lint, clang-format and clang-tidy (tools/lint.sh installs them into .cache)
	@tools/lint.sh

test-wheels: build ## tests of one plugin binary with every NIXL release from 1.0.0 on
	@tools/test-wheels.sh

test-python: build ## tests of the Python package with the oldest and the newest Python of NIXL's wheels that is here
	@tools/test-python.sh

test-vllm: build ## vLLM for processors over GORAIL: prefill and decode servers; installs 7 GB into .cache/vllm the first time
	@tools/test-vllm.sh

test-frameworks: build ## NIXL code of vLLM, SGLang, LMCache, Ray, verl, ModelExpress and nixl-sys over GORAIL, on processors; needs what test-vllm installs, and 800 MB more
	@tools/test-frameworks.sh

test-fabrics: build ## end-to-end tests over imitated EFA and CXI fabrics, with SEEDS seeds each (default 200)
	@tools/test-fabrics.sh $${SEEDS:-200}

test-trixie: ## `make test` in a chroot of Debian 13: libfabric 2.1, Python 3.13 (needs root; TRIXIE_RUN='go test ./...' runs a part)
	@tools/test-trixie.sh

test-systems: ## the wheel of dist in chroots of Debian 11 to testing, Ubuntu 22.04 and 24.04 (needs root; after `make wheels`); QUICKSTART=1: `make quickstart` there
	@tools/test-systems.sh

test-aarch64: ## the aarch64 wheel, C drivers and tests of Go packages in an emulated guest (needs root the first time)
	@tools/test-aarch64.sh

test-rdma: build ## tests over software RDMA (rxe, siw) in guests; builds the guests' kernel the first time (4 minutes)
	@tools/test-rdma.sh

test-gpu: build ## tests on the GPUs of this machine (GORAIL_TEST_CUDA is the driver, default libcuda.so.1)
	@export GORAIL_TEST_CUDA=$${GORAIL_TEST_CUDA:-libcuda.so.1} && go test -count=1 -v -run Real ./backend/gpu ./test/cuda && \
	    . tools/env.sh && go test -count=1 -v -run 'TestVRAM|TestStaged|TestManyGPUs|TestMatrix|TestRemapped' ./test/e2e && \
	    NIXL_PLUGIN_DIR=$$GORAIL_PLUGIN_DIR $${PYTHON:-$$GORAIL_PYTHON} test/gpu/visible.py

soak: build ## rails fail at random during transfers, for SOAK (default 2m)
	@. tools/env.sh && GORAIL_SOAK=$${SOAK:-2m} go test ./test/e2e -run "^TestFailover$$" -count=1 -v -timeout 0

test-hosts: ## uvloop, tokio, gperftools, py-spy; signals with the plugin built by other releases of Go, which it downloads
	@tools/test-hosts.sh

history: build ## agents that are killed, stopped and cut off, for HISTORY (default 10m); a failure names its SEED
	@tools/test-history.sh

history-gpu: build ## agents that change what is behind registered memory, on all GPUs here, for HISTORY (default 10m); works without Go, too: tools/test-history-gpu.sh
	@tools/test-history-gpu.sh

broken: build ## broken set-ups, each with its first FAIL and its remedy: gorail doctor and agents, in namespaces (needs root)
	@tools/test-broken.sh

fuzz: setup ## every fuzz target for FUZZTIME (default 1m)
	@FUZZTIME=$${FUZZTIME:-1m} tools/fuzz.sh

bench: build ## measure GORAIL, the wheel's UCX and this host's limits: build/bench/report.md, a short table in docs/benchmarks.md
	@tools/bench.sh

bench-rails: build ## measure shaped rails against one rail, and small WRITEs beside large ones
	@. tools/env.sh && go test ./test/e2e -run NONE -bench 'Rails|Mixed' -benchtime 5x

bench-failover: build ## let rails fail FAILURES times (default 1000) at random moments of transfers: percentiles of the gaps, build/bench/failover.txt (needs root)
	@mkdir -p build/bench && . tools/env.sh && go test ./test/e2e -run NONE -bench 'Failover$$' -benchtime $${FAILURES:-1000}x -timeout 0 | tee build/bench/failover.txt

bench-failover-rdma: build ## the same with soft RoCE rails in a guest, FAILURES times (default 300): build/bench/failover-rdma.txt (needs root)
	@tools/bench-failover-rdma.sh

bench-pods: build ## measure GORAIL and UCX between two pods of one node, and GORAIL within a pod (needs root): build/bench/pods.json
	@tools/bench-pods.sh

studies: build ## gorail study kv, quick, also with faults: pages in build/studies
	@tools/studies.sh

build: setup ## build build/libplugin_GORAIL.so and build/gorail
	@tools/build.sh

setup: ## install missing packages (apt, .venv)
	@tools/setup.sh

wheels: setup ## build dist/nixl_gorail-VERSION-...whl for x86_64 and aarch64 (glibc 2.28); ARCHS=x86_64 for one
	@tools/wheel/build.sh $${ARCHS:-x86_64 aarch64}

dist: setup ## a release in dist: wheels, source archive, SBOMs, SHA256SUMS; of a commit, so nothing may be uncommitted
	@tools/dist.sh

test-dist: setup ## a release, built twice and compared; two agents run from its wheel beside NIXL's oldest and newest wheel; README's Install as printed
	@tools/dist.sh check

install: build ## install the plugin into its folder and gorail into bin (below DESTDIR)
	@.venv/bin/meson install -C build --no-rebuild

clean: ## remove build and dist; .venv and .cache stay
	rm -rf build dist
