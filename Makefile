# The two commands a newcomer needs are `make run` and `make test`; `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
BIN := target/release/chimere
LISTEN ?= 127.0.0.1:8377
PYTHON ?= python3
# Kept inside the target folder, so that deleting it leaves nothing behind.
VENV := target/venv
# rustup puts cargo here; a fresh installation is not yet on the PATH of this shell.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: help setup build run test unit lint openai bench-native doc clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: ## Install what is missing (Debian packages, Rust)
	@deploy/setup.sh

build: setup ## Build the daemon
	$(CARGO) build --release --locked

run: build ## Start the daemon, ask it one question, keep it running until Ctrl-C
	@deploy/run.sh $(BIN) $(LISTEN)

test: lint unit openai ## Everything that must pass: lints, unit, golden, actor, end-to-end and client tests
	@echo "all tests passed"

lint: setup ## Formatting and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings

unit: setup ## Rust tests of every tier that needs no GPU
	$(CARGO) test --release --locked --workspace

openai: build $(VENV)/ready ## The official OpenAI client against the daemon
	tests/openai/run.sh $(BIN) $(VENV)/bin/python

$(VENV)/ready: tests/openai/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/openai/requirements.txt
	touch $@

doc: ## The code's own documentation
	$(CARGO) doc --release --no-deps --workspace

clean: ## Remove everything built
	$(CARGO) clean
