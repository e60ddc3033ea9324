// Attention of few tokens over a paged cache of halves or blocks, a launch for its chunks and one that joins them.
#include "attend.cuh"

// Block (token x, KV head and group of eight query heads y, chunks z, z + grid …).
KERNEL(__launch_bounds__(256) attend, AttendArgs) {
    __shared__ AttendScratch m;
    attend_rows<false>(a, a.settled, blockIdx.x, blockIdx.y, blockIdx.z, gridDim.z, m);
}

// The same over a cache of blocks.
KERNEL(__launch_bounds__(256) attend_blocks, AttendArgs) {
    __shared__ AttendScratch m;
    attend_rows<true>(a, a.settled, blockIdx.x, blockIdx.y, blockIdx.z, gridDim.z, m);
}

// A block of `dim` threads (at most 256) a head (y).
KERNEL(__launch_bounds__(256) attend_join, AttendJoinArgs) {
    join_head(a, blockIdx.x, blockIdx.y, threadIdx.x);
}
