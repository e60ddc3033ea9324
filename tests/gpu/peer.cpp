// llama.cpp on the card, through its C interface: `peer rates MODEL [SEQUENCES]` times prompts and decoding, `peer logits
// MODEL TOKENS OUT` writes the logits of the tokens that `device agree` feeds, as floats [tokens][vocabulary].
// Built by tests/gpu/compare against a libllama with CUDA.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "llama.h"

static void fail(const char* what) {
    fprintf(stderr, "peer: %s\n", what);
    exit(1);
}

static double now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// As `ids` of core/examples/device.rs.
static llama_token id(uint64_t i, uint64_t seed, int vocab) {
    return (llama_token)(((i * 31 + seed * 7919) * 0x9E3779B97F4A7C15ull >> 33) % (uint64_t)vocab);
}

struct Peer {
    llama_model* model;
    llama_context* context;
    int vocab;

    Peer(const char* path, int sequences, int each) {
        llama_backend_init();
        auto on = llama_model_default_params();
        on.n_gpu_layers = 99;
        model = llama_model_load_from_file(path, on);
        if (!model) fail("the model does not load");
        vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
        auto with = llama_context_default_params();
        with.n_seq_max = sequences, with.n_ctx = each * sequences, with.n_batch = 4096, with.n_ubatch = 2048;
        with.no_perf = true;
        context = llama_init_from_model(model, with);
        if (!context) fail("no context of that size");
    }

    // One pass over `count` tokens of sequence 0, or over one token of each of `count` sequences.
    void pass(llama_batch& batch, int count, bool apart, int position, bool all, uint64_t seed) {
        batch.n_tokens = count;
        for (int i = 0; i < count; i++) {
            batch.token[i] = id(i, seed, vocab), batch.pos[i] = apart ? position : position + i;
            batch.n_seq_id[i] = 1, batch.seq_id[i][0] = apart ? i : 0, batch.logits[i] = all || apart || i + 1 == count;
        }
        if (llama_decode(context, batch)) fail("a pass failed");
        llama_synchronize(context);
    }

    void forget() { llama_memory_clear(llama_get_memory(context), true); }
};

static double median(std::vector<double> v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
}

static int rates(const char* path, int sequences) {
    const int CONTEXT = 64, TOKENS = 128, ROUNDS = 3;
    Peer peer(path, sequences, 2304);
    llama_batch batch = llama_batch_init(4096, 0, 1);
    for (int prompt : {512, 2048}) {
        std::vector<double> found;
        for (int round = 0; round <= ROUNDS; round++) {
            peer.forget();
            double began = now();
            peer.pass(batch, prompt, false, 0, false, 3);
            if (round > 0) found.push_back(prompt / (now() - began));
        }
        printf("prefill %6d: %10.1f tokens/s\n", prompt, median(found));
    }
    for (int n = 1; n <= sequences; n *= 2) {
        std::vector<double> found;
        for (int round = 0; round <= ROUNDS; round++) {
            peer.forget();
            for (int at = 0; at < CONTEXT; at++) peer.pass(batch, n, true, at, false, at);
            double began = now();
            for (int at = CONTEXT; at < CONTEXT + TOKENS; at++) peer.pass(batch, n, true, at, false, at);
            if (round > 0) found.push_back(n * TOKENS / (now() - began));
        }
        printf("decode %3d at %6d: %10.1f tokens/s\n", n, CONTEXT, median(found));
        fflush(stdout);
    }
    return 0;
}

static int logits(const char* path, int tokens, const char* out) {
    Peer peer(path, 1, tokens);
    llama_batch batch = llama_batch_init(tokens, 0, 1);
    peer.pass(batch, tokens, false, 0, true, 1);
    FILE* file = fopen(out, "wb");
    if (!file) fail("the file for the logits cannot be written");
    for (int i = 0; i < tokens; i++) fwrite(llama_get_logits_ith(peer.context, i), 4, peer.vocab, file);
    return fclose(file);
}

int main(int count, char** words) {
    if (count >= 3 && !strcmp(words[1], "rates")) return rates(words[2], count > 3 ? atoi(words[3]) : 32);
    if (count == 5 && !strcmp(words[1], "logits")) return logits(words[2], atoi(words[3]), words[4]);
    fail("usage: peer rates MODEL [SEQUENCES] | peer logits MODEL TOKENS OUT");
}
