// Rows of a matrix as floats: out[t] = W[token[t]]. A block of 256 threads a row. This is also how the packed layouts
// are compared with the file's values.
#include "embed.cuh"

KERNEL(__launch_bounds__(256) embed, EmbedArgs) {
    open_books(a.packing, F32);
    after_previous();
    for (u32 i = threadIdx.x + 256 * blockIdx.x; i < a.words; i += 256 * gridDim.x) a.clear[i] = 0;
    u32 row = a.tokens[blockIdx.x];
    for (u32 k = threadIdx.x; k < a.inputs; k += 256)
        a.out[(u64)blockIdx.x * a.inputs + k] = value_at(a.table, a.packing, a.inputs, row, k);
}
