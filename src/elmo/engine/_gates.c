/* One pass over the gates of an LSTM step: what PyTorch does in eight. Built with the package where there is a
 * compiler; engine/gates.py has the same function in PyTorch, and a test compares them.
 *
 * Plain loops, so that the compiler makes vectors of them for each kind of CPU. Gates are in the order i, j, f, o;
 * j comes doubled (tanh(j) = 2 sigmoid(2 j) - 1) and f with its bias.
 */
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && defined(__linux__)
#define EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EACH_CPU
#endif

static inline float from_bf16(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static inline uint16_t to_bf16(float value) { /* to nearest, ties to even; never NaN here */
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float from_f32(float value) { return value; }
static inline float to_f32(float value) { return value; }

/* e^x = 2^k e^r with |r| <= ln(2) / 2: a polynomial for e^r, the exponent's bits for 2^k. */
static inline float exponential(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 87.0f ? 87.0f : x;
    const float rounder = 12582912.0f; /* 1.5 * 2^23: adding it leaves the nearest whole number in the low bits */
    float shifted = x * 1.44269504f + rounder;
    int32_t bits;
    memcpy(&bits, &shifted, 4);
    float k = shifted - rounder;
    float r = x - k * 0.693359375f;
    r = r + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    uint32_t scale_bits = (uint32_t)(bits + 127) << 23;
    float scale;
    memcpy(&scale, &scale_bits, 4);
    return p * scale;
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + exponential(-x)); }

/* z and x: (rows, 4 * cells), added; c: (rows, cells), changed in place; h: (rows, cells), written. */
#define GATES(NAME, TYPE, FROM, TO)                                                                               \
    EACH_CPU void NAME(const TYPE *restrict z, const TYPE *restrict x, float *restrict c, TYPE *restrict h,        \
                       int64_t rows, int64_t cells, float clip) {                                                  \
        for (int64_t row = 0; row < rows; row++) {                                                                 \
            const TYPE *zr = z + 4 * row * cells, *xr = x + 4 * row * cells;                                       \
            float *cr = c + row * cells;                                                                           \
            TYPE *hr = h + row * cells;                                                                            \
            for (int64_t d = 0; d < cells; d++) {                                                                  \
                float i = sigmoid(FROM(zr[d]) + FROM(xr[d]));                                                      \
                float j = sigmoid(FROM(zr[d + cells]) + FROM(xr[d + cells]));                                      \
                float f = sigmoid(FROM(zr[d + 2 * cells]) + FROM(xr[d + 2 * cells]));                              \
                float o = sigmoid(FROM(zr[d + 3 * cells]) + FROM(xr[d + 3 * cells]));                              \
                float cell = f * cr[d] + i * (2.0f * j - 1.0f);                                                    \
                cell = cell > clip ? clip : cell;                                                                  \
                cell = cell < -clip ? -clip : cell;                                                                \
                cr[d] = cell;                                                                                      \
                hr[d] = TO(o * (2.0f * sigmoid(2.0f * cell) - 1.0f));                                              \
            }                                                                                                      \
        }                                                                                                          \
    }

GATES(elmo_gates_f32, float, from_f32, to_f32)
GATES(elmo_gates_bf16, uint16_t, from_bf16, to_bf16)
