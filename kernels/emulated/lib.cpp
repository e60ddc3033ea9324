// The fibers behind shim.hpp, and the table of kernels. Built as a shared object:
//   c++ -O2 -std=c++17 -DEMULATE -ffp-contract=off -fno-gnu-unique -fPIC -shared -I kernels kernels/emulated/lib.cpp -o emulated.so
#include "shim.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <ucontext.h>
#include <vector>

#include "../embed.cu"
#include "../matmul.cu"
#include "../gemm.cu"
#include "../norm.cu"
#include "../gdn.cu"
#include "../gdn_walk.cu"
#include "../attention.cu"
#include "../attention_prefill.cu"
#include "../attend.cu"
#include "../each.cu"
#include "../route.cu"
#include "../sort.cu"
#define Scratch ExpertScratch
#include "../experts.cu"
#undef Scratch
#include "../grouped.cu"
#include "../lora.cu"
#include "../sample.cu"
#include "../fill.cu"
#include "../offload.cu"

namespace emulated {
dim3 thread, block, grid_size, block_size;

namespace {
enum State : uint8_t { Ready, AtBarrier, AtExchange, Done };
// What a switch keeps (frame, place and stack pointer): registers are the compilers' to save, signals nobody's.
using Place = void* [5];
struct Warp {
    alignas(16) uint8_t slots[2][32 * EXCHANGE_BYTES];
    unsigned side, live, meeting;  // which slots are written next; its fibers that have not ended, and of these those at an exchange
};
struct Copy {
    void* to;
    const void* from;
    unsigned bytes, group;
};
struct Fiber {
    Place at;
    bool begun = false;
    std::unique_ptr<char[]> stack;
    std::vector<Copy> copies;
    unsigned groups;
};
struct Block {
    dim3 id;
    unsigned live, waiting;  // its fibers that have not ended, and of these those at the barrier
};
constexpr size_t STACK = 256 << 10;
// Stacks begin so many bytes apart in the pages they lie in, or all their ends would share a few lines of the cache.
constexpr size_t APART = 448, APART_TIMES = 64;
std::vector<Fiber> fibers;
std::vector<State> states;
std::vector<Warp> warps;
Block running;
// Threads for which the last barriers held, and which of the two counts is under way.
unsigned counted[2], counting;
Place scheduler;
unsigned current, threads;
uint64_t seed = 0x9E3779B97F4A7C15;
bool eager, backwards;
void (*entry)(const void*);
const void* arguments;

unsigned draw() {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (unsigned)(seed >> 32);
}

// These are kept apart from whoever calls them: what another fiber does to the registers must not be foreseen.
#define APART_CODE __attribute__((noipa))

[[noreturn]] APART_CODE void jump(Place& to) { __builtin_longjmp(to, 1); }

APART_CODE void leave(State s) {
    states[current] = s;
    if (__builtin_setjmp(fibers[current].at) == 0) jump(scheduler);
}

void body() {
    for (;;) {
        entry(arguments);
        running.live--;
        warps[current / 32].live--;
        leave(Done);
    }
}

// The fiber's first steps, on its own stack.
void begin(Fiber& f) {
    f.begun = true;
    f.stack.reset(new char[STACK]);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = f.stack.get();
    context.uc_stack.ss_size = STACK - current % APART_TIMES * APART;
    context.uc_link = nullptr;
    makecontext(&context, body, 0);
    setcontext(&context);
}

APART_CODE void resume(unsigned i) {
    current = i;
    thread.x = i;
    states[i] = Ready;
    Fiber& f = fibers[i];
    if (__builtin_setjmp(scheduler) == 0) {
        if (f.begun) jump(f.at);
        begin(f);
    }
}

// Those in `state` may go on.
void release(unsigned first, unsigned end, State state) {
    for (unsigned i = first; i < end; i++)
        if (states[i] == state) states[i] = Ready;
}

// Runs a warp until all of it has ended or is at the barrier, or cannot go on: at an exchange it goes on together.
void run_warp(unsigned w) {
    unsigned first = w * 32, end = std::min(first + 32, threads);
    Warp& warp = warps[w];
    for (;;) {
        for (unsigned i = first; i < end; i++)
            if (states[i] == Ready) resume(i);
        if (warp.meeting == 0 || warp.meeting != warp.live) return;
        warp.meeting = 0;
        warp.side ^= 1;
        release(first, end, AtExchange);
    }
}

// Runs the block until all its threads have ended, or none can go on.
void run_block() {
    unsigned count = (unsigned)warps.size();
    while (running.live > 0) {
        for (unsigned w = 0; w < count; w++) run_warp(backwards ? count - 1 - w : w);
        if (running.waiting == 0 || running.waiting != running.live) return;
        running.waiting = 0;
        counted[counting ^= 1] = 0;
        release(0, threads, AtBarrier);
    }
}

void stuck() {
    std::fprintf(stderr, "emulated kernel: threads wait for each other in different places\n");
    std::abort();
}

// Every fiber at the beginning.
void prepare(dim3 id) {
    running = {id, threads, 0};
    block = id;
    counted[counting] = 0;
    states.assign(threads, Ready);
    warps.resize((threads + 31) / 32);
    for (unsigned w = 0; w < warps.size(); w++)
        warps[w].side = warps[w].meeting = 0, warps[w].live = std::min(threads - w * 32, 32u);
    for (unsigned t = 0; t < threads; t++) fibers[t].copies.clear(), fibers[t].groups = 0;
}
}  // namespace

void barrier() {
    running.waiting++;
    leave(AtBarrier);
}

int count(bool holds) {
    const unsigned& all = counted[counting];
    counted[counting] += holds;
    barrier();
    return (int)all;
}

uint8_t* slots() {
    Warp& w = warps[current / 32];
    return w.slots[w.side];
}

void meet() {
    warps[current / 32].meeting++;
    leave(AtExchange);
}

void copy(void* to, const void* from, unsigned bytes) {
    if (eager) std::memcpy(to, from, bytes);
    else fibers[current].copies.push_back({to, from, bytes, fibers[current].groups});
}
void copies_end() { fibers[current].groups++; }
void copies_wait_but(unsigned n) {
    Fiber& f = fibers[current];
    size_t done = 0;
    for (; done < f.copies.size() && f.copies[done].group + n < f.groups; done++)
        std::memcpy(f.copies[done].to, f.copies[done].from, f.copies[done].bytes);
    f.copies.erase(f.copies.begin(), f.copies.begin() + done);
}

// Blocks run in order. Whether copies are early or late, and warps begin in order or the other way round, is drawn.
void launch(void (*kernel)(const void*), dim3 grid, unsigned size, const void* args) {
    threads = size;
    entry = kernel;
    arguments = args;
    grid_size = grid;
    block_size = {size, 1, 1};
    eager = draw() % 2;
    backwards = draw() % 2;
    if (fibers.size() < threads) fibers.resize(threads);
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                prepare({x, y, z});
                run_block();
                if (running.live > 0) stuck();
            }
}
}  // namespace emulated

static float float_of(uint16_t h) {
    unsigned sign = (h & 0x8000u) << 16, e = h >> 10 & 31, m = h & 1023;
    if (e == 0) return __uint_as_float(sign) + (sign ? -1.0f : 1.0f) * (float)m * 5.9604644775390625e-8f;
    if (e == 31) return __uint_as_float(sign | 0x7f800000u | m << 13);
    return __uint_as_float(sign | (e + 112) << 23 | m << 13);
}

// Every half as a float.
static const std::vector<float> FLOATS = [] {
    std::vector<float> all(65536);
    for (unsigned h = 0; h < 65536; h++) all[h] = float_of((uint16_t)h);
    return all;
}();

float half_to_float(uint16_t h) { return FLOATS[h]; }

uint16_t float_to_half(float f) {
    unsigned u = __float_as_uint(f), sign = u >> 16 & 0x8000u;
    float x = fabsf(f);
    if (!(x == x)) return sign | 0x7e00;
    if (x >= 65520.0f) return sign | 0x7c00;
    if (x < 6.103515625e-5f) return sign | (unsigned)nearbyint(x * 16777216.0f);
    u &= 0x7fffffffu;
    u += 0xfff + (u >> 13 & 1);
    return sign | ((u >> 13) - (112u << 10));
}

void mma_halves(float c[4], const unsigned a[4], unsigned b0, unsigned b1) {
    struct Operands { unsigned v[6]; };
    const Operands* all = emulated::exchange(Operands{{a[0], a[1], a[2], a[3], b0, b1}});
    unsigned lane = threadIdx.x & 31, g = lane / 4, j = lane % 4;
    auto half = [](unsigned v, int i) { return half_to_float((uint16_t)(v >> (16 * i))); };
    for (int i = 0; i < 4; i++) {
        int column = 2 * j + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++)
            sum += half(all[4 * g + k % 8 / 2].v[i / 2 + k / 8 * 2], k % 2) * half(all[4 * column + k % 8 / 2].v[4 + k / 8], k % 2);
        c[i] += sum;
    }
}

static void load_any(unsigned m[4], const void* row, bool transposed) {
    const uint16_t* const* all = emulated::exchange((const uint16_t*)row);
    unsigned lane = threadIdx.x & 31, g = lane / 4, j = lane % 4;
    for (int i = 0; i < 4; i++) {
        unsigned v[2];
        for (int c = 0; c < 2; c++) v[c] = transposed ? all[8 * i + 2 * j + c][g] : all[8 * i + g][2 * j + c];
        m[i] = v[0] | v[1] << 16;
    }
}
void load_matrices(unsigned m[4], const void* row) { load_any(m, row, false); }
void load_matrices_transposed(unsigned m[4], const void* row) { load_any(m, row, true); }

namespace {
struct Entry { const char* name; unsigned bytes; void (*call)(const void*); };
#define ENTRY(name, Args) { #name, sizeof(Args), [](const void* p) { name(*(const Args*)p); } }
const Entry TABLE[] = {
    ENTRY(embed, EmbedArgs), ENTRY(matmul_one, MatmulArgs), ENTRY(matmul_one_deep, MatmulArgs), ENTRY(matmul_one_long, MatmulArgs), ENTRY(matmul_one_normed, MatmulArgs),
    ENTRY(matmul_1, MatmulArgs), ENTRY(matmul_1_deep, MatmulArgs), ENTRY(matmul_2, MatmulArgs), ENTRY(matmul_4, MatmulArgs), ENTRY(matmul_8, MatmulArgs),
    ENTRY(matmul_wide, MatmulArgs), ENTRY(matmul_floats, MatmulArgs),
    ENTRY(matmul_one_low, LowMatmulArgs), ENTRY(matmul_one_normed_low, LowMatmulArgs), ENTRY(matmul_1_low, LowMatmulArgs),
    ENTRY(matmul_1_deep_low, LowMatmulArgs), ENTRY(matmul_4_low, LowMatmulArgs), ENTRY(matmul_wide_low, LowMatmulArgs),
    ENTRY(each_up_low, LowEachArgs), ENTRY(each_up_one_low, LowEachArgs), ENTRY(each_down_low, LowEachArgs),
    ENTRY(each_down_one_low, LowEachArgs), ENTRY(grouped_down_low, GroupedArgs),
    ENTRY(rms_norm, NormArgs), ENTRY(halve, HalveArgs), ENTRY(gather, GatherArgs),
    ENTRY(gdn, GdnArgs), ENTRY(gdn_prepare, WalkArgs), ENTRY(gdn_walk, WalkArgs), ENTRY(gdn_finish, WalkArgs),
    ENTRY(gdn_bf16, GdnArgs), ENTRY(gdn_many, GdnArgs), ENTRY(gdn_many_bf16, GdnArgs), ENTRY(gdn_walk_bf16, WalkArgs),
    ENTRY(attention_cache, CacheArgs), ENTRY(attention, AttentionArgs),
    ENTRY(attention_prefill_128, FlashArgs), ENTRY(attention_prefill_256, FlashArgs),
    ENTRY(attention_prefill_blocks_128, FlashArgs), ENTRY(attention_prefill_blocks_256, FlashArgs),
    ENTRY(attention_join, JoinArgs), ENTRY(route, RouteArgs), ENTRY(route_choose, RouteArgs), ENTRY(route_sort, RouteArgs),
    ENTRY(route_work, WorkArgs), ENTRY(grouped_up, GroupedArgs), ENTRY(grouped_down, GroupedArgs),
    ENTRY(experts_up_one, ExpertsArgs), ENTRY(experts_up_dense, ExpertsArgs), ENTRY(experts_up_1, ExpertsArgs),
    ENTRY(attend, AttendArgs), ENTRY(attend_blocks, AttendArgs), ENTRY(attend_join, AttendJoinArgs),
    ENTRY(each_up, EachArgs), ENTRY(each_up_one, EachArgs), ENTRY(each_down, EachArgs),
    ENTRY(each_down_one, EachArgs), ENTRY(experts_down_1, ExpertsArgs),
    ENTRY(experts_down_each, ExpertsArgs), ENTRY(experts_up_joined, ExpertsArgs), ENTRY(grouped_up_joined, GroupedArgs),
    ENTRY(offload_choose, OffloadArgs), ENTRY(offload_copy, OffloadArgs),
    ENTRY(lora_inner, LoraArgs), ENTRY(lora_add, LoraArgs),
    ENTRY(argmax_groups, ArgmaxArgs), ENTRY(argmax, ArgmaxArgs), ENTRY(likely_max, LikelyArgs), ENTRY(likely_collect, LikelyArgs),
    ENTRY(fill, FillArgs), ENTRY(stream, StreamArgs),
};
}  // namespace

// Bytes of the kernel's arguments; 0 where there is no such kernel.
extern "C" unsigned emulated_bytes(const char* name) {
    for (const Entry& e : TABLE)
        if (!std::strcmp(e.name, name)) return e.bytes;
    return 0;
}

// Runs a kernel to its end, one at a time; 0 on success.
extern "C" int emulated_launch(const char* name, const unsigned grid[3], unsigned threads, const void* args) {
    for (const Entry& e : TABLE)
        if (!std::strcmp(e.name, name)) {
            emulated::launch(e.call, {grid[0], grid[1], grid[2]}, threads, args);
            return 0;
        }
    return 1;
}
