// For measurements: random weights made on the device, and how fast memory can be read at all.
#include "common.cuh"

// Words from a counter (Murmur's finaliser). `period` > 0: in every block of `period` words those from `scales` on are
// those of `tail`, which keep the products of a layer in range. Of all others the bits of `fixed` are those of `bits`.
struct FillArgs {
    Ptr<u32> out, tail;
    u64 words;
    u32 period, scales, seed, fixed, bits, pad;
};

KERNEL(__launch_bounds__(256) fill, FillArgs) {
    after_previous();
    u64 stride = (u64)gridDim.x * 256;
    for (u64 i = (u64)blockIdx.x * 256 + threadIdx.x; i < a.words; i += stride) {
        u32 h = (u32)i * 2654435761u ^ (u32)(i >> 32) * 40503u ^ a.seed;
        h = (h ^ h >> 16) * 0x85ebca6bu;
        h = (h ^ h >> 13) * 0xc2b2ae35u;
        h ^= h >> 16;
        h = h & ~a.fixed | a.bits;
        if (a.period && i % a.period >= a.scales) h = a.tail[i % a.period - a.scales];
        a.out[i] = h;
    }
}

// Reads `vectors` times 16 bytes, eight loads in flight a thread.
struct StreamArgs {
    Ptr<uint4> data;
    Ptr<u32> out;
    u64 vectors;
};

KERNEL(__launch_bounds__(512) stream, StreamArgs) {
    u64 stride = (u64)gridDim.x * 512, i = (u64)blockIdx.x * 512 + threadIdx.x;
    u32 sum = 0;
    for (; i + 7 * stride < a.vectors; i += 8 * stride) {
        uint4 v[8];
#pragma unroll
        for (int n = 0; n < 8; n++) v[n] = load_once(a.data + (i + n * stride));
#pragma unroll
        for (int n = 0; n < 8; n++) sum ^= v[n].x ^ v[n].y ^ v[n].z ^ v[n].w;
    }
    if (sum == 0x12345678u) a.out[0] = sum;
}
