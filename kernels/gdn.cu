// Gated delta rule of a layer over the tokens of every sequence, in one launch.
#include "gdn.cuh"

// A value head (x) of a sequence (y).
KERNEL(__launch_bounds__(512) gdn, GdnArgs) {
    __shared__ GdnScratch m;
    gdn_head<false>(a, blockIdx.x, a.spans[blockIdx.y], m);
}

// The same over states in bf16.
KERNEL(__launch_bounds__(512) gdn_bf16, GdnArgs) {
    __shared__ GdnScratch m;
    gdn_head<true>(a, blockIdx.x, a.spans[blockIdx.y], m);
}
