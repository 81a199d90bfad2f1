# The front door only: the work is in tools/ and meson.build.
.DEFAULT_GOAL := help
.PHONY: help quickstart test test-wheels fuzz bench build setup install clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: build ## build, then two Python agents move 64 MiB both ways
	@tools/quickstart.sh

test: ## everything, on this machine
	@tools/test.sh

test-wheels: build ## the wheel matrix against every NIXL release from 1.0.0 on
	@tools/test-wheels.sh

fuzz: setup ## every fuzz target, FUZZTIME each (default 1m)
	@FUZZTIME=$${FUZZTIME:-1m} tools/fuzz.sh

bench: build ## figures side by side with stock UCX
	@tools/bench.sh

build: setup ## build/libplugin_GORAIL.so
	@tools/build.sh

setup: ## install what is missing (apt, .venv)
	@tools/setup.sh

install: build ## into the plugin folder (DESTDIR is honoured)
	@.venv/bin/meson install -C build

clean: ## remove what was built; .venv and .cache stay
	rm -rf build
