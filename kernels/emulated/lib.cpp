// The fibers behind shim.hpp, and the table of kernels. Built as a shared object:
//   c++ -O2 -std=c++17 -DEMULATE -ffp-contract=off -fPIC -shared -I kernels kernels/emulated/lib.cpp -o emulated.so
#include "shim.hpp"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <mutex>
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
enum State { Ready, AtBarrier, AtExchange, Done };
constexpr unsigned EXCHANGE_BYTES = 32;
struct Warp {
    uint8_t slots[2][32 * EXCHANGE_BYTES];
    unsigned generation;
};
struct Copy {
    void* to;
    const void* from;
    unsigned bytes, group;
};
struct Fiber {
    jmp_buf at;
    ucontext_t context;
    char* stack;
    dim3 id;
    State state;
    bool begun;
    std::vector<Copy> copies;
    unsigned groups;
};
struct Block {
    dim3 id;
    unsigned live;  // of its fibers
};
constexpr size_t STACK = 256 << 10;
std::vector<Fiber> fibers;
std::vector<Warp> warps;
Block running;
// Threads for which the last barriers held, and which of the two counts is under way.
unsigned counted[2], counting;
jmp_buf scheduler;
unsigned current, threads;
uint64_t seed = 0x9E3779B97F4A7C15;
bool eager;
void (*entry)(const void*);
const void* arguments;

unsigned draw() {
    seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return (unsigned)(seed >> 32);
}

void leave(State s) {
    fibers[current].state = s;
    unsigned me = current;
    if (_setjmp(fibers[me].at) == 0) _longjmp(scheduler, 1);
}

void body() {
    for (;;) {
        entry(arguments);
        running.live--;
        leave(Done);
    }
}

void resume(unsigned i) {
    current = i;
    Fiber& f = fibers[i];
    thread = f.id;
    block = running.id;
    f.state = Ready;
    if (_setjmp(scheduler) == 0) {
        if (f.begun) _longjmp(f.at, 1);
        f.begun = true;
        setcontext(&f.context);
    }
}

// Runs the block until all its threads have ended, or none can go on.
void run_block() {
    for (bool moved = true; moved && running.live > 0;) {
        moved = false;
        for (unsigned i = 0; i < threads; i++)
            if (fibers[i].state == Ready) { resume(i); moved = true; }
        // Whole warps at an exchange go on together; the block goes on when every live thread is at the barrier.
        for (unsigned w = 0; w * 32 < threads; w++) {
            unsigned at = 0, n = 0, end = std::min(w * 32 + 32, threads);
            for (unsigned i = w * 32; i < end; i++) {
                n += fibers[i].state != Done;
                at += fibers[i].state == AtExchange;
            }
            if (n > 0 && at == n) {
                warps[w].generation ^= 1;
                for (unsigned i = w * 32; i < end; i++)
                    if (fibers[i].state == AtExchange) fibers[i].state = Ready;
                moved = true;
            }
        }
        unsigned at = 0;
        for (unsigned i = 0; i < threads; i++) at += fibers[i].state == AtBarrier;
        if (running.live > 0 && at == running.live) {
            counted[counting ^= 1] = 0;
            for (unsigned i = 0; i < threads; i++)
                if (fibers[i].state == AtBarrier) fibers[i].state = Ready;
            moved = true;
        }
    }
}

void stuck() {
    std::fprintf(stderr, "emulated kernel: threads wait for each other in different places\n");
    std::abort();
}

// Every fiber at the beginning.
void prepare(dim3 id, dim3 size) {
    while (fibers.size() < threads) {
        fibers.emplace_back();
        fibers.back().begun = false;
        fibers.back().stack = nullptr;
    }
    running = {id, threads};
    counted[counting] = 0;
    for (unsigned t = 0; t < threads; t++) {
        Fiber& f = fibers[t];
        f.id = {t % size.x, t / size.x % size.y, t / size.x / size.y};
        f.state = Ready;
        f.copies.clear();
        f.groups = 0;
        if (!f.stack) {
            f.stack = (char*)std::malloc(STACK);
            getcontext(&f.context);
            f.context.uc_stack.ss_sp = f.stack;
            f.context.uc_stack.ss_size = STACK;
            f.context.uc_link = nullptr;
            makecontext(&f.context, body, 0);
        }
    }
    warps.assign((threads + 31) / 32, Warp());
}
}  // namespace

void barrier() { leave(AtBarrier); }

int count(bool holds) {
    const unsigned& all = counted[counting];
    counted[counting] += holds;
    leave(AtBarrier);
    return (int)all;
}

const uint8_t* exchange(const void* mine, unsigned bytes) {
    if (bytes > EXCHANGE_BYTES) std::abort();
    Warp& w = warps[current / 32];
    uint8_t* slots = w.slots[w.generation];
    std::memcpy(slots + (current % 32) * bytes, mine, bytes);
    leave(AtExchange);
    return slots;
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

void launch(void (*kernel)(const void*), dim3 grid, dim3 size, const void* args) {
    threads = size.x * size.y * size.z;
    entry = kernel;
    arguments = args;
    grid_size = grid;
    block_size = size;
    eager = draw() % 2;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                prepare({x, y, z}, size);
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
    unsigned mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
    unsigned all[32][6];
    std::memcpy(all, emulated::exchange(mine, sizeof mine), sizeof all);
    unsigned lane = threadIdx.x & 31, g = lane / 4, j = lane % 4;
    auto half = [](unsigned v, int i) { return half_to_float((uint16_t)(v >> (16 * i))); };
    for (int i = 0; i < 4; i++) {
        int column = 2 * j + i % 2;
        float sum = 0;
        for (int k = 0; k < 16; k++)
            sum += half(all[4 * g + k % 8 / 2][i / 2 + k / 8 * 2], k % 2) * half(all[4 * column + k % 8 / 2][4 + k / 8], k % 2);
        c[i] += sum;
    }
}

static void load_any(unsigned m[4], const void* row, bool transposed) {
    const uint16_t* all[32];
    std::memcpy(all, emulated::exchange(&row, sizeof row), sizeof all);
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
    ENTRY(embed, EmbedArgs), ENTRY(matmul_one, MatmulArgs), ENTRY(matmul_one_deep, MatmulArgs), ENTRY(matmul_one_normed, MatmulArgs),
    ENTRY(matmul_1, MatmulArgs), ENTRY(matmul_1_deep, MatmulArgs), ENTRY(matmul_2, MatmulArgs), ENTRY(matmul_4, MatmulArgs), ENTRY(matmul_8, MatmulArgs),
    ENTRY(matmul_wide, MatmulArgs), ENTRY(matmul_floats, MatmulArgs),
    ENTRY(rms_norm, NormArgs), ENTRY(halve, HalveArgs), ENTRY(gather, GatherArgs),
    ENTRY(gdn, GdnArgs), ENTRY(gdn_prepare, WalkArgs), ENTRY(gdn_walk, WalkArgs), ENTRY(gdn_finish, WalkArgs),
    ENTRY(gdn_bf16, GdnArgs), ENTRY(gdn_many, GdnArgs), ENTRY(gdn_many_bf16, GdnArgs), ENTRY(gdn_walk_bf16, WalkArgs),
    ENTRY(attention_cache, CacheArgs), ENTRY(attention, AttentionArgs),
    ENTRY(attention_prefill_128, FlashArgs), ENTRY(attention_prefill_256, FlashArgs),
    ENTRY(attention_prefill_blocks_128, FlashArgs), ENTRY(attention_prefill_blocks_256, FlashArgs),
    ENTRY(attention_join, JoinArgs), ENTRY(route, RouteArgs), ENTRY(route_choose, RouteArgs), ENTRY(route_sort, RouteArgs),
    ENTRY(route_work, WorkArgs), ENTRY(grouped_up, GroupedArgs), ENTRY(grouped_down, GroupedArgs),
    ENTRY(experts_up_one, ExpertsArgs), ENTRY(experts_up_1, ExpertsArgs),
    ENTRY(attend, AttendArgs), ENTRY(attend_blocks, AttendArgs), ENTRY(attend_join, AttendJoinArgs),
    ENTRY(each_up, EachArgs), ENTRY(each_up_one, EachArgs), ENTRY(each_down, EachArgs),
    ENTRY(each_down_one, EachArgs), ENTRY(experts_down_1, ExpertsArgs),
    ENTRY(experts_down_each, ExpertsArgs), ENTRY(experts_up_joined, ExpertsArgs), ENTRY(grouped_up_joined, GroupedArgs),
    ENTRY(offload_choose, OffloadArgs), ENTRY(offload_copy, OffloadArgs),
    ENTRY(lora_inner, LoraArgs), ENTRY(lora_add, LoraArgs),
    ENTRY(argmax_groups, ArgmaxArgs), ENTRY(argmax, ArgmaxArgs), ENTRY(likely_max, LikelyArgs), ENTRY(likely_collect, LikelyArgs),
    ENTRY(fill, FillArgs), ENTRY(stream, StreamArgs),
};
std::mutex one;
}  // namespace

// Bytes of the kernel's arguments; 0 where there is no such kernel.
extern "C" unsigned emulated_bytes(const char* name) {
    for (const Entry& e : TABLE)
        if (!std::strcmp(e.name, name)) return e.bytes;
    return 0;
}

// Runs a kernel to its end; 0 on success.
extern "C" int emulated_launch(const char* name, const unsigned grid[3], const unsigned size[3], const void* args) {
    std::lock_guard<std::mutex> lock(one);
    for (const Entry& e : TABLE)
        if (!std::strcmp(e.name, name)) {
            emulated::launch(e.call, {grid[0], grid[1], grid[2]}, {size[0], size[1], size[2]}, args);
            return 0;
        }
    return 1;
}
