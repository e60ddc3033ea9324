// The experts of few tokens, which seldom share one: every token reads its own. The same launch has the router's blocks and
// those that choose by it, which write the choice down; the results go straight to the residual stream. The same operations in the same order as in
// experts.cu and by `rms_norm`. _low: with what adapters add to the shared expert (low.cuh).
#include "each_down.cuh"
#include "each_up.cuh"

KERNEL(__launch_bounds__(256, 2) each_up_one, EachArgs) { rise_all<false>(a); }
KERNEL(__launch_bounds__(256, 2) each_up, EachArgs) { rise_all<true>(a); }

// Of a single token there are fewer blocks than multiprocessors: two warps an expert.
KERNEL(__launch_bounds__(64 * EACH_MAX, 1) each_down_one, EachArgs) { fall_all<2>(a); }
KERNEL(__launch_bounds__(32 * EACH_MAX, 2) each_down, EachArgs) { fall_all<1>(a); }

KERNEL(__launch_bounds__(256, 2) each_up_one_low, LowEachArgs) { rise_all<false>(a); }
KERNEL(__launch_bounds__(256, 2) each_up_low, LowEachArgs) { rise_all<true>(a); }
KERNEL(__launch_bounds__(64 * EACH_MAX, 1) each_down_one_low, LowEachArgs) { fall_all<2>(a); }
KERNEL(__launch_bounds__(32 * EACH_MAX, 2) each_down_low, LowEachArgs) { fall_all<1>(a); }
