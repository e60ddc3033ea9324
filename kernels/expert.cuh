// An expert's three matrices, or those of all routed ones: what every kernel of the experts is told of them.
#pragma once
#include "product.cuh"

struct Expert {
    Ptr<u8> gate, up, down;  // matrices follow each other
    u64 gate_bytes, up_bytes, down_bytes;  // of one matrix
    u32 gate_packing, up_packing, down_packing, width;  // gate and up of floats are of one kind; in each.cu always
    Ptr<u64> places;  // [experts][3]: where each one's matrices lie now (offload.cu); null: as above, after each other
};

__device__ __forceinline__ const u8* gate_of(const Expert& e, u32 i) {
    return e.places.at ? (const u8*)e.places[3 * i] : e.gate + i * e.gate_bytes;
}
__device__ __forceinline__ const u8* up_of(const Expert& e, u32 i) {
    return e.places.at ? (const u8*)e.places[3 * i + 1] : e.up + i * e.up_bytes;
}
__device__ __forceinline__ const u8* down_of(const Expert& e, u32 i) {
    return e.places.at ? (const u8*)e.places[3 * i + 2] : e.down + i * e.down_bytes;
}
