# The two commands a newcomer needs are `make run` and `make test`; `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

CARGO ?= cargo
BIN := target/release/chimere
LISTEN ?= 127.0.0.1:8377
PYTHON ?= python3
BUILD ?= build
# Kept inside the target folder, so that deleting it leaves nothing behind.
VENV := target/venv
# rustup puts cargo here; a fresh installation is not yet on the PATH of this shell.
export PATH := $(HOME)/.cargo/bin:$(PATH)

.PHONY: help setup build run test unit lint kernels kernels-check archive archive-test openai clients page tasks bench-native simulate thirty soak soak-short fuzz doc clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 16

setup: ## Install what is missing (Debian packages, Rust)
	@deploy/setup.sh

build: setup ## Build the daemon (target/release/chimere)
	@test -x $(BIN) || echo "Building: about a quarter of an hour the first time on two cores, seconds afterwards."
	$(CARGO) build --release --locked

run: build ## Install what is missing, build, start the daemon, ask it a question, keep it running until Ctrl-C
	@deploy/run.sh $(BIN) $(LISTEN)

# The client and browser tests take the daemon that the Rust tests just built.
test: lint unit ## Everything that must pass: lints, unit, golden, actor, end-to-end, soak, client and browser tests
	$(MAKE) BUILD= soak-short openai page archive-test tasks kernels-check
	@echo "all tests passed"

lint: setup ## Formatting and lints
	$(CARGO) fmt --all --check
	$(CARGO) clippy --release --locked --workspace --all-targets -- -D warnings
	$(CARGO) clippy --release --locked --workspace --all-targets --no-default-features --features fuzzing -- -D warnings
	tests/fuzz/run --check

# What computes is optimised as shipped; the daemon around it a little less, for nine test programs are built with it.
TESTS = $(CARGO) test --release --locked --workspace --config profile.release.package.chimere.opt-level=1
unit: setup ## Rust tests of every tier that needs no GPU
	$(TESTS)

kernels: target/kernels-venv/ready ## Compile the CUDA kernels for every card into target/release/kernels, and check what they take; needs no card
	rm -rf target/release/kernels
	target/kernels-venv/bin/python tests/gpu/compile.py --out target/release/kernels

# Every kernel with the usual packings for the oldest, and every packing in one kernel for the newest. What the others take
# with all of them, `make kernels` checks: it is minutes more.
kernels-check: target/kernels-venv/ready ## The same check in short: two architectures, each packing in one of them
	target/kernels-venv/bin/python tests/gpu/compile.py --arch sm_80 --packings 0x7f
	target/kernels-venv/bin/python tests/gpu/compile.py --arch sm_120 --packings 0x7ffff --kernel gemm.cu

target/kernels-venv/ready: tests/gpu/requirements.txt
	$(PYTHON) -m venv target/kernels-venv
	target/kernels-venv/bin/pip install --quiet --disable-pip-version-check -r tests/gpu/requirements.txt
	touch $@

openai: $(BUILD) $(VENV)/ready ## The official OpenAI client against the daemon
	tests/openai/run.sh $(BIN) $(VENV)/bin/python

clients: $(BUILD) target/clients-venv/ready ## Other people's clients against the daemon; RESULTS=FILE keeps the counts
	tests/clients/run.sh $(BIN) target/clients-venv/bin/python target/official-venv/bin/python $(RESULTS)

target/clients-venv/ready: tests/clients/requirements.txt tests/clients/requirements-official.txt
	$(PYTHON) -m venv target/clients-venv
	target/clients-venv/bin/pip install --quiet --disable-pip-version-check -r tests/clients/requirements.txt
	$(PYTHON) -m venv target/official-venv
	target/official-venv/bin/pip install --quiet --disable-pip-version-check -r tests/clients/requirements-official.txt
	touch $@

page: $(BUILD) ## The chat page in headless Chromium, against the daemon
	@deploy/setup.sh browser
	tests/page/run.sh $(BIN)

archive: build ## A release in target/archive: program, models, tables, pipelines, unit and installer in one file
	deploy/archive.sh $(BIN) target/archive

archive-test: $(BUILD) ## What a stranger does with the archive: unpack, ask, install, uninstall
	tests/archive/run.sh $(BIN)

tasks: ## The exams are as pinned, and their generators keep their promises
	cd nano && $(PYTHON) -m tasks verify && $(PYTHON) -m unittest discover -s tasks/tests -t .

$(VENV)/ready: tests/openai/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check -r tests/openai/requirements.txt
	touch $@

# The library built for this processor's best instruction set, without AMX (its kernels crash when built by GCC 12).
CPU_FLAG = $(if $(shell grep -qw $(1) /proc/cpuinfo && echo yes),ON,OFF)
bench-native: setup ## Our speed against llama.cpp built for this processor, on nano and on a memory-bound slice
	GGML_AVX512=$(call CPU_FLAG,avx512bw) GGML_AVX512_VBMI=$(call CPU_FLAG,avx512vbmi) \
	GGML_AVX512_VNNI=$(call CPU_FLAG,avx512_vnni) GGML_AVX512_BF16=$(call CPU_FLAG,avx512_bf16) \
	GGML_AVX_VNNI=$(call CPU_FLAG,avx_vnni) CARGO_TARGET_DIR=target/native $(CARGO) build --release --locked
	target/native/release/chimere bench --model nano/nano.gguf --backend cpu,llama --batch 1,8 --prompt 512
	target/native/release/chimere bench --synthetic target/slice.gguf --backend cpu,llama --batch 1 --prompt 64 --rounds 3

# Arms other than `full`: make simulate ARM=placebo SEED=2
ARM ?= full
SEED ?= 1
simulate: build ## A week of seven nights through the real daemon, about an hour on two cores (long tier)
	$(BIN) simulate --nights 7 --gate-items 1050 --seed $(SEED) --arm $(ARM) --text tests/golden/data/oz.txt --json target/week-$(ARM)-$(SEED).json \
		| tee target/week-$(ARM)-$(SEED).txt

# Thirty small days of the frozen traffic, none of its questions twice, and 210 questions asked on every day.
thirty: build ## Thirty nights on the frozen traffic: does what serves become worse, narrower or longer? (long tier)
	$(BIN) simulate --nights 30 --requests 84 --arm adapter --flood-night 0 --poisoned-night 0 --gate-items 350 \
		--week-items 210 --trend-items 210 --seed $(SEED) --json target/thirty-$(SEED).json | tee target/thirty-$(SEED).txt

# Three quarters of an hour on two cores with what is said here; shorter: make soak SECONDS=300 KILLS=100
soak: SECONDS ?= 1800
KILLS ?= 500
soak: setup ## Mixed load with kills, crowds, 10,000 who leave, 2,000 who say nothing, 500 kills of the daemon (long tier)
	ulimit -n 16384 && { \
		SOAK_SECONDS=$(SECONDS) $(TESTS) --test daemon -- --ignored --nocapture --test-threads 1 soak storm; \
		SOAK_KILLS=$(KILLS) $(TESTS) --test daemon kill_daemon -- --nocapture; \
	} | tee target/soak.txt

# With the crowds and the hundred kills of the daemon among the unit tests some eight minutes.
soak-short: SECONDS ?= 300
soak-short: setup ## The mixed load with kills alone, five minutes
	SOAK_SECONDS=$(SECONDS) $(TESTS) --test daemon -- --ignored --nocapture --exact soak::a_long_mixed_load_with_kills

# Each target alone, one after the other, on the project's own compiler; a crash ends it and leaves what caused it in
# tests/fuzz/artifacts. Shorter: make fuzz SECONDS=60
fuzz: SECONDS = 600
fuzz: setup ## Fuzz everything that reads what strangers write, ten minutes a target (nightly tier)
	for target in tests/fuzz/targets/*.rs; do tests/fuzz/run "$$(basename "$$target" .rs)" $(SECONDS); done

doc: ## The code's own documentation
	$(CARGO) doc --release --no-deps --workspace

clean: ## Remove everything built
	$(CARGO) clean
