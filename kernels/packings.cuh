// How weights may lie on the device, by number, and which of these ways are compiled in.
#pragma once
#include "common.cuh"

// Macros, so that the preprocessor can leave out what a model has not. Twin: `Packing` in ffi/src/kernels/pack.rs.
#define F32 0
#define F16 1
#define BF16 2
#define Q4 3
#define IQ3S 4
#define Q5 5
#define Q6 6
#define B8 7
#define IQ2 8
#define H16 9
#define G16 10
#define IQ3XXS 11
#define IQ4XS 12
#define IQ4NL 13
#define Q40 14
#define MX4 15
#define Q8 16
#define Q3 17
#define Q2 18

// Those of a model are compiled in, one bit each.
#ifndef PACKINGS
#define PACKINGS 0x7ffff
#endif
#define HAS(packing) ((PACKINGS) >> (packing) & 1)

// Cases of a switch over packings of tiles: DO(struct of pack.cuh or named.cuh) for each that is compiled in.
#if HAS(Q4)
#define CASE_Q4(DO) case Q4: DO(PackQ4);
#else
#define CASE_Q4(DO)
#endif
#if HAS(IQ3S)
#define CASE_IQ3S(DO) case IQ3S: DO(PackIQ3S);
#else
#define CASE_IQ3S(DO)
#endif
#if HAS(Q5)
#define CASE_Q5(DO) case Q5: DO(PackQ5);
#else
#define CASE_Q5(DO)
#endif
#if HAS(Q6)
#define CASE_Q6(DO) case Q6: DO(PackQ6);
#else
#define CASE_Q6(DO)
#endif
#if HAS(B8)
#define CASE_B8(DO) case B8: DO(PackB8);
#else
#define CASE_B8(DO)
#endif
#if HAS(IQ2)
#define CASE_IQ2(DO) case IQ2: DO(PackIQ2);
#else
#define CASE_IQ2(DO)
#endif
#if HAS(H16)
#define CASE_H16(DO) case H16: DO(PackH16);
#else
#define CASE_H16(DO)
#endif
#if HAS(G16)
#define CASE_G16(DO) case G16: DO(PackG16);
#else
#define CASE_G16(DO)
#endif
#if HAS(IQ3XXS)
#define CASE_IQ3XXS(DO) case IQ3XXS: DO(PackIQ3XXS);
#else
#define CASE_IQ3XXS(DO)
#endif
#if HAS(IQ4XS)
#define CASE_IQ4XS(DO) case IQ4XS: DO(PackIQ4XS);
#else
#define CASE_IQ4XS(DO)
#endif
#if HAS(IQ4NL)
#define CASE_IQ4NL(DO) case IQ4NL: DO(PackIQ4NL);
#else
#define CASE_IQ4NL(DO)
#endif
#if HAS(Q40)
#define CASE_Q40(DO) case Q40: DO(PackQ40);
#else
#define CASE_Q40(DO)
#endif
#if HAS(MX4)
#define CASE_MX4(DO) case MX4: DO(PackMX4);
#else
#define CASE_MX4(DO)
#endif
#if HAS(Q8)
#define CASE_Q8(DO) case Q8: DO(PackQ8);
#else
#define CASE_Q8(DO)
#endif
#if HAS(Q3)
#define CASE_Q3(DO) case Q3: DO(PackQ3);
#else
#define CASE_Q3(DO)
#endif
#if HAS(Q2)
#define CASE_Q2(DO) case Q2: DO(PackQ2);
#else
#define CASE_Q2(DO)
#endif
#define TILE_CASES(DO) \
    CASE_Q4(DO) CASE_IQ3S(DO) CASE_Q5(DO) CASE_Q6(DO) CASE_B8(DO) CASE_IQ2(DO) CASE_H16(DO) CASE_G16(DO) \
    CASE_IQ3XXS(DO) CASE_IQ4XS(DO) CASE_IQ4NL(DO) CASE_Q40(DO) CASE_MX4(DO) CASE_Q8(DO) CASE_Q3(DO) CASE_Q2(DO)

// The same over rows of floats: DO(packing).
#if HAS(F16)
#define CASE_F16(DO) case F16: DO(F16);
#else
#define CASE_F16(DO)
#endif
#if HAS(BF16)
#define CASE_BF16(DO) case BF16: DO(BF16);
#else
#define CASE_BF16(DO)
#endif
#define FLOAT_CASES(DO) case F32: DO(F32); CASE_F16(DO) CASE_BF16(DO)

// Whether rows lie as they are in the file, and not in tiles.
__device__ __forceinline__ bool is_float(u32 packing) { return packing <= BF16; }
