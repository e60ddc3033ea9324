// Gated delta rule of a layer over the tokens of every sequence, in one launch: a value head (x) of a sequence (y).
#include "gdn.cuh"

template <bool SHORT, int GROUPS> __device__ __forceinline__ void gdn_any(const GdnArgs& a) {
    __shared__ GdnScratch m;
    gdn_head<SHORT, GROUPS>(a, blockIdx.x, a.spans[blockIdx.y], m);
}

KERNEL(__launch_bounds__(512) gdn, GdnArgs) { gdn_any<false, 4>(a); }
// The same over states in bf16.
KERNEL(__launch_bounds__(512) gdn_bf16, GdnArgs) { gdn_any<true, 4>(a); }
// Of many heads: two blocks a multiprocessor, so that the state of one is on its way while that of the other is worked on.
KERNEL(__launch_bounds__(256, 2) gdn_many, GdnArgs) { gdn_any<false, 2>(a); }
KERNEL(__launch_bounds__(256, 2) gdn_many_bf16, GdnArgs) { gdn_any<true, 2>(a); }
