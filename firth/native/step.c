/* Steps of a decoder on a CPU: for each of some texts, from its last token to the scores of what
   comes next, and the likeliest token of these.

   All threads go through the whole step together. What is cheap each computes for itself: the
   stream x and its norms. Products of matrices are shared out by rows, attention by heads, and
   where one needs what the others made, they wait. Names and order are those of layers.py.

   B  texts     W  width     H  heads     K  key-value heads     D  width of a head     T  places */

#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

enum { NO_NORM, LAYER, RMS, RMS_PLUS_ONE };   /* kinds of norm */
enum { GELU, GELU_TANH, RELU, SILU };         /* activations */
enum { AHEAD = 2048, CHUNK = 1 << 16 }; /* bytes of a matrix: asked for early, computed at a time */
enum { COLUMNS = 128, EARLY = 8 };      /* of one that stands upright; rows asked for early */

typedef struct {
    const float *weight;    /* (outputs, inputs), or NULL: */
    const int8_t *numbers;  /* the same in eight bits, with a */
    const float *scale;     /* number for each row */
    const float *bias;      /* or NULL */
    int64_t outputs, inputs, upright; /* upright: the weight is (inputs, outputs) */
} Matrix;

typedef struct {
    int64_t kind;
    double eps;
    const float *weight, *bias; /* either may be NULL */
} Norm;

typedef struct {
    Norm before, after, outer; /* before the part, behind it, and behind the sum */
} Residual;

typedef struct {
    Residual around_attention, around_forward;
    Norm query, key;
    Matrix qkv, output, up, down;
    int64_t local; /* it sees only the window, and has angles of its own */
} Layer;

typedef struct {
    int64_t layers, width, heads, kv_heads, head_width, inner, gated, activation, window;
    int64_t head_activation;
    double scale, embedding_scale, head_scale;
    Matrix table, transform, head; /* vectors of tokens; before the head (W, W) or none; scores */
    const float *positions;       /* (T, W) from the first place on, or NULL */
    const float *frequencies[2];  /* (D / 2) of rotary angles, of local layers too, or NULL */
    Norm embedding, final, head_norm;
    const Layer *layer;
} Network;

typedef struct {
    int64_t *tokens, *lengths;              /* (B,) and how many places of each are taken */
    int64_t rows, places;                   /* B, T */
    float *kept;                            /* (layers, B, T, 2, K, D) */
    float *scores;                          /* (B, V) */
    float *qkv, *seen, *up, *inner, *out;   /* room for what threads make together */
    float *own;                             /* and for what each makes for itself: */
    int64_t own_size;
} Step;

/* --- arithmetic ------------------------------------------------------------------------------- */

/* e^x: the nearest power of two, and a polynomial (Cephes' coefficients) for what is left. */
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

static inline float active(float x, int64_t kind) {
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
    float by = 1.0f / sqrtf(square / size + (float)norm->eps);
    float more = norm->kind == RMS_PLUS_ONE ? 1.0f : 0.0f;
    for (int64_t i = 0; i < size; i++) {
        float z = (x[i] - mean) * by;
        if (norm->weight) z *= norm->weight[i] + more;
        y[i] = norm->bias ? z + norm->bias[i] : z;
    }
}

typedef float Sixteen __attribute__((vector_size(64)));

static inline Sixteen load(const float *from) {
    Sixteen found;
    memcpy(&found, from, sizeof found);
    return found;
}

static inline Sixteen load8(const int8_t *from) {
#if defined(__AVX512F__)
    return (Sixteen)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)from)));
#else
    float wide[16];
    for (int i = 0; i < 16; i++) wide[i] = from[i];
    return load(wide);
#endif
}

/* A row of a matrix with one vector, and with four. Memory is asked early for what comes next: it is
   slower than this. */
#define DOT(name, type, load_row)                                                                  \
    static inline float name(const type *w, const float *x, int64_t size) {                        \
        Sixteen a = {0}, b = {0}, c = {0}, d = {0};                                                \
        int64_t i = 0;                                                                             \
        for (; i + 64 <= size; i += 64) {                                                          \
            for (uintptr_t line = 0; line < 64 * sizeof *w; line += 64)                            \
                __builtin_prefetch((const char *)(w + i) + AHEAD + line);                          \
            a += load_row(w + i) * load(x + i);                                                    \
            b += load_row(w + i + 16) * load(x + i + 16);                                          \
            c += load_row(w + i + 32) * load(x + i + 32);                                          \
            d += load_row(w + i + 48) * load(x + i + 48);                                          \
        }                                                                                          \
        for (; i + 16 <= size; i += 16) a += load_row(w + i) * load(x + i);                        \
        float sum = added((a + b) + (c + d));                                                      \
        for (; i < size; i++) sum += (float)w[i] * x[i];                                           \
        return sum;                                                                                \
    }                                                                                              \
    static inline void name##_four(const type *w, const float *x, int64_t size, float *sums) {     \
        const float *x1 = x + size, *x2 = x1 + size, *x3 = x2 + size;                              \
        Sixteen a = {0}, b = {0}, c = {0}, d = {0};                                                \
        int64_t i = 0;                                                                             \
        for (; i + 16 <= size; i += 16) {                                                          \
            __builtin_prefetch((const char *)(w + i) + AHEAD);                                     \
            Sixteen row = load_row(w + i);                                                         \
            a += row * load(x + i), b += row * load(x1 + i);                                       \
            c += row * load(x2 + i), d += row * load(x3 + i);                                      \
        }                                                                                          \
        sums[0] = added(a), sums[1] = added(b), sums[2] = added(c), sums[3] = added(d);            \
        for (; i < size; i++) {                                                                    \
            sums[0] += (float)w[i] * x[i], sums[1] += (float)w[i] * x1[i];                         \
            sums[2] += (float)w[i] * x2[i], sums[3] += (float)w[i] * x3[i];                        \
        }                                                                                          \
    }

static inline float added(Sixteen x) {
    float sum = 0.0f;
    for (int i = 0; i < 16; i++) sum += x[i];
    return sum;
}

DOT(dot, float, load)
DOT(dot8, int8_t, load8)

/* One output of a product, for all texts: x (B, inputs) -> y (B, outputs). */
static void multiply_row(const Matrix *m, const float *x, int64_t texts, float *y, int64_t o) {
    float scale = m->weight ? 1.0f : m->scale[o], bias = m->bias ? m->bias[o] : 0.0f, sums[4];
    int64_t size = m->inputs;
    for (int64_t b = 0, count; b < texts; b += count) {
        const float *from = x + b * size;
        count = texts - b < 4 ? 1 : 4;
        if (count == 1)
            sums[0] = m->weight ? dot(m->weight + o * size, from, size)
                                : dot8(m->numbers + o * size, from, size);
        else if (m->weight) dot_four(m->weight + o * size, from, size, sums);
        else dot8_four(m->numbers + o * size, from, size, sums);
        for (int64_t i = 0; i < count; i++) y[(b + i) * m->outputs + o] = sums[i] * scale + bias;
    }
}

/* The same for some outputs side by side, of a matrix that stands upright: (inputs, outputs). */
static void multiply_columns(const Matrix *m, const float *x, int64_t texts, float *y, int64_t o) {
    int64_t count = m->outputs - o < COLUMNS ? m->outputs - o : COLUMNS, stride = m->outputs;
    for (int64_t b = 0; b < texts; b++) {
        const float *row = m->weight + o, *from = x + b * m->inputs;
        float *to = y + b * stride + o;
        Sixteen sums[COLUMNS / 16] = {{0}};
        float few[COLUMNS] = {0};
        for (int64_t i = 0; i < m->inputs; i++, row += stride) {
            if (count == COLUMNS)
                for (int j = 0; j < COLUMNS / 16; j++) {
                    __builtin_prefetch(row + EARLY * stride + 16 * j);
                    sums[j] += load(row + 16 * j) * from[i];
                }
            else
                for (int64_t j = 0; j < count; j++) few[j] += row[j] * from[i];
        }
        if (count == COLUMNS) memcpy(few, sums, sizeof few);
        for (int64_t j = 0; j < count; j++) to[j] = few[j] + (m->bias ? m->bias[o + j] : 0.0f);
    }
}

/* Rows of a matrix that a thread takes at a time. */
static int rows_at_a_time(const Matrix *m) {
    int64_t bytes = m->inputs * (m->weight ? sizeof(float) : sizeof(int8_t));
    return bytes < CHUNK / 4 ? CHUNK / bytes : 4;
}

/* --- one thread's way through a step; where work is shared out, all wait for its end ---------- */

static void multiply(const Matrix *m, const float *x, int64_t texts, float *y) {
    if (m->upright) {
#pragma omp for schedule(dynamic)
        for (int64_t o = 0; o < m->outputs; o += COLUMNS) multiply_columns(m, x, texts, y, o);
    } else {
#pragma omp for schedule(dynamic, rows_at_a_time(m))
        for (int64_t o = 0; o < m->outputs; o++) multiply_row(m, x, texts, y, o);
    }
}

/* The vectors of the tokens. */
static void embed(const Network *net, const Step *step, float *x) {
    for (int64_t b = 0; b < step->rows; b++) {
        int64_t token = step->tokens[b], place = step->lengths[b], size = net->width;
        const Matrix *table = &net->table;
        float *to = x + b * size, scale = (float)net->embedding_scale;
        for (int64_t i = 0; i < size; i++) {
            int64_t at = token * size + i;
            to[i] = table->weight ? table->weight[at] : table->numbers[at] * table->scale[token];
            to[i] *= scale;
            if (net->positions) to[i] += net->positions[place * size + i];
        }
        normalise(&net->embedding, to, to, size);
    }
}

/* Turn the pairs (x_i, x_{i + D/2}) by the angles of a place. */
static void turn(float *x, const float *cosines, const float *sines, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = a * cosines[i] - b * sines[i];
        x[i + half] = b * cosines[i] + a * sines[i];
    }
}

/* What the heads that share one key-value head see, for one text. */
static void look(const Network *net, const Layer *layer, const Step *step, float *slot, float *qkv,
                 float *seen, int64_t b, int64_t group, const float *angles, float *weights) {
    int64_t size = net->head_width, heads = net->heads / net->kv_heads, half = size / 2;
    int64_t place = step->lengths[b], apart = 2 * net->kv_heads * size;
    float *k = qkv + (net->heads + group) * size, *v = k + net->kv_heads * size;
    float *keys = slot + b * step->places * apart + group * size;
    float *values = keys + net->kv_heads * size;
    normalise(&layer->key, k, k, size);
    if (angles) turn(k, angles, angles + half, half);
    memcpy(keys + place * apart, k, size * sizeof *k);
    memcpy(values + place * apart, v, size * sizeof *v);
    int64_t begin = layer->local && place > net->window ? place - net->window : 0;
    for (int64_t h = group * heads; h < (group + 1) * heads; h++) {
        float *q = qkv + h * size, *out = seen + h * size, peak = -INFINITY, total = 0.0f;
        normalise(&layer->query, q, q, size);
        if (angles) turn(q, angles, angles + half, half);
        for (int64_t t = begin; t <= place; t++) {
            weights[t] = dot(keys + t * apart, q, size) * (float)net->scale;
            peak = weights[t] > peak ? weights[t] : peak;
        }
#pragma omp simd reduction(+ : total)
        for (int64_t t = begin; t <= place; t++) {
            weights[t] = fast_exp(weights[t] - peak);
            total += weights[t];
        }
        memset(out, 0, size * sizeof *out);
        for (int64_t t = begin; t <= place; t++) {
            float weight = weights[t] / total;
            const float *value = values + t * apart;
            for (int64_t i = 0; i < size; i++) out[i] += weight * value[i];
        }
    }
}

static void attend(const Network *net, const Layer *layer, const Step *step, float *slot,
                   const float *angles, float *weights) {
    int64_t wide = (net->heads + 2 * net->kv_heads) * net->head_width;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < step->rows * net->kv_heads; i++) {
        int64_t b = i / net->kv_heads, group = i % net->kv_heads;
        look(net, layer, step, slot, step->qkv + b * wide,
             step->seen + b * net->heads * net->head_width, b, group,
             angles ? angles + b * net->head_width : NULL, weights);
    }
}

/* Through the activation: up (B, inner), or twice as many, -> inner. */
static void activate(const Network *net, const Step *step) {
    int64_t size = net->inner, wide = net->gated ? 2 * size : size;
#pragma omp for schedule(static)
    for (int64_t i = 0; i < step->rows * size; i++) {
        const float *up = step->up + i / size * wide + i % size;
        float x = active(*up, net->activation);
        step->inner[i] = net->gated ? x * up[size] : x;
    }
}

/* x + f(x), given f(x). */
static void add(const Residual *around, const float *made, float *x, float *h, int64_t rows,
                int64_t size) {
    for (int64_t b = 0; b < rows * size; b += size) {
        normalise(&around->after, made + b, h + b, size);
        for (int64_t i = b; i < b + size; i++) x[i] += h[i];
        normalise(&around->outer, x + b, x + b, size);
    }
}

static void normalise_all(const Norm *norm, const float *x, float *y, int64_t rows, int64_t size) {
    for (int64_t b = 0; b < rows * size; b += size) normalise(norm, x + b, y + b, size);
}

static void find_angles(const Network *net, const Step *step, int kind, float *to) {
    int64_t half = net->head_width / 2;
    for (int64_t b = 0; b < step->rows; b++)
        for (int64_t i = 0; i < half; i++) {
            float angle = step->lengths[b] * net->frequencies[kind][i];
            to[b * 2 * half + i] = cosf(angle), to[b * 2 * half + half + i] = sinf(angle);
        }
}

static void go(const Network *net, const Step *step) {
    int64_t rows = step->rows, size = net->width, turns = rows * net->head_width;
    int64_t slot = rows * step->places * 2 * net->kv_heads * net->head_width;
    float *x = step->own + omp_get_thread_num() * step->own_size, *h = x + rows * size;
    float *angles = h + rows * size, *weights = angles + 2 * turns;
    embed(net, step, x);
    for (int kind = 0; kind < 2; kind++)
        if (net->frequencies[kind]) find_angles(net, step, kind, angles + kind * turns);
    for (int64_t i = 0; i < net->layers; i++) {
        const Layer *layer = net->layer + i;
        const float *turned = net->frequencies[0] ? angles + layer->local * turns : NULL;
        normalise_all(&layer->around_attention.before, x, h, rows, size);
        multiply(&layer->qkv, h, rows, step->qkv);
        attend(net, layer, step, step->kept + i * slot, turned, weights);
        multiply(&layer->output, step->seen, rows, step->out);
        add(&layer->around_attention, step->out, x, h, rows, size);
        normalise_all(&layer->around_forward.before, x, h, rows, size);
        multiply(&layer->up, h, rows, step->up);
        activate(net, step);
        multiply(&layer->down, step->inner, rows, step->out);
        add(&layer->around_forward, step->out, x, h, rows, size);
    }
    normalise_all(&net->final, x, h, rows, size);
    if (net->transform.outputs) {
#pragma omp barrier /* others may still read what the last layer made */
        multiply(&net->transform, h, rows, step->out);
        for (int64_t i = 0; i < rows * size; i++) h[i] = active(step->out[i], net->head_activation);
        normalise_all(&net->head_norm, h, h, rows, size);
    }
    for (int64_t i = 0; i < rows * size; i++) h[i] *= (float)net->head_scale;
    multiply(&net->head, h, rows, step->scores);
}

/* What was chosen, where choosing.py keeps it; `choose` does what `_choose` does there. */
typedef struct {
    int64_t *tokens;                /* (B, most) */
    double *sums;                   /* (B,) the logarithms of their shares, added up, */
    int64_t *sizes, *ended, *place; /* how many count, why no more do, and how many there are */
    const int64_t *room;            /* (B,) */
    int64_t most, words, end;       /* the token that ends a text, or -1 */
} Choice;

enum { OPEN, END, STOP, LENGTH }; /* why a text ended; the first has not */

static void choose(const Step *step, const Choice *choice, int64_t b) {
    const float *scores = step->scores + b * choice->words;
    float peak = -INFINITY, total = 0.0f;
#pragma omp simd reduction(max : peak)
    for (int64_t i = 0; i < choice->words; i++) peak = scores[i] > peak ? scores[i] : peak;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < choice->words; i++) total += fast_exp(scores[i] - peak);
    int64_t token = 0, place = *choice->place;
    while (token < choice->words - 1 && scores[token] != peak) token++;
    step->tokens[b] = choice->tokens[b * choice->most + place] = token;
    if (choice->ended[b] != OPEN) return;
    choice->sums[b] -= logf(total);
    choice->sizes[b]++;
    if (token == choice->end) choice->ended[b] = END;
    else if (place + 1 >= choice->room[b]) choice->ended[b] = LENGTH;
}

/* Whether no more than half of the texts go on. */
static int is_thin(const Step *step, const Choice *choice) {
    int64_t open = 0;
    for (int64_t b = 0; b < step->rows; b++) open += choice->ended[b] == OPEN;
    return 2 * open <= step->rows;
}

/* So that a test notices where decoder.py describes something else. */
const int64_t firth_sizes[] = {sizeof(Network), sizeof(Layer), sizeof(Step), sizeof(Choice)};

/* What Python calls: as many threads as torch uses, and the same ones. */
void firth_step(const Network *network, const Step *step, int threads) {
#pragma omp parallel num_threads(threads)
    go(network, step);
}

/* Choose up to so many tokens of each text, and see all but the last of them; how many there were.
   It ends early with the last that there is room for, and where half of the texts have ended. */
int64_t firth_write(const Network *network, const Step *step, const Choice *choice, int64_t most,
                    int threads) {
    int64_t done = 0;
#pragma omp parallel num_threads(threads)
    for (int64_t i = 1;; i++) {
#pragma omp for schedule(static)
        for (int64_t b = 0; b < step->rows; b++) choose(step, choice, b);
#pragma omp single
        {
            done = i, ++*choice->place;
            for (int64_t b = 0; b < step->rows; b++) step->lengths[b] -= choice->ended[b] != OPEN;
        }
        if (i == most || *choice->place == choice->most || is_thin(step, choice)) break;
        go(network, step);
#pragma omp single
        for (int64_t b = 0; b < step->rows; b++) step->lengths[b]++;
    }
    for (int64_t b = 0; b < step->rows; b++) step->lengths[b] += choice->ended[b] != OPEN;
    return done;
}
