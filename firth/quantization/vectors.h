/* Sixteen floats at a time, in the vector registers of AVX-512, AVX2, AVX, SSE or NEON. */

#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

#if defined(__AVX512F__)
enum { LANES = 16 }; /* floats of a vector register */
#elif defined(__AVX__)
enum { LANES = 8 };
#else
enum { LANES = 4 }; /* NEON, SSE */
#endif
enum { PARTS = 16 / LANES }; /* registers for sixteen floats */
enum { LINE = 64 };          /* bytes of a cache line */
enum { EARLY = 8 };          /* how many rows or positions before its use memory is prefetched */

/* Sixteen floats in as many registers as needed: compilers keep a single 64-byte vector in memory
   where registers are smaller. */
typedef float Vector __attribute__((vector_size(LANES * sizeof(float))));
typedef struct {
    Vector part[PARTS];
} Sixteen;

static inline Vector load_part(const float *from) {
    Vector x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline Sixteen load(const float *from) {
    Sixteen x;
    for (int i = 0; i < PARTS; i++) x.part[i] = load_part(from + LANES * i);
    return x;
}

/* Sixteen int8 weights as floats. */
static inline Sixteen load8(const int8_t *from) {
    Sixteen x;
#if defined(__AVX512F__)
    __m128i bytes = _mm_loadu_si128((const void *)from);
    x.part[0] = (Vector)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
#elif defined(__AVX2__)
    for (int i = 0; i < PARTS; i++) {
        __m128i bytes = _mm_loadl_epi64((const void *)(from + LANES * i));
        x.part[i] = (Vector)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes));
    }
#elif defined(__ARM_NEON)
    int8x16_t bytes = vld1q_s8(from);
    int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    x.part[0] = (Vector)vcvtq_f32_s32(vmovl_s16(vget_low_s16(low)));
    x.part[1] = (Vector)vcvtq_f32_s32(vmovl_s16(vget_high_s16(low)));
    x.part[2] = (Vector)vcvtq_f32_s32(vmovl_s16(vget_low_s16(high)));
    x.part[3] = (Vector)vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)));
#else
    float wide[16];
    for (int i = 0; i < 16; i++) wide[i] = from[i];
    x = load(wide);
#endif
    return x;
}

/* sum += x * y */
static inline void multiply_add(Sixteen *sum, Sixteen x, Sixteen y) {
    for (int i = 0; i < PARTS; i++) sum->part[i] += x.part[i] * y.part[i];
}

typedef float Four __attribute__((vector_size(4 * sizeof(float))));

/* The sums of lanes i, i + 4, i + 8 and i + 12. */
static inline Four fold(Sixteen x) {
    Four quarter[4];
    memcpy(quarter, &x, sizeof quarter);
    return (quarter[0] + quarter[1]) + (quarter[2] + quarter[3]);
}

static inline float sum_of(Sixteen x) {
    Four sums = fold(x);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

static inline float dot(const float *x, const float *y, int64_t size) {
    Sixteen a = {{{0}}}, b = {{{0}}};
    int64_t i = 0;
    for (; i + 32 <= size; i += 32) {
        multiply_add(&a, load(x + i), load(y + i));
        multiply_add(&b, load(x + i + 16), load(y + i + 16));
    }
    for (; i + 16 <= size; i += 16) multiply_add(&a, load(x + i), load(y + i));
    float sum = sum_of(a) + sum_of(b);
    for (; i < size; i++) sum += x[i] * y[i];
    return sum;
}

static inline void prefetch(const float *from, int64_t size) {
    for (int64_t i = 0; i < size; i += LINE / (int64_t)sizeof *from) __builtin_prefetch(from + i);
}
