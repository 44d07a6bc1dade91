# The front door. `make` alone lists what there is.

TARGET := $(or $(CARGO_TARGET_DIR),target)/x86_64-unknown-linux-gnu/release
FORKD := $(TARGET)/forkd

.DEFAULT_GOAL := help
.PHONY: help deps build demo test soak fuzz bench check

help: ## this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/make \1\t\2/' | expand -t 14

deps: ## install what building and running needs (Debian, as root)
	@packaging/deps.sh

build: deps ## build the release programs
	cargo build --release -p forkd-cli -p forkd-vmm -p forkd-agent

demo: build ## from nothing to ten forked sandboxes, each with its own answer
	@# A machine that runs gets the programs that were just built.
	@if $(FORKD) machine status >/dev/null 2>&1; then $(FORKD) machine start; fi
	@$(FORKD) quickstart

test: deps ## every test there is, each class counted
	@packaging/run-tests.py

soak: deps ## the same tests with the large counts
	@packaging/run-tests.py --soak monitor machine e2e

SECONDS := 60
fuzz: deps ## random guests, files and messages for SECONDS=60
	@packaging/fuzz.sh $(SECONDS)

bench: build ## times and memory of forks, on this computer or in the machine
	@if $(FORKD) machine status >/dev/null 2>&1; then $(FORKD) machine start; fi
	@$(FORKD) bench

check: ## formatting and lints only
	@packaging/run-tests.py format lints
