/* One epoch of GloVe with AdaGrad (Pennington et al. 2014, section 4.2; Duchi et al. 2011).

   The matrix of co-occurrences is divided into BLOCKS x BLOCKS blocks by the ids of words. Blocks
   without a common row or column are trained at the same time, one after another in each of BLOCKS
   rounds (Gemulla et al. 2011). Within a block the order of pairs is fixed, so no result depends on
   the number of threads.

   P  pairs     V  words     S  floats of a row: the vector size, rounded up to sixteen */

#include <math.h>
#include <omp.h>
#include <stdint.h>

enum { BLOCKS = 16 };

typedef struct {
    float *vectors[2], *squares[2];           /* (V, S) words and contexts; sums of squares */
    float *biases[2], *bias_squares[2];       /* (V,) */
    const int32_t *first, *second;            /* (P,) by blocks */
    const float *targets, *weights;           /* (P,) log counts; f(count) */
    const int64_t *starts;                    /* (BLOCKS * BLOCKS + 1,) of each block */
    int64_t row_size, threads;
    double learning_rate;
    double *losses;                           /* (BLOCKS, 2) sum and terms */
} Job;

static void adagrad(float *value, float *squares, float gradient, float rate) {
    *value -= rate * gradient / sqrtf(*squares);
    *squares += gradient * gradient;
}

static float dot(const float *restrict a, const float *restrict b, int64_t size) {
    a = __builtin_assume_aligned(a, 64), b = __builtin_assume_aligned(b, 64);
    float sum = 0;
    for (int64_t i = 0; i < (size & ~15); i++) sum += a[i] * b[i];
    return sum;
}

static void step(float *restrict word, float *restrict context, float *restrict word_squares,
                 float *restrict context_squares, float slope, float rate, int64_t size) {
    word = __builtin_assume_aligned(word, 64), context = __builtin_assume_aligned(context, 64);
    word_squares = __builtin_assume_aligned(word_squares, 64);
    context_squares = __builtin_assume_aligned(context_squares, 64);
    for (int64_t i = 0; i < (size & ~15); i++) {
        float word_gradient = slope * context[i], context_gradient = slope * word[i];
        word[i] -= rate * word_gradient / sqrtf(word_squares[i]);
        context[i] -= rate * context_gradient / sqrtf(context_squares[i]);
        word_squares[i] += word_gradient * word_gradient;
        context_squares[i] += context_gradient * context_gradient;
    }
}

/* A step for one entry of the matrix. */
static void train_entry(const Job *job, int64_t word, int64_t context, int64_t pair, double *loss) {
    int64_t size = job->row_size;
    float *w = job->vectors[0] + word * size, *c = job->vectors[1] + context * size;
    float rate = (float)job->learning_rate, target = job->targets[pair], weight = job->weights[pair];
    float error = dot(w, c, size) + job->biases[0][word] + job->biases[1][context] - target;
    float slope = weight * error;
    step(w, c, job->squares[0] + word * size, job->squares[1] + context * size, slope, rate, size);
    adagrad(job->biases[0] + word, job->bias_squares[0] + word, slope, rate);
    adagrad(job->biases[1] + context, job->bias_squares[1] + context, slope, rate);
    loss[0] += 0.5 * (double)weight * (double)error * (double)error;
    loss[1] += 1;
}

/* The entries of block (row, column): pairs as they are stored, and those of the mirrored block. */
static void train_block(const Job *job, int64_t row, int64_t column, double *loss) {
    const int32_t *first = job->first, *second = job->second;
    int64_t block = row * BLOCKS + column, mirrored = column * BLOCKS + row;
    for (int64_t p = job->starts[block]; p < job->starts[block + 1]; p++)
        train_entry(job, first[p], second[p], p, loss);
    for (int64_t p = job->starts[mirrored]; p < job->starts[mirrored + 1]; p++)
        if (first[p] != second[p]) train_entry(job, second[p], first[p], p, loss);
}

void firth_glove_round(Job *job, int64_t round) {
#pragma omp parallel for schedule(dynamic) num_threads((int)job->threads)
    for (int64_t row = 0; row < BLOCKS; row++)
        train_block(job, row, (row + round) % BLOCKS, job->losses + 2 * row);
}
