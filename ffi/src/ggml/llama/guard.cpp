// Calls of libllama that may throw, each behind a function that catches: a C++ exception must not
// cross into Rust. On an exception its text goes to `message` (always zero-terminated) and the
// function returns a value that the library never returns.

#include "llama.h"

#include <cstdio>
#include <exception>
#include <map>

// Declared in the library's own llama-ext.h with C++ linkage: hidden states before the final norm.
LLAMA_API void    llama_set_embeddings_nextn(struct llama_context * ctx, bool value, bool masked);
LLAMA_API float * llama_get_embeddings_nextn_ith(struct llama_context * ctx, int32_t i);

// Declared there as well: bytes of a model and a context by the kind of their memory.
struct llama_memory_breakdown_data {
    size_t model   = 0;
    size_t context = 0;
    size_t compute = 0;
};
using llama_memory_breakdown = std::map<ggml_backend_buffer_type_t, llama_memory_breakdown_data>;
LLAMA_API llama_memory_breakdown llama_get_memory_breakdown(const struct llama_context * ctx);

namespace {

template <typename F, typename R>
R guarded(char * message, size_t size, R failed, F && call) {
    try {
        return call();
    } catch (const std::exception & e) {
        std::snprintf(message, size, "%s", e.what());
    } catch (...) {
        std::snprintf(message, size, "unknown C++ exception");
    }
    return failed;
}

constexpr int32_t THREW = -1000000;

} // namespace

extern "C" {

llama_model * chimere_model_load(const char * path, const llama_model_params * params, char * message, size_t size) {
    return guarded(message, size, static_cast<llama_model *>(nullptr),
                   [&] { return llama_model_load_from_file(path, *params); });
}

llama_context * chimere_context_new(llama_model * model, const llama_context_params * params, char * message, size_t size) {
    return guarded(message, size, static_cast<llama_context *>(nullptr),
                   [&] { return llama_init_from_model(model, *params); });
}

llama_adapter_lora * chimere_adapter_load(llama_model * model, const char * path, char * message, size_t size) {
    return guarded(message, size, static_cast<llama_adapter_lora *>(nullptr),
                   [&] { return llama_adapter_lora_init(model, path); });
}

void chimere_adapter_free(llama_adapter_lora * adapter) {
    llama_adapter_lora_free(adapter);
}

// A null adapter means the plain model.
int32_t chimere_adapter_use(llama_context * ctx, llama_adapter_lora * adapter, char * message, size_t size) {
    return guarded(message, size, THREW, [&] {
        float scale = 1.0f;
        return llama_set_adapters_lora(ctx, &adapter, adapter == nullptr ? 0 : 1, &scale);
    });
}

int32_t chimere_decode(llama_context * ctx, const llama_batch * batch, char * message, size_t size) {
    return guarded(message, size, THREW, [&] {
        const int32_t rc = llama_decode(ctx, *batch);
        if (rc == 0) {
            llama_synchronize(ctx);
        }
        return rc;
    });
}

int32_t chimere_tokenize(const llama_vocab * vocab, const char * text, int32_t len, llama_token * out, int32_t max,
                         bool add_special, bool parse_special, char * message, size_t size) {
    return guarded(message, size, THREW,
                   [&] { return llama_tokenize(vocab, text, len, out, max, add_special, parse_special); });
}

int32_t chimere_piece(const llama_vocab * vocab, llama_token id, char * out, int32_t max, bool special,
                      char * message, size_t size) {
    return guarded(message, size, THREW, [&] { return llama_token_to_piece(vocab, id, out, max, 0, special); });
}

int32_t chimere_detokenize(const llama_vocab * vocab, const llama_token * ids, int32_t n, char * out, int32_t max,
                           bool remove_special, bool unparse_special, char * message, size_t size) {
    return guarded(message, size, THREW,
                   [&] { return llama_detokenize(vocab, ids, n, out, max, remove_special, unparse_special); });
}

// Bytes of the weights, of the caches and of the buffers for computing.
int32_t chimere_context_bytes(const llama_context * ctx, size_t * out, char * message, size_t size) {
    return guarded(message, size, THREW, [&] {
        out[0] = out[1] = out[2] = 0;
        for (const auto & [kind, bytes] : llama_get_memory_breakdown(ctx)) {
            out[0] += bytes.model;
            out[1] += bytes.context;
            out[2] += bytes.compute;
        }
        return 0;
    });
}

size_t chimere_state_size(llama_context * ctx, llama_seq_id seq, char * message, size_t size) {
    return guarded(message, size, static_cast<size_t>(0), [&] { return llama_state_seq_get_size_ext(ctx, seq, 0); });
}

size_t chimere_state_get(llama_context * ctx, uint8_t * out, size_t len, llama_seq_id seq, char * message, size_t size) {
    return guarded(message, size, static_cast<size_t>(0),
                   [&] { return llama_state_seq_get_data_ext(ctx, out, len, seq, 0); });
}

size_t chimere_state_set(llama_context * ctx, const uint8_t * data, size_t len, llama_seq_id seq, char * message,
                         size_t size) {
    return guarded(message, size, static_cast<size_t>(0),
                   [&] { return llama_state_seq_set_data_ext(ctx, data, len, seq, 0); });
}

void chimere_hidden_enable(llama_context * ctx, bool value, bool masked) {
    llama_set_embeddings_nextn(ctx, value, masked);
}

const float * chimere_hidden_ith(llama_context * ctx, int32_t i, char * message, size_t size) {
    return guarded(message, size, static_cast<const float *>(nullptr),
                   [&] { return static_cast<const float *>(llama_get_embeddings_nextn_ith(ctx, i)); });
}

} // extern "C"
