/* Decoding steps on a CPU: from the last token of each sequence to the logits of the next, and
   greedy decoding.

   All threads run the whole step. Each computes the cheap parts, hidden states x and norms, for
   itself. Matrix products are distributed over threads by rows, attention by heads, with a barrier
   after each. Names and order are those of layers.py.

   B  sequences     W  hidden size     H  heads     K  key-value heads     D  head dimension
   T  positions in the cache     V  vocabulary size */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

enum { NO_NORM, LAYER, RMS, RMS_PLUS_ONE };   /* kinds of norm */
enum { GELU, GELU_TANH, RELU, SILU };         /* activations */
enum { CHUNK = 1 << 18 }; /* bytes of a matrix per chunk */
enum { LINE = 64 };       /* bytes of a cache line */
/* Floats of a vector register, and rows of a matrix whose products with four sequences are summed
   in registers. */
#if defined(__AVX512F__)
enum { LANES = 16, ROWS = 4 };
#elif defined(__AVX__)
enum { LANES = 8, ROWS = 1 };
#else
enum { LANES = 4, ROWS = 1 }; /* NEON, SSE */
#endif
enum { VECTORS = 4 };        /* sequences that share loaded weights */
enum { PARTS = 16 / LANES }; /* registers for sixteen floats */
/* Of a transposed matrix: sequences that share loaded weights, the columns whose sums for these
   stay in registers, and columns of a chunk for fewer sequences. */
enum { TILE = LANES == 16 ? 4 : 2, COLUMNS = 4 * LANES, WIDE = 768 };
enum { EARLY = 8 }; /* how many rows or positions before its use memory is prefetched */

typedef struct {
    const float *weight;    /* (outputs, inputs), or NULL if int8: */
    const int8_t *numbers;  /* the same as int8, */
    const float *scale;     /* one scale per row */
    const float *bias;      /* or NULL */
    int64_t outputs, inputs, transposed; /* transposed: the weight is (inputs, outputs) */
} Matrix;

typedef struct {
    int64_t kind;
    double eps;
    const float *weight, *bias; /* either may be NULL */
} Norm;

typedef struct {
    Norm before, after, outer; /* before the sub-layer, after it, after the sum */
} Residual;

typedef struct {
    Residual attention_norms, feed_forward_norms;
    Norm query, key;
    Matrix qkv, output, up, down;
    int64_t local; /* sliding-window attention with local_rope_theta */
} Layer;

typedef struct {
    int64_t layers, hidden_size, heads, kv_heads, head_dim, inner, gated, activation, window;
    int64_t head_activation;
    double scale, embedding_scale, head_scale;
    Matrix embeddings, transform, head; /* (V, W); (W, W) or none; (V, W) */
    const float *positions;       /* (T, W) learned, or NULL */
    const float *frequencies[2];  /* (D / 2) rotary: global and local layers, or NULL */
    double rope_factors[2];       /* of their cosines and sines */
    Norm embedding_norm, final_norm, head_norm;
    const Layer *layer;
} Network;

typedef struct {
    int64_t *tokens, *lengths;              /* (B,) last token, cached tokens */
    int64_t rows, slots, capacity;          /* B, sequences the cache has room for, T */
    float *keys_values;                     /* (layers, slots, T, 2, K, D) */
    float *logits;                          /* (B, V) */
    float *qkv, *attended, *up, *inner, *out; /* buffers shared by all threads */
    float *scratch;                         /* buffers of each thread */
    int64_t scratch_size;
} Step;

/* --- arithmetic ------------------------------------------------------------------------------- */

/* e^x: the nearest power of two, and a polynomial (Cephes' coefficients) for the remainder. */
static inline float fast_exp(float x) {
    x = x < -87.0f ? -87.0f : x > 88.0f ? 88.0f : x;
    float n = rintf(x * 1.44269504088896341f);
    float r = fmaf(n, -0.693359375f, x);
    r = fmaf(n, 2.12194440e-4f, r);
    float p = fmaf(1.9875691500e-4f, r, 1.3981999507e-3f);
    p = fmaf(p, r, 8.3334519073e-3f);
    p = fmaf(p, r, 4.1665795894e-2f);
    p = fmaf(p, r, 1.6666665459e-1f);
    p = fmaf(p, r, 5.0000001201e-1f);
    float y = fmaf(p * r, r, r) + 1.0f;
    uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return y * power;
}

static inline float activation_of(float x, int64_t kind) {
    switch (kind) {
    case GELU: return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f));
    case GELU_TANH: {
        float u = 0.7978845608028654f * (x + 0.044715f * x * x * x);
        return x - x / (fast_exp(2.0f * u) + 1.0f); /* x (1 + tanh u) / 2 */
    }
    case RELU: return x > 0.0f ? x : 0.0f;
    default: return x / (1.0f + fast_exp(-x));
    }
}

static void normalise(const Norm *norm, const float *x, float *y, int64_t size) {
    if (norm->kind == NO_NORM) {
        if (x != y) memcpy(y, x, size * sizeof *x);
        return;
    }
    float mean = 0.0f, square = 0.0f;
    if (norm->kind == LAYER) {
#pragma omp simd reduction(+ : mean)
        for (int64_t i = 0; i < size; i++) mean += x[i];
        mean /= size;
    }
#pragma omp simd reduction(+ : square)
    for (int64_t i = 0; i < size; i++) square += (x[i] - mean) * (x[i] - mean);
    float inverse_std = 1.0f / sqrtf(square / size + (float)norm->eps);
    float offset = norm->kind == RMS_PLUS_ONE ? 1.0f : 0.0f;
    for (int64_t i = 0; i < size; i++) {
        float z = (x[i] - mean) * inverse_std;
        if (norm->weight) z *= norm->weight[i] + offset;
        y[i] = norm->bias ? z + norm->bias[i] : z;
    }
}

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

/* Dot products of `rows` matrix rows with `vectors` vectors: sums[r][v]. Weights that were loaded
   serve all vectors, and vectors all rows. Each dot product adds in the same order whatever the
   numbers of rows and vectors are, so a sequence's logits do not depend on the others in the batch.
   Meanwhile `fetched` rows from `ahead` are fetched from memory. All these numbers are constants:
   with loops of unknown length, memory is read more slowly. */
#define DOT(name, type, load_row)                                                                  \
    static inline __attribute__((always_inline)) void name(                                        \
        const type *w, const float *x, int64_t size, int rows, int vectors,                        \
        const type *ahead, int fetched, float sums[ROWS][VECTORS]) {                               \
        Sixteen total[ROWS][VECTORS];                                                              \
        int64_t i = 0;                                                                             \
        for (int r = 0; r < rows; r++)                                                             \
            for (int v = 0; v < vectors; v++) total[r][v] = (Sixteen){{{0}}};                      \
        for (; i + 16 <= size; i += 16) {                                                          \
            Sixteen vector[VECTORS];                                                               \
            for (int k = 0; k < 16 * fetched; k += LINE / (int)sizeof(type))                       \
                __builtin_prefetch(ahead + i * fetched + k);                                       \
            for (int v = 0; v < vectors; v++) vector[v] = load(x + v * size + i);                  \
            for (int r = 0; r < rows; r++) {                                                       \
                Sixteen row = load_row(w + r * size + i);                                          \
                for (int v = 0; v < vectors; v++) multiply_add(&total[r][v], row, vector[v]);      \
            }                                                                                      \
        }                                                                                          \
        for (int r = 0; r < rows; r++)                                                             \
            for (int v = 0; v < vectors; v++) sums[r][v] = sum_of(total[r][v]);                    \
        if (i < size)                                                                              \
            for (int r = 0; r < rows; r++)                                                         \
                for (int v = 0; v < vectors; v++)                                                  \
                    for (int64_t j = i; j < size; j++)                                             \
                        sums[r][v] += (float)w[r * size + j] * x[v * size + j];                    \
    }

DOT(dot_rows, float, load)
DOT(dot_rows8, int8_t, load8)

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

/* Outputs o to o + rows of a matrix product for some sequences: x (vectors, inputs). Of the rows
   after them, `fetched` are fetched from memory, from number `first` on. */
static inline __attribute__((always_inline)) void multiply_block(
    const Matrix *m, const float *x, float *y, int64_t o, int rows, int vectors,
    int64_t first, int fetched) {
    float sums[ROWS][VECTORS];
    int64_t size = m->inputs, at = o * size, ahead = at + (rows + first) * size;
    if (m->weight)
        dot_rows(m->weight + at, x, size, rows, vectors, m->weight + ahead, fetched, sums);
    else dot_rows8(m->numbers + at, x, size, rows, vectors, m->numbers + ahead, fetched, sums);
    for (int r = 0; r < rows; r++) {
        float scale = m->weight ? 1.0f : m->scale[o + r], bias = m->bias ? m->bias[o + r] : 0.0f;
        for (int v = 0; v < vectors; v++) y[v * m->outputs + o + r] = sums[r][v] * scale + bias;
    }
}

/* Outputs o to end of a matrix product for all sequences: x (B, inputs) -> y (B, outputs). Each
   block of sequences fetches a part of the next rows. */
static void multiply_rows(const Matrix *m, const float *x, int64_t sequences, float *y, int64_t o,
                          int64_t end) {
    int64_t size = m->inputs, outputs = m->outputs;
    for (; o + ROWS <= end; o += ROWS) {
        if (sequences == 1) multiply_block(m, x, y, o, ROWS, 1, 0, ROWS);
        else if (sequences == 2) multiply_block(m, x, y, o, ROWS, 2, 0, ROWS);
        else if (sequences == 3) multiply_block(m, x, y, o, ROWS, 3, 0, ROWS);
        else if (sequences == 4) multiply_block(m, x, y, o, ROWS, 4, 0, ROWS);
        else
            for (int64_t b = 0; b < sequences; b += VECTORS) {
                int64_t count = sequences - b, first = b / VECTORS;
                const float *from = x + b * size;
                float *to = y + b * outputs;
                if (count == 1) multiply_block(m, from, to, o, ROWS, 1, first, 1);
                else if (count == 2) multiply_block(m, from, to, o, ROWS, 2, first, 1);
                else if (count == 3) multiply_block(m, from, to, o, ROWS, 3, first, 1);
                else multiply_block(m, from, to, o, ROWS, 4, first, 1);
            }
    }
    for (; o < end; o++)
        for (int64_t b = 0; b < sequences; b++)
            multiply_block(m, x + b * size, y + b * outputs, o, 1, 1, 0, 0);
}

/* Outputs o to o + COLUMNS of a transposed matrix (inputs, outputs) for TILE sequences: sums stay
   in registers. */
static void multiply_tile(const Matrix *m, const float *x, float *y, int64_t o) {
    enum { REGISTERS = COLUMNS / LANES };
    int64_t stride = m->outputs;
    const float *row = m->weight + o;
    Vector sums[TILE][REGISTERS] = {{{0}}};
    for (int64_t i = 0; i < m->inputs; i++, row += stride)
        for (int j = 0; j < REGISTERS; j++) {
            if (j % PARTS == 0) __builtin_prefetch(row + EARLY * stride + LANES * j);
            Vector weights = load_part(row + LANES * j);
            for (int v = 0; v < TILE; v++) sums[v][j] += weights * x[v * m->inputs + i];
        }
    for (int v = 0; v < TILE; v++) memcpy(y + v * stride + o, sums[v], sizeof sums[v]);
}

/* Add the products of inputs i to i + rows with outputs o to end of a transposed matrix, for one
   sequence. */
static inline __attribute__((always_inline)) void add_products(
    const Matrix *m, const float *x, float *y, int64_t o, int64_t end, int64_t i, int rows) {
    const float *w = m->weight + i * m->outputs;
    int64_t stride = m->outputs, j = o;
    float factors[4]; /* copied, as y could be part of x for all the compiler knows */
    for (int r = 0; r < rows; r++) factors[r] = x[i + r];
    for (; j + LANES <= end; j += LANES) {
        Vector sum = load_part(y + j);
        for (int r = 0; r < rows; r++) sum += load_part(w + r * stride + j) * factors[r];
        memcpy(y + j, &sum, sizeof sum);
    }
    for (; j < end; j++)
        for (int r = 0; r < rows; r++) y[j] += w[r * stride + j] * factors[r];
}

/* Outputs o to end of a transposed matrix for all sequences. For one sequence, four rows at a time
   are read from beginning to end, which is how memory is read fastest. */
static void multiply_columns(const Matrix *m, const float *x, int64_t sequences, float *y,
                             int64_t o, int64_t end) {
    int64_t b = 0, inputs = m->inputs, outputs = m->outputs;
    for (; b + TILE <= sequences && (end - o) % COLUMNS == 0; b += TILE)
        for (int64_t j = o; j < end; j += COLUMNS)
            multiply_tile(m, x + b * inputs, y + b * outputs, j);
    for (; b < sequences; b++) {
        const float *from = x + b * inputs;
        float *to = y + b * outputs;
        int64_t i = 0;
        memset(to + o, 0, (end - o) * sizeof *to);
        for (; i + 4 <= inputs; i += 4) add_products(m, from, to, o, end, i, 4);
        for (; i < inputs; i++) add_products(m, from, to, o, end, i, 1);
    }
    for (b = 0; m->bias && b < sequences; b++)
        for (int64_t j = o; j < end; j++) y[b * outputs + j] += m->bias[j];
}

/* Outputs per chunk of a thread: about as many for each thread, in chunks that are read fast. */
static int64_t chunk_size(const Matrix *m, int64_t sequences) {
    int64_t bytes = m->inputs * (m->weight ? sizeof(float) : sizeof(int8_t));
    int64_t most = CHUNK / bytes + 1;
    if (m->transposed) most = sequences < TILE ? WIDE : COLUMNS;
    int64_t each = most * omp_get_num_threads(), step = m->transposed ? COLUMNS : 16;
    int64_t chunks = (m->outputs + each - 1) / each * omp_get_num_threads();
    return ((m->outputs + chunks - 1) / chunks + step - 1) / step * step;
}

/* --- the code of each thread; every `omp for` ends with a barrier ----------------------------- */

static void multiply(const Matrix *m, const float *x, int64_t sequences, float *y) {
    int64_t size = chunk_size(m, sequences);
#pragma omp for schedule(dynamic)
    for (int64_t o = 0; o < m->outputs; o += size) {
        int64_t end = o + size < m->outputs ? o + size : m->outputs;
        if (m->transposed) multiply_columns(m, x, sequences, y, o, end);
        else multiply_rows(m, x, sequences, y, o, end);
    }
}

/* Token embeddings with learned positions. */
static void embed(const Network *net, const Step *step, float *x) {
    for (int64_t b = 0; b < step->rows; b++) {
        int64_t token = step->tokens[b], position = step->lengths[b], size = net->hidden_size;
        const Matrix *table = &net->embeddings;
        float *to = x + b * size, scale = (float)net->embedding_scale;
        for (int64_t i = 0; i < size; i++) {
            int64_t at = token * size + i;
            to[i] = table->weight ? table->weight[at] : table->numbers[at] * table->scale[token];
            to[i] *= scale;
            if (net->positions) to[i] += net->positions[position * size + i];
        }
        normalise(&net->embedding_norm, to, to, size);
    }
}

/* Rotate the pairs (x_i, x_{i + D/2}) by the angles of a position. */
static void apply_rotary(float *x, const float *cosines, const float *sines, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = b * cosines[i] + a * sines[i];
    }
}

static inline void prefetch(const float *from, int64_t size) {
    for (int64_t i = 0; i < size; i += LINE / (int64_t)sizeof *from) __builtin_prefetch(from + i);
}

/* The weighted sum of the values at positions begin to end; sums stay in registers. */
static void add_values(const float *weights, const float *values, float *out, int64_t begin,
                       int64_t end, int64_t stride, int64_t size) {
    int64_t i = 0;
    for (; i + 64 <= size; i += 64) {
        Sixteen sums[4] = {{{{0}}}};
        for (int64_t t = begin; t < end; t++) {
            const float *value = values + t * stride + i;
            prefetch(value + EARLY * stride, 64);
            for (int j = 0; j < 4; j++) {
                Sixteen x = load(value + 16 * j);
                for (int k = 0; k < PARTS; k++) sums[j].part[k] += x.part[k] * weights[t];
            }
        }
        memcpy(out + i, sums, sizeof sums);
    }
    memset(out + i, 0, (size - i) * sizeof *out);
    for (int64_t t = begin; i < size && t < end; t++)
        for (int64_t j = i; j < size; j++) out[j] += weights[t] * values[t * stride + j];
}

/* Attention of the heads that share one key-value head, for one sequence. */
static void attend_group(const Network *net, const Layer *layer, const Step *step, float *cache,
                         float *qkv, float *attended, int64_t b, int64_t group,
                         const float *angles, float *weights) {
    int64_t size = net->head_dim, heads = net->heads / net->kv_heads, half = size / 2;
    int64_t position = step->lengths[b], stride = 2 * net->kv_heads * size;
    float *k = qkv + (net->heads + group) * size, *v = k + net->kv_heads * size;
    float *keys = cache + b * step->capacity * stride + group * size;
    float *values = keys + net->kv_heads * size;
    normalise(&layer->key, k, k, size);
    if (angles) apply_rotary(k, angles, angles + half, half);
    memcpy(keys + position * stride, k, size * sizeof *k);
    memcpy(values + position * stride, v, size * sizeof *v);
    int64_t begin = layer->local && position > net->window ? position - net->window : 0;
    for (int64_t h = group * heads; h < (group + 1) * heads; h++) {
        float *q = qkv + h * size, *out = attended + h * size, largest = -INFINITY, total = 0.0f;
        normalise(&layer->query, q, q, size);
        if (angles) apply_rotary(q, angles, angles + half, half);
        for (int64_t t = begin; t <= position; t++) {
            prefetch(keys + (t + EARLY) * stride, size);
            weights[t] = dot(keys + t * stride, q, size) * (float)net->scale;
            largest = weights[t] > largest ? weights[t] : largest;
        }
#pragma omp simd reduction(+ : total)
        for (int64_t t = begin; t <= position; t++) {
            weights[t] = fast_exp(weights[t] - largest);
            total += weights[t];
        }
        for (int64_t t = begin; t <= position; t++) weights[t] /= total;
        add_values(weights, values, out, begin, position + 1, stride, size);
    }
}

static void attend(const Network *net, const Layer *layer, const Step *step, float *cache,
                   const float *angles, float *weights) {
    int64_t wide = (net->heads + 2 * net->kv_heads) * net->head_dim;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < step->rows * net->kv_heads; i++) {
        int64_t b = i / net->kv_heads, group = i % net->kv_heads;
        attend_group(net, layer, step, cache, step->qkv + b * wide,
             step->attended + b * net->heads * net->head_dim, b, group,
             angles ? angles + b * net->head_dim : NULL, weights);
    }
}

/* Activation, gated or not: up (B, inner) or (B, 2 inner) -> (B, inner). */
static void activate(const Network *net, const Step *step) {
    int64_t size = net->inner, wide = net->gated ? 2 * size : size;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < step->rows * size; i++) {
        const float *up = step->up + i / size * wide + i % size;
        float x = activation_of(*up, net->activation);
        step->inner[i] = net->gated ? x * up[size] : x;
    }
}

/* x + f(x), given f(x), with norms. */
static void add(const Residual *norms, const float *update, float *x, float *h, int64_t rows,
                int64_t size) {
    for (int64_t b = 0; b < rows * size; b += size) {
        normalise(&norms->after, update + b, h + b, size);
        for (int64_t i = b; i < b + size; i++) x[i] += h[i];
        normalise(&norms->outer, x + b, x + b, size);
    }
}

static void normalise_all(const Norm *norm, const float *x, float *y, int64_t rows, int64_t size) {
    for (int64_t b = 0; b < rows * size; b += size) normalise(norm, x + b, y + b, size);
}

static void rotary_angles(const Network *net, const Step *step, int kind, float *to) {
    int64_t half = net->head_dim / 2;
    float factor = (float)net->rope_factors[kind];
    for (int64_t b = 0; b < step->rows; b++)
        for (int64_t i = 0; i < half; i++) {
            float angle = step->lengths[b] * net->frequencies[kind][i];
            to[b * 2 * half + i] = cosf(angle) * factor;
            to[b * 2 * half + half + i] = sinf(angle) * factor;
        }
}

static void run_step(const Network *net, const Step *step) {
    int64_t rows = step->rows, size = net->hidden_size, angle_count = rows * net->head_dim;
    int64_t cache = step->slots * step->capacity * 2 * net->kv_heads * net->head_dim;
    float *x = step->scratch + omp_get_thread_num() * step->scratch_size, *h = x + rows * size;
    float *angles = h + rows * size, *weights = angles + 2 * angle_count;
    embed(net, step, x);
    for (int kind = 0; kind < 2; kind++)
        if (net->frequencies[kind]) rotary_angles(net, step, kind, angles + kind * angle_count);
    for (int64_t i = 0; i < net->layers; i++) {
        const Layer *layer = net->layer + i;
        const float *rotation = net->frequencies[0] ? angles + layer->local * angle_count : NULL;
        normalise_all(&layer->attention_norms.before, x, h, rows, size);
        multiply(&layer->qkv, h, rows, step->qkv);
        attend(net, layer, step, step->keys_values + i * cache, rotation, weights);
        multiply(&layer->output, step->attended, rows, step->out);
        add(&layer->attention_norms, step->out, x, h, rows, size);
        normalise_all(&layer->feed_forward_norms.before, x, h, rows, size);
        multiply(&layer->up, h, rows, step->up);
        activate(net, step);
        multiply(&layer->down, step->inner, rows, step->out);
        add(&layer->feed_forward_norms, step->out, x, h, rows, size);
    }
    normalise_all(&net->final_norm, x, h, rows, size);
    if (net->transform.outputs) {
#pragma omp barrier /* other threads may still read step->out */
        multiply(&net->transform, h, rows, step->out);
        for (int64_t i = 0; i < rows * size; i++)
            h[i] = activation_of(step->out[i], net->head_activation);
        normalise_all(&net->head_norm, h, h, rows, size);
    }
    for (int64_t i = 0; i < rows * size; i++) h[i] *= (float)net->head_scale;
    multiply(&net->head, h, rows, step->logits);
}

/* The buffers of sampling.py; `select_token` does what `_select` does there. */
typedef struct {
    int64_t *tokens;                   /* (B, max_tokens) */
    double *sums;                      /* (B,) sums of log-probabilities */
    int64_t *sizes, *ended, *position; /* (B,) lengths, (B,) finish reasons, steps so far */
    const int64_t *room;               /* (B,) maximum lengths */
    const int64_t *eos_token_ids;      /* (num_eos,) */
    int64_t num_eos, max_tokens, vocab_size;
} Choice;

enum { OPEN, END, STOP, LENGTH }; /* finish reasons; OPEN: not finished */

static void select_token(const Step *step, const Choice *choice, int64_t b) {
    const float *logits = step->logits + b * choice->vocab_size;
    float largest = -INFINITY, total = 0.0f;
#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < choice->vocab_size; i++)
        largest = logits[i] > largest ? logits[i] : largest;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < choice->vocab_size; i++) total += fast_exp(logits[i] - largest);
    int64_t token = 0, position = *choice->position;
    while (token < choice->vocab_size - 1 && logits[token] != largest) token++;
    step->tokens[b] = choice->tokens[b * choice->max_tokens + position] = token;
    if (choice->ended[b] != OPEN) return;
    choice->sums[b] -= logf(total);
    choice->sizes[b]++;
    if (position + 1 >= choice->room[b]) choice->ended[b] = LENGTH;
    for (int64_t i = 0; i < choice->num_eos; i++)
        if (token == choice->eos_token_ids[i]) choice->ended[b] = END;
}

/* Whether at least half of the sequences have ended. */
static int half_ended(const Step *step, const Choice *choice) {
    int64_t open = 0;
    for (int64_t b = 0; b < step->rows; b++) open += choice->ended[b] == OPEN;
    return 2 * open <= step->rows;
}

/* A test compares these with the structures of c_decoder.py. */
const int64_t firth_sizes[] = {sizeof(Network), sizeof(Layer), sizeof(Step), sizeof(Choice)};

/* The entry points from Python; OpenMP reuses torch's threads. */
void firth_step(const Network *network, const Step *step, int threads) {
#pragma omp parallel num_threads(threads)
    run_step(network, step);
}

/* Decode greedily for up to `max_steps` tokens; return how many. All but the last are in the cache
   afterwards. Stops early at choice->max_tokens, and when half of the sequences have ended. */
int64_t firth_generate(const Network *network, const Step *step, const Choice *choice,
                       int64_t max_steps, int threads) {
    int64_t done = 0;
#pragma omp parallel num_threads(threads)
    for (int64_t i = 1;; i++) {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < step->rows; b++) select_token(step, choice, b);
#pragma omp single
        {
            done = i, ++*choice->position;
            for (int64_t b = 0; b < step->rows; b++) step->lengths[b] -= choice->ended[b] != OPEN;
        }
        if (i == max_steps || *choice->position == choice->max_tokens) break;
        if (half_ended(step, choice)) break;
        run_step(network, step);
#pragma omp single
        for (int64_t b = 0; b < step->rows; b++) step->lengths[b]++;
    }
    for (int64_t b = 0; b < step->rows; b++) step->lengths[b] += choice->ended[b] != OPEN;
    return done;
}
