/* Skip-gram and CBOW with negative sampling (Mikolov et al. 2013), in mini-batches of words.

   All gradients of a batch are computed from the vectors as they were before it, window by window.
   They are then added to the matrices, each row by one thread and in the order of the text. No
   sum depends on the number of threads, so neither do the vectors.

   N  tokens of the text     R  input rows: words, then n-grams     V  words
   S  floats of a row: the vector size, rounded up to sixteen     K  outputs of a window */

#include <math.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { CHUNK = 16 };           /* windows of a unit of work: chosen for speed, not by threads */
enum { MAX_WINDOW = 64, MAX_NEGATIVE = 63 };
enum { WINDOW_DRAW = 1, NEGATIVE_DRAW = 2 }; /* purposes of random numbers, as in Python */

typedef struct {
    float *input, *output;            /* (R, S), (V, S) */
    const int32_t *tokens;            /* (N,) */
    const int32_t *documents;         /* (N,) number of each token's document */
    const int64_t *positions;         /* (N,) in the epoch, before subsampling */
    const int64_t *subword_starts;    /* (V + 1,), or NULL if a word's only input row is its own */
    const int32_t *subwords;          /* input rows of all words */
    const uint32_t *thresholds;       /* (V,) alias table of the negatives' distribution */
    const int32_t *aliases;           /* (V,) */
    int64_t count, vocab_size, row_size, window, negative, average, batch_size, threads;
    uint64_t key;                     /* of the epoch */
    double start_rate, end_rate, trained, total; /* words before this epoch, words of all epochs */
    float *vectors;                   /* (batch + 2 window, S) inputs of a batch, with subwords */
    float *input_steps;               /* (chunks, CHUNK + 2 window, S) */
    float *output_steps;              /* (batch, K, S), or (batch, S) if contexts are averaged */
    float *coefficients;              /* (batch, K) */
    int32_t *outputs;                 /* (batch, K) rows, or -1 */
    double *losses;                   /* (chunks, 2) of the first windows: sum and terms */
} Job;

static uint64_t derive_key(uint64_t key, uint64_t counter) {
    uint64_t x = key + (counter + 1) * 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static float dot(const float *restrict a, const float *restrict b, int64_t size) {
    a = __builtin_assume_aligned(a, 64), b = __builtin_assume_aligned(b, 64);
    float sum = 0;
    for (int64_t i = 0; i < (size & ~15); i++) sum += a[i] * b[i];
    return sum;
}

static void add(float *restrict to, float factor, const float *restrict from, int64_t size) {
    to = __builtin_assume_aligned(to, 64), from = __builtin_assume_aligned(from, 64);
    for (int64_t i = 0; i < (size & ~15); i++) to[i] += factor * from[i];
}

static int32_t sample_word(const Job *job, uint64_t random) {
    uint64_t word = (random >> 32) * (uint64_t)job->vocab_size >> 32;
    return (uint32_t)random < job->thresholds[word] ? (int32_t)word : job->aliases[word];
}

/* The target word and the negatives: K rows; a negative equal to the target is left out. */
static void sample_outputs(const Job *job, int64_t i, uint64_t key, int32_t *outputs) {
    outputs[0] = job->tokens[i];
    uint64_t draws = derive_key(key, NEGATIVE_DRAW);
    for (int64_t k = 1; k <= job->negative; k++) {
        int32_t word = sample_word(job, derive_key(draws, (uint64_t)k));
        outputs[k] = word == outputs[0] ? -1 : word;
        __builtin_prefetch(job->output + (int64_t)word * job->row_size);
    }
}

/* The positions of the context of token i, in the order of the text. */
static int find_contexts(const Job *job, int64_t i, uint64_t key, int64_t *contexts) {
    int64_t reach = job->window - (int64_t)(derive_key(key, WINDOW_DRAW) % (uint64_t)job->window);
    int64_t first = i - reach < 0 ? 0 : i - reach;
    int64_t last = i + reach >= job->count ? job->count - 1 : i + reach;
    int found = 0;
    for (int64_t p = first; p <= last; p++)
        if (p != i && job->documents[p] == job->documents[i]) contexts[found++] = p;
    return found;
}

static const float *input_vector(const Job *job, int64_t position, int64_t batch_start) {
    if (job->subwords) return job->vectors + (position - batch_start + job->window) * job->row_size;
    return job->input + (int64_t)job->tokens[position] * job->row_size;
}

/* The mean of the rows of a word and of its n-grams (Bojanowski et al. 2017). */
static void average_subwords(const Job *job, int64_t position, float *to) {
    int64_t size = job->row_size, word = job->tokens[position];
    int64_t first = job->subword_starts[word], last = job->subword_starts[word + 1];
    memset(to, 0, (size_t)size * sizeof(float));
    float factor = 1.0f / (float)(last - first);
    for (int64_t s = first; s < last; s++)
        add(to, factor, job->input + (int64_t)job->subwords[s] * size, size);
}

/* The factor of the gradient of -log(sigmoid(logit)) or -log(sigmoid(-logit)), times the rate. */
static float step_factor(float logit, int positive, float rate) {
    return rate * ((float)positive - 1.0f / (1.0f + expf(-logit)));
}

static void add_loss(double *loss, float logit, int positive) {
    loss[0] += log1p(exp(positive ? -(double)logit : (double)logit));
    loss[1] += 1;
}

typedef struct {
    const float *inputs[2 * MAX_WINDOW];
    float *steps[2 * MAX_WINDOW]; /* where the change of each input is added */
    int count;
    float rate;
    double *loss; /* or NULL */
} Window;

/* Skip-gram: every word of the context predicts the target; negatives are shared by the window. */
static void skip_gram(const Job *job, int64_t row, const Window *window) {
    int64_t size = job->row_size, width = job->negative + 1;
    const int32_t *outputs = job->outputs + row * width;
    for (int64_t k = 0; k < width; k++) {
        if (outputs[k] < 0) continue;
        const float *output = job->output + (int64_t)outputs[k] * size;
        float *step = job->output_steps + (row * width + k) * size;
        float factors[2 * MAX_WINDOW];
        for (int c = 0; c < window->count; c++) {
            factors[c] = dot(window->inputs[c], output, size);
            if (window->loss) add_loss(window->loss, factors[c], k == 0);
        }
        for (int c = 0; c < window->count; c++)
            factors[c] = step_factor(factors[c], k == 0, window->rate);
        memset(step, 0, (size_t)size * sizeof(float));
        for (int c = 0; c < window->count; c++) {
            add(step, factors[c], window->inputs[c], size);
            add(window->steps[c], factors[c], output, size);
        }
    }
}

/* CBOW: the mean of the context predicts the target. As in word2vec, each word of the context is
   changed by the whole gradient of the mean. */
static void cbow(const Job *job, int64_t row, const Window *window, float *change) {
    int64_t size = job->row_size, width = job->negative + 1;
    float *mean = job->output_steps + row * size;
    memset(mean, 0, (size_t)size * sizeof(float));
    memset(change, 0, (size_t)size * sizeof(float));
    for (int c = 0; c < window->count; c++)
        add(mean, 1.0f / (float)window->count, window->inputs[c], size);
    for (int64_t k = 0; k < width; k++) {
        int32_t word = job->outputs[row * width + k];
        if (word < 0) continue;
        const float *output = job->output + (int64_t)word * size;
        float logit = dot(mean, output, size);
        if (window->loss) add_loss(window->loss, logit, k == 0);
        float factor = step_factor(logit, k == 0, window->rate);
        job->coefficients[row * width + k] = factor;
        add(change, factor, output, size);
    }
    for (int c = 0; c < window->count; c++) add(window->steps[c], 1, change, size);
}

static int64_t halo(const Job *job) { return CHUNK + 2 * job->window; }

/* The changes that the windows of one chunk ask for. */
static void compute_chunk(Job *job, int64_t start, int64_t end, int64_t chunk, float rate) {
    int64_t size = job->row_size, width = job->negative + 1, first = start + chunk * CHUNK;
    int64_t last = first + CHUNK < end ? first + CHUNK : end;
    float *steps = job->input_steps + chunk * halo(job) * size;
    memset(steps, 0, (size_t)(halo(job) * size) * sizeof(float));
    float change[job->average ? size : 1] __attribute__((aligned(64)));
    for (int64_t i = first; i < last; i++) {
        uint64_t key = derive_key(job->key, (uint64_t)job->positions[i]);
        int64_t contexts[2 * MAX_WINDOW], row = i - start;
        sample_outputs(job, i, key, job->outputs + row * width);
        Window window = {.rate = rate, .loss = i == first ? job->losses + 2 * chunk : NULL};
        window.count = find_contexts(job, i, key, contexts);
        for (int c = 0; c < window.count; c++) {
            window.inputs[c] = input_vector(job, contexts[c], start);
            window.steps[c] = steps + (contexts[c] - first + job->window) * size;
        }
        if (!window.count)
            for (int64_t k = 0; k < width; k++) job->outputs[row * width + k] = -1;
        else if (job->average)
            cbow(job, row, &window, change);
        else
            skip_gram(job, row, &window);
    }
}

/* Add the changes of the input rows of one part, in the order of the text. */
static void apply_inputs(const Job *job, int64_t start, int64_t end, int part, int parts) {
    int64_t size = job->row_size;
    for (int64_t chunk = 0; start + chunk * CHUNK < end; chunk++)
        for (int64_t h = 0; h < halo(job); h++) {
            int64_t p = start + chunk * CHUNK - job->window + h;
            if (p < 0 || p >= job->count || p >= end + job->window) continue;
            const float *step = job->input_steps + (chunk * halo(job) + h) * size;
            int32_t word = job->tokens[p];
            const int32_t *rows = job->subwords ? job->subwords + job->subword_starts[word] : &word;
            int64_t n = job->subwords ? job->subword_starts[word + 1] - job->subword_starts[word] : 1;
            for (int64_t s = 0; s < n; s++)
                if ((rows[s] & (parts - 1)) == part)
                    add(job->input + rows[s] * size, 1, step, size);
        }
}

static void apply_outputs(const Job *job, int64_t start, int64_t end, int part, int parts) {
    int64_t size = job->row_size, width = job->negative + 1;
    for (int64_t entry = 0; entry < (end - start) * width; entry++) {
        int32_t word = job->outputs[entry];
        if (word < 0 || (word & (parts - 1)) != part) continue;
        float *output = job->output + (int64_t)word * size;
        if (job->average)
            add(output, job->coefficients[entry], job->output_steps + entry / width * size, size);
        else
            add(output, 1, job->output_steps + entry * size, size);
    }
}

static double learning_rate(const Job *job, int64_t start) {
    double progress = (job->trained + (double)job->positions[start]) / job->total;
    return job->start_rate + (job->end_rate - job->start_rate) * progress;
}

/* The mean vectors of CHUNK tokens; the first and last tokens are contexts of the batch. */
static void average_chunk(const Job *job, int64_t start, int64_t end, int64_t chunk) {
    int64_t first = start - job->window + chunk * CHUNK, last = end + job->window;
    for (int64_t p = first; p < first + CHUNK && p < last; p++)
        if (p >= 0 && p < job->count)
            average_subwords(job, p, job->vectors + (p - start + job->window) * job->row_size);
}

/* A batch has three phases. The units of a phase are independent, and any thread may take the next
   one: threads that the system has stopped hold up the others as little as possible. */
enum { AVERAGE, COMPUTE, APPLY, PHASES };
enum { SPINS = 2000, PARTS = 4 }; /* waits before another program may run; parts per thread */

typedef struct {
    Job *job;
    int parts;               /* of the rows, in the third phase: a power of two */
    _Atomic uint64_t ticket; /* number of the phase, and 32 bits for the next unit of work */
    _Atomic int64_t done;    /* units of the phase */
} Team;

static int64_t count_units(const Team *team, int64_t phase, int64_t size) {
    if (phase == APPLY) return team->parts;
    if (phase == AVERAGE) size = team->job->subwords ? size + 2 * team->job->window : 1;
    return (size + CHUNK - 1) / CHUNK;
}

static void run_unit(Team *team, int64_t phase, int64_t start, int64_t end, int64_t unit) {
    Job *job = team->job;
    if (phase == COMPUTE) {
        compute_chunk(job, start, end, unit, (float)learning_rate(job, start));
    } else if (phase == APPLY) {
        apply_inputs(job, start, end, (int)unit, team->parts);
        apply_outputs(job, start, end, (int)unit, team->parts);
    } else if (job->subwords) {
        average_chunk(job, start, end, unit);
    }
}

/* Take units of work until the last phase of the last batch is done. */
static void work(Team *team) {
    Job *job = team->job;
    uint64_t phases = (uint64_t)((job->count + job->batch_size - 1) / job->batch_size) * PHASES;
    for (;;) {
        uint64_t ticket = atomic_fetch_add(&team->ticket, 1), phase = ticket >> 32;
        if (phase >= phases) return;
        int64_t start = (int64_t)(phase / PHASES) * job->batch_size, end = start + job->batch_size;
        if (end > job->count) end = job->count;
        int64_t unit = (int64_t)(uint32_t)ticket, kind = (int64_t)(phase % PHASES);
        int64_t units = count_units(team, kind, end - start);
        if (unit < units) {
            run_unit(team, kind, start, end, unit);
            if (atomic_fetch_add(&team->done, 1) + 1 == units) {
                atomic_store(&team->done, 0);
                atomic_store(&team->ticket, (phase + 1) << 32);
            }
            continue;
        }
        for (int spins = 0; atomic_load(&team->ticket) >> 32 == phase; spins++)
            if (spins > SPINS) sched_yield();
    }
}

void firth_negative_sampling(Job *job) {
    Team team = {.job = job, .parts = 1};
    while (job->threads > 1 && team.parts < PARTS * job->threads) team.parts *= 2;
#pragma omp parallel num_threads((int)job->threads)
    work(&team);
}
