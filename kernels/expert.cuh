// An expert's three matrices, or those of all routed ones: what every kernel of the experts is told of them.
#pragma once
#include "product.cuh"

struct Expert {
    Ptr<u8> gate, up, down;  // matrices follow each other
    u64 gate_bytes, up_bytes, down_bytes;  // of one matrix
    u32 gate_packing, up_packing, down_packing, width;  // gate and up are of one packing
};
