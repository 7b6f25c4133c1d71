/* Decoding steps on a CPU: from the last token of each sequence to the logits of the next, and
   greedy decoding.

   All threads run the whole step. Each computes the cheap parts, hidden states x and norms, for
   itself. Matrix products are distributed over threads by rows, attention by heads, with a barrier
   after each. Names and order are those of layers.py.

   B  sequences     W  hidden size     H  heads     K  key-value heads     D  head dimension
   T  positions in the cache     V  vocabulary size */

#include <math.h>
#include "matrix_products.h"

enum { NO_NORM, LAYER, RMS, RMS_PLUS_ONE };   /* kinds of norm */
enum { GELU, GELU_TANH, RELU, SILU };         /* activations */

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

/* --- the code of each thread; every `omp for` ends with a barrier ----------------------------- */

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
