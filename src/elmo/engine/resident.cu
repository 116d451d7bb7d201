// A layer of LSTMs for few rows, both directions, all time steps in one launch: the weights stay on the chip.
//
// Reading 21 MB a direction at each step is what a step of few rows costs. Here each of BLOCKS blocks a direction holds
// the recurrent weights of 64 cells (in shared memory and, what does not fit, in registers) and the projection to 8
// outputs (in registers); the blocks exchange outputs and projections through memory.
//
// P: projection. D = 8 * P: cells. BLOCKS = P / 8. IN_REGISTERS: of the P / 16 tiles of a warp's recurrent weights, how
// many are kept there. EIGHTS: 1, 2 or 4 times 8 rows, which is the width of a tensor core's tile.
//
// Tokens are packed: those of step t are rows starts[t] .. starts[t] + rows[t] of a table, the longest rows first.
// Weights come as the fragments that mma.m16n8k16 wants (resident.py), in an order of the inputs in which a thread's
// eight for two tiles lie together. Gates are in the order of triton_lstm.py.

#define WARPS 16
#define THREADS (32 * WARPS)
#define CELLS 64
#define OUTPUTS 8
#define ROWS (8 * EIGHTS)
#define SIXTEENS ((EIGHTS + 1) / 2)
#define TILES (P / 16)
#define IN_SHARED (TILES - IN_REGISTERS)
#define ROW_BYTES (2 * P + 64)
#define CHAINS (4 / EIGHTS)
#define AT_ONCE (8 / EIGHTS)

typedef unsigned int u32;
typedef unsigned short u16;

__device__ __forceinline__ void mma(float (&d)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 load_fresh(const void* p) {  // past the first cache, where others' writes are not seen
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ u16 to_bf16(float x) {
    u16 v;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(v) : "f"(x));
    return v;
}

__device__ __forceinline__ float low_half(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_half(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.0f, 1.0f + __expf(-x)); }
__device__ __forceinline__ float squash(float x) { return 2.0f * sigmoid(2.0f * x) - 1.0f; }

// All of this block's writes are seen by whoever waits for the counter.
__device__ __forceinline__ void arrive(u32* counter) {
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(counter) : "memory");
}

__device__ __forceinline__ void wait(const u32* counter, u32 target) {
    if (threadIdx.x == 0) {
        u32 arrived;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
        } while (arrived < target);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) resident_lstm(
    const uint4* recurrent,   // [2][BLOCKS][TILES][WARPS][32]
    const uint2* projection,  // [2][BLOCKS][WARPS][D / 256][32]
    const float* bias,        // [2][4 * D]
    const u16* z,             // [2][z_tokens][4 * D]: what the input gives the gates
    u16* h,                   // [2][ROWS][D]
    u16* m,                   // [2][capacity][P]: state, in and out; capacity >= ROWS
    float* c,                 // [2][capacity][D]: state, in and out
    float* y,                 // [2][tokens][P]: output
    u16* above,               // [2][tokens][2 * P]: the same for the layer above, or null
    const float* below,       // [2][tokens][P]: added to the output, or null
    const int* starts, const int* z_starts, const int* rows, const int* first_step, const int* steps,
    u32* counters,            // [2][2][32], zero
    int tokens, int z_tokens, int capacity, float cell_clip, float proj_clip) {
    extern __shared__ __align__(128) unsigned char shared[];
    uint4* weights = (uint4*)shared;                                   // [IN_SHARED][WARPS][32]
    unsigned char* staged = shared + (size_t)IN_SHARED * WARPS * 512;  // [ROWS][ROW_BYTES]
    float* sums = (float*)(staged + ROWS * ROW_BYTES);                 // [WARPS][ROWS][OUTPUTS]
    const int block = blockIdx.x % BLOCKS, d = blockIdx.x / BLOCKS;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    const bool even = g % 2 == 0;
    const int cell = block * CELLS + warp * 4 + g / 2, row = 2 * q + g % 2;  // of the gates, this thread's
    u32* counter = counters + d * 64;

    const uint4* mine = recurrent + (size_t)(d * BLOCKS + block) * TILES * WARPS * 32;
    for (int k = threadIdx.x; k < IN_SHARED * WARPS * 32; k += THREADS) weights[k] = mine[IN_REGISTERS * WARPS * 32 + k];
    uint4 kept[IN_REGISTERS > 0 ? IN_REGISTERS : 1];
#pragma unroll
    for (int k = 0; k < IN_REGISTERS; k++) kept[k] = mine[(k * WARPS + warp) * 32 + lane];
    uint2 outward[D / 256];
#pragma unroll
    for (int k = 0; k < D / 256; k++)
        outward[k] = projection[(((size_t)(d * BLOCKS + block) * WARPS + warp) * (D / 256) + k) * 32 + lane];
    for (int k = threadIdx.x; k < ROWS * ROW_BYTES / 4; k += THREADS) ((u32*)staged)[k] = 0;
    float* c_here = c + ((size_t)d * capacity + row) * D + cell;
    float cells[EIGHTS];
#pragma unroll
    for (int k = 0; k < EIGHTS; k++) cells[k] = c_here[(size_t)k * 8 * D];
    const int place_in_gates = cell / 16 * 64 + cell % 16 * 2;
    const float2 bias_ij = *(const float2*)(bias + d * 4 * D + place_in_gates);
    const float2 bias_fo = *(const float2*)(bias + d * 4 * D + place_in_gates + 32);
    const u16* gates = z + ((size_t)d * z_tokens + row) * (4 * D) + place_in_gates;
    const int t0 = *first_step, t1 = t0 + *steps;
    u32 target = 0;
    __syncthreads();

    for (int t = t0; t < t1; t++) {
        const int n = rows[t], start = starts[t], z_start = z_starts[t];
        u32 ij[EIGHTS] = {}, fo[EIGHTS] = {};
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            if (row + 8 * e < n) {
                const u16* p = gates + (size_t)(z_start + 8 * e) * (4 * D);
                ij[e] = *(const u32*)p;
                fo[e] = *(const u32*)(p + 32);
            }
        }
        if (t > t0) wait(counter, target);
        for (int k = threadIdx.x; k < n * (P / 8); k += THREADS) {
            const int r = k / (P / 8), column = k % (P / 8) * 8;
            *(uint4*)(staged + r * ROW_BYTES + 2 * column) = load_fresh(m + ((size_t)d * capacity + r) * P + column);
        }
        __syncthreads();
        float acc[EIGHTS][CHAINS][4] = {};
#pragma unroll
        for (int k = 0; k < TILES; k += 2) {
            const uint4 a = k < IN_REGISTERS ? kept[k < IN_REGISTERS ? k : 0]
                                             : weights[((k - IN_REGISTERS) * WARPS + warp) * 32 + lane];
            const uint4 b = k + 1 < IN_REGISTERS ? kept[k + 1 < IN_REGISTERS ? k + 1 : 0]
                                                 : weights[((k + 1 - IN_REGISTERS) * WARPS + warp) * 32 + lane];
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
                const uint4 x = *(const uint4*)(staged + (g + 8 * e) * ROW_BYTES + 32 * k + 16 * q);
                mma(acc[e][k % CHAINS], a.x, a.y, a.z, a.w, x.x, x.y);
                mma(acc[e][(k + 1) % CHAINS], b.x, b.y, b.z, b.w, x.z, x.w);
            }
        }
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            float s[4];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                s[k] = acc[e][0][k];
#pragma unroll
                for (int chain = 1; chain < CHAINS; chain++) s[k] += acc[e][chain][k];
            }
            const float other0 = __shfl_xor_sync(0xffffffffu, even ? s[1] : s[0], 4);
            const float other1 = __shfl_xor_sync(0xffffffffu, even ? s[3] : s[2], 4);
            const float zi = (even ? s[0] : other0) + low_half(ij[e]) + bias_ij.x;
            const float zj = (even ? other0 : s[1]) + high_half(ij[e]) + bias_ij.y;
            const float zf = (even ? s[2] : other1) + low_half(fo[e]) + bias_fo.x;
            const float zo = (even ? other1 : s[3]) + high_half(fo[e]) + bias_fo.y;
            if (row + 8 * e < n) {
                float next = sigmoid(zf) * cells[e] + sigmoid(zi) * squash(zj);
                if (cell_clip > 0) next = fminf(fmaxf(next, -cell_clip), cell_clip);
                cells[e] = next;
                h[((size_t)d * ROWS + 8 * e + row) * D + cell] = to_bf16(sigmoid(zo) * squash(next));
            }
        }
        target += BLOCKS;
        arrive(counter + 32);
        wait(counter + 32, target);

        float out[SIXTEENS][2][4] = {};
        const u16* h_here = h + ((size_t)d * ROWS + g) * D + warp * (D / WARPS) + 8 * q;
#pragma unroll
        for (int first = 0; first < D / 512; first += AT_ONCE) {
            uint4 fresh[AT_ONCE][EIGHTS];
#pragma unroll
            for (int k = 0; k < AT_ONCE && first + k < D / 512; k++)
#pragma unroll
                for (int e = 0; e < EIGHTS; e++)
                    fresh[k][e] = g + 8 * e < n ? load_fresh(h_here + (size_t)8 * e * D + 32 * (first + k))
                                                : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (int k = 0; k < AT_ONCE && first + k < D / 512; k++) {
                const uint2 w = outward[2 * (first + k)], v = outward[2 * (first + k) + 1];
#pragma unroll
                for (int s = 0; s < SIXTEENS; s++) {
                    const uint4 a = fresh[k][2 * s], b = EIGHTS > 1 ? fresh[k][EIGHTS > 1 ? 2 * s + 1 : 0] : make_uint4(0, 0, 0, 0);
                    mma(out[s][0], a.x, b.x, a.y, b.y, w.x, w.y);
                    mma(out[s][1], a.z, b.z, a.w, b.w, v.x, v.y);
                }
            }
        }
#pragma unroll
        for (int e = 0; e < EIGHTS; e++) {
            const float(&o)[2][4] = out[e / 2];
            const int k = 2 * (e % 2);
            *(float2*)(sums + (warp * ROWS + 8 * e + g) * OUTPUTS + 2 * q) = make_float2(o[0][k] + o[1][k], o[0][k + 1] + o[1][k + 1]);
        }
        __syncthreads();
        if (threadIdx.x < ROWS * OUTPUTS) {
            const int r = threadIdx.x / OUTPUTS, place = block * OUTPUTS + threadIdx.x % OUTPUTS;
            if (r < n) {
                float sum = 0;
#pragma unroll
                for (int k = 0; k < WARPS; k++) sum += sums[k * ROWS * OUTPUTS + threadIdx.x];
                if (proj_clip > 0) sum = fminf(fmaxf(sum, -proj_clip), proj_clip);
                m[((size_t)d * capacity + r) * P + place] = to_bf16(sum);
                const size_t token = (size_t)d * tokens + start + r;
                if (below) sum += below[token * P + place];
                y[token * P + place] = sum;
                if (above) above[token * 2 * P + place] = to_bf16(sum);
            }
        }
        arrive(counter);
    }
#pragma unroll
    for (int k = 0; k < EIGHTS; k++) c_here[(size_t)k * 8 * D] = cells[k];
}
