// How positions of a sequence are cut: into pages of the cache, and into chunks whose sums attention joins.
#pragma once
#include "common.cuh"

#define PAGE 64
// Chunks of a row, at most.
#define CHUNKS_MAX 128

// Positions of a chunk of a row that sees so many: a matter of these alone, so that a row has the same bits however long a
// context there is room for. Twin: `chunks_of` in ffi/src/kernels/attention.rs.
__device__ __forceinline__ u32 chunk_of(u32 length) { return (length + PAGE * CHUNKS_MAX - 1) / (PAGE * CHUNKS_MAX) * PAGE; }
