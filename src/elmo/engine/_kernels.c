/* The biLM's products and its LSTM step in one place, for x86 CPUs with AVX-512: float32, bfloat16 and int8.
 *
 * Built with the package where there is a compiler; engine/plain.py is the same in PyTorch, and tests compare them. What
 * is gained over a library's products: the gates are applied to a tile while it is in registers, weights stay in a cache
 * over the time steps, and there is nothing to call between two steps. Each row is summed in the same order whatever
 * its company, so its result has the same bits in any batch and with any number of threads.
 *
 * Weights are packed by engine/compiled.py: blocks of 64 columns; in a block, groups of values along the sum that make
 * 32 bits (1 float32, 2 bfloat16, 4 int8), 64 columns of them. Of an LSTM's gates, a block is i, j, f, o of 16 cells.
 * A sum is cut into spans of these groups, each added to the spans before; in int8 each span of a row has its own scale.
 * All threads run each function together, as part 0, 1, ... of `parts`, and each has its own blocks.
 */
#include <stdint.h>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__)) && !defined(_WIN32)

#include <immintrin.h>
#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#define COLUMNS 64 /* of a block: 4 vectors */
#define CELLS 16   /* of a block of gates */
#define ROWS 6     /* of a tile: 24 sums, 4 weights and 1 value fit the 32 registers */
#define ROWS_OF_SPANS 24 /* that a span is summed for: their sums stay in the first cache */
#define BASE "avx512f,avx512bw,avx512dq,avx512vl"
#define INLINE __attribute__((always_inline)) static inline

typedef struct {
    const char *data;
    const float *scales;    /* int8: of each column */
    const int32_t *offsets; /* int8: -128 times a column's sum in each span, as values are stored with 128 added */
    const float *bias;      /* or NULL */
    int64_t groups, blocks, columns;
    int64_t span; /* groups; of an LSTM's gates it is all of them */
} Weights;

typedef struct {
    atomic_int arrived, round, abandoned;
} Barrier;

typedef struct {
    const char *values;
    const float *scales; /* int8: of each span */
} Row;

typedef struct {
    const float *x; /* (rows, columns of x) */
    int64_t rows, width;
    char *operand; /* the same as the product reads it; float32 reads x itself where its width is whole */
    float *scales; /* int8: of each row and span */
} Operand;

typedef struct {
    Weights inputs, recurrent, projection; /* the projection's data is NULL where there is none */
    float cell_clip, proj_clip;
    int64_t outputs, cells;
    Operand x;              /* distinct inputs */
    const int32_t *sources; /* rows of x, in the order in which their gates are computed ... */
    const int32_t *slots;   /* ... and where these are kept */
    const int32_t *pieces;  /* (n_pieces, 3): first source, end of the sources, first step after; computed before it */
    int64_t n_pieces, n_slots;
    const int32_t *tokens; /* slot of each token, step after step */
    const int32_t *rows;   /* still there at each step */
    char *gates;      /* (blocks, slots, 64): float32, or bfloat16 with the other precisions */
    float *c;         /* (batch, cells) */
    int64_t batch;
    Operand m, h;     /* what comes into a step, and its output before the projection */
    float *y;         /* (tokens, outputs) */
    Barrier *barrier;
} Lstm;

typedef struct {
    Weights weights;
    Operand x;
    float *y; /* (rows, columns) */
    Barrier *barrier;
} Linear;

typedef struct {
    Weights weights;    /* a window's characters to its filters */
    const char *table;  /* (ids, width): the characters' vectors as the product reads them */
    int64_t width;      /* of a character, in bytes */
    const int32_t *ids; /* (words, characters) */
    int64_t words, characters, window;
    const int32_t *lengths; /* of each word, in characters */
    float *y;               /* (words, stride): the largest of each filter, bias added */
    int64_t stride;
    float least; /* of the result: 0 where its activation is relu */
    char *scratch; /* (parts, characters * width) */
} Convolution;

static void wait_for_all(Barrier *barrier, int parts) {
    if (parts == 1)
        return;
    int round = atomic_load_explicit(&barrier->round, memory_order_acquire);
    if (atomic_fetch_add_explicit(&barrier->arrived, 1, memory_order_acq_rel) == parts - 1) {
        atomic_store_explicit(&barrier->arrived, 0, memory_order_relaxed);
        atomic_store_explicit(&barrier->round, round + 1, memory_order_release);
        return;
    }
    /* No pause instruction: under a hypervisor a loop of them gives the core away. */
    for (int tries = 0; atomic_load_explicit(&barrier->round, memory_order_acquire) == round; tries++) {
        if (atomic_load_explicit(&barrier->abandoned, memory_order_relaxed))
            return; /* the caller was interrupted before its part: nobody will look at the result */
        if (tries > 100000)
            sched_yield(); /* more threads than cores: let the others come */
    }
}

static int64_t share(int64_t count, int part, int parts) { return count * part / parts; }

/* e^(factor x): 2^t = 2^floor(t) 2^f, and a polynomial for 2^f with 0 <= f < 1, right to 1.5e-7 of the value.
 * t stays under 60: there a sigmoid is 0 in float32, and the product of two such denominators is still finite. */
__attribute__((target(BASE))) INLINE __m512 exponential(__m512 x, float factor) {
    __m512 t = _mm512_mul_ps(x, _mm512_set1_ps(1.44269504f * factor));
    t = _mm512_min_ps(t, _mm512_set1_ps(60.0f));
    __m512 f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    __m512 p = _mm512_set1_ps(1.877576695e-03f);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(8.989340626e-03f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(5.582631752e-02f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(2.401536107e-01f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(6.931530833e-01f));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(9.999999404e-01f));
    return _mm512_scalef_ps(p, t);
}

__attribute__((target(BASE))) INLINE __m512 reciprocal(__m512 x) {
    __m512 r = _mm512_rcp14_ps(x);
    return _mm512_mul_ps(r, _mm512_fnmadd_ps(x, r, _mm512_set1_ps(2.0f)));
}

/* One step of 16 cells: `c` is changed, the output returned. sigmoid(a) tanh(b) is one fraction. */
__attribute__((target(BASE))) INLINE __m512 step(const __m512 z[4], __m512 *c, __m512 clip) {
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 i = _mm512_add_ps(one, exponential(z[0], -1.0f));
    __m512 j = exponential(z[1], -2.0f);
    __m512 f = _mm512_add_ps(one, exponential(z[2], -1.0f));
    __m512 o = _mm512_add_ps(one, exponential(z[3], -1.0f));
    __m512 new = _mm512_mul_ps(_mm512_sub_ps(one, j), reciprocal(_mm512_mul_ps(i, _mm512_add_ps(one, j))));
    new = _mm512_fmadd_ps(*c, reciprocal(f), new);
    new = _mm512_max_ps(_mm512_min_ps(new, clip), _mm512_sub_ps(_mm512_setzero_ps(), clip));
    *c = new;
    __m512 e = exponential(new, -2.0f);
    return _mm512_mul_ps(_mm512_sub_ps(one, e), reciprocal(_mm512_mul_ps(o, _mm512_add_ps(one, e))));
}

__attribute__((target(BASE))) INLINE __m256i to_bf16(__m512 x) { /* to nearest, ties to even */
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16));
}

__attribute__((target(BASE))) INLINE __m512 from_bf16(__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

INLINE __mmask16 first(int64_t count) { return count >= 16 ? 0xffff : count <= 0 ? 0 : (__mmask16)((1u << count) - 1); }

#ifdef ELMO_PROFILE /* for benchmarks/cpu_engine.py: cycles of part 0 within the products */
#include <x86intrin.h>
static _Thread_local int profiled;
uint64_t elmo_product_cycles;
#define PROFILE_BEGIN uint64_t begun_ = __rdtsc();
#define PROFILE_END                                                                                                    \
    if (profiled)                                                                                                      \
        elmo_product_cycles += __rdtsc() - begun_;
#define PROFILE_PART(part) profiled = (part) == 0;
#else
#define PROFILE_BEGIN
#define PROFILE_END
#define PROFILE_PART(part)
#endif

#define FLOAT32 0
#define BFLOAT16 1
#define INT8 2

#define KIND FLOAT32
#define NAME(x) x##_fp32
#define TARGET __attribute__((target(BASE)))
#include "_kernels.inc"

#define KIND BFLOAT16
#define NAME(x) x##_bf16
#define TARGET __attribute__((target(BASE ",avx512bf16")))
#include "_kernels.inc"

#define KIND INT8
#define NAME(x) x##_int8
#define TARGET __attribute__((target(BASE ",avx512vnni")))
#include "_kernels.inc"

/* x = g relu(transform) + (1 - g) x with g = sigmoid(carry), `count` numbers. */
__attribute__((target(BASE))) void elmo_highway(float *x, const float *carry, const float *transform, int64_t count,
                                                int part, int parts) {
    const __m512 one = _mm512_set1_ps(1.0f), zero = _mm512_setzero_ps();
    int64_t end = share(count, part + 1, parts);
    for (int64_t k = share(count, part, parts); k < end; k += 16) {
        __mmask16 some = first(end - k);
        __m512 old = _mm512_maskz_loadu_ps(some, x + k);
        __m512 gate = exponential(_mm512_maskz_loadu_ps(some, carry + k), -1.0f);
        gate = reciprocal(_mm512_add_ps(one, gate));
        __m512 new = _mm512_max_ps(zero, _mm512_maskz_loadu_ps(some, transform + k));
        _mm512_mask_storeu_ps(x + k, some, _mm512_fmadd_ps(gate, _mm512_sub_ps(new, old), old));
    }
}

/* Which of the precisions this CPU has: bits 0, 1 and 2. */
int elmo_precisions(void) {
    __builtin_cpu_init();
    int base = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (!base)
        return 0;
    return 1 | (__builtin_cpu_supports("avx512bf16") ? 2 : 0) | (__builtin_cpu_supports("avx512vnni") ? 4 : 0);
}

#else /* another kind of CPU: the package does without */

int elmo_precisions(void) { return 0; }

#endif
