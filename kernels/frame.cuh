// What a block of the persistent kernel keeps through all stages: its shared memory, the barrier between stages, and the
// weights of later stages on their way.
#pragma once
#include "product.cuh"

// Threads of a block, rows of a pass.
#define BLOCK 256
#define ROWS_MAX 8

// A stage: what to do, and with what. Twin: ffi/src/kernels/persistent.rs.
struct Step {
    u32 kind, pad;
    u64 payload[30];
};
#define STAGE_WORDS (sizeof(Step) / 4)

enum StageKind { EMBED, DENSE, GDN, CACHE, ATTEND, JOIN, UP, DOWN };

struct PersistArgs {
    Ptr<Step> stages;
    Ptr<u64> items;   // [blocks][items_max]: how many; then address and, in the upper 16 bits, bytes / 16
    Ptr<u32> state;   // arrivals, arrivals before this launch, blocks that are done
    Ptr<u64> stamps;  // or null: [blocks][stages][2] nanoseconds at which the barrier was passed and the work done
    u32 count, rows, spans, items_max;
    u32 rows_bytes, scratch_bytes, ring_bytes, pad;  // of shared memory: quantised rows, within scratch; the ring
};

// Shared memory of a block: this, then items, scratch, ring.
struct Frame {
    Step stage[2];
    u32 at[8];                 // where the items in the ring begin
    u32 token[ROWS_MAX];       // the row of each column of a product
    float scale[ROWS_MAX];     // of each row's norm
    u32 chosen[ROWS_MAX][8];   // experts of each row
    float share[ROWS_MAX][9];  // their weights, the shared one's after the last
    u64 landing[8];            // of the items in the ring, where they are copied in one run
};
static_assert(sizeof(Frame) == 1200, "as the launcher counts");

// Seconds after which a block no longer waits for the others: one of them is lost.
#define PATIENCE_NS 4000000000ull

// Every block arrives at the end of a stage and waits before it reads what the stage made. Arrivals are counted from
// launch to launch; a block never arrives for a stage before it has seen all arrivals for the one before.
struct Barrier {
    u32* state;
    u64* stamp;  // of the stage, or null
    u32 target;
    bool passed;

    __device__ __forceinline__ void begin(u32* at) { state = at, stamp = 0, target = at[1], passed = true; }

    __device__ __forceinline__ void wait() {
        if (!passed && threadIdx.x == 0) {
            u64 began = 0;
            for (u32 polls = 1; (int)(count_at(state) - target) < 0; polls++) {
                spin();
                if (polls % 4096 != 0) continue;
                u64 now = nanoseconds();
                if (began == 0) began = now;
                if (now - began > PATIENCE_NS) give_up();
            }
        }
        if (!passed) __syncthreads();
        passed = true;
        if (stamp && threadIdx.x == 0 && stamp[0] == 0) stamp[0] = nanoseconds();
    }

    __device__ __forceinline__ void arrive() {
        __syncthreads();
        if (threadIdx.x == 0) {
            if (stamp) stamp[1] = nanoseconds();
            count_up(state);
        }
        target += gridDim.x;
        passed = false;
    }

    // The last block to end leaves everything as the next launch wants it.
    __device__ __forceinline__ void end() {
        __syncthreads();
        if (threadIdx.x != 0) return;
        if (stamp) stamp[1] = nanoseconds();
        if (atomicAdd(state + 2, 1u) == gridDim.x - 1) state[2] = 0, state[1] = target;
    }
};

// Tiles of weights that this block will multiply with, in order and across stages, copied into shared memory as far
// ahead as it holds them.
struct Ring {
    u8* base;
    Frame& f;
    const u64* items;
    u32 size, total, issued, taken, head;

    __device__ __forceinline__ void begin() {
#ifdef BULK_COPIES
        if (threadIdx.x < 8) landing_begin(f.landing + threadIdx.x);
        __syncthreads();
#endif
        fill();
    }

    __device__ __forceinline__ void fill() {
        while (issued < total && issued - taken < 7) {
            u64 item = items[issued];
            u32 bytes = (u32)(item >> 48) * 16, to = 0;
            if (issued > taken) {
                u32 tail = f.at[taken % 8];
                if (head > tail) {
                    if (size - head >= bytes) to = head;
                    else if (tail < bytes) return;
                } else {
                    if (tail - head < bytes) return;
                    to = head;
                }
            }
            const u8* from = (const u8*)(item & 0xffffffffffffull);
#ifdef BULK_COPIES
            // By a warp that has no sums to put out.
            if (threadIdx.x == BLOCK - 32) copy_run_once(base + to, from, bytes, f.landing + issued % 8);
#else
            for (u32 i = 16 * threadIdx.x; i < bytes; i += 16 * BLOCK) copy_16_once(base + to + i, from + i);
            copies_end();
#endif
            f.at[issued % 8] = to;  // the same by every thread
            head = to + bytes;
            issued++;
        }
    }

    __device__ __forceinline__ u32 held() const { return issued - taken; }
    // Waits for the next `n` items; then `item(i)` is the i-th of them, until `release(n)`.
    __device__ __forceinline__ void ready(u32 n) {
#ifdef BULK_COPIES
        for (u32 i = taken; i < taken + n; i++) landed(f.landing + i % 8, i / 8 % 2);
#else
        copies_wait_but(issued - taken - n);
#endif
        __syncthreads();
    }
    __device__ __forceinline__ const u8* item(u32 i) const { return base + f.at[(taken + i) % 8]; }
    __device__ __forceinline__ void release(u32 n) {
        taken += n;
        fill();
    }
};
