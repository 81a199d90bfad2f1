# The front door only: the work is in tools/ and meson.build.
.DEFAULT_GOAL := help
SHELL := bash
.PHONY: help quickstart check test test-all lint test-wheels test-fabrics test-trixie test-rdma test-gpu soak history fuzz bench bench-rails build setup install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: build ## build, then two Python agents move 64 MiB both ways
	@tools/quickstart.sh

check: ## before each commit: 70 s
	@tools/check.sh

test: ## before a change lands: every test, the long ones in a short form: 4 minutes
	@tools/test.sh

test-all: ## what make test shortens or leaves out: 47 minutes and more (LIMIT=40: only what fits)
	@tools/test-all.sh

lint: ## golangci-lint, clang-format, clang-tidy (tools/lint.sh; installs them into .cache)
	@tools/lint.sh

test-wheels: build ## the wheel matrix against every NIXL release from 1.0.0 on
	@tools/test-wheels.sh

test-fabrics: build ## end-to-end tests over imitations of EFA and CXI, SEEDS of each (default 200)
	@tools/test-fabrics.sh $${SEEDS:-200}

test-trixie: ## `make test` in a chroot of Debian 13: libfabric 2.1, Python 3.13 (as root; TRIXIE_RUN='go test ./...' for a part)
	@tools/test-trixie.sh

test-rdma: build ## tests over software RDMA (rxe, siw) in guests; their kernel is built first, once (4 minutes)
	@tools/test-rdma.sh

test-gpu: build ## copies, mappings and agents on the GPUs of this machine (GORAIL_TEST_CUDA: the driver, default libcuda.so.1)
	@export GORAIL_TEST_CUDA=$${GORAIL_TEST_CUDA:-libcuda.so.1} && go test -count=1 -v -run Real ./backend/gpu ./test/cuda && \
	    . tools/env.sh && go test -count=1 -v -run 'TestVRAM|TestStaged|TestManyGPUs|TestMatrix' ./test/e2e

soak: build ## rails down and up at random under transfers, for SOAK (default 2m)
	@. tools/env.sh && GORAIL_SOAK=$${SOAK:-2m} go test ./test/e2e -run TestRailsSoak -count=1 -v -timeout 0

history: build ## agents that are killed, stopped and cut off, for HISTORY (default 10m); a failure names its SEED
	@tools/test-history.sh

fuzz: setup ## every fuzz target, FUZZTIME each (default 1m)
	@FUZZTIME=$${FUZZTIME:-1m} tools/fuzz.sh

bench: build ## GORAIL, stock UCX and the limits of this host: build/bench/report.md, a short table in docs/benchmarks.md
	@tools/bench.sh

bench-rails: build ## shaped rails against one, small writes beside large ones
	@. tools/env.sh && go test ./test/e2e -run NONE -bench 'Rails|Mixed' -benchtime 5x && go test ./test/e2e -run NONE -bench RailCut -benchtime 1x

build: setup ## build/libplugin_GORAIL.so
	@tools/build.sh

setup: ## install what is missing (apt, .venv)
	@tools/setup.sh

install: build ## the plugin into its folder, gorail into bin (DESTDIR is honoured)
	@.venv/bin/meson install -C build --no-rebuild

clean: ## remove what was built; .venv and .cache stay
	rm -rf build
